"""The shape checker is on for every test, and one fault may be injected to see which test notices."""

import os

from jaxtyping import install_import_hook

# Before the package is first imported: every jaxtyping annotation of these modules is checked at each call.
install_import_hook(["tinyinfer.model.numpy_ops"], "beartype.beartype")

import pytest

import tinyinfer


@pytest.fixture(scope="session")
def tang():
    return tinyinfer.load("tang")


@pytest.fixture(scope="session")
def smollm2():
    return tinyinfer.load("smollm2-135m")


@pytest.fixture(autouse=True)
def injected_fault():
    """With TINYINFER_FAULT set, `make faults` runs a test inside that fault and expects it to fail."""
    name = os.environ.get("TINYINFER_FAULT")
    if name is None:
        yield
    else:
        from tinyinfer import faults

        with faults.FAULTS[name]():
            yield

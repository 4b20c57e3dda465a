"""The shape checker is on for every test, models come in every backend, and one fault may be injected.

What was skipped is said at the end of the run, with the reason: nothing is skipped in silence.
"""

import os
import sys
from collections import Counter

import hypothesis
from jaxtyping import install_import_hook

# Before the package is first imported: every jaxtyping annotation of these modules is checked at each call.
install_import_hook(["tinyinfer.model.numpy_ops", "tinyinfer.model.torch_ops"], "beartype.beartype")

import pytest
import torch

import tinyinfer
from tinyinfer.model.backend import backend_options

# No test times anything: a busy machine must not turn one red.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

BACKENDS = {"numpy": ("numpy", None), "torch-cpu": ("torch", "cpu"), "torch-cuda": ("torch", "cuda")}


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request):
    """Name and device of each backend in turn: what a test asks for, it shows on all of them."""
    if request.param == "torch-cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here: this ran on NumPy and on PyTorch on the CPU, not on a GPU")
    return BACKENDS[request.param]


@pytest.fixture(scope="session")
def ops(backend):
    """The backend's operations, in float32."""
    name, device = backend
    return backend_options(name, device, None)["ops"]


@pytest.fixture(scope="session")
def tang(backend):
    name, device = backend
    return tinyinfer.load("tang", backend=name, device=device)


@pytest.fixture(scope="session")
def smollm2(backend):
    name, device = backend
    return tinyinfer.load("smollm2-135m", backend=name, device=device)


@pytest.fixture
def command(monkeypatch, capsys):
    """The `tinyinfer` command in this process, which spares its start: exit code, output and error output."""
    from tinyinfer import cli

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["tinyinfer", *map(str, arguments)])
        monkeypatch.setattr(sys.stdout, "reconfigure", lambda **_: None, raising=False)
        monkeypatch.setattr(sys.stderr, "reconfigure", lambda **_: None, raising=False)
        with pytest.raises(SystemExit) as ending:
            cli.main()
        out, err = capsys.readouterr()
        return ending.value.code, out, err

    return command


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


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}", yellow=True)

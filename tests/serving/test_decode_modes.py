"""A decode step may be compiled, or captured as a graph: faster, and still the same function."""

import inspect

import numpy as np
import pytest
import torch
from random_models import make_config, make_weights

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.model import torch_ops, torch_step
from tinyinfer.serving.language_model import LanguageModel

# PyTorch's compiler still imports a part of PyTorch that PyTorch calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

# Logits of a random model lie within about +-3; bf16 keeps 8 bits of each number on the way.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.15}
MODES = {"compiled": torch_step.compiled, "captured": torch_step.captured}


@pytest.fixture(autouse=True)
def no_shape_checks(monkeypatch):
    """The compiler cannot look into the shape checker, which is on in tests alone."""
    for name, function in vars(torch_ops).items():
        if inspect.isfunction(function):
            monkeypatch.setattr(torch_ops, name, inspect.unwrap(function))


@pytest.fixture(params=MODES)
def mode(request):
    if request.param == "captured" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here: no CUDA graph was captured")
    if request.param == "compiled":
        try:
            torch_step.require_compiler()
        except BadInput as lacking:
            pytest.skip(f"nothing was compiled: {lacking}")
    return request.param


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_an_accelerated_step_gives_what_an_eager_one_gives(mode, dtype):
    config = make_config(layers=2)
    weights, ops = make_weights(config), torch_ops.on("auto", dtype)
    eager = LanguageModel(config, weights, None, ops, "torch", fused=False)
    fast = LanguageModel(config, weights, None, ops, "torch", accelerate=MODES[mode])
    generator = np.random.default_rng()  # fresh prompts at every run: the two must agree on any

    def ids(count):
        return generator.integers(config.vocab, size=count).tolist()

    for lengths in ([7, 2, 5], [1, 11, 3]):
        prompts = [ids(length) for length in lengths]
        one, two = eager.start(19, batch=3), fast.start(19, batch=3)
        gaps = [np.abs(one.prefill(prompts) - two.prefill(prompts)).max()]
        for step in range(6):
            if step == 4:  # a chunk between steps moves the device's own count too
                chunk = [ids(2), ids(1), ids(1)]
                gaps.append(np.abs(one.prefill(chunk) - two.prefill(chunk)).max())
            token_ids = ids(3)
            gaps.append(np.abs(one.decode_step(token_ids) - two.decode_step(token_ids)).max())
        assert max(gaps) <= TOLERANCE[dtype], gaps


def test_one_request_may_be_accelerated_too(mode):
    device = "cuda" if mode == "captured" else "cpu"
    model = tinyinfer.load("tang", backend="torch", device=device, decode=mode)
    assert model.generate("白日依山", 5).text == "尽，黄河入"
    session = model.start(capacity=6)
    session.prefill(model.tokenizer.encode("白日依山"))
    session.decode_step(5)
    session.decode_step(6)
    with pytest.raises(BadInput, match="7 slots"):
        session.decode_step(7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "jax"}, "backend is 'jax'; allowed: numpy, torch"),
        ({"device": "cuda"}, "backend numpy computes on the cpu only"),
        ({"dtype": "bfloat16"}, "backend numpy computes in float32 only"),
        ({"decode": "compiled"}, "backend numpy knows only eager"),
        ({"backend": "torch", "decode": "jit"}, "decode is 'jit'; allowed: eager, compiled, captured"),
        ({"backend": "torch", "dtype": "int3"}, "dtype is 'int3'; allowed: float32"),
        ({"backend": "torch", "device": "tpu"}, "device is 'tpu'"),
        ({"backend": "torch", "device": "cpu", "decode": "captured"}, "a CUDA graph needs"),
    ],
)
def test_what_a_backend_cannot_do_is_refused_before_a_file_is_read(options, message):
    with pytest.raises(BadInput, match=message):
        tinyinfer.load("no such model", **options)


def test_compiling_is_refused_where_there_is_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BadInput, match=r"lacks the C\+\+ compiler no-such-compiler.*apt install g\+\+ python3-dev"):
        tinyinfer.load("no such model", backend="torch", decode="compiled")


def test_compiling_is_refused_without_the_headers_of_python(monkeypatch, tmp_path):
    monkeypatch.setattr(torch_step.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(BadInput, match=r"lacks .*Python's own header files"):
        tinyinfer.load("no such model", backend="torch", decode="compiled")

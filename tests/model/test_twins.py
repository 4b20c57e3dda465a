"""The two sets of operations are twins: the same names, the same shapes, the same functions."""

import inspect

import numpy as np
import pytest
import torch
from random_models import make_config

from tinyinfer import BadInput
from tinyinfer.model import numpy_ops, torch_ops

# What only one of them has, and why: NumPy needs blocks; PyTorch must be told where to compute, and in what.
NUMPY_ALONE = {"attend_block"}
TORCH_ALONE = {"on", "find_device", "find_dtype"}
PLACEMENT = {"device", "dtype"}

# The gap that rounding may open after one operation, relative to the largest number (cases: bf16 keeps 8 bits).
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


def public_functions(module) -> dict:
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and inspect.unwrap(function).__module__ == module.__name__
    }


def described(annotation) -> str:
    """A jaxtyping annotation without the array's own class: `Float[*rows dim]`."""
    return str(annotation).replace("torch.Tensor", "Array").replace("numpy.ndarray", "Array").replace("Tensor", "Array")


def test_the_twins_have_the_same_names():
    ours, theirs = public_functions(numpy_ops).keys(), public_functions(torch_ops).keys()
    assert ours - theirs == NUMPY_ALONE
    assert theirs - ours == TORCH_ALONE


@pytest.mark.parametrize("name", sorted(public_functions(numpy_ops).keys() - NUMPY_ALONE))
def test_the_twins_take_and_give_the_same_shapes(name):
    ours, theirs = (
        inspect.signature(inspect.unwrap(public_functions(module)[name])) for module in (numpy_ops, torch_ops)
    )
    shared = [parameter for parameter in theirs.parameters if parameter not in PLACEMENT]
    assert shared == list(ours.parameters)
    free = {"array", "token_ids"} if name == "from_numpy" else set()  # it takes what may be on either side
    for parameter in set(shared) - free:
        shapes = [described(signature.parameters[parameter].annotation) for signature in (ours, theirs)]
        assert shapes[0].replace("ndarray", "Array") == shapes[1], (name, parameter)


def random(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def angles(ops, count):
    return ops.rope_angles(ops.from_numpy(np.arange(count)), ops.rope_frequencies(make_config()))


# Each operation as a function of a set of operations and of NumPy arrays; what it gives is compared.
OPERATIONS = {
    "embed": (lambda ops, table: ops.embed(ops.from_numpy(np.array([3, 0, 3, 12])), table), [random(13, 7)]),
    "linear": (lambda ops, x, w: ops.linear(x, w), [random(5, 29), random(37, 29)]),
    "linear with bias": (lambda ops, x, w, b: ops.linear(x, w, b), [random(5, 29), random(37, 29), random(37)]),
    "linear of one row": (lambda ops, x, w, b: ops.linear(x, w, b), [random(1, 29), random(37, 29), random(37)]),
    "rms_norm": (lambda ops, x, scale: ops.rms_norm(x, scale, 1e-5), [random(5, 29), random(29)]),
    "rms_norm of heads": (lambda ops, x, scale: ops.rms_norm(x, scale, 1e-5), [random(5, 3, 10), random(10)]),
    "rope": (lambda ops, x: ops.rope(x, *angles(ops, 5)), [random(5, 6, 10)]),
    "softmax": (lambda ops, x: ops.softmax(x), [random(3, 5, 7)]),
    "swiglu": (lambda ops, gate, up: ops.swiglu(gate, up), [random(5, 37), random(5, 37, seed=1)]),
    "stack_rows": (lambda ops, x, y: ops.stack_rows([x, y]), [random(5, 3), random(2, 3)]),
    "attention of a prompt": (
        lambda ops, q, k, v: ops.attention(q, k, v),
        [random(7, 6, 10), random(7, 2, 10), random(7, 2, 10, seed=1)],
    ),
    "attention of a chunk": (
        lambda ops, q, k, v: ops.attention(q, k, v),
        [random(5, 6, 10), random(17, 2, 10), random(17, 2, 10, seed=1)],
    ),
    "attention of one token": (
        lambda ops, q, k, v: ops.attention(q, k, v),
        [random(1, 6, 10), random(17, 3, 10), random(17, 3, 10, seed=1)],
    ),
    "attention_step": (
        lambda ops, q, k, v: ops.attention_step(q, k, v, ops.from_numpy(np.array([1, 11, 13]))),
        [random(3, 6, 10), random(3, 13, 2, 10), random(3, 13, 2, 10, seed=1)],
    ),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_gives_what_its_twin_gives(name, dtype):
    compute, arrays = OPERATIONS[name]
    ops = torch_ops.on("auto", dtype)
    expected = compute(numpy_ops, *arrays)
    actual = compute(ops, *map(ops.from_numpy, arrays))
    assert actual.dtype == torch_ops.find_dtype(dtype) and actual.device == ops.device
    gap = np.abs(ops.to_numpy(actual) - expected).max()
    assert gap <= TOLERANCE[dtype] * np.abs(expected).max(), gap
    if dtype != "float32" and name not in ("embed", "stack_rows", "softmax"):
        assert gap > TOLERANCE["float32"] / 100  # it was really done in 16 bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_widening_a_weight_changes_the_way_and_not_the_product(dtype, monkeypatch):
    ops = torch_ops.on("cpu", dtype)
    rows = torch_ops.ROWS_WORTH_WIDENING
    x, weight, bias = (ops.from_numpy(random(*shape)) for shape in ((rows, 29), (37, 29), (37,)))
    asked = []
    right = torch.nn.functional.linear
    monkeypatch.setattr(torch_ops.F, "linear", lambda *given: asked.append(given[0].dtype) or right(*given))
    monkeypatch.setattr(torch_ops, "NOT_IN_THIS_CPU", {torch_ops.find_dtype(dtype)})
    wide, few = ops.linear(x, weight, bias), ops.linear(x[:-1], weight, bias)
    monkeypatch.setattr(torch_ops, "NOT_IN_THIS_CPU", set())
    narrow = ops.linear(x, weight, bias)
    assert asked == [torch.float32, ops.dtype, ops.dtype]
    assert wide.dtype == narrow.dtype == ops.dtype
    gap = np.abs(ops.to_numpy(wide) - ops.to_numpy(narrow)).max()
    assert gap <= TOLERANCE[dtype] * np.abs(ops.to_numpy(narrow)).max()
    assert np.abs(ops.to_numpy(few - narrow[:-1])).max() <= TOLERANCE[dtype] * np.abs(ops.to_numpy(narrow)).max()


def test_a_step_never_looks_at_rows_beyond_those_seen(ops):
    q, k, v = (ops.from_numpy(random(*shape)) for shape in ((3, 6, 10), (3, 13, 2, 10), (3, 13, 2, 10)))
    seen = np.array([1, 11, 13])
    before = ops.to_numpy(ops.attention_step(q, k, v, ops.from_numpy(seen))).copy()
    for sequence, rows in enumerate(seen):
        k[sequence, rows:] = 1e4
        v[sequence, rows:] = -1e4
    np.testing.assert_array_equal(ops.to_numpy(ops.attention_step(q, k, v, ops.from_numpy(seen))), before)


def test_the_causal_masks_are_the_same():
    for new, seen in ((1, 1), (1, 5), (2, 5), (7, 7)):
        np.testing.assert_array_equal(torch_ops.causal_mask(new, seen).numpy(), numpy_ops.causal_mask(new, seen))


def test_numbers_come_and_go_unchanged(ops):
    numbers = random(5, 7)
    np.testing.assert_array_equal(ops.to_numpy(ops.from_numpy(numbers)), numbers)
    token_ids = ops.from_numpy(np.array([2, 3, 5]))
    assert [int(token_id) for token_id in token_ids] == [2, 3, 5]
    numbers.flags.writeable = False
    np.testing.assert_array_equal(ops.to_numpy(ops.from_numpy(numbers)), numbers)


def test_random_weights_have_the_spread_asked_for_and_repeat(ops):
    numbers = ops.to_numpy(ops.normal((101, 103), spread=0.5, seed=7))
    assert numbers.dtype == np.float32 and numbers.std() == pytest.approx(0.5, rel=0.05)
    np.testing.assert_array_equal(ops.to_numpy(ops.normal((101, 103), spread=0.5, seed=7)), numbers)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", "tpu"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device):
    with pytest.raises(BadInput, match=r"device is .*allowed here: cpu, auto"):
        torch_ops.on(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_is_refused_where_there_is_none():
    with pytest.raises(BadInput, match="PyTorch finds no CUDA device here"):
        torch_ops.on("cuda")
    assert torch_ops.on("auto").device.type == "cpu"


@pytest.mark.parametrize("dtype", ["int8", "double", ""])
def test_an_unknown_dtype_is_refused_with_those_allowed(dtype):
    with pytest.raises(BadInput, match="allowed: float32, bfloat16, float16"):
        torch_ops.on("cpu", dtype)

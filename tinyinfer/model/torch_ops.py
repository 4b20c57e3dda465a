"""The operations of `numpy_ops` in PyTorch: the same names and shapes, on any device, in 32 or 16 bits.

What stands on a device comes from `on(device, dtype)`; every other function computes where its inputs are.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from tinyinfer.errors import BadInput
from tinyinfer.model import numpy_ops
from tinyinfer.model.config import ModelConfig

Array = torch.Tensor
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES |= {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CPU, FLOAT = torch.device("cpu"), torch.float32

# A processor without 16-bit products emulates them, several times slower than it multiplies float32. From some rows on
# it is quicker to widen the weight first; with fewer, widening costs more than it saves.
_CPU_CAN = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
NOT_IN_THIS_CPU = {
    dtype
    for dtype, instructions in {
        torch.bfloat16: ("avx512_bf16", "amx_bf16"),
        torch.float16: ("avx512_fp16", "amx_fp16"),
    }.items()
    if _CPU_CAN.get("architecture") == "x86_64" and not any(_CPU_CAN.get(name) for name in instructions)
}
ROWS_WORTH_WIDENING = 32


def on(device: str = "cpu", dtype: str = "float32") -> SimpleNamespace:
    """This module's operations, with new arrays placed on `device` ("cpu", "cuda", "cuda:1", "auto") in `dtype`.

    Raises `BadInput` for a device that is not there, or a dtype that is unknown or that the device lacks.
    """
    place = {"device": find_device(device), "dtype": find_dtype(dtype)}
    if place["device"].type == "cuda" and place["dtype"] == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise BadInput(f"dtype {dtype} is not in the hardware of {torch.cuda.get_device_name()}; float16 is")
    operations = {name: value for name, value in globals().items() if getattr(value, "__module__", "") == __name__}
    placed = {name: partial(operations[name], **place) for name in ("from_numpy", "zeros", "normal")}
    placed |= {name: partial(operations[name], device=place["device"]) for name in ("rope_frequencies", "synchronise")}
    return SimpleNamespace(**operations | placed | place)


def find_device(name: str) -> torch.device:
    """The device called `name`; "auto" is a GPU where there is one."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    allowed = ["cpu", "auto", *(["cuda"] if there else []), *(f"cuda:{index}" for index in range(there))]
    if name not in allowed:
        missing = " (PyTorch finds no CUDA device here)" if str(name).startswith("cuda") and not there else ""
        raise BadInput(f"device is {name!r}{missing}; allowed here: {', '.join(allowed)}")
    name = ("cuda" if there else "cpu") if name == "auto" else name
    return torch.device("cuda:0" if name == "cuda" else name)


def find_dtype(name: str) -> torch.dtype:
    """The floating type called `name`, by its long or its short name."""
    if name not in DTYPES:
        raise BadInput(f"dtype is {name!r}; allowed: {', '.join(DTYPES)}")
    return DTYPES[name]


def from_numpy(array: Any, device: torch.device = CPU, dtype: torch.dtype = FLOAT) -> Array:
    """Bring loaded numbers, float32 or token ids, to where this backend computes. Integers stay integers."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        array = array.copy()  # PyTorch shares memory with NumPy and has no read-only tensors
    tensor = torch.as_tensor(array)
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def to_numpy(array: Array) -> np.ndarray:
    """Bring a result back as NumPy float32. A GPU is waited for: the one synchronisation of a step."""
    return array.detach().to("cpu", torch.float32).numpy()


def zeros(shape: tuple[int, ...], device: torch.device = CPU, dtype: torch.dtype = FLOAT) -> Array:
    """A block of zeros of the backend's floating type, for caches."""
    try:
        return torch.zeros(shape, device=device, dtype=dtype)
    except RuntimeError as refused:  # what PyTorch raises when memory runs out, on a CPU and on a GPU
        raise MemoryError(str(refused)) from None


def stack_rows(blocks: Sequence[Array]) -> Array:
    """One array of all the blocks' rows."""
    return torch.cat(list(blocks))


def normal(
    shape: tuple[int, ...], spread: float, seed: int, device: torch.device = CPU, dtype: torch.dtype = FLOAT
) -> Array:
    """Random numbers around 0, made where this backend computes: stand-in weights for measurements."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(shape, device=device, dtype=dtype).normal_(0.0, spread, generator=generator)


def synchronise(device: torch.device = CPU) -> None:
    """Wait until everything asked for is done: a GPU works on while the host has long gone ahead."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def inference_mode() -> AbstractContextManager:
    """Hold this while computing: no graph for gradients is recorded, no version of a tensor is counted."""
    return torch.inference_mode()


def embed(token_ids: Int[Array, "new"], table: Float[Array, "vocab model_dim"]) -> Float[Array, "new model_dim"]:
    """Look up one row of the table per token."""
    return F.embedding(token_ids, table)


def linear(
    x: Float[Array, "new inputs"], weight: Any, bias: Float[Array, "outputs"] | None = None
) -> Float[Array, "new outputs"]:
    """x W^T + b, with the weight stored (outputs, inputs) as checkpoints store it."""
    if len(x) >= ROWS_WORTH_WIDENING and x.device.type == "cpu" and x.dtype in NOT_IN_THIS_CPU:
        wide = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
        return wide.to(x.dtype)  # the same sums: 16-bit products are added up in float32 either way
    return F.linear(x, weight, bias)


def rms_norm(x: Float[Array, "*rows dim"], scale: Float[Array, "dim"], eps: float) -> Float[Array, "*rows dim"]:
    """Divide each row by its root mean square, then scale each channel (Zhang and Sennrich, 2019)."""
    return F.rms_norm(x, scale.shape, scale, eps)


def rope_frequencies(config: ModelConfig, device: torch.device = CPU) -> Float[Array, "half"]:
    """Radians that each of the head_dim/2 pairs turns per position (Su et al., 2021), in float64."""
    return torch.as_tensor(numpy_ops.rope_frequencies(config)).to(device)


def rope_angles(
    positions: Int[Array, "new"], frequencies: Float[Array, "half"]
) -> tuple[Float[Array, "new 1 half"], Float[Array, "new 1 half"]]:
    """Cosine and sine of every pair's angle at every position; computed once, used by every layer."""
    angles = positions[:, None, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rope(
    x: Float[Array, "new heads head_dim"], cos: Float[Array, "new 1 half"], sin: Float[Array, "new 1 half"]
) -> Float[Array, "new heads head_dim"]:
    """Rotate pairs (i, i + head_dim/2): the half-split pairing of Hugging Face checkpoints."""
    # The angles are float32: 16-bit numbers turn in 32 bits and are rounded once.
    first, second = x.chunk(2, dim=-1)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, dim=-1).to(x.dtype)


def softmax(scores: Float[Array, "*rows keys"], out: Array | None = None) -> Float[Array, "*rows keys"]:
    """Exponentials divided by their sum; the largest score is subtracted first, so that nothing overflows.

    The result goes into `out` if given; that may be `scores` itself, when nobody needs them any more.
    """
    result = torch.softmax(scores, dim=-1)
    return result if out is None else out.copy_(result)


def causal_mask(new: int, seen: int, device: torch.device = CPU) -> Array:
    """True where a query may look: the `new` queries are the *last* of `seen` tokens.

    Shape (new, seen).
    """
    return torch.arange(seen, device=device) <= torch.arange(seen - new, seen, device=device)[:, None]


def attention(
    queries: Float[Array, "new heads head_dim"],
    keys: Float[Array, "seen kv_heads head_dim"],
    values: Float[Array, "seen kv_heads head_dim"],
) -> Float[Array, "new heads head_dim"]:
    """Causal attention of the last `new` of `seen` tokens (Vaswani et al., 2017), grouped (Ainslie et al., 2023)."""
    new, seen = len(queries), len(keys)
    if new == 1:
        return attention_step(queries, keys[None], values[None])
    # PyTorch's own mask begins at the first key: right only if the queries do too.
    mask = None if new == seen else causal_mask(new, seen, queries.device)
    # Batch of one, heads first: (1, heads, tokens, head_dim).
    q, k, v = (rows.transpose(0, 1)[None] for rows in (queries, keys, values))
    how = {"attn_mask": mask, "is_causal": mask is None, "enable_gqa": True}
    return F.scaled_dot_product_attention(q, k, v, **how)[0].transpose(0, 1)


def attention_step(
    queries: Float[Array, "batch heads head_dim"],
    keys: Float[Array, "batch rows kv_heads head_dim"],
    values: Float[Array, "batch rows kv_heads head_dim"],
    seen: Int[Array, "batch"] | None = None,
) -> Float[Array, "batch heads head_dim"]:
    """One new query in each sequence, which attends the first `seen` of its own sequence's rows; all by default."""
    batch, rows, kv_heads, head_dim = keys.shape
    # The query heads that share a K and V head stand as the rows of one small matrix, so nothing is repeated.
    grouped = queries.reshape(batch, kv_heads, -1, head_dim)
    mask = None if seen is None else (torch.arange(rows, device=keys.device) < seen[:, None])[:, None, None]
    mixed = F.scaled_dot_product_attention(grouped, keys.transpose(1, 2), values.transpose(1, 2), mask)
    return mixed.reshape(queries.shape)


def swiglu(gate: Float[Array, "new ffn_dim"], up: Float[Array, "new ffn_dim"]) -> Float[Array, "new ffn_dim"]:
    """silu(gate) * up (Shazeer, 2020); silu(z) = z / (1 + e^-z)."""
    return F.silu(gate) * up

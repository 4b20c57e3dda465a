"""Every formula of the decoder in plain NumPy: the reference that other backends are compared with."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tinyinfer.model.config import ModelConfig

Array = np.ndarray
ROWS_PER_BLOCK = 128  # query rows whose scores attention holds at once


def from_numpy(array: np.ndarray) -> Array:
    """Bring loaded numbers, float32 or token ids, to where this backend computes."""
    return array


def to_numpy(array: Array) -> np.ndarray:
    """Bring a result back as NumPy float32."""
    return np.asarray(array, dtype=np.float32)


def zeros(shape: tuple[int, ...]) -> Array:
    """A block of zeros of the backend's floating type, for caches."""
    return np.zeros(shape, np.float32)


def stack_rows(blocks: Sequence[Array]) -> Array:
    """One array of all the blocks' rows."""
    return np.concatenate(blocks)


def normal(shape: tuple[int, ...], spread: float, seed: int) -> Array:
    """Random numbers around 0, made where this backend computes: stand-in weights for measurements."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(spread)


def synchronise() -> None:
    """Wait until everything asked for is done; NumPy is done when it answers."""


def inference_mode() -> AbstractContextManager:
    """Hold this while computing; NumPy has nothing to switch off."""
    return nullcontext()


def embed(token_ids: Int[Array, "new"], table: Float[Array, "vocab model_dim"]) -> Float[Array, "new model_dim"]:
    """Look up one row of the table per token."""
    return table[token_ids]


def linear(
    x: Float[Array, "new inputs"], weight: Any, bias: Float[Array, "outputs"] | None = None
) -> Float[Array, "new outputs"]:
    """x W^T + b, with the weight stored (outputs, inputs) as checkpoints store it."""
    # A matrix-vector product streams the weight once; BLAS does that better asked in this order.
    y = (weight @ x[0])[None] if len(x) == 1 else x @ weight.T
    return y if bias is None else y + bias


def rms_norm(x: Float[Array, "*rows dim"], scale: Float[Array, "dim"], eps: float) -> Float[Array, "*rows dim"]:
    """Divide each row by its root mean square, then scale each channel (Zhang and Sennrich, 2019)."""
    mean_square = np.vecdot(x, x)[..., None] / x.shape[-1]
    return x / np.sqrt(mean_square + np.float32(eps)) * scale


def rope_frequencies(config: ModelConfig) -> Float[Array, "half"]:
    """Radians that each of the head_dim/2 pairs turns per position (Su et al., 2021), in float64.

    With `rope_type: llama3` pairs that turn slowly are slowed by `factor`, quick ones are kept, and between
    `low_freq_factor` and `high_freq_factor` turns per original context the two are blended.
    """
    frequencies = config.rope_base ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    if config.rope_scaling is None:
        return frequencies
    scaling = config.rope_scaling
    turns = scaling.original_context * frequencies / (2 * np.pi)
    keep = np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1)
    return frequencies * (keep + (1 - keep) / scaling.factor)


def rope_angles(
    positions: Int[Array, "new"], frequencies: Float[Array, "half"]
) -> tuple[Float[Array, "new 1 half"], Float[Array, "new 1 half"]]:
    """Cosine and sine of every pair's angle at every position; computed once, used by every layer."""
    angles = positions[:, None, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rope(
    x: Float[Array, "new heads head_dim"], cos: Float[Array, "new 1 half"], sin: Float[Array, "new 1 half"]
) -> Float[Array, "new heads head_dim"]:
    """Rotate pairs (i, i + head_dim/2): the half-split pairing of Hugging Face checkpoints."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = first * cos - second * sin, second * cos + first * sin
    return np.concatenate(turned, axis=-1)


def softmax(scores: Float[Array, "*rows keys"], out: Array | None = None) -> Float[Array, "*rows keys"]:
    """Exponentials divided by their sum; the largest score is subtracted first, so that nothing overflows.

    The result goes into `out` if given; that may be `scores` itself, when nobody needs them any more.
    """
    exponentials = np.subtract(scores, scores.max(axis=-1, keepdims=True), out=out)
    np.exp(exponentials, out=exponentials)
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return exponentials


def causal_mask(new: int, seen: int) -> np.ndarray:
    """True where a query may look: the `new` queries are the *last* of `seen` tokens.

    Shape (new, seen).
    """
    return np.arange(seen) <= np.arange(seen - new, seen)[:, None]


def attention(
    queries: Float[Array, "new heads head_dim"],
    keys: Float[Array, "seen kv_heads head_dim"],
    values: Float[Array, "seen kv_heads head_dim"],
) -> Float[Array, "new heads head_dim"]:
    """Causal attention of the last `new` of `seen` tokens (Vaswani et al., 2017), grouped (Ainslie et al., 2023)."""
    new, seen = len(queries), len(keys)
    if new <= ROWS_PER_BLOCK:
        return attend_block(queries, keys, values)
    # Keys beyond a block's last row are never touched,
    # and its scores stay in the processor's cache.
    blocks = []
    for start in range(0, new, ROWS_PER_BLOCK):
        end = min(start + ROWS_PER_BLOCK, new)
        past = slice(seen - new + end)
        blocks.append(attend_block(queries[start:end], keys[past], values[past]))
    return np.concatenate(blocks)


def attend_block(
    queries: Float[Array, "new heads head_dim"],
    keys: Float[Array, "seen kv_heads head_dim"],
    values: Float[Array, "seen kv_heads head_dim"],
) -> Float[Array, "new heads head_dim"]:
    """The same for few query rows: all their scores at once, then the mask."""
    new, heads, head_dim = queries.shape
    seen, kv_heads, _ = keys.shape
    # All query heads that share a K and V are stacked into one matrix: (kv_heads, group * new, head_dim).
    grouped = queries.reshape(new, kv_heads, -1, head_dim).transpose(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
    # The scale is a Python float: dividing float32 by np.sqrt(head_dim) would give float64. It is applied to the
    # queries, which are far fewer than the scores.
    scores = (grouped * head_dim**-0.5) @ keys.transpose(1, 2, 0)
    if new > 1:  # one query may see every key there is: nothing to mask
        np.copyto(scores.reshape(kv_heads, -1, new, seen), -np.inf, where=~causal_mask(new, seen))
    mixed = softmax(scores, out=scores) @ values.transpose(1, 0, 2)
    return mixed.reshape(kv_heads, -1, new, head_dim).transpose(2, 0, 1, 3).reshape(new, heads, head_dim)


def attention_step(
    queries: Float[Array, "batch heads head_dim"],
    keys: Float[Array, "batch rows kv_heads head_dim"],
    values: Float[Array, "batch rows kv_heads head_dim"],
    seen: Int[Array, "batch"] | None = None,
) -> Float[Array, "batch heads head_dim"]:
    """One new query in each sequence, which attends the first `seen` of its own sequence's rows; all by default."""
    batch, rows, kv_heads, head_dim = keys.shape
    grouped = queries.reshape(batch, kv_heads, -1, head_dim)
    scores = (grouped * head_dim**-0.5) @ keys.transpose(0, 2, 3, 1)
    if seen is not None:
        np.copyto(scores, -np.inf, where=(np.arange(rows) >= seen[:, None])[:, None, None])
    return (softmax(scores, out=scores) @ values.transpose(0, 2, 1, 3)).reshape(queries.shape)


def swiglu(gate: Float[Array, "new ffn_dim"], up: Float[Array, "new ffn_dim"]) -> Float[Array, "new ffn_dim"]:
    """silu(gate) * up (Shazeer, 2020); silu(z) = z / (1 + e^-z)."""
    # e^-z may reach infinity for very negative z; the quotient is then 0, which is right.
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up

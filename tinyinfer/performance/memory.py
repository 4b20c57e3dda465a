"""Weights against KV cache: what must fit on a device, and which of the two a decode step reads more of.

Bytes of memory are those of the weights (here the embedding table counts: it is looked up, but it must be there) and
of a cache with one row for every token of every sequence. Activations, the framework and fragments come on top and
are left out, so "does not fit" is certain and "fits" is a promise of the two large parts only.
"""

import math

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.cost import parameters, require_counts, weight_bytes_read
from tinyinfer.performance.hardware import Hardware


def memory_needed(
    config: ModelConfig, batch: int, capacity: int, weight_bytes: float = 2, kv_bytes: float = 2
) -> float:
    """Bytes of all weights and of a KV cache of `capacity` tokens for each of `batch` sequences."""
    require_counts(1, batch=batch, capacity=capacity)
    return parameters(config) * weight_bytes + batch * capacity * config.kv_bytes_per_token(1) * kv_bytes


def fits(hardware: Hardware, needed_bytes: float) -> bool | None:
    """Whether so many bytes fit; None where the device's memory is not known."""
    return None if hardware.memory_bytes is None else needed_bytes <= hardware.memory_bytes


def largest_batch(
    config: ModelConfig, hardware: Hardware, capacity: int, weight_bytes: float = 2, kv_bytes: float = 2
) -> int | None:
    """How many sequences of `capacity` tokens fit beside the weights: 0 when not one does, None if nobody knows."""
    require_counts(1, capacity=capacity)
    if hardware.memory_bytes is None:
        return None
    left = hardware.memory_bytes - parameters(config) * weight_bytes
    return max(0, math.floor(left / (capacity * config.kv_bytes_per_token(1) * kv_bytes)))


def require_memory(
    config: ModelConfig,
    hardware: Hardware,
    batch: int,
    capacity: int,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
) -> None:
    """Refuse, before anything is allocated, what cannot fit: raises `BadInput` with the bytes needed and those there.

    Where free memory is known better than the published size, pass `dataclasses.replace(hardware, memory_bytes=...)`.
    A device whose memory is unknown refuses nothing.
    """
    needed = memory_needed(config, batch, capacity, weight_bytes, kv_bytes)
    if fits(hardware, needed) is False:
        weights = parameters(config) * weight_bytes
        raise BadInput(
            f"{config.name} needs {_gigabytes(needed)} on {hardware.name} ({_gigabytes(weights)} of weights and "
            f"{_gigabytes(needed - weights)} of KV cache for batch {batch} of {capacity} tokens), "
            f"which has {_gigabytes(hardware.memory_bytes or 0)}"
        )


def kv_bytes_read(config: ModelConfig, context: int, batch: int = 1, kv_bytes: float = 2) -> float:
    """Bytes of K and V that one decode step reads: no sequence shares its rows with another."""
    require_counts(1, context=context, batch=batch)
    keys = min(context, config.sliding_window or context)
    return batch * keys * config.kv_bytes_per_token(1) * kv_bytes


def crossover_context(config: ModelConfig, batch: int = 1, weight_bytes: float = 2, kv_bytes: float = 2) -> int | None:
    """The shortest context at which a decode step reads at least as many bytes of KV cache as of weights.

    None when a sliding window keeps the cache smaller than that at every context.
    """
    context = math.ceil(weight_bytes_read(config, weight_bytes) / kv_bytes_read(config, 1, batch, kv_bytes))
    return context if context <= (config.sliding_window or context) else None


def crossover_batch(config: ModelConfig, context: int, weight_bytes: float = 2, kv_bytes: float = 2) -> int:
    """The smallest batch at which a decode step at `context` reads at least as many bytes of KV cache as of weights."""
    return math.ceil(weight_bytes_read(config, weight_bytes) / kv_bytes_read(config, context, 1, kv_bytes))


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.3f} GB"

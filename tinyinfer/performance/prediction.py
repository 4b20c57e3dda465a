"""TTFT and TPOT before any run: what a model's shape and a machine's peaks say about each phase.

A prefill's seconds are the TTFT, a decode step's the TPOT. `dtype` is what products are computed in; weights and KV
cache are stored in it too unless `weight_dtype` or `kv_dtype` says otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.cost import decode_cost, prefill_cost
from tinyinfer.performance.hardware import Hardware, bytes_per_number
from tinyinfer.performance.memory import fits, memory_needed
from tinyinfer.performance.work import Limits, Work

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Prediction:
    """One phase of one batch on one machine.

    `tokens` are the new ones of the whole batch, `context` the keys that the last of each sequence attends, its own
    included. `memory_bytes` are weights and KV cache; `fits` is None where the device's memory is not known.
    """

    phase: Phase
    batch: int
    tokens: int
    context: int
    work: Work
    limits: Limits
    memory_bytes: float
    fits: bool | None

    @property
    def seconds(self) -> float:
        """The predicted time of the whole batch, TTFT of a prefill, TPOT of a decode step; see `Limits.seconds`."""
        return self.limits.seconds

    @property
    def tokens_per_second(self) -> float:
        """Prompt tokens read per second in prefill, output tokens made per second in decode."""
        return self.tokens / self.seconds

    def as_row(self) -> dict[str, Any]:
        """The same as plain names and numbers, for JSON."""
        return {
            "phase": self.phase,
            "batch": self.batch,
            "tokens": self.tokens,
            "context": self.context,
            "flops": self.work.flops,
            "bytes_moved": self.work.bytes_moved,
            "launches": self.work.launches,
            "intensity": self.work.intensity,
            "bound": self.limits.bound,
            "seconds": self.seconds,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
        }


def predict_prefill(
    config: ModelConfig,
    hardware: Hardware,
    prompt: int,
    batch: int = 1,
    dtype: str = "bf16",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    fused: bool = False,
) -> Prediction:
    """A pass over `prompt` tokens of each of `batch` sequences, from an empty cache. `fused` as in `cost.py`.

    Raises `BadInput` on a dtype that is unknown or that the device lacks, and on a count below 1.
    """
    weight_bytes, kv_bytes = bytes_per_number(weight_dtype or dtype), bytes_per_number(kv_dtype or dtype)
    work = prefill_cost(config, prompt, batch=batch, weight_bytes=weight_bytes, kv_bytes=kv_bytes, fused=fused)
    needed = memory_needed(config, batch, prompt, weight_bytes, kv_bytes)
    limits = work.limits_on(hardware, dtype)
    return Prediction("prefill", batch, batch * prompt, prompt, work, limits, needed, fits(hardware, needed))


def predict_decode(
    config: ModelConfig,
    hardware: Hardware,
    context: int,
    batch: int = 1,
    dtype: str = "bf16",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    fused: bool = False,
) -> Prediction:
    """One step of `batch` sequences, each of whose new tokens attends `context` keys, its own included.

    Raises `BadInput` as `predict_prefill` does.
    """
    weight_bytes, kv_bytes = bytes_per_number(weight_dtype or dtype), bytes_per_number(kv_dtype or dtype)
    work = decode_cost(config, context, batch, weight_bytes, kv_bytes, fused)
    needed = memory_needed(config, batch, context, weight_bytes, kv_bytes)
    limits = work.limits_on(hardware, dtype)
    return Prediction("decode", batch, batch, context, work, limits, needed, fits(hardware, needed))


def predict_phases(
    config: ModelConfig,
    hardware: Hardware,
    prompt: int,
    context: int,
    batches: Sequence[int],
    dtype: str = "bf16",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> list[Prediction]:
    """The prefill of each batch, then a decode step of each."""
    dtypes = (dtype, weight_dtype, kv_dtype)
    prefills = [predict_prefill(config, hardware, prompt, batch, *dtypes) for batch in batches]
    return prefills + [predict_decode(config, hardware, context, batch, *dtypes) for batch in batches]


def critical_batch(
    config: ModelConfig,
    hardware: Hardware,
    context: int,
    dtype: str = "bf16",
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> int | None:
    """The smallest batch at which a decode step is compute-bound, or None when there is none.

    A batch shares the weights, so it reads them less often for each token. It does not share the KV cache: each
    sequence reads its own. Once those rows alone take longer than the sequence's arithmetic, no batch helps. With
    ridge R, weights W bytes, F FLOPs and K bytes of cache for each sequence, the batch must exceed W x R / (F - K x R).
    Llama-3-8B in bf16 on an H200 (R = 206): 267 at context 128, none at 4,096. (W leaves out the embedding table, K is
    `context` rows read and one written. Counting the table too would give 286.)
    """
    if hardware.peak(dtype) is None:
        return None
    weight_bytes, kv_bytes = bytes_per_number(weight_dtype or dtype), bytes_per_number(kv_dtype or dtype)

    def step(batch: int) -> Work:
        return decode_cost(config, context, batch, weight_bytes, kv_bytes)

    one, two = step(1), step(2)
    sequence = Work(two.flops - one.flops, two.bytes_moved - one.bytes_moved)
    shared = Work(0, one.bytes_moved - sequence.bytes_moved, one.launches).limits_on(hardware, dtype)
    own = sequence.limits_on(hardware, dtype)
    if own.compute_seconds <= own.memory_seconds:
        return None
    beyond = max(
        math.floor(shared.memory_seconds / (own.compute_seconds - own.memory_seconds)),
        math.floor(shared.launch_seconds / own.compute_seconds),
    )
    # A quotient may round across a whole number; the limits themselves decide.
    near = range(max(1, beyond), beyond + 3)
    return next((batch for batch in near if step(batch).bound_on(hardware, dtype) == "compute"), None)


def critical_context(
    config: ModelConfig,
    hardware: Hardware,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
) -> float:
    """The longest context at which some batch makes decode compute-bound; beyond it `critical_batch` is None.

    Infinite where a further key's arithmetic takes no less time than reading its rows (in 16 bits: a ridge no higher
    than the query heads that share a key/value head), or where a sliding window ends the growth first; 0 when no
    context is short enough, or no FLOP/s is published.
    """
    peak = hardware.peak(dtype)
    if peak is None:
        return 0
    windowless = replace(config, sliding_window=None)
    one, two = decode_cost(windowless, context=1), decode_cost(windowless, context=2)
    flops_of_key = two.flops - one.flops
    flops_of_token = one.flops - flops_of_key
    kv_bytes = bytes_per_number(kv_dtype or dtype)
    row_seconds = config.kv_bytes_per_token(1) * kv_bytes / hardware.bytes_per_second
    # A sequence's arithmetic, token + context x key, against its context rows read and one written.
    growth = row_seconds - flops_of_key / peak
    if growth <= 0:
        return math.inf
    longest = math.ceil((flops_of_token / peak - row_seconds) / growth) - 1
    return math.inf if config.sliding_window and longest >= config.sliding_window else max(0, longest)

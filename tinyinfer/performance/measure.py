"""Time requests and passes. Everything returns raw samples in seconds; nothing is averaged here."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def time_calls(
    calls: dict[str, Callable[[], Any]],
    repeats: int,
    warmup: int = 1,
    synchronise: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Run every call `repeats` times, interleaved, so that a slow minute hits all of them alike; raw seconds each.

    The clock is read when `synchronise` has returned: a GPU takes orders at once and works them off later.
    """
    for _ in range(warmup):
        for call in calls.values():
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            synchronise()
            started = time.perf_counter()
            call()
            synchronise()
            samples[name].append(time.perf_counter() - started)
    return samples


def time_request(model: Any, prompt_ids: Sequence[int], new_tokens: int) -> tuple[float, list[float]]:
    """TTFT in seconds and the new_tokens - 1 gaps of one greedy request that never stops early.

    Each token is chosen on the host, which has to wait for its logits: that is the synchronisation.
    """
    started = time.perf_counter()
    session = model.start(len(prompt_ids) + new_tokens - 1)
    token_id = int(np.argmax(session.prefill(prompt_ids)))
    moments = [time.perf_counter()]
    for _ in range(new_tokens - 1):
        token_id = int(np.argmax(session.decode_step(token_id)))
        moments.append(time.perf_counter())
    return moments[0] - started, np.diff(moments).tolist()


def time_prefill(model: Any, prompts: Sequence[Sequence[int]]) -> float:
    """Seconds from the prompts of a batch to the first token of each: its TTFT."""
    started = time.perf_counter()
    session = model.start(max(map(len, prompts)), batch=len(prompts))
    session.prefill(prompts).argmax(axis=-1)
    return time.perf_counter() - started


def time_decode(session: Any, token_ids: Sequence[int], steps: int) -> list[float]:
    """Seconds of each of `steps` greedy decode steps of a batch: its gaps between tokens."""
    gaps = []
    for _ in range(steps):
        started = time.perf_counter()
        token_ids = session.decode_step(token_ids).argmax(axis=-1).tolist()
        gaps.append(time.perf_counter() - started)
    return gaps


def pretend_past(session: Any, length: int) -> None:
    """Fill a fresh batch session with `length` random rows of K and V per sequence, as if prompts had been read.

    A decode step takes as long over random rows as over true ones, and a batch of long prompts would take minutes.
    """
    cache = session.cache
    for seed, block in enumerate([*cache.keys, *cache.values]):
        batch, _, kv_heads, head_dim = block.shape
        block[:, :length] = cache.ops.normal((batch, length, kv_heads, head_dim), 1.0, seed)
    session.set_lengths([length] * len(cache.lengths))

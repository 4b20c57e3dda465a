"""Time requests and this machine's ceilings. Everything returns raw samples; nothing is averaged here."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def time_calls(calls: dict[str, Callable[[], Any]], repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """Run every call `repeats` times, interleaved, so that a slow minute hits all of them alike; raw seconds each."""
    for _ in range(warmup):
        for call in calls.values():
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - started)
    return samples


def time_request(model: Any, prompt_ids: Sequence[int], new_tokens: int) -> tuple[float, list[float]]:
    """TTFT in seconds and the new_tokens - 1 gaps of one greedy request that never stops early."""
    started = time.perf_counter()
    session = model.start(len(prompt_ids) + new_tokens - 1)
    token_id = int(np.argmax(session.prefill(prompt_ids)))
    moments = [time.perf_counter()]
    for _ in range(new_tokens - 1):
        token_id = int(np.argmax(session.decode_step(token_id)))
        moments.append(time.perf_counter())
    return moments[0] - started, np.diff(moments).tolist()


def read_bandwidth(size_bytes: int = 1 << 30, repeats: int = 5) -> dict[str, list[float]]:
    """Bytes per second of four ways to stream `size_bytes` of float32, interleaved; the best median is the ceiling.

    The block is far larger than any cache. A copy counts what it reads and what it writes.
    """
    columns = 4096
    block = np.ones((size_bytes // 4 // columns, columns), np.float32)
    flat, vector = block.reshape(-1), np.ones(columns, np.float32)
    half = flat.size // 2
    calls = {
        "sum": lambda: flat.sum(),
        "dot": lambda: flat[:half] @ flat[half : 2 * half],
        "matrix_vector": lambda: block @ vector,
        "copy": lambda: np.copyto(flat[:half], flat[half : 2 * half]),
    }
    return {name: [flat.nbytes / s for s in seconds] for name, seconds in time_calls(calls, repeats).items()}


def matmul_rate(size: int = 2048, repeats: int = 5) -> list[float]:
    """FLOP/s of a square float32 matrix product, the most arithmetic that a reader's NumPy does per second."""
    left, right = np.random.default_rng(0).standard_normal((2, size, size)).astype(np.float32)
    seconds = time_calls({"matmul": lambda: left @ right}, repeats)["matmul"]
    return [2 * size**3 / s for s in seconds]

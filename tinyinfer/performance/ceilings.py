"""What this machine can do: the same numbers as `hardware.HARDWARE` holds, measured instead of published.

Every working set is far larger than any cache, and no model is run: a prediction made from these is a prediction.
"""

import os
import statistics
import subprocess
from typing import Any

from tinyinfer.model.backend import backend_options
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.hardware import Hardware
from tinyinfer.performance.measure import time_calls
from tinyinfer.performance.memory import require_memory

TINY_OPERATIONS = 1000


def measure_hardware(backend: str = "numpy", device: str = "cpu", dtypes: tuple[str, ...] = ("fp32",)) -> Hardware:
    """This machine's FLOP/s for each dtype, bytes per second, memory and launch floor, as a `Hardware`.

    Raises `BadInput` for a backend, device or dtype that is not here.
    """
    operations = {dtype: backend_options(backend, device, dtype)["ops"] for dtype in dtypes}
    ops = next(iter(operations.values()))
    on_gpu = not runs_on_cpu(ops)
    # The best sample of each: a ceiling is what the machine can do, and disturbances only take away from it.
    rates = {dtype: max(matmul_rate(ops, 8192 if on_gpu else 2048)) for dtype, ops in operations.items()}
    bandwidths = read_bandwidth(ops, (4 if on_gpu else 1) << 30)
    return Hardware(
        name=f"measured {backend} on {device}",
        flops_per_second=rates,
        bytes_per_second=max(map(max, bandwidths.values())),
        memory_bytes=memory_of(ops),
        source="measured: a square matrix product; the best of sum, dot, matrix-vector product and copy",
        launch_floor_seconds=statistics.median(launch_floor(ops)),
    )


def runs_on_cpu(ops: Any) -> bool:
    """Whether these operations compute on the host's own processor."""
    return getattr(ops, "device", None) is None or ops.device.type == "cpu"


def dtype_of(ops: Any) -> str:
    """The short name of the floating type that `ops` computes in, as cost and hardware know it."""
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    return names[str(ops.zeros((1,)).dtype).removeprefix("torch.")]


def require_room(config: ModelConfig, ops: Any, batch: int, capacity: int) -> None:
    """Refuse, before anything is allocated, a model and cache that the device has no room for: raises `BadInput`."""
    number_bytes = ops.zeros((1,)).itemsize
    device = Hardware(describe_device(ops)["device"], {}, 1.0, memory_of(ops), "asked of the system")
    require_memory(config, device, batch, capacity, number_bytes, number_bytes)


def memory_of(ops: Any) -> float | None:
    """Bytes of memory that the device of `ops` has: of a GPU those free now; None where the system does not say."""
    if runs_on_cpu(ops):
        names = os.sysconf_names if hasattr(os, "sysconf") else {}
        known = "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if known else None
    import torch

    return float(torch.cuda.mem_get_info(ops.device)[0])


def describe_device(ops: Any) -> dict[str, Any]:
    """What a record says about the device of `ops`, beside the machine that it stands in."""
    if runs_on_cpu(ops):
        return {"device": "cpu"}
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    return {"device": torch.cuda.get_device_name(ops.device), "driver": driver, "cuda": torch.version.cuda}


def read_bandwidth(ops: Any, size_bytes: int = 1 << 30, repeats: int = 5) -> dict[str, list[float]]:
    """Bytes per second of four ways to stream `size_bytes`, interleaved; the best median is the ceiling.

    A copy counts what it reads and what it writes.
    """
    columns = 4096
    block = ops.zeros((size_bytes // ops.zeros((1,)).itemsize // columns, columns))
    block += 1  # zeros may be pages that were never written, all of them one page of memory
    flat, vector = block.reshape(-1), block[0] + 0
    half = len(flat) // 2

    def copy():
        flat[:half] = flat[half : 2 * half]

    calls = {
        "sum": lambda: flat.sum(),
        "dot": lambda: flat[:half] @ flat[half : 2 * half],
        "matrix_vector": lambda: block @ vector,
        "copy": copy,
    }
    seconds = time_calls(calls, repeats, synchronise=ops.synchronise)
    return {name: [block.nbytes / each for each in samples] for name, samples in seconds.items()}


def matmul_rate(ops: Any, size: int = 2048, repeats: int = 9) -> list[float]:
    """FLOP/s of a square matrix product of random numbers: the most arithmetic that the backend does per second."""
    left, right = (ops.normal((size, size), 1.0, seed) for seed in (0, 1))
    seconds = time_calls({"product": lambda: left @ right}, repeats, synchronise=ops.synchronise)["product"]
    return [2 * size**3 / each for each in seconds]


def launch_floor(ops: Any, repeats: int = 5) -> list[float]:
    """Seconds from one tiny operation to the next when nothing but starting them takes time."""
    one = ops.zeros((1,))

    def many():
        for _ in range(TINY_OPERATIONS):
            one.sum()

    seconds = time_calls({"many": many}, repeats, synchronise=ops.synchronise)["many"]
    return [each / TINY_OPERATIONS for each in seconds]

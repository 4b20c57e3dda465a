"""What machines can do at best: published *dense* peaks, memory bandwidth and memory, each with its source.

Makers print matrix peaks "with sparsity", twice the dense figure: a promise for weights with 2 zeros in every 4, which
language models do not have. H100 and H200 reach 989.4e12 dense bf16 FLOP/s, not 1,979e12.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyinfer.errors import BadInput, suggestion

# Bytes of one number where it lies in memory. tf32 is a way to multiply numbers that lie there as fp32; int4 is meant
# without the scales and zero points that formats add to it.
BYTES_PER_NUMBER: dict[str, float] = {
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "int4": 0.5,
}


def bytes_per_number(dtype: str) -> float:
    """Bytes that one number of `dtype` takes in memory. Raises `BadInput` with the names that are known."""
    if dtype not in BYTES_PER_NUMBER:
        raise BadInput(f"dtype {dtype!r} is not known; known: {', '.join(BYTES_PER_NUMBER)}")
    return BYTES_PER_NUMBER[dtype]


@dataclass(frozen=True)
class Hardware:
    """One device. `flops_per_second` maps a dtype to its dense peak and is empty where none is published.

    `memory_bytes` is None where unknown, else the published GB as 1e9 bytes. `launch_floor_seconds` is the time that
    starting one kernel costs whatever its size; 0 means that nobody measured it, never that it is free.
    """

    name: str
    flops_per_second: Mapping[str, float] = field(hash=False)
    bytes_per_second: float
    memory_bytes: float | None
    source: str
    launch_floor_seconds: float = 0.0

    def peak(self, dtype: str) -> float | None:
        """Dense peak FLOP/s in `dtype`, or None where no FLOP/s is published at all: then only memory bounds it.

        Raises `BadInput` when the device is documented and has no such dtype (bf16 on a V100).
        """
        if not self.flops_per_second:
            return None
        if dtype not in self.flops_per_second:
            known = ", ".join(self.flops_per_second)
            raise BadInput(f"no {dtype} peak is known for {self.name}; known: {known}")
        return self.flops_per_second[dtype]

    def ridge(self, dtype: str) -> float | None:
        """FLOP per byte at which compute and memory take equally long; more is compute-bound.

        Source: the roofline model (Williams, Waterman and Patterson, 2009).
        """
        peak = self.peak(dtype)
        return None if peak is None else peak / self.bytes_per_second

    def share_of_peak(self, flops: float, seconds: float, dtype: str) -> float:
        """Achieved over peak FLOP/s (MFU). Above 1 the measurement or the peak is wrong, so it raises `BadInput`."""
        peak = self.peak(dtype)
        if peak is None:
            raise BadInput(f"no FLOP/s is published for {self.name}, so there is no peak to compare with")
        share = flops / seconds / peak
        if share > 1:
            raise BadInput(
                f"{flops:.3g} FLOP in {seconds:.3g} s is {share:.2f} times the {dtype} peak of {self.name}: "
                "a missing synchronisation, a working set that stayed in cache, or the wrong peak"
            )
        return share


def find_hardware(name: str) -> Hardware:
    """The device called `name`; part of a name will do if only one device has it. Case does not matter.

    Raises `BadInput` with the candidates when several match (`A100`), with near names when none does.
    """
    for device in HARDWARE.values():
        if device.name.lower() == name.strip().lower():
            return device
    wanted = set(name.lower().split())
    candidates = [device for device in HARDWARE.values() if wanted and wanted <= set(device.name.lower().split())]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise BadInput(f"hardware {name!r} is ambiguous; say one of: {', '.join(d.name for d in candidates)}")
    words = {word for known in HARDWARE for word in known.split()}
    raise BadInput(f"hardware {name!r} is not known.{suggestion(name, [*HARDWARE, *sorted(words)])}")


def _device(
    name: str, gigabytes_per_second: float, memory_gigabytes: float | None, source: str, **teraflops: float
) -> Hardware:
    """One row of the table below: 1e12 FLOP/s by dtype, 1e9 bytes/s, 1e9 bytes. `half` stands for fp16 and bf16."""
    if "half" in teraflops:
        half = teraflops.pop("half")
        teraflops |= {"fp16": half, "bf16": half}
    memory_bytes = None if memory_gigabytes is None else memory_gigabytes * 1e9
    peaks = {dtype: peak * 1e12 for dtype, peak in teraflops.items()}
    return Hardware(name, peaks, gigabytes_per_second * 1e9, memory_bytes, source)


_A100 = "NVIDIA A100 datasheet"
_H100 = "NVIDIA H100 datasheet"
_ACCELERATORS = "Stas Bekman, Machine Learning Engineering, compute/accelerator"
_SCALING = "How to Scale Your Model (the JAX scaling book), roofline chapter"
_CORES = "computed: cores x FLOP per cycle x base clock; memory channels x transfer rate"

# fp16 and bf16 are the tensor-core rates that accumulate in fp32. A tf32 rate serves fp32 data at lower precision.
HARDWARE: dict[str, Hardware] = {
    device.name: device
    for device in (
        # Volta has no bf16.
        _device("V100 SXM2 32GB", 900, 32, "NVIDIA V100 datasheet", fp32=15.7, fp16=125),
        _device("V100 PCIe 32GB", 900, 32, "NVIDIA V100 datasheet", fp32=14, fp16=112),
        _device("A100 40GB SXM", 1555, 40, _A100, fp32=19.5, tf32=156, half=312, int8=624),
        _device("A100 80GB SXM", 2039, 80, _A100, fp32=19.5, tf32=156, half=312, int8=624),
        _device("A100 80GB PCIe", 1935, 80, _A100, fp32=19.5, tf32=156, half=312, int8=624),
        _device("L4", 300, 24, "NVIDIA L4 datasheet, halved", fp32=30.3, tf32=60, half=121, fp8=242.5, int8=242.5),
        _device("A10", 600, 24, "Baseten, A guide to LLM inference", fp32=31.2, tf32=62.5, half=125, int8=250),
        _device("A10G", 600, 24, "Baseten, A10 and A10G; llm-analysis for fp16", fp32=31.5, half=70),
        # 330.3 is this card's fp16 rate accumulating in fp16, or its sparse rate accumulating in fp32.
        _device("RTX 4090", 1008, 24, "NVIDIA Ada whitepaper", fp32=82.6, tf32=82.6, half=165.2, fp8=330.3, int8=660.6),
        _device("RTX A6000", 768, 48, "LLM-Viewer, hardware_params", fp32=38.7, tf32=77.4, half=154.8, int8=309.7),
        _device("L40S", 864, 48, _ACCELERATORS, fp32=91.6, tf32=183, half=362, fp8=733, int8=733),
        _device("H100 PCIe", 2000, 80, _H100, fp32=51, tf32=378, half=756, fp8=1513, int8=1513),
        _device("H100 SXM", 3350, 80, _H100, fp32=67, tf32=494.5, half=989.4, fp8=1979, int8=1979),
        _device("H200 SXM", 4800, 141, _ACCELERATORS, fp32=67, tf32=494.5, half=989.4, fp8=1979, int8=1979),
        _device("B200 SXM", 8000, 180, _ACCELERATORS, fp32=80, tf32=1125, half=2250, fp8=4500, int8=4500),
        _device("TPU v5e", 819, 16, _SCALING, bf16=197, int8=394),
        _device("TPU v5p", 2800, 95, _SCALING, bf16=459, int8=918),
        _device("TPU v6e", 1640, 32, _SCALING, bf16=918, int8=1836),
        # No FLOP/s published for the rest of these: a memory-only bound.
        _device("Apple M1 Pro", 200, None, "andrewginns, llama.cpp on Apple silicon (gist)"),
        _device("Apple M3 Pro", 150, None, "andrewginns, llama.cpp on Apple silicon (gist)"),
        _device("Apple M2 Ultra", 800, None, "llama.cpp, pull request 3084"),
        _device("i9-13900K", 89.6, None, "LLM-Viewer, hardware_params; DDR5-5600 on two channels"),
        _device("Threadripper PRO 5995WX", 204.8, None, _CORES),
        _device("EPYC 9654", 460.8, None, _CORES, fp32=7.37),
        _device("Xeon 8480+", 307.2, None, _CORES, fp32=7.17),
    )
}

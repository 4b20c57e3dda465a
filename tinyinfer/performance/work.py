"""What an operation asks of a machine, and the three limits of the time that it takes there."""

import math
from dataclasses import dataclass
from typing import Literal

from tinyinfer.performance.hardware import Hardware

Bound = Literal["compute", "memory", "launch"]


@dataclass(frozen=True)
class Limits:
    """Seconds that the arithmetic, the bytes and the starts of kernels would each take alone."""

    compute_seconds: float
    memory_seconds: float
    launch_seconds: float

    @property
    def seconds(self) -> float:
        """max(compute, memory) + launches x floor: a bound without the last term, an estimate with it.

        Compute and memory overlap, so the larger counts (Williams, Waterman and Patterson, 2009). The starts of
        kernels are added, as if none overlapped with work; a host that runs ahead of its device hides a part of them.
        """
        return max(self.compute_seconds, self.memory_seconds) + self.launch_seconds

    @property
    def bound(self) -> Bound:
        """Which limit sets the time: launch when it exceeds both others, else the larger of compute and memory."""
        if self.launch_seconds > max(self.compute_seconds, self.memory_seconds):
            return "launch"
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"


@dataclass(frozen=True)
class Work:
    """What an operation asks of a machine: FLOPs, bytes over the memory bus, kernels to start."""

    flops: int = 0
    bytes_moved: float = 0
    launches: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes_moved + other.bytes_moved, self.launches + other.launches)

    def __mul__(self, times: int) -> "Work":
        return Work(self.flops * times, self.bytes_moved * times, self.launches * times)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOP per byte moved, to be compared with a machine's ridge point."""
        return self.flops / self.bytes_moved if self.bytes_moved else math.inf

    def limits_on(self, hardware: Hardware, dtype: str = "bf16") -> Limits:
        """The three limits in seconds. Where no FLOP/s is published, compute is 0 and memory alone bounds.

        Raises `BadInput` when the device has no such dtype.
        """
        peak = hardware.peak(dtype)
        return Limits(
            compute_seconds=0.0 if peak is None else self.flops / peak,
            memory_seconds=self.bytes_moved / hardware.bytes_per_second,
            launch_seconds=self.launches * hardware.launch_floor_seconds,
        )

    def seconds_on(self, hardware: Hardware, dtype: str = "bf16") -> float:
        """The predicted time on `hardware`; see `Limits.seconds`."""
        return self.limits_on(hardware, dtype).seconds

    def bound_on(self, hardware: Hardware, dtype: str = "bf16") -> Bound:
        """Which of the three limits sets the time."""
        return self.limits_on(hardware, dtype).bound

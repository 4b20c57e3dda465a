"""What it costs to prefill here and decode there: bytes, seconds on a link, the parts of TTFT, and when it pays.

Bytes follow from the model's shape alone. Seconds follow from a link that was measured apart from any request, or
whose published rate is an upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.cost import prefill_cost
from tinyinfer.performance.hardware import Hardware, bytes_per_number
from tinyinfer.performance.metrics import Timing, timing_from_timestamps


@dataclass(frozen=True)
class Link:
    """One direction between two machines. Latency 0 means that nobody measured it, never that it is free."""

    name: str
    bytes_per_second: float
    latency_seconds: float = 0.0
    source: str = ""

    def seconds_for(self, size_bytes: float) -> float:
        """Time for one message: latency + bytes / rate."""
        return self.latency_seconds + size_bytes / self.bytes_per_second


# Line rates in one direction; what arrives is some percent less.
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("10 Gb/s", 1.25e9, source="10e9 / 8"),
        Link("100 Gb/s", 12.5e9, source="100e9 / 8"),
        Link("PCIe 4.0 x16", 31.5e9, source="16 lanes x 16 GT/s x 128/130 / 8, PCI Express Base 4.0"),
        Link("400 Gb/s", 50e9, source="400e9 / 8"),
        Link("PCIe 5.0 x16", 63.0e9, source="16 lanes x 32 GT/s x 128/130 / 8, PCI Express Base 5.0"),
        Link("NVLink 3 (A100)", 300e9, source="12 links x 25 GB/s a direction, NVIDIA A100 whitepaper"),
        Link("NVLink 4 (H100)", 450e9, source="18 links x 25 GB/s a direction, NVIDIA H100 whitepaper"),
    )
}


def fit_link(sizes_bytes: Sequence[float], seconds: Sequence[float], name: str = "measured") -> Link:
    """The link whose seconds = latency + bytes / rate lie nearest to the measured ones.

    Nearest in *relative* error, so that a small message counts as much as a large one. A negative latency, which noise
    can give, becomes 0. Raises `BadInput` for fewer than two sizes or times that do not grow with size.
    """
    sizes, times = np.asarray(sizes_bytes, np.float64), np.asarray(seconds, np.float64)
    if sizes.shape != times.shape or sizes.ndim != 1 or len(set(sizes.tolist())) < 2:
        raise BadInput(f"a link is fitted from at least two sizes, each with its seconds; got {sizes} and {times}")
    if not (np.isfinite(times).all() and (times > 0).all() and (sizes >= 0).all()):
        raise BadInput("a link is fitted from sizes of at least 0 bytes and seconds above 0")
    columns = np.stack([1 / times, sizes / times], axis=1)
    latency, seconds_per_byte = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0]
    if latency < 0:  # then the best line through the origin
        latency, relative = 0.0, sizes / times
        seconds_per_byte = relative.sum() / (relative @ relative)
    if seconds_per_byte <= 0:
        raise BadInput("a link cannot be fitted: larger messages did not take longer")
    return Link(name, float(1 / seconds_per_byte), float(latency), "fitted to measured messages")


def payload_bytes(config: ModelConfig, length: int, dtype: str = "fp32") -> int:
    """Bytes of K and V that cross for `length` tokens: rows that hold tokens and nothing else.

    `dtype` is what the numbers travel in. NumPy has no bf16, so this package sends fp32 whatever the cache holds.
    """
    if length < 0:
        raise BadInput(f"length is {length}; a cache holds at least 0 tokens")
    return length * config.kv_bytes_per_token(1) * int(bytes_per_number(dtype))


@dataclass(frozen=True)
class RequestTiming:
    """Where the time of one split request went, in seconds on the router's clock.

    `token_seconds` are the moments, counted from acceptance, at which each output token reached the router. The first
    is known when prefill ends (queue + prefill); the second needs the other parts too. Servers differ in which one
    they show a client first, so both are here. `decode_queue_seconds` is the wait for cache slots and for the decode
    worker's turn. After a fault, the time lost counts as queue.
    """

    queue_seconds: float
    prefill_seconds: float
    decode_queue_seconds: float
    transfer_seconds: float
    first_step_seconds: float
    token_seconds: tuple[float, ...]
    prefill_compute_seconds: float = 0.0
    pack_seconds: float = 0.0
    receive_seconds: float = 0.0
    first_step_compute_seconds: float = 0.0
    recoveries: int = 0

    @property
    def ttft_seconds(self) -> float:
        """Time to first token: known when prefill ends."""
        return self.token_seconds[0]

    @property
    def decode_ttft_seconds(self) -> float:
        """Time until the first token that the decode worker made, if there is one: the sum of all parts."""
        return (
            self.queue_seconds
            + self.prefill_seconds
            + self.decode_queue_seconds
            + self.transfer_seconds
            + self.first_step_seconds
        )

    @property
    def overhead_seconds(self) -> float:
        """What neither waiting, nor a worker's own work, nor the payload's way took: router, headers, calls."""
        work = self.prefill_compute_seconds + self.pack_seconds
        work += self.receive_seconds + self.first_step_compute_seconds
        return self.decode_ttft_seconds - self.queue_seconds - self.decode_queue_seconds - work

    @property
    def client_timing(self) -> Timing:
        """TTFT, TPOT, ITL and E2E as for any other request."""
        return timing_from_timestamps(0.0, self.token_seconds)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "RequestTiming":
        """Read it back from plain numbers."""
        read: dict[str, Any] = {**fields, "token_seconds": tuple(fields["token_seconds"])}
        return cls(**read)


@dataclass(frozen=True)
class SplitCase:
    """One model, machine and prompt length: what crosses, and how fast a network has to be for it to pay."""

    model: str
    hardware: str
    chips: int
    prompt: int
    payload_bytes: int
    prefill_seconds: float
    break_even_bytes_per_second: float
    seconds_by_link: dict[str, float] = field(hash=False)

    def pays_on(self, link: str) -> bool:
        """Whether the transfer takes less time than the stall that it spares the running decodes."""
        return self.seconds_by_link[link] < self.payload_bytes / self.break_even_bytes_per_second


def break_even_bandwidth(
    config: ModelConfig,
    hardware: Hardware,
    prompt: int,
    dtype: str = "bf16",
    chips: int = 1,
    running_decodes: int = 1,
) -> float:
    """Bytes per second below which the transfer eats what splitting gains.

    Colocated, a prefill that arrives stalls each of `running_decodes` streams for its whole time; split, the new
    request alone waits for its cache to cross. Equal where bytes / rate = running_decodes x prefill seconds. For one
    running decode that is the rate at which prefill *makes* K and V. Prefill seconds are the bound of the cost model,
    divided by `chips` that share the work perfectly, so a real machine needs less. Nothing here overlaps; sending
    each layer while the next is computed would hide the transfer wherever the rate is above the break-even.
    """
    if chips < 1 or running_decodes < 1:
        raise BadInput(f"chips is {chips} and running_decodes {running_decodes}; both must be at least 1")
    seconds = prefill_cost(config, prompt).seconds_on(hardware, dtype) / chips
    return payload_bytes(config, prompt, dtype) / (running_decodes * seconds)


def split_cases(
    configs: Sequence[ModelConfig],
    hardware: Hardware,
    prompts: Sequence[int],
    links: Sequence[Link] = tuple(LINKS.values()),
    dtype: str = "bf16",
    chips: int = 1,
    running_decodes: int = 1,
) -> tuple[SplitCase, ...]:
    """A table: each model at each prompt length, with its break-even rate and the seconds on each link."""
    cases = []
    for config in configs:
        for prompt in prompts:
            size = payload_bytes(config, prompt, dtype)
            rate = break_even_bandwidth(config, hardware, prompt, dtype, chips, running_decodes)
            cases.append(
                SplitCase(
                    config.name,
                    hardware.name,
                    chips,
                    prompt,
                    size,
                    prefill_cost(config, prompt).seconds_on(hardware, dtype) / chips,
                    rate,
                    {link.name: link.seconds_for(size) for link in links},
                )
            )
    return tuple(cases)

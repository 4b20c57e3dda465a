"""Predictions as a table that a person reads."""

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

from tinyinfer.performance.hardware import Hardware
from tinyinfer.performance.prediction import Prediction

_COLUMNS = (
    *("phase", "batch", "tokens", "context", "FLOP", "bytes", "FLOP/byte", "bound"),
    *("predicted", "tokens/s", "memory", "fits"),
)
_FITS = {True: "yes", False: "no", None: "?"}


def format_predictions(predictions: Sequence[Prediction]) -> str:
    """A line for each phase and batch, in columns: what it asks, what bounds it, how long it takes, whether it fits."""
    rows = [_COLUMNS, *(_cells(prediction) for prediction in predictions)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def describe_hardware(hardware: Hardware, dtype: str) -> str:
    """The machine's limits in one line: peak, bandwidth, ridge and memory, or that they are not known."""
    peak, ridge = hardware.peak(dtype), hardware.ridge(dtype)
    arithmetic = (
        "no FLOP/s published, so memory alone bounds the times"
        if peak is None or ridge is None
        else f"{with_prefix(peak, 'FLOP/s')} in {dtype}, ridge at {ridge:.4g} FLOP per byte"
    )
    memory = (
        "memory not known" if hardware.memory_bytes is None else f"memory {with_prefix(hardware.memory_bytes, 'B')}"
    )
    return f"{hardware.name}: {arithmetic}, {with_prefix(hardware.bytes_per_second, 'B/s')}, {memory}"


def describe_launch_floor(hardware: Hardware) -> str:
    """The launch floor in one line; one that nobody measured is said to be so."""
    if hardware.launch_floor_seconds == 0:
        return f"The launch floor of {hardware.name} is not measured and counts as 0."
    return f"The launch floor of {hardware.name} is {with_prefix(hardware.launch_floor_seconds, 's')} for each kernel."


def describe_largest_batch(hardware: Hardware, context: int, batch: int | None) -> str:
    """How many sequences fit, in one line, with what that leaves out."""
    if batch is None:
        return f"The largest batch is unknown, because the memory of {hardware.name} is."
    return (
        f"The largest batch that fits at context {context:,} is {batch:,}, counting weights and KV cache; "
        "activations and the framework come on top."
    )


def describe_critical_batch(context: int, batch: int | None, longest: float) -> str:
    """From which batch decode is compute-bound, in one line, or why none is large enough."""
    if batch is not None:
        return f"At context {context:,} decode is compute-bound from batch {batch:,}."
    reason = f"above context {longest:,.0f} each sequence reads its own KV cache for longer than it computes"
    return f"At context {context:,} no batch makes decode compute-bound: {reason}."


def with_prefix(value: float, unit: str = "") -> str:
    """Three digits and a decimal prefix: `with_prefix(4.8e12, "B/s")` is `4.80 TB/s`. Seconds get none above 1."""
    rounded = float(f"{value:.3g}")  # first, so that 999.6 becomes 1.00 k and not 1,000
    power = math.floor(math.log10(rounded) / 3) if rounded > 0 else 0
    power = max(-3, min(power, 0 if unit == "s" else 6))
    scaled = rounded / 1000**power
    digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
    prefix = ("n", "µ", "m", "", "k", "M", "G", "T", "P", "E")[power + 3]
    return f"{scaled:,.{digits}f} {prefix}{unit}".rstrip()


def plain(value: float) -> str:
    """A number without a prefix: `1,943`, `20.4`, `0.54`, `0.051`."""
    places = 3 if value < 0.1 else 2 if value < 1 else 1 if value < 100 else 0
    # Halves go up, as in the JavaScript that shows the same numbers.
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):,}"


def _cells(prediction: Prediction) -> tuple[str, ...]:
    time = "TTFT" if prediction.phase == "prefill" else "TPOT"
    return (
        prediction.phase,
        f"{prediction.batch:,}",
        f"{prediction.tokens:,}",
        f"{prediction.context:,}",
        with_prefix(prediction.work.flops),
        with_prefix(prediction.work.bytes_moved),
        plain(prediction.work.intensity),
        prediction.limits.bound,
        f"{time} {with_prefix(prediction.seconds, 's')}",
        plain(prediction.tokens_per_second),
        with_prefix(prediction.memory_bytes, "B"),
        _FITS[prediction.fits],
    )

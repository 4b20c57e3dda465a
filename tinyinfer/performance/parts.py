"""Take a pass apart: which operations it asks for, and what each takes when it is run alone on the same shapes.

The sum of the parts is a prediction that knows this machine's small and odd shapes, which no square product shows. It
is measured on random operands that are not in a cache, never on the model.
"""

import inspect
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tinyinfer.performance.cost import parameters
from tinyinfer.performance.measure import time_calls

PARTS = (
    *("embed", "linear", "rms_norm", "rope_angles", "rope", "attention", "attention_step", "swiglu"),
    *("stack_rows", "to_numpy"),
)
# Operands that a pass finds in memory; the others were just computed, and are still in a cache if there is room.
COLD = ("weight", "table", "keys", "values")
COLD_BYTES = 1 << 29  # far larger than any cache; a model with fewer bytes of weights than this is timed with as many
LONGEST_LOOP_SECONDS = 0.3


@dataclass(frozen=True)
class Part:
    """One operation on operands of certain shapes, and how often a pass asks for it."""

    operation: str
    operands: tuple[tuple[str, Any], ...]
    times: int
    seconds_each: float

    @property
    def seconds(self) -> float:
        """What all its calls take in one pass."""
        return self.times * self.seconds_each


@dataclass(frozen=True)
class _Shape:
    """A floating array that was handed to an operation."""

    sizes: tuple[int, ...]


def time_parts(model: Any, run: Callable[[Any], None], repeats: int = 3) -> list[Part]:
    """Record the operations of `run(twin of model)`, then time each distinct one alone; in the order of first use."""
    calls = record_calls(model, run)
    ops = model.decoder.ops
    footprint = min(COLD_BYTES, parameters(model.config) * ops.zeros((1,)).itemsize)
    timed = []
    for (operation, operands), times in calls.items():
        seconds = time_alone(ops, operation, dict(operands), footprint, repeats)
        timed.append(Part(operation, operands, times, statistics.median(seconds)))
    return timed


def record_calls(model: Any, run: Callable[[Any], None]) -> Counter:
    """How often `run` asks for each operation on operands of each shape."""
    calls: Counter = Counter()
    ops = model.decoder.ops
    watched = SimpleNamespace(**{name: getattr(ops, name) for name in dir(ops) if not name.startswith("_")})
    for name in PARTS:
        setattr(watched, name, _recorded(name, getattr(ops, name), calls))
    twin, decoder = copy(model), copy(model.decoder)
    decoder.ops, twin.decoder, twin.accelerate = watched, decoder, None
    run(twin)
    return calls


def _recorded(name: str, function: Callable, calls: Counter) -> Callable:
    signature = inspect.signature(function)

    def record(*arguments, **options):
        bound = signature.bind(*arguments, **options).arguments
        calls[name, tuple((parameter, _describe(value)) for parameter, value in bound.items())] += 1
        return function(*arguments, **options)

    return record


def _describe(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_describe(each) for each in value)
    if not hasattr(value, "shape"):
        return value
    whole_numbers = "int" in str(value.dtype)
    # Token ids and positions are kept: an operation may depend on them. Of other numbers only the shape counts.
    return _Kept(value.tolist(), value) if whole_numbers else _Shape(tuple(value.shape))


class _Kept(tuple):
    """Whole numbers, compared by value."""

    array: Any

    def __new__(cls, numbers: Sequence[int], array: Any):
        kept = super().__new__(cls, map(str, numbers))
        kept.array = array
        return kept


def time_alone(ops: Any, operation: str, operands: dict[str, Any], footprint: int, repeats: int = 5) -> list[float]:
    """Seconds of one operation on random operands; those of `COLD` change at each call, `footprint` bytes in all."""
    function = getattr(ops, operation)
    hot = {name: _make(ops, value, seed) for seed, (name, value) in enumerate(operands.items())}
    cold_bytes = sum(hot[name].nbytes for name in COLD if name in hot)
    with ops.inference_mode():
        once = time_calls({"once": lambda: function(**hot)}, 1, synchronise=ops.synchronise)["once"][0]
        # Enough calls to be timed, and enough cold operands to push one another out; long calls need fewer.
        enough = math.ceil(footprint / cold_bytes) if cold_bytes else 100
        count = max(1, min(enough, math.ceil(LONGEST_LOOP_SECONDS / once)))
        sets = [
            {name: _make(ops, operands[name], seed) if name in COLD else value for name, value in hot.items()}
            for seed in range(count)
        ]

        def call_all():
            for each in sets:
                function(**each)

        seconds = time_calls({"all": call_all}, repeats, synchronise=ops.synchronise)["all"]
    return [each / count for each in seconds]


def _make(ops: Any, described: Any, seed: int) -> Any:
    if isinstance(described, _Kept):
        return described.array
    if isinstance(described, tuple):
        return [_make(ops, each, seed) for each in described]
    return ops.normal(described.sizes, 1.0, seed) if isinstance(described, _Shape) else described

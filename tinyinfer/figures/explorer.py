"""The roofline explorer: choose model, device, dtype and sizes, and see both phases move on the roof.

`web/explorer.js` repeats the arithmetic of `performance` on the shapes and devices that travel in the page; tests
compare its numbers and its words with those of this module.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from tinyinfer.errors import BadInput
from tinyinfer.figures.roofline import draw_roofline, predicted_point
from tinyinfer.figures.style import INTENSITY_LIMITS, RATE_LIMITS
from tinyinfer.figures.tables import html_table
from tinyinfer.figures.widgets import Widget, svg_picture
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.cost import parameters, require_counts
from tinyinfer.performance.hardware import HARDWARE, Hardware, bytes_per_number
from tinyinfer.performance.memory import largest_batch, memory_needed
from tinyinfer.performance.prediction import Prediction, critical_batch, predict_decode, predict_prefill
from tinyinfer.performance.report import plain, with_prefix
from tinyinfer.performance.shapes import SHAPES

# The largest of each that the controls reach.
LARGEST = {"batch": 1024, "prompt": 131_072, "context": 131_072}

_SHAPE_FIELDS = (
    *("name", "layers", "model_dim", "heads", "kv_heads", "head_dim", "ffn_dim", "vocab", "max_context"),
    *("tied_head", "qkv_bias", "output_bias", "qk_norm", "sliding_window"),
)
_DEVICE_FIELDS = ("name", "flops_per_second", "bytes_per_second", "memory_bytes", "launch_floor_seconds")
_METRIC = {"prefill": "TTFT", "decode": "TPOT"}
_HEAD = ("", "prefill", "decode step")


@dataclass(frozen=True)
class Choice:
    """What the explorer's controls say; in an address `#model=llama-3-8b&gpu=H200%20SXM&dtype=bf16&batch=8...`.

    `prompt` and `context` are tokens of each of `batch` sequences: those that a prefill reads, and the keys that a
    decode step attends. `dtype` is that of products, weights and KV cache.
    """

    model: str = "llama-3-8b"
    gpu: str = "H200 SXM"
    dtype: str = "bf16"
    batch: int = 8
    prompt: int = 2048
    context: int = 4096


def roofline_explorer(
    start: Choice | None = None,
    models: Sequence[ModelConfig] = tuple(SHAPES.values()),
    devices: Sequence[Hardware] = tuple(HARDWARE.values()),
) -> Widget:
    """The explorer of `models` on `devices`, at first as `start` says; so are the still picture and table.

    Raises `BadInput` when `start` names a model or device that is not among them, a dtype that the device lacks, or a
    count below 1 or beyond `LARGEST`.
    """
    start = start or Choice()
    config, hardware = _named("model", start.model, models), _named("gpu", start.gpu, devices)
    counts = {name: getattr(start, name) for name in LARGEST}
    require_counts(1, **counts)
    for name, count in counts.items():
        if count > LARGEST[name]:
            raise BadInput(f"{name} is {count}; the explorer goes up to {LARGEST[name]}")
    return Widget(
        "widget-explorer",
        "explorer",
        {
            "models": [{field: getattr(model, field) for field in _SHAPE_FIELDS} for model in models],
            "devices": [{field: getattr(device, field) for field in _DEVICE_FIELDS} for device in devices],
            "limits": {"intensity": INTENSITY_LIMITS, "rate": RATE_LIMITS},
            "largest": LARGEST,
            "start": asdict(start),
        },
        _still(config, hardware, start),
        "Without a launch floor every time is a bound: no run is faster, and a real one is slower. Weights and KV "
        "cache are in the chosen dtype. Context counts the keys that a decode step attends; memory is that of the "
        "weights and of a cache with the longer of prompt and context for each sequence, without activations. The "
        "address of the page follows the controls, so it can be kept and sent.",
        builds_on=("predict", "roofline"),
    )


def summarise(config: ModelConfig, hardware: Hardware, choice: Choice) -> str:
    """The state of the explorer in one sentence."""
    prefill, decode = _phases(config, hardware, choice)
    tokens = "1 token" if choice.prompt == 1 else f"{choice.prompt:,} tokens"
    return (
        f"{config.name} in {choice.dtype} on {hardware.name}, batch {choice.batch:,}: "
        f"prefill of {tokens} is {prefill.limits.bound}-bound, TTFT at least {with_prefix(prefill.seconds, 's')}; "
        f"a decode step at context {choice.context:,} is {decode.limits.bound}-bound, "
        f"TPOT at least {with_prefix(decode.seconds, 's')}; "
        f"memory: {_describe_room(config, hardware, choice)}."
    )


def explored_rows(config: ModelConfig, hardware: Hardware, choice: Choice) -> list[tuple[str, ...]]:
    """The explorer's table: a name, then one text for each phase or one for both."""
    phases = _phases(config, hardware, choice)
    number = bytes_per_number(choice.dtype)
    weights = parameters(config) * number
    rows = max(choice.prompt, choice.context)
    cache = memory_needed(config, choice.batch, rows, number, number) - weights
    fitting = largest_batch(config, hardware, rows, number, number)
    critical = critical_batch(config, hardware, choice.context, choice.dtype)
    if hardware.peak(choice.dtype) is None:
        compute_bound = "unknown, no FLOP/s published"
    else:
        compute_bound = "at no batch" if critical is None else f"from batch {critical:,}"
    return [
        ("time, at least", *(f"{_METRIC[each.phase]} {with_prefix(each.seconds, 's')}" for each in phases)),
        ("limit that binds", *(each.limits.bound for each in phases)),
        ("tokens/s, at most", *(plain(each.tokens_per_second) for each in phases)),
        ("FLOP per byte", *(plain(each.work.intensity) for each in phases)),
        ("weights + KV cache", f"{with_prefix(weights, 'B')} + {with_prefix(cache, 'B')}"),
        ("do they fit?", _describe_room(config, hardware, choice)),
        ("largest batch that fits", "unknown" if fitting is None else f"{fitting:,}"),
        ("decode is compute-bound", compute_bound),
    ]


def _phases(config: ModelConfig, hardware: Hardware, choice: Choice) -> tuple[Prediction, Prediction]:
    return (
        predict_prefill(config, hardware, choice.prompt, choice.batch, choice.dtype),
        predict_decode(config, hardware, choice.context, choice.batch, choice.dtype),
    )


def _describe_room(config: ModelConfig, hardware: Hardware, choice: Choice) -> str:
    number = bytes_per_number(choice.dtype)
    needed = memory_needed(config, choice.batch, max(choice.prompt, choice.context), number, number)
    if hardware.memory_bytes is None:
        return f"{with_prefix(needed, 'B')} needed, size unknown"
    left = hardware.memory_bytes - needed
    verdict = f"fits, {with_prefix(left, 'B')} left" if left >= 0 else f"does not fit, {with_prefix(-left, 'B')} short"
    return f"{verdict} of {with_prefix(hardware.memory_bytes, 'B')}"


def _named(field: str, name: str, among: Sequence[Any]) -> Any:
    for each in among:
        if each.name == name:
            return each
    raise BadInput(f"{field} is {name!r}; the explorer has: {', '.join(each.name for each in among)}")


def _still(config: ModelConfig, hardware: Hardware, choice: Choice) -> str:
    """What readers without scripts see: the roofline as a picture, and the table."""
    points = [predicted_point(phase) for phase in _phases(config, hardware, choice)]
    words = summarise(config, hardware, choice)
    picture = svg_picture(draw_roofline(hardware, choice.dtype, points), f"Roofline. {words}")
    table = html_table(_HEAD, explored_rows(config, hardware, choice))
    return f"{picture}<p>{escape(words)}</p>{table}"

"""The roofline: one machine's two limits, and where each phase stands under them, predicted and measured."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from tinyinfer.figures.style import DECODE, INTENSITY_LIMITS, LIMIT, OTHER, PREFILL, RATE_LIMITS, Figure, new_figure
from tinyinfer.performance.hardware import Hardware
from tinyinfer.performance.prediction import Phase, Prediction
from tinyinfer.performance.report import with_prefix

_COLOUR = {"prefill": PREFILL, "decode": DECODE}
_MARKER = {"prefill": "^", "decode": "o"}


@dataclass(frozen=True)
class Point:
    """One run of a phase: its FLOP per byte and its FLOP/s, predicted or measured."""

    label: str
    phase: Phase
    intensity: float
    flops_per_second: float
    measured: bool = False


def predicted_point(prediction: Prediction, label: str | None = None) -> Point:
    """Where a prediction stands; called by its batch unless `label` says otherwise."""
    return measured_point(prediction, prediction.seconds, label, measured=False)


def measured_point(prediction: Prediction, seconds: float, label: str | None = None, measured: bool = True) -> Point:
    """Where the same work stands when it took so many seconds."""
    label = f"batch {prediction.batch}" if label is None else label
    return Point(label, prediction.phase, prediction.work.intensity, prediction.work.flops / seconds, measured)


def draw_roofline(hardware: Hardware, dtype: str, points: Sequence[Point], behind: Hardware | None = None) -> Figure:
    """Under the roof of one machine, each point by its label; another machine's roof may stand behind, grey.

    Predicted points are hollow, measured ones filled; a dashed line joins the two of one label and phase. A machine
    without published FLOP/s has only the slope. A point beyond the axes stands at their edge and says where it belongs.
    """
    figure, axes = new_figure(7.0, 5.2)
    axes.set(xscale="log", yscale="log", xlim=INTENSITY_LIMITS, ylim=RATE_LIMITS)
    axes.set(xlabel="intensity (FLOP per byte)", ylabel="rate (FLOP per second)")
    if behind is not None:
        _draw_roof(axes, behind, dtype, OTHER, behind.name)
    _draw_roof(axes, hardware, dtype, LIMIT, "roof")
    for point in points:
        kind = "measured" if point.measured else "predicted"
        axes.plot(
            *([value] for value in _inside(point)), color=_COLOUR[point.phase], marker=_MARKER[point.phase],
            linestyle="none", markersize=8 if point.measured else 11, fillstyle="full" if point.measured else "none",
            label=f"{point.phase}, {point.label}, {kind}", clip_on=False,
        )  # fmt: skip
    for (phase, label), pair in itertools.groupby(sorted(points, key=_series), _series):
        places = np.array([_inside(point) for point in pair])
        axes.plot(*places.T, color=_COLOUR[phase], linestyle="--", linewidth=1, label=f"{phase}, {label}, gap")
    _draw_ridge(axes, hardware, dtype)
    figure.draw_without_rendering()  # settles the layout: from here on, places in pixels are final
    _name_limits(axes, hardware, dtype)
    if behind is not None:
        lower = behind.bytes_per_second < hardware.bytes_per_second
        _name_slope(axes, behind, behind.name, (22, 8) if lower else (14, 13), "top" if lower else "bottom")
    _name_points(axes, points)
    return figure


def _series(point: Point) -> tuple[str, str]:
    return point.phase, point.label


def _inside(point: Point) -> tuple[float, float]:
    """The point's place, or the nearest one on the axes."""
    (left, right), (low, high) = INTENSITY_LIMITS, RATE_LIMITS
    return min(max(point.intensity, left), right), min(max(point.flops_per_second, low), high)


def _draw_roof(axes: Axes, hardware: Hardware, dtype: str, colour: str, label: str) -> None:
    peak, ridge = hardware.peak(dtype), hardware.ridge(dtype)
    x = np.array([INTENSITY_LIMITS[0], ridge or INTENSITY_LIMITS[1], INTENSITY_LIMITS[1]])
    y = np.minimum(peak or math.inf, x * hardware.bytes_per_second)
    axes.plot(x, y, color=colour, linewidth=1.2, label=label, zorder=1)


def _draw_ridge(axes: Axes, hardware: Hardware, dtype: str) -> None:
    peak, ridge = hardware.peak(dtype), hardware.ridge(dtype)
    if peak is not None and ridge is not None:
        axes.plot([ridge, ridge], [RATE_LIMITS[0], peak], color=LIMIT, linestyle=":", linewidth=1, label="ridge")


def _name_limits(axes: Axes, hardware: Hardware, dtype: str) -> None:
    """Peak and bandwidth on their lines, the ridge at its foot, the machine in the corner."""
    peak, ridge = hardware.peak(dtype), hardware.ridge(dtype)
    axes.text(0.02, 0.98, f"{hardware.name}, {dtype}", transform=axes.transAxes, va="top")
    _name_slope(axes, hardware, with_prefix(hardware.bytes_per_second, "B/s"), (14, 19), "bottom")
    if peak is None or ridge is None:
        axes.text(0.98, 0.02, "no FLOP/s published", transform=axes.transAxes, ha="right", fontsize=11)
        return
    style = {"textcoords": "offset points", "fontsize": 11, "va": "bottom"}
    axes.annotate(with_prefix(peak, "FLOP/s"), (INTENSITY_LIMITS[1], peak), (-2, 4), ha="right", **style)
    axes.annotate(f"ridge: {ridge:.3g} FLOP per byte", (ridge, RATE_LIMITS[0]), (5, 5), **style)


def _name_slope(axes: Axes, hardware: Hardware, name: str, offset: tuple[int, int], side: str) -> None:
    """Write along the memory limit, from where it leaves the left edge."""
    decade, start = axes.transData.transform((10, 10)) - axes.transData.transform((1, 1)), INTENSITY_LIMITS[0]
    axes.annotate(
        name, (start, start * hardware.bytes_per_second), offset, textcoords="offset points", fontsize=11, va=side,
        rotation=math.degrees(math.atan2(decade[1], decade[0])), rotation_mode="anchor",
    )  # fmt: skip


# Where a name may stand around its point, nearest first: the gap in points, then the side.
_PLACES = [
    (gap, right, up)
    for gap in (8, 16, 26, 38, 52, 68, 86, 106)
    for right, up in [(0, -1), (0, 1), (1, -1), (0.6, -1), (1, 0), (-0.7, -1), (-0.7, 1), (-1, 1), (-1, -1), (1, 1)]
]
_NEAR = 8  # beyond this gap a line leads from the point to its name


def _name_points(axes: Axes, points: Sequence[Point]) -> None:
    """Write each point's name where it covers no marker, no line and no other text, as near as that allows."""
    pixels = axes.figure.dpi / 72  # in one point of type
    to_pixels = axes.transData.transform
    markers = to_pixels([_inside(point) for point in points])
    # What is taken already, as rows of left, bottom, right, top in pixels; lines as chains of small squares.
    taken = [np.array([text.get_window_extent().extents for text in axes.texts]), _boxes(markers, 13 * pixels)]
    for line in axes.lines:
        for start, end in itertools.pairwise(to_pixels(line.get_xydata())):
            taken.append(_boxes(np.linspace(start, end, 80), 2 * pixels))
    # A measured point carries the name of its pair, the first of a phase the phase's name.
    named = {_series(point): point for point in sorted(points, key=lambda point: point.measured)}
    told: set[str] = set()
    for point in sorted(named.values(), key=lambda point: point.intensity):
        name = point.label if point.phase in told else f"{point.phase}, {point.label}"
        told.add(point.phase)
        if _inside(point) != (point.intensity, point.flops_per_second):
            name += f"\n(at {point.intensity:,.0f} FLOP/byte,\n{with_prefix(point.flops_per_second, 'FLOP/s')})"
        colour = _COLOUR[point.phase]
        text = axes.annotate(
            name, _inside(point), (0, 0), textcoords="offset points", ha="center", va="center", fontsize=11,
            color=colour, arrowprops={"arrowstyle": "-", "linewidth": 0.8, "color": colour, "shrinkB": 5},
        )  # fmt: skip
        extent, place = text.get_window_extent(), to_pixels(_inside(point))
        size, others = np.array([extent.width + 4 * pixels, extent.height + 2 * pixels]), np.concatenate(taken)
        best_cost, offset, held = math.inf, np.zeros(2), [others]
        for gap, *side in _PLACES:
            centre = np.array(side) * (gap * pixels + size / 2)
            boxes = [_boxes(place + centre, size)]
            if gap > _NEAR:
                edge = centre - np.array(side) * size / 2
                boxes.append(_boxes(place + np.linspace(0.3, 1, 12)[:, None] * edge, 2 * pixels))
            elif np.hypot(*(markers - place - centre).T).min() < 0.99 * np.hypot(*centre):
                continue  # it would seem to name a nearer point
            cost = _covered(np.concatenate(boxes), others, np.array(axes.bbox.extents)) + 2 * gap
            if cost < best_cost:
                best_cost, offset, held = cost, centre, boxes
        text.set_position(tuple(offset / pixels))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(len(held) > 1)
        taken += held


def _boxes(centres: np.ndarray, size: float | np.ndarray) -> np.ndarray:
    """Boxes of one size around each centre: rows of left, bottom, right, top."""
    centres = np.atleast_2d(centres)
    return np.concatenate([centres - np.asarray(size) / 2, centres + np.asarray(size) / 2], axis=1)


def _covered(boxes: np.ndarray, others: np.ndarray, frame: np.ndarray) -> float:
    """Area of the boxes that others hold already or that lies outside the frame."""

    def shared(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        low, high = np.maximum(ours[..., :2], theirs[..., :2]), np.minimum(ours[..., 2:], theirs[..., 2:])
        return np.prod(np.maximum(high - low, 0), axis=-1)

    outside = shared(boxes, boxes) - shared(boxes, frame)
    return outside.sum() + shared(boxes[:, None], others[None]).sum()

"""Figures of chapter 3: passes, masks, what skipping attention breaks, latencies, and what bounds each phase."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle

from tinyinfer.figures.style import (
    DECODE,
    INK,
    INTENSITY_LIMITS,
    KV_CACHE,
    LIMIT,
    OTHER,
    PREFILL,
    RATE_LIMITS,
    Figure,
    new_figure,
)
from tinyinfer.performance.hardware import Hardware


@dataclass(frozen=True)
class Pass:
    """One forward pass: the position of its first token, the tokens that it reads, the token that it answers."""

    first: int
    reads: Sequence[str]
    answers: str


def draw_passes(passes: Sequence[Pass]) -> Figure:
    """A row per forward pass, a column per position: tokens read now, and those whose K and V are only kept."""
    figure, axes = new_figure(7.0, 0.6 * len(passes) + 0.9)
    width = passes[-1].first + len(passes[-1].reads)
    for row, each in enumerate(passes):
        colour, name = (PREFILL, "prefill") if row == 0 else (DECODE, f"decode step {row}")
        for position in range(each.first):
            _cell(axes, position, row, "white", KV_CACHE)
            axes.text(position, row, "K V", color=KV_CACHE, ha="center", va="center", fontsize=11)
        for index, token in enumerate(each.reads):
            _cell(axes, each.first + index, row, colour, colour)
            axes.text(each.first + index, row, token, color="white", ha="center", va="center_baseline", fontsize=15)
        axes.text(-0.75, row, name, color=colour, weight="bold", ha="right", va="center")
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        edge = each.first + len(each.reads) - 0.5
        axes.annotate("", (width + 0.35, row), (edge, row), arrowprops=arrow)
        axes.text(width + 0.75, row, each.answers, ha="center", va="center_baseline", fontsize=15)
    axes.text(width + 0.75, -0.85, "answers", ha="center", va="center")
    axes.set(xlim=(-3.4, width + 1.4), ylim=(len(passes) - 0.1, -1.2), xlabel="position", aspect="equal")
    axes.set_xticks(range(width))
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    return figure


def _cell(axes: Axes, x: float, y: float, face: str, edge: str) -> None:
    axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, facecolor=face, edgecolor=edge, linewidth=1.2))


@dataclass(frozen=True)
class MaskPicture:
    """Which keys (columns) each query (row) may see, with the tokens that stand at both."""

    title: str
    allowed: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]


def draw_masks(pictures: Sequence[MaskPicture]) -> Figure:
    """Masks side by side, two a row: a filled square is a score that counts, a white one is set to minus infinity."""
    widest = max(picture.allowed.shape[1] for picture in pictures)
    pairs = [pictures[place : place + 2] for place in range(0, len(pictures), 2)]
    heights = [max(len(picture.allowed) for picture in pair) for pair in pairs]  # every cell of the figure is as large
    room = ConstrainedLayoutEngine(hspace=0.06)  # between a row's "key" and the titles of the next
    figure = Figure(figsize=(7.0, 0.37 * sum(heights) + 1.0 * len(pairs)), layout=room)
    grid = figure.add_gridspec(len(pairs), 2, height_ratios=[height + 0.2 for height in heights])
    for place, picture in enumerate(pictures):
        axes = figure.add_subplot(grid[place // 2, place % 2])
        rows, columns = picture.allowed.shape
        for row, column in np.ndindex(rows, columns):
            seen = picture.allowed[row, column]
            _cell(axes, column, row, KV_CACHE if seen else "white", KV_CACHE if seen else OTHER)
        axes.set(xlim=(-0.6, widest - 0.4), ylim=(rows - 0.4, -0.6), aspect="equal", anchor="NW", title=picture.title)
        axes.set_xticks(range(columns), picture.keys)
        axes.set_yticks(range(rows), picture.queries)
        axes.tick_params(length=0, labelsize=13)
        axes.set_xlabel("key", loc="left")
        axes.set_ylabel("query", loc="top")
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return figure


def draw_skipped_attention(key_gaps: Sequence[float], value_gaps: Sequence[float]) -> Figure:
    """Per layer: how far K and V move, relative to their largest number, when no layer attends."""
    figure, axes = new_figure(7.0, 3.4)
    layers = np.arange(len(key_gaps))
    for name, gaps, offset, hatch in (("K", key_gaps, -0.2, ""), ("V", value_gaps, 0.2, "///")):
        bars = axes.bar(layers + offset, gaps, 0.36, facecolor=KV_CACHE, edgecolor="white", hatch=hatch, label=name)
        for bar, gap in zip(bars, gaps, strict=True):
            words = f"{name}\n{gap:.0%}" if gap else f"{name}\n0"
            axes.text(bar.get_x() + bar.get_width() / 2, gap, words, ha="center", va="bottom", color=INK, fontsize=11)
    axes.set(
        xlabel="layer",
        ylabel="largest error, share of\nthe largest number",
        ylim=(0, 1.3 * max(1e-9, *key_gaps, *value_gaps)),
    )
    axes.set_xticks(layers)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    return figure


@dataclass(frozen=True)
class Latencies:
    """Seconds of one quantity at each prompt length: predicted by counting, and measured."""

    predicted: Sequence[float]
    measured: Sequence[float]


def draw_latencies(prompts: Sequence[int], ttft: Latencies, tpot: Latencies) -> Figure:
    """TTFT and TPOT against the prompt's length, both logarithmic."""
    figure, axes = new_figure(7.0, 4.4)
    for name, latencies, colour, marker in (("TTFT", ttft, PREFILL, "^"), ("TPOT", tpot, DECODE, "o")):
        axes.plot(prompts, latencies.measured, color=colour, marker=marker, label=f"{name} measured")
        axes.plot(
            prompts, latencies.predicted, color=colour, marker=marker, linestyle="--", fillstyle="none",
            linewidth=1.4, label=f"{name} predicted",
        )  # fmt: skip
        end = (prompts[-1], latencies.measured[-1])
        axes.annotate(name, end, (10, 0), textcoords="offset points", color=colour, weight="bold", va="center")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(prompts, [str(prompt) for prompt in prompts])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="prompt length (tokens)", ylabel="seconds", xlim=(prompts[0] / 1.2, prompts[-1] * 1.9))
    axes.text(0.03, 0.95, "solid, filled: measured\ndashed, hollow: predicted", transform=axes.transAxes, va="top")
    return figure


@dataclass(frozen=True)
class RooflinePoint:
    """One phase on a roofline: its FLOP per byte, and the FLOP/s predicted and measured."""

    phase: str
    intensity: float
    predicted: float
    measured: float


def draw_phases_roofline(
    hardware: Hardware, dtype: str, points: Sequence[RooflinePoint], behind: Hardware | None = None
) -> Figure:
    """Under one machine's two limits, where prefill and decode stand; another machine's roof may stand behind, grey."""
    figure, axes = new_figure(7.0, 4.8)
    peak, ridge = hardware.peak(dtype), hardware.ridge(dtype)
    if peak is None or ridge is None:
        raise ValueError(f"{hardware.name} has no {dtype} peak, so there is no roof to draw")
    axes.set(xscale="log", yscale="log", xlim=INTENSITY_LIMITS, ylim=RATE_LIMITS)
    axes.set(xlabel="intensity (FLOP per byte)", ylabel="rate (FLOP per second)")
    if behind is not None:
        _roof(axes, behind, dtype, OTHER, behind.name)
        axes.text(INTENSITY_LIMITS[1] / 1.3, (behind.peak(dtype) or 0) * 1.25, behind.name, ha="right", va="bottom")
    _roof(axes, hardware, dtype, LIMIT, "roof")
    axes.text(INTENSITY_LIMITS[1] / 1.3, peak * 1.25, "arithmetic", ha="right", va="bottom")
    axes.text(2.2, 2.8 * hardware.bytes_per_second, "memory", ha="right", va="bottom")
    axes.annotate(
        f"ridge: {ridge:.0f} FLOP per byte", (ridge, peak), (0, -62), textcoords="offset points", ha="left",
        arrowprops={"arrowstyle": "-", "color": LIMIT, "linewidth": 1, "relpos": (0, 1), "shrinkB": 0},
    )  # fmt: skip
    styles = {"prefill": (PREFILL, "^"), "decode": (DECODE, "o")}
    for point in points:
        colour, marker = styles[point.phase]
        axes.plot(
            [point.intensity], [point.predicted], color=colour, marker=marker, markersize=11, fillstyle="none",
            linestyle="none", label=f"{point.phase} predicted",
        )  # fmt: skip
        axes.plot(
            [point.intensity], [point.measured], color=colour, marker=marker, linestyle="none",
            label=f"{point.phase} measured",
        )  # fmt: skip
        axes.annotate(
            point.phase, (point.intensity, point.measured), (10, -16), textcoords="offset points", color=colour,
            weight="bold", ha="left",
        )  # fmt: skip
    return figure


def _roof(axes: Axes, hardware: Hardware, dtype: str, colour: str, label: str) -> None:
    peak, ridge = hardware.peak(dtype), hardware.ridge(dtype)
    if peak is None or ridge is None:
        raise ValueError(f"{hardware.name} has no {dtype} peak, so there is no roof to draw")
    x = np.array([INTENSITY_LIMITS[0], ridge, INTENSITY_LIMITS[1]])
    axes.plot(x, np.minimum(peak, x * hardware.bytes_per_second), color=colour, linewidth=1.2, label=label)

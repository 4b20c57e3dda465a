"""Figures of chapter 5: one request between two machines, its whole cache, where its time goes, and when it pays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from tinyinfer.figures.style import DECODE, INK, KV_CACHE, LIMIT, OTHER, PREFILL, TRANSFER, Figure, new_figure
from tinyinfer.performance.transfer import Link, SplitCase
from tinyinfer.serving.trace import Rows, Trace, count_rows

_PALE = "#E3F3EE"  # the cache's green, thinned: rows that crossed
_ROUTER, _PREFILL, _DECODE = 0.0, 1.0, 2.0  # the three lanes


def draw_walk(trace: Trace) -> Figure:
    """The request from top to bottom, in the order of its stages: what each machine reads, answers and then holds."""
    figure, axes = new_figure(7.0, 0.62 * (len(trace.decode) + 4) + 0.6)
    prompt, first = trace.request.input_tokens, trace.prefill.next_token
    rows = count_rows(trace.prefill.kv_cache)
    for lane, name in ((_ROUTER, "router"), (_PREFILL, "prefill worker"), (_DECODE, "decode worker")):
        axes.text(lane, -0.95, name, ha="center", va="center", weight="bold")
        axes.plot([lane, lane], [-0.6, len(trace.decode) + 3.5], color="#DDDDDD", linewidth=1.2, zorder=0)
    axes.text(_DECODE + 0.68, -0.95, "rows", ha="center", va="center", weight="bold", color=KV_CACHE)

    reads = " ".join(token.text for token in prompt)
    _box(axes, _ROUTER, 0, trace.request.prompt, INK)
    _arrow(axes, (_ROUTER, 0), (_PREFILL, 1), INK)
    _box(axes, _PREFILL, 1, f"{reads} → {first.text}", PREFILL)
    _rows(axes, 1, rows)
    _arrow(axes, (_PREFILL, 1), (_ROUTER, 2), PREFILL)
    _box(axes, _ROUTER, 2, first.text, PREFILL)
    if trace.transfer is not None:
        _arrow(axes, (_PREFILL, 1), (_DECODE, 2), TRANSFER, "dashdot")
        words = f"{rows} rows of K and V,\n{trace.transfer.bytes:,} bytes"
        axes.text(_DECODE, 1.05, words, color=TRANSFER, ha="center", va="center", fontsize=11)
        _box(axes, _DECODE, 2, "arrived", TRANSFER)
        _rows(axes, 2, rows)
    for number, step in enumerate(trace.decode, start=3):
        rows += count_rows(step.appended)
        _box(axes, _DECODE, number, f"{step.generated_tokens[-1].text} → {step.next_token.text}", DECODE)
        _rows(axes, number, rows)
        _arrow(axes, (_DECODE, number), (_ROUTER, number), DECODE)
        _box(axes, _ROUTER, number, step.next_token.text, DECODE)
    last = len(trace.decode) + 3
    axes.text(_ROUTER, last + 0.1, f"reply: {trace.result.final_output}", ha="center", va="center", fontsize=13)
    axes.set(xlim=(-0.5, 2.9), ylim=(last + 0.6, -1.3))
    axes.axis("off")
    return figure


_WIDE, _HIGH = 0.3, 0.33  # half of a box


def _box(axes: Axes, lane: float, height: float, words: str, colour: str) -> None:
    style = "round,pad=0,rounding_size=0.06"
    corner = (lane - _WIDE, height - _HIGH)
    box = FancyBboxPatch(corner, 2 * _WIDE, 2 * _HIGH, boxstyle=style, facecolor=colour, edgecolor="none", zorder=2)
    axes.add_patch(box)
    axes.text(lane, height, words, color="white", ha="center", va="center_baseline", fontsize=13, zorder=3)


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, linestyle: str = "solid"
) -> None:
    """From the near side of one box to the near side of another."""
    side = _WIDE + 0.02 if end[0] > start[0] else -_WIDE - 0.02
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "linestyle": linestyle, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end[0] - side, end[1]), (start[0] + side, start[1]), arrowprops=arrow, zorder=1)


def _rows(axes: Axes, height: float, rows: int) -> None:
    axes.text(_DECODE + 0.68, height, str(rows), color=KV_CACHE, ha="center", va="center", weight="bold", fontsize=13)


def join_rows(trace: Trace) -> Rows:
    """The cache at the end: what prefill wrote, then the rows that decode appended; blocks of (rows, head_dim)."""
    parts = [trace.prefill.kv_cache, *(step.appended for step in trace.decode)]
    return {
        layer: {
            head: {kind: np.concatenate([part[layer][head][kind] for part in parts]) for kind in kinds}
            for head, kinds in heads.items()
        }
        for layer, heads in parts[0].items()
    }


def draw_cache_page(trace: Trace) -> Figure:
    """Every number of the final cache, a table for K and one for V in each layer and head; a row a token fed."""
    cache = join_rows(trace)
    crossed = count_rows(trace.prefill.kv_cache)
    tokens = [*trace.request.input_tokens, *(trace.decode[-1].generated_tokens if trace.decode else ())]
    blocks_down = sum(len(kinds) for kinds in next(iter(cache.values())).values())
    figure, axes = new_figure(7.0, (0.27 * len(tokens) + 0.34) * blocks_down + 0.5)
    left = top = 0.0
    for layer, heads in cache.items():
        top = 0.0
        for head, kinds in heads.items():
            for kind, block in kinds.items():
                axes.text(left, top - 0.25, f"{layer}  {head}  {kind}", va="bottom", weight="bold", fontsize=11)
                _table(axes, left, top, block, crossed)
                for row, token in enumerate(tokens):
                    colour = PREFILL if row < crossed else DECODE
                    mark = "▲" if row < crossed else "●"
                    axes.text(left - 0.62, top + row + 0.5, mark, color=colour, ha="center", va="center", fontsize=8)
                    place = (left - 0.26, top + row + 0.52)
                    axes.text(*place, token.text, ha="center", va="center_baseline", fontsize=12)
                top += len(tokens) + 1.35
        left += 4 + 1.3
    below = top - 0.3
    axes.text(-0.75, below, "▲ written by prefill", color=PREFILL, va="center")
    axes.plot([2.6, 3.4], [below, below], color=TRANSFER, linestyle="dashdot")
    axes.text(3.5, below, "all above it crossed", color=TRANSFER, va="center")
    axes.text(left - 1.3, below, "● appended by decode", color=DECODE, va="center", ha="right")
    axes.set(xlim=(-0.85, left - 1.2), ylim=(top + 0.2, -1.0))
    axes.axis("off")
    return figure


def _table(axes: Axes, left: float, top: float, block: np.ndarray, crossed: int) -> None:
    rows, columns = block.shape
    for row, column in np.ndindex(rows, columns):
        face = _PALE if row < crossed else "white"
        axes.add_patch(
            Rectangle((left + column, top + row), 1, 1, facecolor=face, edgecolor=KV_CACHE, linewidth=0.7, zorder=1)
        )
        words = f"{round(float(block[row, column]), 2) + 0.0:.2f}".replace("-", "−")
        axes.text(left + column + 0.9, top + row + 0.52, words, ha="right", va="center", fontsize=11, zorder=3)
    if crossed < rows:
        ends = [left - 0.75, left + columns]
        axes.plot(ends, [top + crossed] * 2, color=TRANSFER, linestyle="dashdot", linewidth=2, zorder=2)


def draw_break_even(cases: Mapping[str, Sequence[SplitCase]], links: Sequence[Link]) -> Figure:
    """For each model and prompt length the link rate above which splitting pays, with the rates of real links."""
    figure, axes = new_figure(7.0, 4.6)
    last = [row[-1] for row in cases.values()]
    heights = _spread([case.break_even_bytes_per_second for case in last])
    for (name, row), marker, height in zip(cases.items(), "osD^v", heights, strict=False):
        prompts, rates = [case.prompt for case in row], [case.break_even_bytes_per_second for case in row]
        style = {"color": TRANSFER, "marker": marker, "fillstyle": "none", "linestyle": "dashdot", "linewidth": 1.4}
        axes.plot(prompts, rates, label=name, **style)
        axes.text(prompts[-1] * 1.25, height, name, color=TRANSFER, va="center", fontsize=11)
    lengths = [case.prompt for case in next(iter(cases.values()))]
    for link in links:
        rate = link.bytes_per_second
        above = all(not rate < other.bytes_per_second < 1.6 * rate for other in links)
        axes.axhline(rate, color=LIMIT, linewidth=1.0, zorder=0, label=link.name)
        place = {"va": "bottom" if above else "top", "ha": "right", "fontsize": 11}
        axes.text(lengths[-1] * 8, rate * (1.04 if above else 0.96), link.name, **place)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate / 1e9:g}")
    axes.set(xlabel="prompt length (tokens)", ylabel="link rate (GB/s)", xlim=(lengths[0] / 1.3, lengths[-1] * 8.5))
    return figure


def _spread(heights: Sequence[float], factor: float = 1.42) -> list[float]:
    """The same heights on a logarithmic axis, pushed up where labels of this size would overlap."""
    spread, lowest = dict.fromkeys(range(len(heights)), 0.0), 0.0
    for place in sorted(range(len(heights)), key=lambda index: heights[index]):
        spread[place] = max(heights[place], lowest)
        lowest = spread[place] * factor
    return [spread[place] for place in range(len(heights))]


def draw_transfers(
    sizes_bytes: Sequence[float],
    predicted: Sequence[float],
    measured: Sequence[float],
    hand_off: tuple[float, float],
) -> Figure:
    """Seconds against bytes: a link's line, the plain arrays it was fitted to, and (bytes, seconds) of a hand-off."""
    figure, axes = new_figure(7.0, 4.2)
    megabytes = [size / 1e6 for size in sizes_bytes]
    axes.plot(megabytes, measured, color=OTHER, marker="D", linestyle="none", label="plain arrays measured")
    hollow = {"fillstyle": "none", "linestyle": "dashed", "linewidth": 1.4, "markersize": 11}
    axes.plot(megabytes, predicted, color=TRANSFER, marker="D", label="predicted", **hollow)
    size, seconds = hand_off[0] / 1e6, hand_off[1]
    axes.plot([size], [seconds], color=TRANSFER, marker="D", markersize=10, linestyle="none", label="hand-off measured")
    axes.annotate(
        "the hand-off", (size, seconds), (-12, 6), textcoords="offset points", color=TRANSFER, weight="bold", ha="right"
    )
    axes.set(xscale="log", yscale="log", xlabel="bytes that cross (MB)", ylabel="milliseconds")
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    for show in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        show(lambda seconds, _: f"{seconds * 1e3:g}" if f"{seconds:.0e}"[0] in "125" else "")
    words = "filled: measured (grey: plain arrays)\nhollow, dashed: predicted"
    axes.text(0.03, 0.97, words, transform=axes.transAxes, va="top")
    return figure


@dataclass(frozen=True)
class Gaps:
    """Gaps between tokens of running answers: when each ended, how long it was, when prompts came; all in seconds."""

    name: str
    ends: Sequence[float]
    seconds: Sequence[float]
    prompts_came: Sequence[float]


def draw_gaps(runs: Sequence[Gaps]) -> Figure:
    """One panel a run, on the same axes: each dot is a gap between two tokens, each triangle a prompt that came."""
    figure = Figure(figsize=(7.0, 2.2 * len(runs) + 0.6), layout="constrained")
    highest = max(max(run.seconds) for run in runs)
    longest = max(max(run.ends) for run in runs)
    for place, run in enumerate(runs):
        axes = figure.add_subplot(len(runs), 1, place + 1)
        axes.plot(run.ends, run.seconds, color=DECODE, marker="o", markersize=4, linestyle="none", label="gaps")
        axes.plot(
            run.prompts_came, [0.0] * len(run.prompts_came), color=PREFILL, marker="^", markersize=9,
            linestyle="none", clip_on=False, label="prompts",
        )  # fmt: skip
        axes.set(xlim=(0, longest * 1.02), ylim=(0, highest * 1.1), title=run.name, ylabel="gap (ms)")
        axes.yaxis.set_major_formatter(lambda seconds, _: f"{seconds * 1e3:g}")
        if place == len(runs) - 1:
            axes.set_xlabel("seconds")
            key = {"transform": axes.transAxes, "ha": "right", "va": "top", "color": PREFILL}
            axes.text(1, -0.2, "▲ a long prompt comes", **key)
    return figure

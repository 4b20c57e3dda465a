"""What TTFT and TPOT are made of: their limits, their parts, and a decode step before and after each optimisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter, NullLocator

from tinyinfer.figures.style import DECODE, INK, KV_CACHE, LIMIT, OTHER, PREFILL, WEIGHTS, Figure, new_figure
from tinyinfer.performance.work import Limits


def draw_ttft_against_prompt(
    prompts: Sequence[int], limits: Sequence[Limits], measured: Sequence[float] | None = None
) -> Figure:
    """TTFT against the prompt's length, both logarithmic: the limits thin, predicted dashed, measured solid.

    `limits` and `measured` (in seconds) have one entry for each prompt length.
    """
    figure, axes = new_figure(7.0, 4.4)
    axes.set(xscale="log", yscale="log", xlabel="prompt length (tokens)", ylabel="TTFT (milliseconds)")
    for name in ("compute", "memory", "launch"):
        milliseconds = [1e3 * getattr(each, f"{name}_seconds") for each in limits]
        if any(milliseconds):
            axes.plot(prompts, milliseconds, color=LIMIT, linewidth=1, linestyle=":", label=name)
            axes.annotate(f"{name} alone", (prompts[-1], milliseconds[-1]), (9, 0), textcoords="offset points",
                          va="top" if name == "compute" else "center", fontsize=11)  # fmt: skip
    predicted = [1e3 * each.seconds for each in limits]
    axes.plot(prompts, predicted, color=PREFILL, marker="^", markersize=11, linestyle="--", fillstyle="none",
              linewidth=1.4, label="predicted")  # fmt: skip
    key = "dashed, hollow: predicted"
    if measured is not None:
        axes.plot(prompts, [1e3 * seconds for seconds in measured], color=PREFILL, marker="^", label="measured")
        key = f"solid, filled: measured\n{key}"
    axes.text(0.03, 0.97, key, transform=axes.transAxes, va="top", color=PREFILL)
    axes.set_xticks(prompts, [f"{prompt:,}" for prompt in prompts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(prompts[0] / 1.6, prompts[-1] * (prompts[-1] / prompts[0]) ** 0.32)
    axes.margins(y=0.16)
    return figure


@dataclass(frozen=True)
class TpotCurve:
    """One batch: at each context the seconds of reading weights and KV cache, and the TPOT predicted and measured."""

    batch: int
    contexts: Sequence[int]
    weights_seconds: Sequence[float]
    kv_seconds: Sequence[float]
    predicted: Sequence[float]
    measured: Sequence[float] | None = None


def draw_tpot_against_context_and_batch(curves: Sequence[TpotCurve]) -> Figure:
    """A panel for each batch, one scale: reading the weights, and upon it the KV cache, against the context."""
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, curve in zip(panels, curves, strict=True):
        weights, cache = 1e3 * np.asarray(curve.weights_seconds), 1e3 * np.asarray(curve.kv_seconds)
        axes.fill_between(curve.contexts, 0, weights, facecolor=WEIGHTS, edgecolor=INK, linewidth=0.8)
        axes.fill_between(curve.contexts, weights, weights + cache, facecolor=KV_CACHE, linewidth=0)
        style = {"color": DECODE, "marker": "o"}
        axes.plot(curve.contexts, 1e3 * np.asarray(curve.predicted), linestyle="--", fillstyle="none", linewidth=1.4,
                  markersize=9, label="predicted", clip_on=False, **style)  # fmt: skip
        if curve.measured is not None:
            axes.plot(curve.contexts, 1e3 * np.asarray(curve.measured), label="measured", clip_on=False, **style)
        axes.set(title=f"batch {curve.batch}", xlabel="context (tokens)", xlim=(curve.contexts[0], curve.contexts[-1]))
        ends = (curve.contexts[0], curve.contexts[-1])
        axes.set_xticks(ends, [f"{context:,}" for context in ends])
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
        axes.get_xticklabels()[0].set_horizontalalignment("left")
    last, curve = panels[-1], curves[-1]
    panels[0].set(ylabel="TPOT (milliseconds)")
    highest = max(seconds for each in curves for seconds in [*each.predicted, *(each.measured or [])])
    panels[0].set_ylim(0, 1.15e3 * highest)
    # The names stand where the areas are largest: in the last panel, near its right edge.
    weights, cache = 1e3 * curve.weights_seconds[-1], 1e3 * curve.kv_seconds[-1]
    place = {"ha": "right", "va": "center", "fontsize": 11}
    right = curve.contexts[-1] - 0.06 * (curve.contexts[-1] - curve.contexts[0])
    last.text(right, weights / 2, "weights", color=INK, **place)
    last.text(right, weights + 0.4 * cache, "KV cache", color="white", weight="bold", **place)
    return figure


@dataclass(frozen=True)
class Step:
    """One way to run a decode step: its three limits in seconds, and how long it took."""

    name: str
    limits: Limits
    measured_seconds: float


def draw_step_breakdown(steps: Sequence[Step]) -> Figure:
    """A bar for each way, as long as the step took: memory, arithmetic beyond it, launches, and what is not explained.

    Where the prediction is longer than the step, its bar sticks out beyond the line that marks the measurement.
    """
    figure, axes = new_figure(7.0, 0.62 * len(steps) + 1.3)
    parts: dict[str, dict[str, Any]] = {
        "memory": {"facecolor": WEIGHTS, "edgecolor": INK},
        "compute beyond it": {"facecolor": "white", "edgecolor": INK, "hatch": "///"},
        "launches": {"facecolor": OTHER, "edgecolor": INK, "hatch": ".."},
        "not explained": {"facecolor": "white", "edgecolor": INK, "linestyle": ":"},
    }
    for row, step in enumerate(steps):
        limits = step.limits
        lengths = {
            "memory": limits.memory_seconds,
            "compute beyond it": max(0.0, limits.compute_seconds - limits.memory_seconds),
            "launches": limits.launch_seconds,
            "not explained": max(0.0, step.measured_seconds - limits.seconds),
        }
        start = 0.0
        for part, seconds in lengths.items():
            if seconds > 0:
                axes.barh(row, 1e3 * seconds, 0.56, left=start, linewidth=1, label=part, **parts[part])
            start += 1e3 * seconds
        measured = 1e3 * step.measured_seconds
        axes.plot([measured, measured], [row - 0.36, row + 0.36], color=DECODE, linewidth=2.5, label="measured")
        axes.annotate(f"{measured:.3g} ms", (max(start, measured), row), (6, 0), textcoords="offset points",
                      color=DECODE, weight="bold", va="center")  # fmt: skip
    handles = {bar.get_label(): bar for bar in axes.containers}
    axes.legend(
        handles=[handles[part] for part in parts if part in handles], loc="lower left", bbox_to_anchor=(-0.02, 1.0),
        ncols=4, handlelength=1.4, columnspacing=1.2, fontsize=11,
    )  # fmt: skip
    axes.set_yticks(range(len(steps)), [step.name for step in steps])
    axes.tick_params(axis="y", length=0)
    longest = 1e3 * max(max(step.measured_seconds, step.limits.seconds) for step in steps)
    axes.set(xlabel="time of one decode step (milliseconds)", xlim=(0, 1.18 * longest), ylim=(len(steps) - 0.4, -0.6))
    return figure

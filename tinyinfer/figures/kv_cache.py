"""Figures of chapter 2: what a new token adds, what the cache holds, and what keeping it saves and costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.patches import Rectangle

from tinyinfer.figures.style import DECODE, INK, KV_CACHE, OTHER, PREFILL, Figure, new_figure
from tinyinfer.model.config import ModelConfig

NOTHING, NOT_NEEDED, KEPT, ASKED_NOW, WRITTEN_NOW = range(5)
_PALE = "#BFE7DA"  # the cache's green, thinned: a row that was written earlier
_STATES = ListedColormap(["white", OTHER, _PALE, DECODE, KV_CACHE])
_GREENS = LinearSegmentedColormap.from_list("greens", ["white", KV_CACHE, "#003D2C"])


def step_grid(num_tokens: int) -> dict[str, np.ndarray]:
    """What the newest of `num_tokens` tokens makes new, in Q, in the scores, in K and in V; one row a token."""
    past = np.arange(num_tokens) < num_tokens - 1
    queries = np.where(past, NOT_NEEDED, ASKED_NOW)[:, None]
    rows = np.where(past, KEPT, WRITTEN_NOW)[:, None]
    scores = np.where(np.tri(num_tokens, dtype=bool), queries, NOTHING)
    return {"Q": queries, "scores": scores, "K": rows, "V": rows}


def draw_step(tokens: Sequence[str]) -> Figure:
    """One more token asks with one new query and writes one new row of K and of V; all else was there before."""
    count = len(tokens)
    figure, axes = new_figure(7.0, 3.9)
    left = 0.0
    for name, states in step_grid(count).items():
        width = states.shape[1]
        edges = left + np.arange(width + 1), np.arange(count + 1)
        axes.pcolormesh(*edges, states, cmap=_STATES, vmin=0, vmax=4, edgecolors="white", linewidth=3)
        axes.text(left + width / 2, -0.95 if name == "scores" else -0.25, name, weight="bold", ha="center")
        if name == "scores":
            for column, token in enumerate(tokens):
                axes.text(left + column + 0.5, -0.25, token, fontsize=14, ha="center")
        left += width + 0.7
    for row, token in enumerate(tokens):
        axes.text(-0.5, row + 0.55, token, fontsize=16, ha="center", va="center_baseline")
    right = left - 0.4
    axes.text(1.7 + count - 0.2, 0.5, "the future:\nmasked", ha="right", va="center", fontsize=11)
    axes.text(right, count - 0.5, "the new token:\none row", ha="left", va="center", color=INK, weight="bold")
    axes.text(right, (count - 1) / 2, "kept: read,\nnever made\nagain", ha="left", va="center")
    axes.text(0, count + 0.2, "grey: done in earlier steps, not needed again", va="top", fontsize=11)
    axes.set(xlim=(-1, right + 3.2), ylim=(count + 0.7, -1.5), aspect="equal")
    axes.axis("off")
    return figure


def draw_nested(nested: dict[str, dict[str, dict[str, np.ndarray]]], tokens: Sequence[str]) -> Figure:
    """The whole cache as it lies: for each layer and each key/value head one K and one V, one row a token."""
    figure, axes = new_figure(7.0, 6.4)
    leaves = [rows for heads in nested.values() for pair in heads.values() for rows in pair.values()]
    largest = max(np.abs(rows).max() for rows in leaves) or 1.0
    seen, head_dim = leaves[0].shape
    left, bottom = 0.0, 0.0
    for layer, heads in nested.items():
        bottom = 0.0
        for head, pair in heads.items():
            for name, rows in pair.items():
                edges = left + np.arange(head_dim + 1), bottom + np.arange(seen + 1)
                # The square root makes small numbers visible beside a few large ones.
                axes.pcolormesh(*edges, np.sqrt(np.abs(rows) / largest), cmap=_GREENS, vmin=0, vmax=1)
                frame = Rectangle((left, bottom), head_dim, seen, fill=False, edgecolor=INK, linewidth=0.8)
                axes.add_patch(frame)
                if left == 0:
                    for row, token in enumerate(tokens):
                        axes.text(-3, bottom + row + 0.5, token, ha="center", va="center_baseline", fontsize=11)
                    middle = bottom + seen / 2
                    axes.text(-7, middle, f"{head}\n{name}", ha="right", va="center", linespacing=1.4)
                bottom += seen + 0.8
            bottom += 0.8
        axes.text(left + head_dim / 2, -0.6, layer, ha="center", weight="bold")
        left += head_dim + 4
    axes.set(xlim=(-24, left - 3), ylim=(bottom, -2))
    axes.axis("off")
    return figure


@dataclass(frozen=True)
class TokenBytes:
    """What one token adds to the cache of a model, and what it would add if every query head had its own K and V."""

    name: str
    actual: int
    if_mha: int


def token_bytes(config: ModelConfig, bytes_per_number: int = 2) -> TokenBytes:
    """Both sizes of one model, in bytes, bf16 unless said otherwise."""
    actual = config.kv_bytes_per_token(bytes_per_number)
    return TokenBytes(config.name, actual, actual * config.group)


def draw_bytes_per_token(sizes: Sequence[TokenBytes]) -> Figure:
    """Grouped-query attention shrinks the cache by the number of query heads that share one K and V."""
    figure, axes = new_figure(7.0, 0.55 * len(sizes) + 1.3)
    places = np.arange(len(sizes))
    actual, if_mha = np.array([size.actual for size in sizes]), np.array([size.if_mha for size in sizes])
    axes.hlines(places, actual, if_mha, color=OTHER, linewidth=2, zorder=1)
    axes.plot(if_mha, places, linestyle="none", marker="s", color="white", markeredgecolor="#777777", markersize=10)
    axes.plot(actual, places, linestyle="none", marker="s", color=KV_CACHE, markersize=10)
    for place, size in enumerate(sizes):
        axes.text(size.actual / 1.25, place, f"{size.actual:,}", ha="right", va="center", fontsize=11)
        if size.if_mha > size.actual:
            middle = math.sqrt(size.actual * size.if_mha)
            axes.text(middle, place - 0.12, f"÷ {size.if_mha // size.actual}", ha="center", va="bottom", fontsize=11)
    widest = int(np.argmax(if_mha / actual))
    axes.text(actual[widest], widest + 0.2, "stored", ha="center", va="top", color=KV_CACHE, weight="bold")
    axes.text(if_mha[widest] * 1.3, widest, "if every query\nhead had its own", va="center", fontsize=11)
    axes.set_xscale("log")
    axes.set(xlim=(100, 1e8), xlabel="bytes of KV cache per token (bf16, log scale)")
    axes.set_yticks(places, [size.name for size in sizes])
    axes.set_ylim(len(sizes) - 0.4, -0.7)
    axes.tick_params(axis="y", length=0)
    return figure


def draw_flops_per_pass(
    lengths: Sequence[int],
    naive_predicted: Sequence[float],
    naive_measured: Sequence[float],
    cached_predicted: Sequence[float],
    cached_measured: Sequence[float],
) -> Figure:
    """With nothing kept, a pass costs more with every token; with a cache it costs almost the same each time."""
    figure, axes = new_figure(7.0, 4.2)
    _compare(axes, lengths, naive_predicted, naive_measured, PREFILL, "^")
    _compare(axes, lengths, cached_predicted, cached_measured, DECODE, "o")
    axes.set_yscale("log")
    axes.set(xlabel="tokens in the sequence", ylabel="FLOPs of one pass (log scale)", ylim=(5e5, 1e9))
    last = lengths[-1]
    axes.text(last, naive_measured[-1] * 1.5, "nothing kept", color=PREFILL, ha="right", weight="bold")
    axes.text(last, cached_measured[-1] * 1.4, "keys and values kept", color=DECODE, ha="right", weight="bold")
    _explain_marks(axes, 0.02)
    return figure


def draw_bytes_written(
    lengths: Sequence[int],
    concatenated_predicted: Sequence[float],
    concatenated_measured: Sequence[float],
    preallocated_predicted: Sequence[float],
    preallocated_measured: Sequence[float],
) -> Figure:
    """A cache that concatenates writes every old row again at each step; a preallocated one writes each row once."""
    figure, axes = new_figure(7.0, 4.2)
    _compare(axes, lengths, concatenated_predicted, concatenated_measured, KV_CACHE, "s")
    _compare(axes, lengths, preallocated_predicted, preallocated_measured, KV_CACHE, "D")
    axes.set(xlabel="tokens in the sequence", ylabel="bytes written so far")
    axes.set_ylim(bottom=-0.03 * max(concatenated_measured))
    place = len(lengths) * 3 // 5
    axes.text(lengths[place] - 4, concatenated_measured[place], "concatenating", ha="right", va="bottom", weight="bold")
    top = max(preallocated_measured) + 0.03 * max(concatenated_measured)
    axes.text(lengths[-1], top, "preallocated", ha="right", va="bottom", weight="bold")
    _explain_marks(axes, 0.85)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} MB")
    return figure


def _compare(
    axes: Axes, x: Sequence[int], predicted: Sequence[float], measured: Sequence[float], colour: str, marker: str
) -> None:
    axes.plot(x, measured, color=colour, marker=marker, markersize=5, label="measured")
    dashed = {"color": colour, "linewidth": 1.5, "linestyle": "--", "markersize": 11, "markerfacecolor": "none"}
    axes.plot(x, predicted, marker=marker, label="predicted", **dashed)


def _explain_marks(axes: Axes, height: float) -> None:
    words = "hollow, dashed: predicted\nfilled, solid: counted"
    axes.text(0.05, height, words, transform=axes.transAxes, fontsize=11, va="bottom")

"""Figures of chapter 1: one row of attention, its scale, its mask, and what generation without memory repeats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

from tinyinfer.figures.style import DECODE, INK, KV_CACHE, LIMIT, OTHER, PREFILL, Figure, new_figure
from tinyinfer.model.numpy_ops import softmax

NOT_YET, REPEATED, NEW = range(3)
_PALE = "#EFEFEF"
_GREY = "#6B6B6B"
_STATES = ListedColormap(["white", OTHER, KV_CACHE])


def draw_softmax(tokens: Sequence[str], scores: Sequence[float], weights: Sequence[float]) -> Figure:
    """Softmax leaves every token a weight above zero; division by the sum alone would silence a token of score 0."""
    figure, axes = new_figure(7.0, 3.9)
    places = np.arange(len(tokens))
    shares = np.asarray(scores, float) / np.sum(scores)
    axes.bar(places - 0.2, weights, 0.36, color=_GREY, label="softmax")
    axes.bar(places + 0.2, shares, 0.36, color="white", edgecolor=INK, hatch="///", linewidth=1, label="divided by sum")
    for place, weight, share in zip(places, weights, shares, strict=True):
        axes.text(place - 0.2, weight + 0.01, f"{weight:.3f}", ha="center", va="bottom", fontsize=11)
        axes.text(place + 0.2, share + 0.01, f"{share:.3g}", ha="center", va="bottom", fontsize=11)
    best = int(np.argmax(weights))
    axes.text(best - 0.44, weights[best], "softmax", ha="right", va="top", weight="bold", color=_GREY)
    axes.text(best + 0.44, shares[best], "only divided\nby the sum", ha="left", va="top")
    labels = [f"{token}\nscore {score:g}" for token, score in zip(tokens, scores, strict=True)]
    axes.set_xticks(places, labels, fontsize=13)
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="weight in the row of " + tokens[-1], ylim=(0, 0.62))
    return figure


def draw_scale(head_dims: Sequence[int], unscaled: Sequence[float], scaled: Sequence[float]) -> Figure:
    """Without the scale one key takes nearly all the weight as heads grow; with it head_dim plays hardly any part."""
    figure, axes = new_figure(7.0, 3.8)
    axes.plot(head_dims, unscaled, color=_GREY, marker="X", label="unscaled")
    axes.plot(head_dims, scaled, color=INK, marker="D", label="scaled")
    axes.set_xscale("log", base=2)
    axes.set_xticks(head_dims, [str(size) for size in head_dims])
    axes.set(xlabel="head_dim (log scale)", ylabel="largest of 16 weights (mean)", ylim=(0, 1.05))
    middle = len(head_dims) // 2
    axes.text(head_dims[middle], unscaled[middle] + 0.05, "q · k", color=_GREY, weight="bold", ha="right", va="bottom")
    axes.text(head_dims[-1], scaled[-1] + 0.05, "q · k / √head_dim", weight="bold", ha="right", va="bottom")
    axes.axhline(1 / 16, color=OTHER, linewidth=1)
    axes.text(head_dims[-1], 1 / 16 - 0.01, "all 16 equal: 1/16", ha="right", va="top", fontsize=10)
    return figure


@dataclass(frozen=True)
class AttentionSteps:
    """Every number between queries and the mix of values, one row per token that asks; scores are scaled."""

    products: np.ndarray
    scores: np.ndarray
    masked: np.ndarray
    weights: np.ndarray
    mixed: np.ndarray


def attention_steps(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, masked: bool = True, scaled: bool = True
) -> AttentionSteps:
    """One head of attention, with nothing thrown away. Arrays are (tokens, head_dim), and so is `mixed`.

    `masked` and `scaled` switch the causal mask and the division by the root of head_dim off.
    """
    products = queries @ keys.T
    scores = products * np.float32(queries.shape[1] ** -0.5) if scaled else products
    seen = np.where(np.tri(len(queries), dtype=bool), scores, -np.inf) if masked else scores
    weights = softmax(seen)
    return AttentionSteps(products, scores, seen, weights, weights @ values)


def draw_mask(tokens: Sequence[str], panels: Mapping[str, np.ndarray]) -> Figure:
    """The mask removes scores. Q, K and V stay whole: every row of them is computed, none is changed.

    `panels` maps a title to one number per cell, one row a token; all but Q, K and V have tokens as columns too.
    Negative infinity marks what the mask forbade, and the zeros at the same places of the panel after it.
    """
    count, per_line = len(tokens), 3
    figure, axes = new_figure(7.0, 2.6 * -(-len(panels) // per_line))
    forbidden = np.zeros((count, count), bool)
    for index, (title, numbers) in enumerate(panels.items()):
        line, column = divmod(index, per_line)
        left, top = column * (count + 1.5), line * (count + 2.4)
        by_token = title not in ("Q", "K", "V")
        if by_token:
            forbidden = np.isneginf(numbers) | (forbidden & (numbers == 0))
        axes.text(left + count / 2, top - (1.05 if by_token else 0.35), title, weight="bold", ha="center", va="center")
        for row, token in enumerate(tokens):
            axes.text(left - 0.4, top + row + 0.53, token, fontsize=14, ha="center", va="center_baseline")
            if by_token:
                axes.text(left + row + 0.5, top - 0.35, token, fontsize=14, ha="center", va="center_baseline")
            for cell in range(numbers.shape[1]):
                _draw_number(axes, left + cell, top + row, numbers[row, cell], by_token and forbidden[row, cell])
    lines = -(-len(panels) // per_line)
    axes.set(xlim=(-0.9, per_line * (count + 1.5) - 1.3), ylim=(lines * (count + 2.4) - 2.2, -1.5), aspect="equal")
    axes.axis("off")
    return figure


def _draw_number(axes: Axes, left: float, top: float, number: float, forbidden: bool) -> None:
    face = INK if forbidden else _PALE
    axes.add_patch(Rectangle((left, top), 1, 1, edgecolor="white", linewidth=2.5, facecolor=face))
    shown = "-∞" if np.isneginf(number) else f"{number:g}" if 2 * number == round(2 * number) else f"{number:.2f}"
    colour = "white" if forbidden else INK
    axes.text(left + 0.5, top + 0.53, shown.replace("-", "−"), ha="center", va="center", color=colour, fontsize=10.5)


def pass_grid(prompt: int, passes: int) -> np.ndarray:
    """Row p, column t: whether pass p computes token t's K and V for the first time, again, or not yet."""
    lengths = prompt + np.arange(passes)[:, None]
    known = np.where(lengths == prompt, 0, lengths - 1)  # the first pass repeats nothing
    columns = np.arange(prompt + passes - 1)
    return np.where(columns < known, REPEATED, np.where(columns < lengths, NEW, NOT_YET))


def draw_passes(tokens: Sequence[str], grid: np.ndarray) -> Figure:
    """Only the diagonal is new: every later pass repeats the rows of K and V of all tokens before its last."""
    figure, axes = new_figure(7.0, 6.2)
    passes, columns = grid.shape
    edges = np.arange(columns + 1), np.arange(passes + 1)
    axes.pcolormesh(*edges, grid, cmap=_STATES, vmin=NOT_YET, vmax=NEW, edgecolors="white", linewidth=1.2)
    for column, token in enumerate(tokens[:columns]):
        axes.text(column + 0.5, -0.55, token, fontsize=12, ha="center", va="center_baseline")
    for row, label in ((0, "pass 1"), (passes // 2, f"pass {passes // 2 + 1}"), (passes - 1, f"pass {passes}")):
        axes.text(-0.4, row + 0.5, label, ha="right", va="center")
    new, repeated = int((grid == NEW).sum()), int((grid == REPEATED).sum())
    axes.text(columns - passes * 0.42, passes * 0.36, f"new: {new} rows", color=KV_CACHE, weight="bold", va="center")
    box = {"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.4"}
    label = f"repeated: {repeated} rows"
    axes.text(columns * 0.33, passes * 0.7, label, weight="bold", ha="center", va="center", bbox=box)
    axes.set(xlim=(-3.6, columns + 0.1), ylim=(passes + 0.1, -1.3), aspect="equal")
    axes.axis("off")
    return figure


def draw_pass_flops(
    lengths: Sequence[int], counted: Sequence[float], predicted: Sequence[float], newest: Sequence[float]
) -> Figure:
    """Each pass costs as much as all its tokens together, although after the first pass only one is new."""
    figure, axes = new_figure(7.0, 4.1)
    million = 1e6
    axes.plot(lengths, np.divide(counted, million), color=PREFILL, marker="^", markersize=6, label="counted")
    hollow = {"markersize": 12, "markerfacecolor": "none", "markeredgecolor": LIMIT}
    predictions = np.divide(predicted, million)
    axes.plot(lengths, predictions, color=LIMIT, linestyle="--", linewidth=1, marker="^", label="predicted", **hollow)
    axes.plot(lengths, np.divide(newest, million), color=DECODE, marker="o", markersize=5, label="newest token")
    middle = len(lengths) // 2
    axes.text(
        lengths[middle] - 0.8, counted[middle] / million + 3, "the whole pass", color=PREFILL, weight="bold", ha="right"
    )
    axes.text(
        lengths[-1], newest[-1] / million + 2.5, "the newest token alone", color=DECODE, weight="bold", ha="right"
    )
    axes.text(
        lengths[0], counted[-1] / million, "hollow, dashed: predicted\nfilled, solid: counted", va="top", fontsize=11
    )
    axes.set(xlabel="tokens in the pass", ylabel="million FLOPs", ylim=(0, None))
    axes.set_xticks(lengths[::3])
    return figure

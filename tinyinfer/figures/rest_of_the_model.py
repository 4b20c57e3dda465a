"""Figures of the appendix: text to tokens, what RoPE turns, the gate of SwiGLU, the residual stream, sampling."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from tinyinfer.figures.style import INK, OTHER, Figure, new_figure

_PALE = "#EEEEEE"


def byte_spans(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """Where each piece begins and ends in the bytes of them all."""
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def draw_bytes_and_tokens(text: str, pieces: Sequence[bytes], token_ids: Sequence[int], said: Sequence[str]) -> Figure:
    """A character is several bytes and may be several tokens; it can be shown when its last token is there.

    `pieces` are the bytes of each token and `said` is the text that the stream gives with each token.
    """
    figure, axes = new_figure(7.0, 3.7)
    characters = [character.encode() for character in text]
    data = b"".join(characters)
    rows = {
        "characters": (3.0, characters, list(text), _PALE),
        "UTF-8 bytes": (2.0, [data[i : i + 1] for i in range(len(data))], [f"{byte:02x}" for byte in data], "white"),
        "token ids": (1.0, pieces, [str(token_id) for token_id in token_ids], OTHER),
    }
    for name, (bottom, parts, labels, face) in rows.items():
        axes.text(-0.3, bottom + 0.35, name, ha="right", va="center")
        for (start, end), label in zip(byte_spans(parts), labels, strict=True):
            axes.add_patch(
                Rectangle((start + 0.04, bottom), end - start - 0.08, 0.7, facecolor=face, edgecolor=INK, linewidth=1)
            )
            size = 17 if name == "characters" else 10
            axes.text((start + end) / 2, bottom + 0.35, label, ha="center", va="center_baseline", fontsize=size)
    axes.text(-0.3, 0.2, "text shown", ha="right", va="center")
    for (_, end), piece in zip(byte_spans(pieces), said, strict=True):
        if piece:
            arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (end - 0.5, 0.48), (end - 0.5, 1.0), arrowprops=arrow)
            axes.text(end - 0.5, 0.15, piece, ha="center", va="center_baseline", fontsize=17)
    axes.set(xlim=(-3.9, len(data) + 0.1), ylim=(-0.25, 3.8))
    axes.axis("off")
    return figure


def draw_rope_angles(positions: Sequence[int], radians_per_position: Sequence[float]) -> Figure:
    """Each pair of numbers is a hand of a clock; the first turn fast, the last hardly."""
    figure, axes = new_figure(7.0, 3.55)
    radius = 0.4
    for row, speed in enumerate(radians_per_position):
        axes.text(-0.75, -row, f"pair {row}\n{speed:g} rad", ha="right", va="center", linespacing=1.3)
        for column, position in enumerate(positions):
            angle = position * speed
            axes.add_patch(Circle((column, -row), radius, facecolor="none", edgecolor=OTHER, linewidth=1.2))
            tip = column + radius * np.cos(angle), -row + radius * np.sin(angle)
            axes.plot([column, tip[0]], [-row, tip[1]], color=INK, linewidth=2.4, solid_capstyle="round")
            axes.plot(*tip, color=INK, marker="o", markersize=4)
    for column, position in enumerate(positions):
        axes.text(column, 0.62, str(position), ha="center", va="bottom")
    axes.text(-0.75, 0.62, "position", ha="right", va="bottom")
    axes.set(xlim=(-2.3, len(positions) - 0.5), ylim=(0.45 - len(radians_per_position), 1.0), aspect="equal")
    axes.axis("off")
    return figure


def draw_silu(z: np.ndarray, silu: np.ndarray) -> Figure:
    """The gate of SwiGLU passes large positive numbers, blocks large negative ones, and bends smoothly between."""
    figure, axes = new_figure(7.0, 3.4)
    axes.axhline(0, color=OTHER, linewidth=0.8)
    axes.axvline(0, color=OTHER, linewidth=0.8)
    axes.plot(z, np.maximum(z, 0), color=OTHER, linewidth=1.5, linestyle="--")
    axes.plot(z, silu, color=INK, linewidth=2.5)
    lowest = int(np.argmin(silu))
    axes.plot(z[lowest], silu[lowest], color=INK, marker="o")
    axes.text(z[lowest], silu[lowest] - 0.2, f"lowest, −{-silu[lowest]:.3f}", ha="center", va="top")
    axes.text(2.2, 1.3, "silu(z)", ha="left", va="top", weight="bold")
    axes.text(1.8, 2.0, "max(z, 0),\ncalled ReLU", ha="right", va="bottom", color="#666666")
    axes.set(xlabel="gate z (no unit)", ylabel="output (no unit)", ylim=(-1.3, float(z.max())))
    axes.set_xlim(float(z.min()), float(z.max()))
    return figure


def draw_stream(names: Sequence[str], places: Sequence[int]) -> Figure:
    """The place of the right token among all, if the head read the residual stream after each block."""
    figure, axes = new_figure(7.0, 4.0)
    axes.plot(range(len(names)), places, color=INK, marker="o")
    for block, place in enumerate(places):
        # Labels stand where the line does not: below where it climbs to the next block, beside it on a slope.
        before, after = places[max(block - 1, 0)], places[min(block + 1, len(places) - 1)]
        offset, align = ((0, -18), "center") if after < place else ((0, 9), "center")
        if after < place < before or before < place < after:
            offset, align = ((6, -14), "left") if after < place else ((4, 6), "left")
        axes.annotate(f"{place:,}", (block, place), offset, textcoords="offset points", ha=align, fontsize=11)
    axes.set_yscale("log")
    axes.set_ylim(2.5 * max(places), 0.5)
    axes.set_yticks([1, 10, 100, 1000], ["1st", "10th", "100th", "1,000th"])
    axes.minorticks_off()
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set(xlabel="read after", ylabel="place of the right token")
    return figure


def draw_sampling(tokens: Sequence[str], panels: dict[str, np.ndarray], reference: np.ndarray) -> Figure:
    """Temperature bends the whole distribution; top-k and top-p cut its tail and share out what it had.

    Each panel holds the probabilities of `tokens` under one setting (filled); `reference` is drawn hollow behind.
    """
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(7.0, 0.6 + 0.33 * rows * (len(tokens) + 1.5)), layout="constrained")
    grid: list[Axes] = list(figure.subplots(rows, 2, sharex=True, sharey=True).flat)
    places = np.arange(len(tokens))
    for axes, (title, probabilities) in zip(grid, panels.items(), strict=False):
        axes.barh(places, reference, height=0.7, facecolor="none", edgecolor=INK, linewidth=0.8, linestyle=":")
        axes.barh(places, probabilities, height=0.7, color=INK, alpha=0.75)
        for place, (probability, uncut) in enumerate(zip(probabilities, reference, strict=True)):
            words = f"{probability:.2f}" if probability else "cut"
            axes.text(max(probability, uncut) + 0.015, place, words, va="center", fontsize=10)
        axes.set_title(title)
        axes.set_yticks(places, tokens)
        axes.tick_params(axis="y", length=0)
    grid[0].invert_yaxis()
    grid[0].set_xlim(0, 1.12 * max(float(np.max(p)) for p in [reference, *panels.values()]) + 0.06)
    for axes in grid[-2:]:
        axes.set_xlabel("probability")
    return figure

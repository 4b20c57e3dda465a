"""The figure of the landing page: one request, from its prompt to its answer.

python -m tinyinfer.figures.story book/_static/story.svg
"""

import sys
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from tinyinfer.figures.style import DECODE, INK, KV_CACHE, LIMIT, PREFILL, Figure, new_figure


@dataclass(frozen=True)
class Call:
    """One forward pass: the tokens that it reads, the token that it answers, and the cache's rows afterwards."""

    phase: str
    reads: str
    answers: str
    rows: str


def story_calls(prompt: str, answer: str) -> list[Call]:
    """The forward passes behind `answer`, one character a token: a prefill, then one decode step per further token."""
    calls = [Call("prefill", prompt, answer[0], prompt)]
    for step, token in enumerate(answer[1:]):
        calls.append(Call("decode", answer[step], token, prompt + answer[: step + 1]))
    return calls


# Sizes in units of the drawing, whose axes are 100 wide.
_PREFILL_WIDTH, _STEP_WIDTH, _GAP, _LEFT = 31.0, 13.4, 1.6, 5.0
_BLOCK = (62.0, 18.0)  # bottom and height of the blocks
_ANSWER, _AXIS, _ROWS_TOP, _ROW = 92.0, 55.5, 30.5, 4.6


def draw_story(prompt: str = "白日依山", answer: str = "尽，黄河入") -> Figure:
    """Prefill reads the prompt at once, each decode step one token; each token leaves one row in the KV cache."""
    figure, axes = new_figure(7.0, 6.3)
    axes.set(xlim=(0, 100), ylim=(-7.5, 97))
    axes.axis("off")
    calls = story_calls(prompt, answer)

    left, ends = _LEFT, []
    for call in calls:
        width = _PREFILL_WIDTH if call.phase == "prefill" else _STEP_WIDTH
        _draw_block(axes, call, left, width)
        _draw_rows(axes, call, left, width)
        ends.append(left + width)
        left += width + _GAP
    for end, following in zip(ends, calls[1:], strict=False):
        _draw_feedback(axes, end, following)
    _draw_time(axes, ends)
    _draw_words(axes, prompt)
    return figure


def _centre_of_answer(end: float) -> float:
    return end - 2.6


def _draw_block(axes: Axes, call: Call, left: float, width: float) -> None:
    bottom, height = _BLOCK
    colour = PREFILL if call.phase == "prefill" else DECODE
    box = "round,pad=0,rounding_size=1.2"
    axes.add_patch(FancyBboxPatch((left, bottom), width, height, boxstyle=box, facecolor=colour, edgecolor="none"))
    middle = left + width / 2
    axes.text(
        middle, bottom + height - 3.6, call.phase, color="white", weight="bold", fontsize=13, ha="center", va="center"
    )
    for index, token in enumerate(call.reads):
        x = middle + (index - (len(call.reads) - 1) / 2) * 7.0
        _draw_token(axes, x, bottom + 6.2, token, "white")
    answer = _centre_of_answer(left + width)
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (answer, _ANSWER - 4.0), (answer, bottom + height), arrowprops=arrow)
    _draw_token(axes, answer, _ANSWER, call.answers, "white", colour)


def _draw_token(axes: Axes, x: float, y: float, token: str, face: str, edge: str = "none") -> None:
    box = "round,pad=0,rounding_size=1"
    size = 5.6
    corner = (x - size / 2, y - size * 0.62)
    axes.add_patch(
        FancyBboxPatch(corner, size, size * 1.24, boxstyle=box, facecolor=face, edgecolor=edge, linewidth=1.5)
    )
    axes.text(x, y, token, fontsize=17, ha="center", va="center_baseline")


def _draw_feedback(axes: Axes, end: float, following: Call) -> None:
    """The answered token becomes what the next step reads."""
    target = end + _GAP + _STEP_WIDTH / 2
    arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "linestyle": (0, (3, 2)), "shrinkA": 0, "shrinkB": 0}
    arrow["connectionstyle"] = "angle,angleA=0,angleB=90,rad=6"
    axes.annotate("", (target, sum(_BLOCK) + 0.3), (_centre_of_answer(end) + 3.0, _ANSWER), arrowprops=arrow)


def _draw_rows(axes: Axes, call: Call, left: float, width: float) -> None:
    """The cache after the call: rows kept from before are pale, rows written now are full."""
    shown = _STEP_WIDTH
    left += (width - shown) / 2
    kept = len(call.rows) - len(call.reads)
    for row, token in enumerate(call.rows):
        y = _ROWS_TOP - (row + 1) * _ROW
        written = row >= kept
        axes.text(left + 1.6, y + _ROW / 2, token, fontsize=13, ha="center", va="center_baseline")
        for column, name in enumerate("KV"):
            cell = Rectangle(
                (left + 3.6 + column * 4.9, y + 0.3),
                4.5,
                _ROW - 0.6,
                facecolor=KV_CACHE if written else "white",
                edgecolor=KV_CACHE,
                linewidth=1.2,
            )
            axes.add_patch(cell)
            if written:
                axes.text(
                    left + 5.85 + column * 4.9, y + _ROW / 2, name, fontsize=10, color="white", weight="bold",
                    ha="center", va="center_baseline",
                )  # fmt: skip


def _draw_time(axes: Axes, ends: list[float]) -> None:
    arrow = {"arrowstyle": "-|>", "color": LIMIT, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (100, _AXIS), (_LEFT, _AXIS), arrowprops=arrow)
    axes.text(100, _AXIS + 1.2, "time", ha="right", va="bottom", fontsize=12)
    for x in (_LEFT, *ends):
        axes.plot([x, x], [_AXIS - 1, _AXIS + 1], color=LIMIT, linewidth=1.2)
    _draw_span(axes, _LEFT, ends[0], PREFILL)
    for start, end in pairwise(ends):
        _draw_span(axes, start, end, DECODE)
    _draw_name(axes, (_LEFT + ends[0]) / 2, "TTFT", "time to first token", PREFILL)
    _draw_name(axes, (ends[0] + ends[-1]) / 2, "TPOT", "mean time between two tokens", DECODE)


def _draw_span(axes: Axes, start: float, end: float, colour: str) -> None:
    arrow = {"arrowstyle": "<|-|>", "color": colour, "linewidth": 1.5, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", (end, _AXIS - 4), (start, _AXIS - 4), arrowprops=arrow)


def _draw_name(axes: Axes, x: float, name: str, words: str, colour: str) -> None:
    axes.text(x, _AXIS - 6, name, color=colour, weight="bold", fontsize=13, ha="center", va="top")
    axes.text(x, _AXIS - 10.2, words, color=colour, ha="center", va="top", fontsize=12)


def _draw_words(axes: Axes, prompt: str) -> None:
    axes.text(_LEFT, _ANSWER, f"prompt  {prompt}", va="center_baseline", fontsize=14)
    arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (_LEFT + 4.4, sum(_BLOCK) + 0.3), (_LEFT + 4.4, _ANSWER - 4.0), arrowprops=arrow)
    y = _ROWS_TOP + 4.4
    axes.text(_LEFT, y, "KV cache after each call", va="center_baseline", weight="bold", fontsize=13)
    for x, face, words in ((57, KV_CACHE, "written now"), (82.5, "white", "kept")):
        swatch = Rectangle((x, y - 2.0), 4.5, _ROW - 0.6, facecolor=face, edgecolor=KV_CACHE, linewidth=1.2)
        axes.add_patch(swatch)
        axes.text(x + 5.8, y, words, va="center_baseline", fontsize=12)
    note = "one row of K and V\nper token, in every layer"
    axes.text(_LEFT, _ROWS_TOP - 7 * _ROW, note, va="center", fontsize=12, linespacing=1.3)


if __name__ == "__main__":
    draw_story().save_svg(sys.argv[1])

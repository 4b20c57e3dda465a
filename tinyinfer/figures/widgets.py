"""Figures that answer the reader: HTML and a little JavaScript, with no kernel and no network.

A widget is a function from data to a `Widget`, which shows itself in a notebook and in the book. Its numbers come from
this package and travel in the page as JSON; so do its script and its styles, from the folder `web`. A still picture
and a table of the same numbers stand in its place until its script runs, and where none may run.
"""

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Context
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.figures import phases
from tinyinfer.figures.attention import attention_steps, draw_mask, draw_passes, pass_grid
from tinyinfer.figures.style import Figure
from tinyinfer.figures.tables import html_table
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance import cost

_WEB = Path(__file__).with_name("web")


@dataclass(frozen=True)
class Widget:
    """One interactive figure. `script` names its file in `web` and its entry in `tinyinfer.widgets`.

    `builds_on` names further scripts that must be read before it. Styles of its own stand in a file of the same name.
    """

    id: str
    script: str
    data: dict[str, Any]
    still: str
    caption: str
    builds_on: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Widget {self.id}>"

    def _repr_html_(self) -> str:
        # "<" is written as an escape, so that no text in the data can end its element.
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        scripts = "".join(_read(f"{name}.js") for name in ("widgets", *self.builds_on, self.script))
        styles = _read("widgets.css") + (_read(f"{self.script}.css") if (_WEB / f"{self.script}.css").exists() else "")
        return "\n".join(
            (
                f'<figure class="tinyinfer-widget" id="{self.id}">',
                f"<style>{styles}</style>",
                f'<div class="stage"><div class="still">{self.still}</div></div>',
                f"<figcaption>{escape(self.caption)}</figcaption>",
                f'<script type="application/json">{data}</script>',
                f'<script>{scripts}window.tinyinfer.start("{self.script}");</script>',
                "</figure>",
            )
        )


@cache
def _read(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")


def short(number: float) -> str:
    """`6,144`, `8.87 M`, `0.538`: every digit of whole numbers below 100,000, else three and a unit prefix."""
    if number < 1e5 and number == int(number):
        return f"{int(number):,}"
    thousands = 0
    while float(_three_digits(number / 1000**thousands)) >= 1000:
        thousands += 1
    return _three_digits(number / 1000**thousands) + ("", " k", " M", " G", " T", " P", " E")[thousands]


def _three_digits(number: float) -> str:
    """JavaScript's `toPrecision(3)` where no exponent is needed: halves are rounded up, zeros at the end stay."""
    rounded = Context(prec=3, rounding=ROUND_HALF_UP).create_decimal(number)
    return f"{float(rounded):#.3g}".rstrip(".")


def svg_picture(figure: Figure, alt: str) -> str:
    """A figure as an image inside the page; its letters are outlines, so it needs no font."""
    picture = io.BytesIO()
    figure.save_svg(picture)
    encoded = base64.b64encode(picture.getvalue()).decode()
    return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{encoded}">'


def attention_stepper(tokens: Sequence[str], queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Widget:
    """Choose the token that asks; see its scores, the mask, its weights and the mix of values. Arrays: (tokens, d).

    Mask and scale can be switched off. What stands still shows every row of `attention_steps`.
    """
    steps = attention_steps(queries, keys, values)
    panels = {"q · k": steps.products, "scores, masked": steps.masked, "weights": steps.weights}
    picture = svg_picture(draw_mask(tokens, panels), "Products, masked scores and weights of every token that asks.")
    rows = [
        [token, *(f"{weight:.3f}" if weight else "0" for weight in weights), " ".join(f"{one:.3f}" for one in mixed)]
        for token, weights, mixed in zip(tokens, steps.weights, steps.mixed, strict=True)
    ]
    return Widget(
        "widget-attention",
        "attention",
        {
            "tokens": list(tokens),
            "queries": queries.tolist(),
            "keys": keys.tolist(),
            "values": values.tolist(),
        },
        f"{picture}<p>Weights, and the values mixed by them:</p>" + html_table(["asks", *tokens, "mixed"], rows),
        "Choose the token that asks (tap, hover, or the arrow keys), and switch the mask and the scale off and on. "
        "A black score is masked: its weight is exactly 0. The bars show the weights.",
    )


@dataclass(frozen=True)
class CachePass:
    """One pass of a generation: tokens read with a cache, tokens seen, and counts with the cache and without it.

    `naive_` counts are those of a model that keeps nothing and reads all it has seen. Rows are rows of K (as many of
    V) in each layer; the last row alone becomes logits, as in `performance.cost`.
    """

    reads: int
    seen: int
    flops: int
    flops_so_far: int
    naive_flops: int
    naive_flops_so_far: int
    cached_rows_so_far: int
    naive_rows_so_far: int
    bytes_held: float
    bytes_moved: float
    bytes_so_far: float
    naive_bytes_so_far: float
    intensity: float


def cache_passes(config: ModelConfig, prompt: int, passes: int, bytes_per_number: float = 2) -> list[CachePass]:
    """The passes that generate `passes` tokens after `prompt` ones: a prefill, then decode steps of one token."""
    steps: list[CachePass] = []
    for sampled in range(passes):
        seen = prompt + sampled
        naive = cost.prefill_cost(config, seen, weight_bytes=bytes_per_number, kv_bytes=0)  # writes no row
        work = cost.decode_cost(config, seen, weight_bytes=bytes_per_number, kv_bytes=bytes_per_number)
        if sampled == 0:
            work = cost.prefill_cost(config, prompt, weight_bytes=bytes_per_number, kv_bytes=bytes_per_number)
        before = steps[-1] if steps else None
        steps.append(
            CachePass(
                reads=1 if sampled else prompt,
                seen=seen,
                flops=work.flops,
                flops_so_far=work.flops + (before.flops_so_far if before else 0),
                naive_flops=naive.flops,
                naive_flops_so_far=naive.flops + (before.naive_flops_so_far if before else 0),
                cached_rows_so_far=cost.kv_projections(prompt, sampled + 1, cached=True),
                naive_rows_so_far=cost.kv_projections(prompt, sampled + 1, cached=False),
                bytes_held=seen * config.kv_bytes_per_token(1) * bytes_per_number,
                bytes_moved=work.bytes_moved,
                bytes_so_far=work.bytes_moved + (before.bytes_so_far if before else 0),
                naive_bytes_so_far=naive.bytes_moved + (before.naive_bytes_so_far if before else 0),
                intensity=work.intensity,
            )
        )
    return steps


def cache_stepper(
    tokens: Sequence[str],
    prompt: int,
    configs: Sequence[ModelConfig],
    bytes_per_number: int = 2,
    focus: Literal["saved", "phases"] = "saved",
) -> Widget:
    """Step through the generation of `tokens`, whose first `prompt` are given: prefill at once, then one a step.

    `focus="saved"` sets the work with nothing kept beside the work with K and V kept; `focus="phases"` sets the
    prefill beside the decode step. The last token is answered and never read.
    """
    if not 0 < prompt < len(tokens):
        raise BadInput(f"prompt is {prompt}; it must be at least 1 and leave one of {len(tokens)} tokens to answer")
    grid = pass_grid(prompt, len(tokens) - prompt)
    counted = {config.name: cache_passes(config, prompt, len(grid), bytes_per_number) for config in configs}
    shown = next(iter(counted.values()))
    title = configs[0].name
    if focus == "saved":
        title += "; FLOPs and bytes so far"
        head = ["pass", "FLOPs, nothing kept", "FLOPs, kept", "bytes, nothing kept", "bytes, kept", "cache"]
        columns = ("naive_flops_so_far", "flops_so_far", "naive_bytes_so_far", "bytes_so_far", "bytes_held")
        words = "With nothing kept, each pass makes every row again; with keys and values kept, it makes the new ones."
        alt = "Rows of K made by each pass if nothing is kept: grey ones again, green ones for the first time."
        figure = draw_passes(tokens, grid)
    else:
        head = ["pass", "reads", "FLOPs", "bytes moved", "FLOP per byte", "cache"]
        columns = ("reads", "flops", "bytes_moved", "intensity", "bytes_held")
        words = "Prefill fills the cache with all prompt rows at once; each decode step reads everything to add one."
        alt = "The first passes: prefill reads the prompt at once, each decode step one token, beside the rows kept."
        figure = phases.draw_passes(
            [phases.Pass(at.seen - at.reads, tokens[at.seen - at.reads : at.seen], tokens[at.seen]) for at in shown[:4]]
        )
    rows = [
        [str(number), *(short(getattr(each, column)) for column in columns)] for number, each in enumerate(shown, 1)
    ]
    return Widget(
        "widget-cache" if focus == "saved" else "widget-phases",
        "cache",
        {
            "tokens": list(tokens),
            "grid": grid.tolist(),
            "models": [{"name": name, "passes": [asdict(each) for each in passes]} for name, passes in counted.items()],
            "focus": focus,
        },
        f"{svg_picture(figure, alt)}<p>{escape(title)}:</p>{html_table(head, rows)}",
        f"{words} Step with the buttons or the slider. A filled cell is written in this pass. "
        f"Counted from the shapes, with {bytes_per_number} bytes a number; every model as if it read these tokens. "
        "k, M, G and T stand for a thousand, a million, 10⁹ and 10¹².",
    )

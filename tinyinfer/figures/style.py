"""How every figure looks: one colour per concept, one font that knows Chinese, a white ground in dark mode too.

Colour is never alone. Prefill is drawn as a line or with triangles, decode as a line or with circles, the KV cache as
an area or with squares, a prediction dashed and hollow, a measurement solid and filled.
"""

import contextlib
import io
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from tinyinfer.errors import BadInput

PREFILL = "#D55E00"
DECODE = "#005AB5"
WEIGHTS = "#DDCC77"
KV_CACHE = "#009E73"
TRANSFER = "#882255"
LIMIT = "#000000"
OTHER = "#BBBBBB"

# The same limits in every roofline of the book, so that pictures can be laid over each other.
INTENSITY_LIMITS = (0.1, 1e5)
RATE_LIMITS = (1e9, 1e16)

INK = "#222222"
FONT = Path(__file__).with_name("TinyHanzi.otf")

# Settings are read when a text or line is made, not when it is drawn, so they must hold while figure functions run.
# Importing this module therefore sets them for the process; the rest of the package never imports it.
font_manager.fontManager.addfont(FONT)
# The one weight stands for bold as well; else matplotlib warns on standard error at every bold text.
font_manager.fontManager.ttflist.append(replace(font_manager.fontManager.ttflist[-1], weight=700))
matplotlib.rcParams.update(
    {
        "font.family": ["DejaVu Sans", "Tiny Hanzi"],
        "font.size": 12,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.labelsize": 12,
        "axes.titlesize": 12,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.labelsize": 11,
        "ytick.labelsize": 11,
        "xtick.color": INK,
        "ytick.color": INK,
        "lines.linewidth": 2,
        "lines.markersize": 7,
        "legend.frameon": False,
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "svg.hashsalt": "tinyinfer",
    }
)


class Figure(MatplotlibFigure):
    """A figure that shows itself in a notebook. No window system and no pyplot stand behind it."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=144, metadata={"Software": None})
        return picture.getvalue()

    def save_svg(self, target: str | Path | BinaryIO) -> None:
        """Write an SVG whose bytes are the same at every run; text as paths, since an image has no page fonts."""
        self.savefig(target, format="svg", metadata={"Date": None, "Creator": None})

    def save(self, path: str | Path) -> None:
        """Write an .svg or a .png, whole or not at all. `BadInput` on another ending or a place that takes no file."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise BadInput(f"a figure is written as .svg or .png; {str(path)!r} ends in neither")
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            if path.suffix == ".svg":
                self.save_svg(unfinished)
            else:
                unfinished.write_bytes(self._repr_png_())
            unfinished.replace(path)
        except OSError as wrong:
            raise BadInput(f"{path} cannot be written: {wrong.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)


def new_figure(width: float = 7.0, height: float = 4.0) -> tuple[Figure, Axes]:
    """An empty figure of so many inches, and its axes. Seven inches fill a page, and 12 points read on a phone."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()

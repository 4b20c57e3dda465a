"""Tables of the book as HTML: row and column heads marked for screen readers, which those of Markdown are not."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One line for each of `rows`, its name first; `corner` says what the names are. Texts are shown as they are."""

    corner: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[str]]

    def __repr__(self) -> str:
        return f"<Table of {len(self.rows)} rows and {len(self.columns)} columns>"

    def _repr_html_(self) -> str:
        heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in (self.corner, *self.columns))
        lines = ""
        for name, cells in self.rows.items():
            numbers = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            lines += f'<tr><th scope="row">{html.escape(name)}</th>{numbers}</tr>\n'
        return f'<table class="table">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody></table>'

"""Tables of the book as HTML: row and column heads marked for screen readers, which those of Markdown are not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """One line for each of `rows`, its name first; `corner` says what the names are. Texts are shown as they are."""

    corner: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[str]]

    def __repr__(self) -> str:
        return f"<Table of {len(self.rows)} rows and {len(self.columns)} columns>"

    def _repr_html_(self) -> str:
        return html_table((self.corner, *self.columns), [(name, *cells) for name, cells in self.rows.items()])


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose rows begin with their heads; the last cell of a short row reaches to the end."""

    def line(cells: Sequence[str]) -> str:
        first, *others, last = cells
        left = len(head) - 1 - len(others)
        wide = f' colspan="{left}"' if left > 1 else ""
        texts = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        return f'<tr><th scope="row">{escape(first)}</th>{texts}<td{wide}>{escape(last)}</td></tr>\n'

    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(map(line, rows))
    return f'<table class="table">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table>'

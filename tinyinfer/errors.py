"""The one exception that means: the input is wrong, and the message says which part and what is allowed."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Wrong input from a person: its message names the thing, its value and what is allowed."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """A clause such as ` Did you mean 'tang'?`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=2)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""

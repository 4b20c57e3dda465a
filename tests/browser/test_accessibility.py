"""axe-core finds no serious and no critical barrier on any kind of page, in either theme."""

import pytest
from book_site import BOOK, DESKTOP, PAGES, PHONE
from page_faults import find_barriers

# Sphinx makes every source page in one way, so the longest stands for all.
SOURCES = [page for page in PAGES if page.startswith("_modules/tinyinfer/")]
OTHERS = [page for page in PAGES if page not in SOURCES]
LONGEST_SOURCE = sorted(SOURCES, key=lambda page: (BOOK / page).stat().st_size)[-1:]


@pytest.mark.parametrize("path", OTHERS + LONGEST_SOURCE)
@pytest.mark.parametrize(("theme", "width"), [("light", DESKTOP), ("dark", PHONE)], ids=["light desktop", "dark phone"])
def test_a_page_has_no_barrier(open_page, path, theme, width):
    assert not find_barriers(open_page(path, theme, width))

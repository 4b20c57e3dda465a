"""axe-core finds no serious and no critical barrier on any page, in either theme."""

import pytest
from book_site import DESKTOP, PAGES, PHONE
from page_faults import find_barriers


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(("theme", "width"), [("light", DESKTOP), ("dark", PHONE)], ids=["light desktop", "dark phone"])
def test_a_page_has_no_barrier(open_page, path, theme, width):
    assert not find_barriers(open_page(path, theme, width))

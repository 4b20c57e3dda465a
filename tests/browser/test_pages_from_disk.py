"""Every page of the book, opened as a file: on a train, there is no server. Leaves pictures of each for a person."""

import pytest
from book_site import BOOK, DESKTOP, PAGES, PHONE, WRITTEN_PAGES
from page_faults import find_faults_in_every_look

SCREENSHOTS = BOOK.parent / "screenshots"
TALLEST = 16_000  # pixels: the API page is taller than a picture may be


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_fault(open_page, path):
    assert not find_faults_in_every_look(open_page(path, scheme="file"))


@pytest.mark.parametrize("path", WRITTEN_PAGES)
def test_a_page_can_be_looked_at_in_each_of_four_looks(open_page, path):
    page = open_page(path, scheme="file").page
    for width in (DESKTOP, PHONE):
        for theme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=theme)
            picture = SCREENSHOTS / f"{path.split('/')[-1].removesuffix('.html')}-{width}-{theme}.jpeg"
            height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
            page.screenshot(
                path=picture,
                full_page=True,
                clip={"x": 0, "y": 0, "width": width, "height": height},
                type="jpeg",
                quality=80,
                animations="disabled",
            )
            assert picture.stat().st_size > 10_000

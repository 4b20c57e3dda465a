"""Every page of the book, opened as a file: on a train, there is no server. Leaves pictures of each for a person."""

import pytest
from book_site import BOOK, DESKTOP, PAGES, PHONE, WRITTEN_PAGES
from page_faults import find_faults_in_every_look

SCREENSHOTS = BOOK.parent / "screenshots"
TALLEST = 12_000  # pixels: a chapter is taller than a picture may be


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
            height = page.evaluate("document.documentElement.scrollHeight")
            for number, top in enumerate(range(0, height, TALLEST)):
                name = f"{path.split('/')[-1].removesuffix('.html')}-{width}-{theme}-{number}.jpeg"
                page.screenshot(
                    path=SCREENSHOTS / name,
                    full_page=True,
                    clip={"x": 0, "y": top, "width": width, "height": min(TALLEST, height - top)},
                    type="jpeg",
                    quality=80,
                    animations="disabled",
                )
                assert (SCREENSHOTS / name).stat().st_size > 1_000

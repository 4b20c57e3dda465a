"""A real browser reads the built book: Playwright drives an installed Chromium, without its own download.

A test of a page, or of a figure with controls in it, takes the fixture `open_page`:

    def test_the_slider_changes_the_number(open_page):
        visit = open_page("notebooks/01_write_attention.html", theme="dark", width=390, scheme="file")
        figure = visit.page.locator("figure.tinyinfer-widget#attention")
        figure.get_by_label("token").fill("3")
        assert figure.locator("output").inner_text() == "0.25"

`path` is that of the page below _build/html; `theme` is "light" or "dark", `width` in CSS pixels, `scheme` "http"
(a server on this machine) or "file". `visit.page` is Playwright's Page; `visit.requests` and `visit.errors` hold what
the page asked for and its console errors. When the test ends, any request to another host and any console error of any
page that it opened fails it, so a test of a widget need not look for them.

Environment: TINYINFER_CHROMIUM names the browser, TINYINFER_BOOK the folder of a built book, and with
TINYINFER_REQUIRE_BROWSER=1 a missing browser or book is a failure instead of a skip.
"""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from book_site import BOOK, DESKTOP, PAGES, find_chromium, serve, visit
from page_faults import find_console_errors, find_requests_elsewhere
from playwright.sync_api import sync_playwright


def find_what_is_lacking() -> str:
    """Why no page can be opened, and what to do about it; empty if all is there."""
    chromium = (
        ""
        if find_chromium()
        else "no Chromium found: apt install chromium-headless-shell, or name one in TINYINFER_CHROMIUM"
    )
    book = "" if PAGES else f"no book in {BOOK}: make book"
    return "; ".join(lack for lack in (chromium, book) if lack)


def pytest_collection_modifyitems(items):
    lacking = find_what_is_lacking()
    if lacking and os.environ.get("TINYINFER_REQUIRE_BROWSER") != "1":
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason=lacking))


@pytest.fixture(scope="module")
def browser():
    """One Chromium for all tests of a file. Ended with the file: its event loop must not outlive it."""
    if lacking := find_what_is_lacking():
        pytest.fail(lacking)
    with sync_playwright() as playwright:
        # No name is looked up: a page that asks another host for something is noted, and gets nothing.
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def book_address(browser):
    with serve(BOOK) as address:
        yield address


@pytest.fixture
def open_page(browser, book_address):
    """Open pages of the book; see the head of this file."""
    visits = []
    with ExitStack() as stack:

        def open_one(path, theme="light", width=DESKTOP, scheme="http"):
            root = book_address if scheme == "http" else BOOK.resolve().as_uri() + "/"
            opened = stack.enter_context(visit(browser, root, BOOK, path, theme, width))
            visits.append(opened)
            return opened

        yield open_one
    faults = [fault for opened in visits for fault in find_requests_elsewhere(opened) + find_console_errors(opened)]
    assert not faults, "\n".join(faults)

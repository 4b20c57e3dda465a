"""How long a page takes to be drawn, from disk, in a headless Chromium: `python tests/browser/time_pages.py`."""

from collections.abc import Iterator
from statistics import median

from book_site import BOOK, DESKTOP, WRITTEN_PAGES, find_chromium, visit
from playwright.sync_api import sync_playwright

ROUNDS = 3
# From the start of the navigation until mathematics and fonts are in place and a frame has been painted.
WAIT_FOR_FRAME = "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"


def time_pages() -> Iterator[tuple[str, float]]:
    """Each page with its seconds: the median of a few visits, each with an empty cache."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium())
        for path in WRITTEN_PAGES:
            times = []
            for _ in range(ROUNDS):
                with visit(chromium, BOOK.resolve().as_uri() + "/", BOOK, path, "light", DESKTOP) as opened:
                    times.append(opened.page.evaluate(WAIT_FOR_FRAME) / 1e3)
            yield path, median(times)
        chromium.close()


if __name__ == "__main__":
    for path, seconds in time_pages():
        print(f"{path:45} {(BOOK / path).stat().st_size / 1e3:6.0f} kB {seconds:5.2f} s", flush=True)

"""Pictures of every written page in its four looks, for a person to look at: `python tests/browser/picture_pages.py`.

They go to _build/screenshots, named PAGE-WIDTH-THEME-PIECE.jpeg; the folder is emptied first.
"""

import shutil

from book_site import BOOK, DESKTOP, PHONE, WRITTEN_PAGES, Visit, find_chromium, visit
from playwright.sync_api import sync_playwright

PICTURES = BOOK.parent / "screenshots"
TALLEST = 12_000  # pixels: a chapter is taller than a picture may be


def picture(opened: Visit, name: str) -> None:
    """The whole page as it stands, cut into pieces from its top to its end."""
    size = opened.page.evaluate("({width: innerWidth, height: document.documentElement.scrollHeight})")
    for number, top in enumerate(range(0, size["height"], TALLEST)):
        opened.page.screenshot(
            path=PICTURES / f"{name}-{number}.jpeg",
            full_page=True,
            clip={"x": 0, "y": top, "width": size["width"], "height": min(TALLEST, size["height"] - top)},
            type="jpeg",
            quality=80,
            animations="disabled",
        )


if __name__ == "__main__":
    shutil.rmtree(PICTURES, ignore_errors=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium())
        for path in WRITTEN_PAGES:
            for width in (DESKTOP, PHONE):
                for theme in ("light", "dark"):
                    with visit(chromium, BOOK.resolve().as_uri() + "/", BOOK, path, theme, width) as opened:
                        picture(opened, f"{path.split('/')[-1].removesuffix('.html')}-{width}-{theme}")
        chromium.close()
    print(f"Look at {PICTURES}")

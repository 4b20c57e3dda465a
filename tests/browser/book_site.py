"""The built book as a browser sees it: its pages, over http and from disk, what they ask for and complain of."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page

BOOK = Path(os.environ.get("TINYINFER_BOOK") or Path(__file__).resolve().parents[2] / "_build/html")
# Every page that a reader can reach; index.html only leads on to the landing page.
PAGES = sorted(
    path.relative_to(BOOK).as_posix()
    for path in BOOK.rglob("*.html")
    if path.relative_to(BOOK).parts[0] != "_static" and path != BOOK / "index.html"
)
# The pages that people write: the others are lists and sources that Sphinx makes.
WRITTEN_PAGES = [page for page in PAGES if page.startswith(("book/", "notebooks/"))]
DESKTOP, PHONE = 1280, 390  # widths in CSS pixels


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome; TINYINFER_CHROMIUM, if set, names the only one to take.

    Debian's headless shell is Chromium without its windows and menus, and loads a page in half the time.
    """
    if named := os.environ.get("TINYINFER_CHROMIUM"):
        return shutil.which(named)
    found = (
        shutil.which(name) for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    )
    return next((path for path in found if path), None)


@dataclass(frozen=True)
class Visit:
    """One open page, with the address of the folder it was opened from and what the browser noted since."""

    page: Page
    root: str  # "http://127.0.0.1:PORT/" or "file:///.../"
    folder: Path
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # console errors and uncaught exceptions

    def note_console_line(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self.errors.append(f"{line.text} ({line.location['url']})")

    def find_file(self, address: str) -> Path | None:
        """The file on disk behind an address of this site; None for an address elsewhere."""
        if not address.startswith(self.root):
            return None
        return self.folder / unquote(urlsplit(address[len(self.root) :]).path)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        """No line per request on stderr."""


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A browser that closes a page stops reading; anything else is told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine only, on a free port; yields the address of its root."""
    server = QuietServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def visit(browser: Browser, root: str, folder: Path, path: str, theme: str, width: int) -> Iterator[Visit]:
    """Open a page as a new reader, with empty storage; yields once mathematics and fonts are in place."""
    height = 844 if width < 600 else 900
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    try:
        page = context.new_page()
        opened = Visit(page, root, folder)
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on("console", lambda line: opened.note_console_line(line))
        page.on("pageerror", lambda error: opened.errors.append(str(error)))
        page.goto(root + path, wait_until="load")
        wait_until_drawn(page)
        yield opened
    finally:
        context.close()


def wait_until_drawn(page: Page) -> None:
    """Wait for MathJax, where the page has it, and for the fonts."""
    page.evaluate("async () => { await window.MathJax?.startup?.promise; await document.fonts.ready; }")

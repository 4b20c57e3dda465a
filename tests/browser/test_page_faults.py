"""Each finder of faults finds one that was planted, and finds none in the same page without it."""

import page_faults
import pytest
from book_site import DESKTOP, PHONE, visit

GOOD = """<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Good</title>
<style>body {{ margin: 0; color: #222; background: #fff }} .wide {{ width: 900px }}</style>
<script>
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const turn = () => document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  turn(); dark.onchange = turn;
</script></head>
<body><main><h1>Good</h1><h2 id="part">Part</h2><p><a href="#part">part</a> <a href="other.html#there">other</a></p>
<img src="dot.svg" alt="a dot" width="30">
<span class="math"><mjx-container><svg width="9" height="9" aria-hidden="true"></svg></mjx-container></span>
{planted}</main></body></html>"""

PLANTED = {
    "a picture of another host": ("<img src='https://example.org/a.png' alt='far' width='30'>", "requests_elsewhere"),
    "a script of another host": ("<script src='https://example.org/a.js'></script>", "requests_elsewhere"),
    "a line of console.error": ("<script>console.error('planted')</script>", "console_errors"),
    "an exception": ("<script>nothing.at.all</script>", "console_errors"),
    "a link to a page that is not there": ("<a href='none.html'>none</a>", "broken_links"),
    "a link to an anchor that is not there": ("<a href='other.html#here'>here</a>", "broken_links"),
    "a link to no part of this page": ("<a href='#nowhere'>nowhere</a>", "broken_links"),
    "a missing picture": ("<img src='none.svg' alt='none' width='30' height='30'>", "bad_pictures"),
    "a picture without alt text": ("<img src='dot.svg' width='30'>", "bad_pictures"),
    "a picture with its file name as alt text": ("<img src='dot.svg' alt='dot.svg' width='30'>", "bad_pictures"),
    "a picture that nothing shows": ("<img src='dot.svg' alt='dot' style='display: none'>", "bad_pictures"),
    "a folded picture without alt text": (
        "<details><summary>more</summary><img src='dot.svg' width='30'></details>",
        "bad_pictures",
    ),
    "a drawing without a word": ("<figure><svg width='30' height='30'></svg></figure>", "bad_pictures"),
    "mathematics left as source": ("<span class='math'>\\(x^2\\)</span>", "undrawn_mathematics"),
    "mathematics with an error": (
        "<mjx-container><svg><g data-mml-node='merror' data-mjx-error='Undefined'></g></svg></mjx-container>",
        "undrawn_mathematics",
    ),
    "a wide table": ("<table class='wide'><tr><td>wide</td></tr></table>", "sideways_scroll"),
    "a second h1": ("<h1>Again</h1>", "unordered_headings"),
    "a level left out": ("<h4>Deep</h4>", "unordered_headings"),
    "grey on white": ("<p style='color: #bbb'>pale</p>", "barriers"),
    "an input without a label": ("<input>", "barriers"),
}
FINDERS = sorted({finder for _, finder in PLANTED.values()})


@pytest.fixture
def open_planted(browser, tmp_path):
    def open_planted(planted, width):
        (tmp_path / "page.html").write_text(GOOD.format(planted=planted), encoding="utf-8")
        (tmp_path / "other.html").write_text('<p id="there">there</p>', encoding="utf-8")
        dot = '<svg xmlns="http://www.w3.org/2000/svg" width="30" height="30"><circle r="9" cx="15" cy="15"/></svg>'
        (tmp_path / "dot.svg").write_text(dot, encoding="utf-8")
        return visit(browser, tmp_path.as_uri() + "/", tmp_path, "page.html", "light", width)

    return open_planted


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_good_page_has_no_fault(open_planted, width):
    with open_planted("", width) as opened:
        assert [fault for finder in FINDERS for fault in getattr(page_faults, f"find_{finder}")(opened)] == []
        assert page_faults.find_faults(opened) == []
        assert page_faults.find_faults_in_every_look(opened) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(open_planted, name):
    planted, finder = PLANTED[name]
    with open_planted(planted, PHONE) as opened:
        assert getattr(page_faults, f"find_{finder}")(opened)
        if finder != "barriers":
            assert page_faults.find_faults(opened)
            assert page_faults.find_faults_in_every_look(opened)

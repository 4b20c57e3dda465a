"""Every Chinese character of the book is in the committed font, so pages and figures need no other."""

import runpy
from pathlib import Path

import pytest

ttLib = pytest.importorskip("fontTools.ttLib", reason="fonttools comes with matplotlib: install tinyinfer[figures]")

ROOT = Path(__file__).resolve().parents[2]
FONTS = [ROOT / "tinyinfer/figures/TinyHanzi.otf", ROOT / "book/_static/TinyHanzi.woff2"]


@pytest.fixture(scope="module")
def make_font():
    return runpy.run_path(str(ROOT / "book/make_font.py"))


@pytest.mark.parametrize("path", FONTS, ids=lambda path: path.suffix)
def test_every_chinese_character_that_the_book_uses_is_in_the_font(path, make_font):
    if path.suffix == ".woff2":
        pytest.importorskip("brotli", reason="reading WOFF2 needs brotli")
    with ttLib.TTFont(path) as font:
        missing = make_font["used_characters"]() - set(map(chr, font.getBestCmap()))
    assert not missing, f"{''.join(sorted(missing))}: run book/make_font.py"


def test_the_search_for_characters_finds_them(make_font):
    used = make_font["used_characters"]()
    assert set("白日依山尽，") <= used
    assert all(not character.isascii() for character in used)


def test_the_two_fonts_hold_the_same_characters():
    pytest.importorskip("brotli", reason="reading WOFF2 needs brotli")
    with ttLib.TTFont(FONTS[0]) as otf, ttLib.TTFont(FONTS[1]) as woff2:
        assert set(otf.getBestCmap()) == set(woff2.getBestCmap())


@pytest.mark.parametrize("folder", ["tinyinfer/figures", "book/_static"])
def test_the_licence_lies_beside_the_font(folder):
    assert "SIL OPEN FONT LICENSE" in (ROOT / folder / "TinyHanzi-OFL.txt").read_text(encoding="utf-8")

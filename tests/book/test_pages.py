"""What the prose says that can be executed is executed, and every test that it names exists."""

import doctest
import re
from pathlib import Path

import pytest

from tinyinfer.figures.story import story_calls

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "book").glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_test_that_a_page_names_exists(path):
    for file, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", path.read_text(encoding="utf-8")):
        assert (ROOT / file).exists(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_the_lines_that_settle_misreadings_give_what_the_page_shows():
    page = ROOT / "book/misreadings.md"
    blocks = re.findall(r"```pycon\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    problems: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(lines, out=problems.append)
    assert results.attempted > 20
    assert not results.failed, "".join(problems)


def test_the_story_has_one_prefill_and_a_decode_step_per_further_token():
    calls = story_calls("白日依山", "尽，黄河入")
    assert [call.phase for call in calls] == ["prefill"] + 4 * ["decode"]
    assert [len(call.rows) for call in calls] == [4, 5, 6, 7, 8]
    assert [call.reads for call in calls] == ["白日依山", "尽", "，", "黄", "河"]
    assert "".join(call.answers for call in calls) == "尽，黄河入"


def test_the_committed_story_is_drawn_by_the_package(tmp_path):
    from tinyinfer.figures.story import draw_story

    axes = draw_story().axes[0]
    drawn = [text.get_text() for text in axes.texts]
    assert drawn.count("decode") == 4
    assert drawn.count("K") == drawn.count("V") == 4 + 4
    draw_story().save_svg(tmp_path / "story.svg")
    assert (tmp_path / "story.svg").read_bytes() == (ROOT / "book/_static/story.svg").read_bytes()

"""The cheat sheet is one page of paper, and what is printed is the text without the site around it."""

import re

import pytest

SHEET = "notebooks/cheat_sheet.html"


@pytest.mark.parametrize("paper", ["A4", "Letter"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_cheat_sheet_fits_one_page(open_page, paper, theme):
    printed = open_page(SHEET, theme).page.pdf(format=paper)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


def test_paper_shows_the_title_and_every_table_and_neither_menus_nor_hidden_code(open_page):
    page = open_page(SHEET).page
    page.emulate_media(media="print")
    assert page.locator("h1:visible").all_inner_texts() == ["Cheat sheet"]
    assert page.locator("#cheat-sheet table:visible").count() == 5
    for gone in (".bd-sidebar-primary", ".bd-sidebar-secondary", ".bd-header-article", ".tag_hide-cell"):
        assert page.locator(f"{gone}:visible").count() == 0, gone

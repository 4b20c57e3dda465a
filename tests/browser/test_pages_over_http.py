"""Every page of the book, from a web server, opened dark on a phone."""

import pytest
from book_site import BOOK, PAGES, PHONE, WRITTEN_PAGES
from page_faults import find_faults


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_fault(open_page, path):
    assert not find_faults(open_page(path, theme="dark", width=PHONE))


def test_the_address_of_the_book_leads_to_its_first_page(browser, book_address):
    page = browser.new_page()
    try:
        page.goto(book_address + "index.html")
        page.wait_for_url("**/book/intro.html")
        assert page.locator("h1:visible").count() == 1
    finally:
        page.close()


@pytest.mark.parametrize("path", WRITTEN_PAGES)
def test_a_page_is_smaller_than_one_and_a_half_megabytes(path):
    assert (BOOK / path).stat().st_size < 1_500_000

"""Every page of the book, opened as a file, light and dark, on a desktop and on a phone: a train has no server."""

import pytest
from book_site import PAGES
from page_faults import find_faults_in_every_look


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_fault(open_page, path):
    assert not find_faults_in_every_look(open_page(path, scheme="file"))

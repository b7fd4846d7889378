"""The page of rows says what every id in a docstring promises, and which tests prove it."""

from __future__ import annotations

import pytest
from row_page import PAGE, page, promises, proofs

pytestmark = pytest.mark.facts


def test_every_row_that_a_test_names_is_explained_in_one_line() -> None:
    lines = promises()
    assert [row for row in proofs() if not lines.get(row)] == []


def test_the_page_lists_the_tests_as_they_are() -> None:
    assert PAGE.read_text() == page(promises()), "python tests/support/row_page.py --write"

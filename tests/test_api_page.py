"""The API page in the repository is what the docstrings say now, and leaves out no public name."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import ledger_client

pytestmark = pytest.mark.facts
DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def api_page() -> ModuleType:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [str(DOCS), *sys.path])
        return import_module("api_page")


def test_the_page_is_as_the_docstrings_are(api_page: ModuleType) -> None:
    assert api_page.PAGE.read_text() == api_page.text(), "python docs/api_page.py --write"


def test_every_public_name_has_its_place_on_the_page(api_page: ModuleType) -> None:
    page = api_page.PAGE.read_text()
    headings = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    others = set(re.findall(r"`(\w+)` is another name of", page))
    assert set(ledger_client.__all__) - headings - others == set()

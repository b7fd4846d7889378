"""Write tests/rows.md: the ids of promised behaviours, and the tests that prove them.

    python tests/support/row_page.py --write

A row's id (``TB-14``) stands in the docstring of each test, or test module, that proves it. What
the id promises stands in the page itself, one line each, and is kept when the page is written anew.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests/rows.md"
HEAD = """# Rows

The behaviours that quire promises, by id. The tests below each name the id in their docstrings.
`python tests/support/row_page.py --write` renews the lists of tests; a new id needs a line here.

| id | promise | tests |
|---|---|---|
"""
_ID = re.compile(r"\b(BK|D|MV|PS|TB|TD)-(\d{2})\b")
_LINE = re.compile(r"^\| ([A-Z]{1,2}-\d+) \| (.*?) \| .* \|$", re.MULTILINE)


@cache
def proofs() -> dict[str, list[str]]:
    """The tests of each id, as path::name, or the path alone for a whole module."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name, docstring in _docstrings(path):
            for family, number in _ID.findall(docstring):
                row = f"{family}-{number}"
                if name not in found[row]:
                    found[row].append(name)
    return dict(found)


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_bytes())
    relative = str(path.relative_to(ROOT))
    yield relative, ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{relative}::{node.name}", ast.get_docstring(node) or ""


def promises() -> dict[str, str]:
    """The line of each id on the page."""
    return dict(_LINE.findall(PAGE.read_text()))


def page(lines: dict[str, str]) -> str:
    """The page with these *lines*, and the tests as they are now."""
    tests = proofs()
    rows = [
        f"| {row} | {lines.get(row, '')} | {' '.join(f'`{name}`' for name in tests[row])} |"
        for row in sorted(tests, key=lambda row: (row[:2], int(row[3:])))
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(promises()))
    else:
        sys.exit(__doc__)

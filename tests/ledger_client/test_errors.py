"""The errors: one tree, drawn as it is, importable from ledger_client."""

from __future__ import annotations

import inspect
import re

import pytest

import ledger_client
from ledger_client import errors
from ledger_client.errors import LedgerError

pytestmark = pytest.mark.facts

CLASSES = {
    name: each
    for name, each in vars(errors).items()
    if inspect.isclass(each) and issubclass(each, LedgerError)
}


def drawn() -> dict[str, str]:
    """The parent of each error of the drawing."""
    tree = (errors.__doc__ or "").partition("LedgerError\n")[2].partition("\n\n")[0]
    parents: dict[str, str] = {"LedgerError": "Exception"}
    above = ["LedgerError"]
    for line in tree.splitlines():
        bars, _, rest = re.fullmatch(r"((?:│   |    )*)(├── |└── )(.*)", line).groups()  # type: ignore[union-attr]
        depth, name = len(bars) // 4 + 1, rest.split()[0]
        parents[name] = above[depth - 1]
        above[depth:] = [name]
    return parents


def parent(error: type[BaseException]) -> str:
    """The base in the tree; those of metadata are in that of its store, too."""
    return next(base.__name__ for base in error.__bases__ if base.__name__ != "MetadataError")


def test_the_tree_is_drawn_as_it_is() -> None:
    real = {name: parent(each) for name, each in CLASSES.items()}
    assert drawn() == real


def test_all_errors_are_importable_from_the_package() -> None:
    assert set(CLASSES) <= set(ledger_client.__all__)
    assert all(getattr(ledger_client, name) is each for name, each in CLASSES.items())

"""Another value under a name, for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace ``owner.name`` by *value* within the block."""
    missing = name not in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

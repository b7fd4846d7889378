"""Values that are larger than a row: pages beside the row, which names them.

key                          value
---------------------------  -------------------------------------------------------
<key>                        the value itself, or PagedValue: the id of its pages
pages/<key>/<id>/000000      empty: the mark of these pages
pages/<key>/<id>/000001 ...  the value in pieces of PAGE_SIZE

A transaction is small, so a large value is put piece by piece before it counts. The transaction
that puts the row checks the mark: from then on the pages count, all of them.

    mark ──► pages, each with a check of the mark ──► row, with a check of the mark

An id is used for one value only, so the pages of an id never change. Pages that no row names are
left over by a process that was killed, or by a value that was replaced. They are removed with
their mark first, in a transaction which checks that the row does not name them. So either a row
names all pages of an id, or their mark is gone and no row can name them any more.

A reader reads the row, then its pages. If one is missing the row was replaced meanwhile, and it
reads the row again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from metadata.errors import BadRecord, MetadataBroken, VersionConflict
from metadata.records import decode_row
from metadata.store import (
    ABSENT,
    Check,
    CheckLease,
    Delete,
    Item,
    MetadataStore,
    Op,
    Page,
    Put,
    Versioned,
)

PAGES = "pages/"
PAGE_SIZE = 256 << 10
"""Bytes of a page; a value up to this size has none."""
PAGED_SIZE_MAX = 64 << 20
"""Bytes of a value; it is in memory as a whole."""
LEFT_OVER_MS = 3600_000
"""Age at which pages that no row names are taken for left over."""
REMOVED_COUNT = 100
"""Pages that one transaction removes."""

_PREFIX = b'{"paged":'


class PagedValue(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a value that is stored in pages."""

    paged: str
    """id of the pages"""
    size: int
    """bytes of the value"""


class Lister(Protocol):
    """Lists keys: a MetadataStore, or a snapshot of one."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """As MetadataStore.list."""


class StagedValue(NamedTuple):
    """A value whose pages are stored: what the row is to hold, and the check that goes with it."""

    row: bytes
    checks: list[Op]
    """none for a value without pages"""


async def stage_value(store: MetadataStore, key: str, value: bytes) -> StagedValue:
    """Store the pages of a value, if it needs any; nobody sees them until its row is put.

    Raises:
        MetadataBroken: it is larger than PAGED_SIZE_MAX.
        VersionConflict: the pages were taken for left over, after an hour.
        MetadataError: as every call to the store.
    """
    if len(value) <= PAGE_SIZE:
        return StagedValue(value, [])
    if len(value) > PAGED_SIZE_MAX:
        reason = f"has {len(value)} bytes; at most {PAGED_SIZE_MAX} are allowed"
        raise MetadataBroken(f"the value of {key} {reason}")
    pages_id = f"{await store.now_ms():016d}-{secrets.token_hex(8)}"
    mark = _page_key(key, pages_id, 0)
    version = await store.put(mark, b"", expected=ABSENT)
    for number, start in enumerate(range(0, len(value), PAGE_SIZE), start=1):
        page = Put(_page_key(key, pages_id, number), value[start : start + PAGE_SIZE], ABSENT)
        await store.transact([Check(mark, version), page])
    row = msgspec.json.encode(PagedValue(paged=pages_id, size=len(value)))
    return StagedValue(row, [Check(mark, version)])


async def read_value(store: MetadataStore, key: str) -> Versioned | None:
    """Return a value with the version of its row, or `None` if there is no such key.

    Raises:
        BadRecord: pages are missing.
        MetadataError: as every call to the store.
    """
    found = await store.get(key)
    return None if found is None else await whole_value(store, key, found)


async def whole_value(store: MetadataStore, key: str, found: Versioned) -> Versioned | None:
    """Return the value of a row that was read, or a later one. Raises as read_value()."""
    while True:
        try:
            return Versioned(await assembled(store, key, found.value), found.version)
        except BadRecord:
            again = await store.get(key)
            if again is None:
                return None
            if again.version == found.version:
                raise
            found = again


async def assembled(store: Lister, key: str, row: bytes) -> bytes:
    """Return the value of a row, with what its pages hold now.

    Raises:
        BadRecord: pages are missing, or the row is damaged.
        MetadataError: as every call to the store.
    """
    named = paged_value(key, row)
    if named is None:
        return row
    prefix = _prefix(key, named.paged)
    pages: list[Item] = []
    while page := await store.list(prefix, after=pages[-1][0] if pages else ""):
        pages += page
    value = b"".join(each.value for _, each in pages)
    if len(value) != named.size:
        raise BadRecord(f"{key}: {len(value)} of {named.size} bytes are there")
    return value


def paged_value(key: str, row: bytes) -> PagedValue | None:
    """Return what a row says about its pages, `None` if it has none. Raises BadRecord."""
    return decode_row(key, row, PagedValue) if row.startswith(_PREFIX) else None


async def drop_other_pages(
    store: MetadataStore, key: str, *, checks: Sequence[CheckLease] = ()
) -> None:
    """Remove the pages of *key* that its row does not name, also those of a later writer.

    For a writer that put the row. A later writer whose row is not put yet fails, and may store its
    pages again; one that has put its row removes the other pages itself. Raises MetadataError.
    """
    found = await store.get(key)
    named = None if found is None else paged_value(key, found.value)
    keep = "" if named is None else named.paged
    unchanged = Check(key, ABSENT if found is None else found.version)
    after, prefix = "", f"{PAGES}{key}/"
    while page := await store.list(prefix, after=after, limit=1):
        pages_id = page[0][0].removeprefix(prefix).partition("/")[0]
        after = _after(key, pages_id)
        if pages_id != keep:
            try:
                await _remove(store, key, pages_id, [*checks, unchanged])
            except VersionConflict:
                return  # by now the row may name these pages


async def remove_pages_of(store: MetadataStore, key: str, row: bytes) -> None:
    """Remove the pages of a row that is gone, and no others: a later row may be there.

    Raises MetadataError.
    """
    named = paged_value(key, row)
    if named is not None:
        await _remove(store, key, named.paged, [])


async def remove_pages(
    store: MetadataStore, prefix: str, *, checks: Sequence[CheckLease] = ()
) -> None:
    """Remove all pages of keys under *prefix*, whose rows are gone. Raises MetadataError."""
    while page := await store.list(PAGES + prefix, limit=REMOVED_COUNT):
        await store.transact([*checks, *(Delete(key) for key, _ in page)])


async def remove_left_over(
    store: MetadataStore, now_ms: int, *, checks: Sequence[CheckLease] = ()
) -> int:
    """Remove pages that no row names and that are old enough; return the number of their values.

    Raises:
        MetadataError: the rest is left to the next call.
        LeaseLost: one of *checks* is over.
    """
    count, after = 0, ""
    while page := await store.list(PAGES, after=after, limit=1):
        key, pages_id = page_of(page[0][0])
        after = _after(key, pages_id)
        begun = pages_id.partition("-")[0]
        if not begun.isdigit() or now_ms - int(begun) < LEFT_OVER_MS:
            continue
        found = await store.get(key)
        named = None if found is None else paged_value(key, found.value)
        if named is not None and named.paged == pages_id:
            continue
        unnamed = Check(key, ABSENT if found is None else found.version)
        try:
            await _remove(store, key, pages_id, [*checks, unnamed])
        except VersionConflict:
            continue  # the row was put meanwhile: the next call decides
        count += 1
    return count


async def _remove(store: MetadataStore, key: str, pages_id: str, checks: Sequence[Op]) -> None:
    """Remove the pages of an id, the mark first."""
    while page := await store.list(_prefix(key, pages_id), limit=REMOVED_COUNT):
        await store.transact([*checks, *(Delete(each) for each, _ in page)])


def page_of(key: str) -> tuple[str, str]:
    """Return the key that a page belongs to, and its id. Raises BadRecord."""
    parts = key.removeprefix(PAGES).rsplit("/", 2)
    if len(parts) < 3:
        raise BadRecord(f"{key!r} names no page of a value")
    return parts[0], parts[1]


def _prefix(key: str, pages_id: str) -> str:
    return f"{PAGES}{key}/{pages_id}/"


def _page_key(key: str, pages_id: str, number: int) -> str:
    return f"{_prefix(key, pages_id)}{number:06d}"


def _after(key: str, pages_id: str) -> str:
    """Return a key behind all pages of an id."""
    return _prefix(key, pages_id) + "~"

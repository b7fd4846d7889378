"""Values in pages: a reader has all of one value, whatever is cut off or removed meanwhile."""

from __future__ import annotations

import pytest
import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from metadata import paged
from metadata.errors import BadRecord, MetadataBroken, VersionConflict
from metadata.paged import (
    LEFT_OVER_MS,
    PAGE_SIZE,
    PAGED_SIZE_MAX,
    PAGES,
    drop_other_pages,
    read_value,
    remove_left_over,
    remove_pages,
    stage_value,
)
from metadata.store import Put

KEY = "compacted/00000000000000000007"
SMALL = b"{" + b"s" * (PAGE_SIZE - 1)
LARGE = [bytes([number]) * (3 * PAGE_SIZE + number) for number in range(3)]


def pages(store: MemoryStore) -> list[str]:
    return sorted(key for key in store.values if key.startswith(PAGES))


async def put(store: MemoryStore, value: bytes) -> None:
    staged = await stage_value(store, KEY, value)
    await store.transact([Put(KEY, staged.row), *staged.checks])


async def value_of(store: MemoryStore) -> bytes | None:
    found = await read_value(store, KEY)
    return None if found is None else found.value


async def test_a_value_is_read_as_it_was_put_whatever_its_size() -> None:
    store = MemoryStore()
    assert await value_of(store) is None
    for value, count in ((SMALL, 0), (SMALL + b"s", 3), (LARGE[0], 4), (b"", 0)):
        await put(store, value)
        await drop_other_pages(store, KEY)
        assert await value_of(store) == value
        assert len(pages(store)) == count
    with pytest.raises(MetadataBroken, match="at most"):
        await stage_value(store, KEY, bytes(PAGED_SIZE_MAX + 1))


async def test_pages_are_nobodys_until_the_row_is_put(autojump_clock: MockClock) -> None:
    """They are removed after an hour, and then the row cannot be put any more."""
    store = MemoryStore()
    await put(store, LARGE[0])
    staged = await stage_value(store, KEY, LARGE[1])
    assert await value_of(store) == LARGE[0]
    assert await remove_left_over(store, await store.now_ms()) == 0
    await trio.sleep(LEFT_OVER_MS / 1000)
    assert await remove_left_over(store, await store.now_ms()) == 1
    assert await value_of(store) == LARGE[0]
    with pytest.raises(VersionConflict):
        await store.transact([Put(KEY, staged.row), *staged.checks])
    await store.delete(KEY)
    assert await remove_left_over(store, await store.now_ms()) == 1
    assert pages(store) == []


async def test_a_row_put_at_the_last_moment_keeps_its_pages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    staged = await stage_value(store, KEY, LARGE[0])
    await trio.sleep(LEFT_OVER_MS / 1000)
    removing = paged._remove

    async def late(*args: object) -> None:
        await store.transact([Put(KEY, staged.row), *staged.checks])
        await removing(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(paged, "_remove", late)
    assert await remove_left_over(store, await store.now_ms()) == 0
    assert await value_of(store) == LARGE[0]


async def test_a_row_that_is_put_while_other_pages_are_removed_keeps_its_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    await put(store, LARGE[0])
    staged = await stage_value(store, KEY, LARGE[1])
    removing = paged._remove

    async def late(*args: object) -> None:
        await store.transact([Put(KEY, staged.row), *staged.checks])
        await removing(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(paged, "_remove", late)
        await drop_other_pages(store, KEY)
    assert await value_of(store) == LARGE[1]
    await drop_other_pages(store, KEY)
    assert len(pages(store)) == 5
    assert await value_of(store) == LARGE[1]


async def test_a_reader_whose_pages_are_replaced_reads_the_later_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never has pages of two values; a page that is missing for good is damage."""
    store = MemoryStore()
    await put(store, LARGE[0])
    found = store.values[KEY]
    await put(store, LARGE[1])
    await drop_other_pages(store, KEY)
    whole = await paged.whole_value(store, KEY, found)
    assert whole is not None
    assert (whole.value, whole.version) == (LARGE[1], store.values[KEY].version)
    await store.delete(pages(store)[2])
    with pytest.raises(BadRecord, match="are there"):
        await read_value(store, KEY)
    await store.delete(KEY)
    assert await paged.whole_value(store, KEY, found) is None
    await remove_pages(store, f"{KEY}/")
    assert pages(store) == []


async def test_the_mark_of_pages_goes_first() -> None:
    """Without it nobody can put their row, so no row names half of them."""
    store = MemoryStore()
    staged = await stage_value(store, KEY, LARGE[0])
    gone: list[str] = []
    store.on_change = lambda key, value: gone.append(key) if value is None else None
    await drop_other_pages(store, KEY)
    assert gone[0].endswith("/000000")
    assert len(gone) == 4
    with pytest.raises(VersionConflict):
        await store.transact([Put(KEY, staged.row), *staged.checks])

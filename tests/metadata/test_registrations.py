"""Registrations of bookies, one of which nobody can read."""

from __future__ import annotations

import pytest
from leases import grant
from memory_store import MemoryStore

from metadata.records import BookieRecord, bookie_lease, encode_record
from metadata.registrations import list_registrations

SOUND = ("b1", "b3")


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b"\xff", b"null", encode_record(BookieRecord("b9", "h:1", 1, 1)), b"[" * 4000],
    ids=["empty", "fields missing", "no text", "null", "another's name", "nested"],
)
async def test_one_that_cannot_be_decoded_hides_no_other(value: bytes) -> None:
    store = MemoryStore()
    for name in SOUND:
        record = BookieRecord(name, f"{name}:3181", 100, 50)
        await grant(store, bookie_lease(name), name, ttl_s=60, value=encode_record(record))
    await grant(store, bookie_lease("b2"), "b2", ttl_s=60, value=value)
    found = await list_registrations(store)
    assert [bookie.bookie_id for bookie in found.bookies] == list(SOUND)
    assert found.epochs.keys() == set(SOUND)
    assert "bookies/b2" in found.unreadable.pop("b2")
    assert not found.unreadable

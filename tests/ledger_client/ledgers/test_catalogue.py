"""Records of ledgers and marks for repair, changed by compare-and-set."""

from __future__ import annotations

from functools import partial

from memory_store import MemoryStore
from trio.testing import MockClock

from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.records import merged, new_mark
from ledger_client.ledgers.recovery import UnpublishedChanges
from metadata.records import (
    DamagedRun,
    Fragment,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    underreplicated_key,
)

FIRST = Fragment(0, ["b1", "b2"])
RECORD = LedgerRecord(7, 2, 2, 1, LedgerState.OPEN, [FIRST])


async def test_changes_in_metadata_and_in_memory_come_to_the_same(
    autojump_clock: MockClock,
) -> None:
    catalogue = Catalogue(MemoryStore(), timeout_s=5)
    await catalogue.create(RECORD)
    publish, kept = partial(catalogue.change_ensemble, 7), UnpublishedChanges(RECORD)
    last, record = FIRST, RECORD
    for fragment in (
        Fragment(3, ["b1", "b3"]),
        Fragment(3, ["b4", "b3"]),  # nothing was confirmed: in the place of the last
        Fragment(3, ["b4", "b3"]),  # it is so already
        Fragment(9, ["b4", "b3"]),  # a bookie that came back
    ):
        record = await publish(last, fragment)
        assert record == await kept.change(last, fragment) == kept.record
        assert (await catalogue.get(7))[0] == record
        last = fragment
    assert record.fragments == [FIRST, Fragment(3, ["b4", "b3"]), Fragment(9, ["b4", "b3"])]


async def test_a_record_is_replaced_only_where_it_was_found(autojump_clock: MockClock) -> None:
    catalogue = Catalogue(MemoryStore(), timeout_s=5)
    version = await catalogue.create(RECORD)
    assert await catalogue.replace(RECORD, version)
    assert not await catalogue.replace(RECORD, version)


async def test_a_ledger_is_closed_and_marked_for_repair_at_once(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    catalogue = Catalogue(store, timeout_s=5)
    await catalogue.create(RECORD)
    revisions: list[int] = []
    store.on_change = lambda _key, found: revisions.append(found.version if found else -1)
    closed = await catalogue.close(7, 3, 30, reason="check")
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 3)
    assert stored_mark(store).reason == "check"
    assert len(revisions) == 2


async def test_who_marks_the_ledger_at_the_same_time_is_heard_too(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    catalogue = Catalogue(store, timeout_s=5)
    version = await catalogue.create(RECORD)
    key = underreplicated_key(7)
    other = new_mark(7, "damaged", ["b1"], [DamagedRun("b1", 0, 4)])

    def slip_in(put: str) -> None:
        if put == key:
            store.before_put = lambda _key: None
            store.change(key, encode_record(other))

    store.before_put = slip_in
    assert not await catalogue.replace(RECORD, version, reason="check")
    assert stored_mark(store) == other
    assert await catalogue.replace(RECORD, version, reason="check")
    assert stored_mark(store) == merged(other, new_mark(7, "check", (), ()))


async def test_a_mark_that_cannot_be_read_keeps_no_ledger_from_being_closed(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    catalogue = Catalogue(store, timeout_s=5)
    await catalogue.create(RECORD)
    store.change(underreplicated_key(7), b"nonsense")
    assert (await catalogue.close(7, 3, 30, reason="check")).state is LedgerState.CLOSED
    assert stored_mark(store).reason == "check"


def test_what_is_said_of_a_ledger_adds_up() -> None:
    runs = [DamagedRun("b1", 0, 4), DamagedRun("b2", 9, 9)]
    mark = new_mark(7, "bookie lost", ["b2", "b1"], [])
    mark = merged(mark, new_mark(7, "damaged", ["b3"], runs[:1]))
    mark = merged(mark, new_mark(7, "damaged", ["b1"], runs))
    assert (mark.reason, mark.bookies, mark.damaged) == ("bookie lost", ["b1", "b2", "b3"], runs)
    mark = merged(mark, new_mark(7, "check", (), ()))  # anywhere
    assert merged(mark, new_mark(7, "draining", ["b1"], ())).bookies == []


def stored_mark(store: MemoryStore) -> UnderReplicated:
    key = underreplicated_key(7)
    return decode_underreplicated(key, store.values[key].value)

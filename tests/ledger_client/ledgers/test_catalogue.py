"""Records of ledgers and marks for repair, changed by compare-and-set."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from ledger_client.errors import LedgerFenced
from ledger_client.ledgers.catalogue import Catalogue, LedgerListing
from ledger_client.ledgers.inquiry import floor
from ledger_client.ledgers.records import merged, new_mark, sealed
from ledger_client.ledgers.recovery import UnpublishedChanges
from metadata.records import (
    DamagedRun,
    Fragment,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import Leases

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


async def test_a_stated_entry_bounds_every_later_change(autojump_clock: MockClock) -> None:
    """A writer that has not heard of the statement goes on, and loses nothing that was stated."""
    catalogue = Catalogue(MemoryStore(), timeout_s=5)
    await catalogue.create(RECORD)
    for entry in (3, 5):  # the second statement takes the place of the first
        record, _ = await catalogue.get(7)
        assert await catalogue.state_confirmed(record, entry)
    record, _ = await catalogue.get(7)
    assert record.fragments == [FIRST, Fragment(6, ["b1", "b2"])]
    assert floor(record, []) == 5
    with pytest.raises(LedgerFenced):
        sealed(record, 4, 40)
    assert sealed(record, 5, 50).fragments == [FIRST]

    back = await catalogue.change_ensemble(7, FIRST, Fragment(2, ["b1", "b2"]))
    assert back == record  # a bookie that came back: it is listed
    changed = await catalogue.change_ensemble(7, FIRST, Fragment(2, ["b1", "b3"]))
    assert changed.fragments == [FIRST, Fragment(6, ["b1", "b3"])]
    assert await catalogue.change_ensemble(7, FIRST, Fragment(2, ["b1", "b3"])) == changed
    last = changed.fragments[-1]
    assert (await catalogue.change_ensemble(7, last, Fragment(9, ["b1", "b4"]))).fragments == [
        *changed.fragments,
        Fragment(9, ["b1", "b4"]),
    ]
    with pytest.raises(LedgerFenced):
        await catalogue.change_ensemble(7, FIRST, Fragment(2, ["b5", "b6"]))


async def test_nothing_is_stated_of_other_bookies_or_of_a_ledger_that_is_not_open(
    autojump_clock: MockClock,
) -> None:
    catalogue = Catalogue(MemoryStore(), timeout_s=5)
    version = await catalogue.create(RECORD)
    changed = await catalogue.change_ensemble(7, FIRST, Fragment(2, ["b1", "b3"]))
    assert not await catalogue.state_confirmed(RECORD, 3)
    assert await catalogue.get(7) == (changed, version + 1)
    ended = msgspec.structs.replace(changed, state=LedgerState.IN_RECOVERY)
    assert await catalogue.replace(ended, version + 1)
    assert not await catalogue.state_confirmed(changed, 3)
    assert (await catalogue.get(7))[0] == ended


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
    mark = msgspec.structs.replace(mark, whole=["b1", "b2"])
    assert merged(mark, new_mark(7, "damaged", ["b3"], runs)).whole == ["b1", "b2"]
    mark = merged(mark, new_mark(7, "limbo", ["b1"], ()))
    assert mark.whole == ["b2"], "who is named again must be asked again"
    mark = merged(mark, new_mark(7, "check", (), ()))  # anywhere
    assert merged(mark, new_mark(7, "draining", ["b1"], ())).bookies == []


def stored_mark(store: MemoryStore) -> UnderReplicated:
    key = underreplicated_key(7)
    return decode_underreplicated(key, store.values[key].value)


@pytest.mark.parametrize("strange", [range(3), range(2, 5), range(1000), range(500, 1500)])
async def test_ledgers_whose_records_cannot_be_read_hide_no_others(strange: range) -> None:
    """Also where a whole page of the store has none that can be read."""
    store = MemoryStore()
    for number in range(1500):
        record = LedgerRecord(number, 1, 1, 1, LedgerState.OPEN, [Fragment(0, ["b1"])])
        row = b"unreadable: of a newer version" if number in strange else encode_record(record)
        await store.put(ledger_key(number), row)
    found = [each.ledger_id async for each in LedgerListing(Catalogue(store, timeout_s=5))]
    assert found == [number for number in range(1500) if number not in strange]


async def test_those_who_create_ledgers_together_ask_for_ids_and_bookies_once(
    autojump_clock: MockClock,
) -> None:
    """And an id whose caller gave up is no other caller's loss."""
    store = Counting()
    catalogue = Catalogue(store, timeout_s=5)
    ids: list[int] = []

    async def create(limit_s: float) -> None:
        with trio.move_on_after(limit_s):
            await catalogue.bookies()
            ids.append(await catalogue.new_id())

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(create, 0.25 if number % 10 == 0 else 5)
    assert len(ids) == len(set(ids)) >= 45
    assert sum(store.counted) == max(store.given) >= 45
    assert len(store.counted) <= 3
    assert store.looks <= 2


class Counting(MemoryStore):
    """Takes a while, and counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[int] = []
        self.given: list[int] = []
        self.looks = 0

    async def next_id(self, counter: str, count: int = 1) -> int:
        await trio.sleep(0.1)
        first = await super().next_id(counter, count)
        self.counted.append(count)
        self.given.append(first + count - 1)
        return first

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        self.looks += 1
        await trio.sleep(0.1)
        return await super().leases(prefix, after=after)

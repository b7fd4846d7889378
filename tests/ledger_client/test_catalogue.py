"""Records of ledgers and marks for repair, changed by compare-and-set."""

from __future__ import annotations

import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from ledger_client.catalogue import Catalogue
from ledger_client.changes import CatalogueChanges, MemoryChanges
from ledger_client.marks import Reason
from metadata.records import (
    DamagedRun,
    Fragment,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    underreplicated_key,
)

FIRST = Fragment(0, ["b1", "b2"])
RECORD = LedgerRecord(7, 2, 2, 1, LedgerState.OPEN, [FIRST])


async def test_changes_in_metadata_and_in_memory_come_to_the_same(
    autojump_clock: MockClock,
) -> None:
    catalogue = Catalogue(MemoryStore(), timeout_s=5)
    await catalogue.create(RECORD)
    published, kept = CatalogueChanges(catalogue, 7), MemoryChanges(RECORD)
    last, record = FIRST, RECORD
    for fragment in (
        Fragment(3, ["b1", "b3"]),
        Fragment(3, ["b4", "b3"]),  # nothing was confirmed: in the place of the last
        Fragment(3, ["b4", "b3"]),  # it is so already
        Fragment(9, ["b4", "b3"]),  # a bookie that came back
    ):
        record = await published.change(last, fragment)
        assert record == await kept.change(last, fragment) == kept.record
        assert (await catalogue.get(7))[0] == record
        last = fragment
    assert record.fragments == [FIRST, Fragment(3, ["b4", "b3"]), Fragment(9, ["b4", "b3"])]


async def test_a_record_is_replaced_only_where_it_was_found(autojump_clock: MockClock) -> None:
    catalogue = Catalogue(MemoryStore(), timeout_s=5)
    version = await catalogue.create(RECORD)
    assert await catalogue.replace(RECORD, version)
    assert not await catalogue.replace(RECORD, version)


async def test_what_is_reported_of_a_ledger_adds_up(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    catalogue = Catalogue(store, timeout_s=5)
    runs = [DamagedRun("b1", 0, 4), DamagedRun("b2", 9, 9)]
    assert await catalogue.report(7, "bookie lost", ["b2", "b1"])
    assert await catalogue.report(7, "damaged", ["b3"], runs[:1])
    assert await catalogue.report(7, "damaged", ["b1"], runs)
    mark = stored_mark(store)
    assert (mark.reason, mark.bookies, mark.damaged) == ("bookie lost", ["b1", "b2", "b3"], runs)
    assert await catalogue.report(7, "check")  # anywhere
    assert await catalogue.report(7, "draining", ["b1"])
    assert stored_mark(store).bookies == []


async def test_two_who_report_at_once_are_both_heard(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    catalogue = Catalogue(store, timeout_s=5)
    reports: list[tuple[Reason, str]] = [("bookie lost", "b1"), ("draining", "b2")]
    async with trio.open_nursery() as nursery:
        for reason, bookie in reports:
            nursery.start_soon(catalogue.report, 7, reason, [bookie])
    assert stored_mark(store).bookies == ["b1", "b2"]


async def test_a_report_is_given_up_while_metadata_is_away(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    store.available = False
    start = trio.current_time()
    assert not await Catalogue(store, timeout_s=5).report(7, "check")
    assert trio.current_time() - start == 5


def stored_mark(store: MemoryStore) -> UnderReplicated:
    key = underreplicated_key(7)
    return decode_underreplicated(key, store.values[key].value)

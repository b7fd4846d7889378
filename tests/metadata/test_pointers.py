"""Pointers: what readers make of rows that name one, and who may decide about it."""

from __future__ import annotations

import pytest
from memory_store import MemoryStore

from metadata.errors import LeaseLost, VersionConflict
from metadata.jobs import (
    POINTERS,
    STAGED,
    JobPointer,
    StagedLedger,
    encode_job_row,
    pointer_key,
    staged_key,
)
from metadata.pointers import (
    OpenPointer,
    finish,
    open_pointer,
    read_lane,
    read_lane_row,
    read_lane_rows,
    resolve_lane,
    settle_topic,
)
from metadata.store import CheckLease, Versioned
from metadata.topics import (
    LaneLedger,
    LaneRecord,
    PendingEnd,
    decode_lane,
    encode_row,
    lane_key,
    lane_ledger_key,
    lane_ledgers_prefix,
)

UID = 7
JOB = "write-1"
LANE = lane_key(UID, 0, 0)
KEY = pointer_key(UID, JOB)
PREFIX = lane_ledgers_prefix(UID, 0, 0)


class Rows:
    """A lane with one ledger, and two that a pointer shows."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.put(0, LaneLedger(ledger_id=10, state="closed", base_version=0, entries=5))
        self.record = LaneRecord(epoch=3, current=0, next_version=5)
        self.store.change(LANE, encode_row(self.record))

    async def open(self) -> OpenPointer:
        """Open a pointer, and put all rows that name it."""
        pointer = await open_pointer(self.store, UID, JOB, [])
        end = PendingEnd(pointer=pointer.name, current=2, next_version=15)
        record = LaneRecord(epoch=3, current=0, next_version=5, pending=end)
        self.store.change(LANE, encode_row(record))
        for number in (1, 2):
            row = LaneLedger(
                ledger_id=10 + number,
                state="prepared",
                base_version=5 * number,
                entries=5,
                pointer=pointer.name,
            )
            self.put(number, row)
            staged = StagedLedger(ledger_id=10 + number, partition=0, pointer=pointer.name)
            self.store.change(staged_key(UID, JOB, 10 + number), encode_job_row(staged))
        return pointer

    def put(self, number: int, row: LaneLedger) -> None:
        self.store.change(lane_ledger_key(UID, 0, 0, number), encode_row(row))

    async def states(self) -> list[str]:
        return [row.ledger.state for row in await read_lane_rows(self.store, PREFIX)]

    async def current(self) -> int:
        found = await read_lane(self.store, LANE)
        assert found is not None
        return found.record.current

    def under(self, prefix: str) -> list[str]:
        return [key for key in self.store.values if key.startswith(prefix)]


async def test_rows_count_from_the_change_of_the_pointer_on() -> None:
    rows = Rows()
    pointer = await rows.open()
    assert await rows.states() == ["closed", "prepared", "prepared"]
    assert await rows.current() == 0
    await rows.store.transact([pointer.shown])
    assert await rows.states() == ["closed"] * 3
    assert await rows.current() == 2
    row = await read_lane_row(rows.store, lane_ledger_key(UID, 0, 0, 2))
    assert row is not None
    assert (row.ledger.state, row.ledger.pointer) == ("closed", pointer.name)
    assert await finish(rows.store, UID, JOB)
    assert await rows.states() == ["closed"] * 3
    assert await rows.current() == 2
    assert rows.under(POINTERS) == rows.under(STAGED) == []
    assert not await finish(rows.store, UID, JOB)


async def test_what_is_open_is_undone_and_cannot_be_shown_any_more() -> None:
    rows = Rows()
    pointer = await rows.open()
    assert not await finish(rows.store, UID, JOB)
    assert await rows.states() == ["closed"]
    assert decode_lane("k", rows.store.values[LANE].value) == rows.record
    assert len(rows.under(STAGED)) == 2  # they may be shown by another attempt
    for late in ([pointer.shown], [pointer.check]):
        with pytest.raises(VersionConflict):
            await rows.store.transact(late)


async def test_the_next_writer_of_a_lane_decides_before_it_has_it() -> None:
    """Else the job could show its ledgers behind what the writer writes."""
    rows = Rows()
    pointer = await rows.open()
    await resolve_lane(rows.store, UID, 0, 0)
    with pytest.raises(VersionConflict):
        await rows.store.transact([pointer.shown])
    assert await rows.states() == ["closed"]
    rows = Rows()
    pointer = await rows.open()
    await rows.store.transact([pointer.shown])
    await resolve_lane(rows.store, UID, 0, 0)
    assert decode_lane("k", rows.store.values[LANE].value).current == 2
    assert await rows.states() == ["closed"] * 3
    assert rows.under(POINTERS) == [KEY]  # other lanes may name it


def settle_late(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pointer be finished when somebody asks for it, just before the answer."""
    get, late = store.get, iter([True])

    async def get_late(key: str) -> Versioned | None:
        if key == KEY and next(late, False):
            assert await finish(store, UID, JOB)
        return await get(key)

    monkeypatch.setattr(store, "get", get_late)


async def test_a_reader_whose_rows_are_settled_before_it_asks_for_the_pointer_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pointer that is gone says nothing about rows that were read while it was there."""
    for what in ("rows", "row", "lane"):
        rows = Rows()
        pointer = await rows.open()
        await rows.store.transact([pointer.shown])
        settle_late(rows.store, monkeypatch)
        if what == "rows":
            assert await rows.states() == ["closed"] * 3
        elif what == "lane":
            assert await rows.current() == 2
        else:
            row = await read_lane_row(rows.store, lane_ledger_key(UID, 0, 0, 1))
            assert row is not None
            assert row.ledger.state == "closed"


async def test_rows_of_an_attempt_before_are_not_shown_with_the_next_one() -> None:
    rows = Rows()
    await rows.open()
    other = JobPointer(attempt="later", state="shown")
    rows.store.change(KEY, encode_job_row(other))
    assert await rows.states() == ["closed", "prepared", "prepared"]
    assert await rows.current() == 0
    await settle_topic(rows.store, UID)
    assert len(rows.under(STAGED)) == 2
    await resolve_lane(rows.store, UID, 0, 0)
    assert await rows.states() == ["closed"]


async def test_a_job_has_one_pointer_at_a_time() -> None:
    rows = Rows()
    await rows.open()
    with pytest.raises(VersionConflict):
        await open_pointer(rows.store, UID, JOB, [])


async def test_who_has_lost_its_lease_decides_nothing() -> None:
    rows = Rows()
    pointer = await rows.open()
    before = dict(rows.store.values)
    over = [CheckLease("coordinator", "me", 1)]
    for act in (finish(rows.store, UID, JOB, checks=over),
                resolve_lane(rows.store, UID, 0, 0, checks=over)):  # fmt: skip
        with pytest.raises(LeaseLost):
            await act
    assert rows.store.values == before
    await rows.store.transact([pointer.shown])
    with pytest.raises(LeaseLost):
        await finish(rows.store, UID, JOB, checks=over)
    assert len(rows.under(STAGED)) == 2

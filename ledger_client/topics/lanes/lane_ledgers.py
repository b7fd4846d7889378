"""The ledgers of a lane: made, and found again by who takes the lane over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from ledger_client.client import Client
from ledger_client.creation import LedgerPlan, new_record
from ledger_client.errors import EntryLost, MetadataBroken, NoSuchEntry, NoSuchLedger
from ledger_client.reader import LedgerReader
from ledger_client.topics.errors import BadBatch, TailLost
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneState, greater
from ledger_client.topics.lanes.ledger_end import End
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from ledger_client.topics.lanes.written_ledger import Slice, WrittenLedger
from metadata.topics import LaneLedger
from native import batch as native_batch
from native.batch import BatchKind
from native.errors import Corrupt

LOST_VERSIONS = 1 << 32
"""Versions left out for a ledger that a person deleted: nobody knows how many it had."""
SPAN_MAX = 64
"""Entries read at once on the way back to the last state of the lane."""


class LaneEnd(NamedTuple):
    """A lane as its last writer left it; its last ledger is closed, its row may not be."""

    state: LaneState
    next_version: int
    unclosed: LaneLedger | None
    """the row that is to be closed at *end*"""
    end: End | None


async def make_ledger(
    client: Client,
    rows: LaneRows,
    *,
    instead_of: int | None,
    confirm: Callable[[Slice], None],
    failed: Callable[[], None],
) -> WrittenLedger:
    """Make the next ledger of the lane and connect to its bookies.

    Args:
        client: whose bookies and metadata.
        rows: the lane.
        instead_of: the ledger that was prepared before, and cannot be used.
        confirm: is told of each slice whose entries are durable.
        failed: is told that the ledger failed with something under way.

    Raises:
        NotEnoughBookies: fewer than the topic's replication take writes.
        NoSuchTopic, ProducerFenced: see LaneRows.
        MetadataUnavailable: nothing was changed.
    """
    await rows.refresh_topic()
    topic = rows.topic
    plan = LedgerPlan(
        ensemble_size=topic.replication,
        write_quorum=topic.replication,
        ack_quorum=topic.ack_quorum,
        custom={"topic": topic.name, "partition": str(rows.partition), "lane": str(rows.lane)},
    )
    record = await new_record(plan, catalogue=client.catalogue, placement=client.placement)
    await rows.prepare(record, instead_of=instead_of)
    return WrittenLedger(client.writers.open(record), confirm=confirm, failed=failed)


async def find_end(client: Client, rows: LaneRows) -> LaneEnd:
    """Recover the last ledger of a lane that was claimed, and read the lane's state from it.

    Raises:
        RecoveryIncomplete, ReplicasUnavailable: its bookies are away.
        TailLost: they are there, and none has what is to be read.
        BadBatch: what should be the lane's state is none.
        MetadataUnavailable: the store did not answer in time.
    """
    await rows.refresh_clock()  # all that takes a lane begins here
    row = await rows.row(rows.record.current)
    fresh = LaneState(last_event_time=rows.record.last_event_time)
    if row is None:
        return LaneEnd(fresh, rows.record.next_version, None, None)
    try:
        return await _find_end(client, rows, row, fresh)
    except NoSuchLedger:
        if await rows.row(rows.record.current) is None:  # retention was here meanwhile
            return LaneEnd(fresh, rows.record.next_version, None, None)
        # A person deleted it, not the topic.
        gone = End(last_entry=-1, length=0, figures=fresh.figures, is_sealed=True)
        unclosed = row if row.state == "open" else None
        return LaneEnd(fresh, row.base_version + LOST_VERSIONS, unclosed, gone)


async def _find_end(client: Client, rows: LaneRows, row: LaneLedger, fresh: LaneState) -> LaneEnd:
    info = await client.recover_ledger(row.ledger_id)
    try:
        async with client.open_ledger(row.ledger_id) as reader:
            state = await _read_state(client, rows, reader, fresh)
            # A ledger that a job staged knows nothing of what was before it in the lane.
            state.last_event_time = greater(state.last_event_time, fresh.last_event_time)
    except (EntryLost, NoSuchEntry) as lost:
        raise TailLost(
            rows.topic.name,
            partition=rows.partition,
            lane=rows.lane,
            ledger_id=row.ledger_id,
            entry_id=lost.entry_id,
        ) from lost
    end = End(
        last_entry=info.last_entry,
        length=info.length,
        figures=msgspec.structs.replace(state.figures),
        is_sealed=True,
    )
    if row.state == "open" and rows.topic.ack_quorum < rows.topic.replication:
        await _doubt_before(client, rows)
    next_version = row.base_version + info.last_entry + 1
    return LaneEnd(state, next_version, row if row.state == "open" else None, end)


async def _doubt_before(client: Client, rows: LaneRows) -> None:
    """Have the copies of the ledger before looked after.

    Its writer ended it and was killed, maybe before its slower bookies had all of it.
    """
    before = await rows.row(rows.record.current - 1)
    if before is not None and before.state == "closed":
        with suppress(MetadataBroken):  # the audit tells; it is no reason to keep the lane shut
            await client.catalogue.mark(before.ledger_id, "check")


async def _read_state(
    client: Client, rows: LaneRows, reader: LedgerReader, fresh: LaneState
) -> LaneState:
    """Go back to the last control entry, and from there on count what follows it."""
    after: list[SealedBatch] = []
    state, stop, span = fresh, reader.last_confirmed, 1
    while stop >= 0 and state is fresh:
        entries = await reader.read(max(0, stop - span + 1), stop)
        for entry in reversed(entries):
            found = _take(rows, reader.id, entry.entry_id, entry.payload)
            if isinstance(found, LaneState):
                state = found
                break
            if found is not None:
                after.append(found)
        stop, span = stop - span, min(span * 4, SPAN_MAX)
    now_ms = (
        client.clock.now_ms()
    )  # of each message it is not known: rather too long than too short
    for batch in reversed(after):
        state.note(batch, now_ms)
    return state


def _take(
    rows: LaneRows, ledger_id: int, entry_id: int, payload: bytes
) -> LaneState | SealedBatch | None:
    """Return what an entry says of the lane; None: nothing, be it a batch or not."""
    try:
        header = native_batch.read_header(payload)
    except Corrupt:
        return None  # readers tell; it says nothing of what follows
    if header.kind == BatchKind.MESSAGES:
        batch = SealedBatch.of(payload, header)
        return batch if batch.last_timestamp else msgspec.structs.replace(batch, payload=b"")
    if header.kind != BatchKind.LANE_STATE:
        return None
    try:
        return LaneState.decode(payload)
    except Corrupt as wrong:
        raise BadBatch(
            rows.topic.name, ledger_id=ledger_id, entry_id=entry_id, reason=str(wrong)
        ) from wrong

"""The end of a lane: found by recovering its last ledger, and left closed for the next writer.

Whoever finds the end has claimed the lane: no writer of a lower epoch can change its rows. After
the recovery no other writer gets an acknowledgement.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress

import msgspec

from ledger_client.errors import (
    EntryLost,
    MessagesLost,
    MetadataBroken,
    NoSuchEntry,
    NoSuchLedger,
    TopicError,
)
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.topics.lanes.lane_lease import Away, hold_lane, read_lanes
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import End, LaneEnd, LaneState, SealedBatch, greater
from metadata.topics import LaneLedger, TopicRecord
from native import batch as native_batch
from native.batch import BatchKind
from native.errors import Corrupt

LOST_VERSIONS = 1 << 32
"""Versions skipped for a ledger that an operator deleted: its count of versions is unknown."""
SPAN_MAX = 64
"""Entries read at once on the way back to the last state of the lane."""


async def find_end(ledgers: Ledgers, rows: LaneRows, away: Away = nullcontext) -> LaneEnd:
    """Recover the last ledger of a lane that was claimed, and read the lane's state from it.

    *away* is entered while bookies are asked.

    Raises:
        ReplicasUnavailable: its bookies are away.
        MessagesLost: they answer, and none has an entry that must be read.
        MessagesLost: the entry with the lane's state is damaged.
        MetadataUnavailable: the store did not answer in time.
    """
    await rows.refresh_clock()  # every way to take a lane begins here
    row = await rows.row(rows.record.current)
    fresh = LaneState(last_event_time=rows.record.last_event_time)
    if row is None:
        return LaneEnd(fresh, rows.record.next_version, None, None)
    try:
        async with away():
            return await _find_end(ledgers, rows, row, fresh)
    except NoSuchLedger:
        if await rows.row(rows.record.current) is None:  # retention was here meanwhile
            return LaneEnd(fresh, rows.record.next_version, None, None)
        # An operator deleted this ledger alone.
        gone = End(last_entry=-1, length=0, figures=fresh.figures, is_sealed=True)
        unclosed = row if row.state == "open" else None
        return LaneEnd(fresh, row.base_version + LOST_VERSIONS, unclosed, gone)


async def _find_end(ledgers: Ledgers, rows: LaneRows, row: LaneLedger, fresh: LaneState) -> LaneEnd:
    info = await ledgers.recover(row.ledger_id)
    try:
        async with ledgers.open(row.ledger_id) as reader:
            state = await _read_state(ledgers, rows, reader, fresh)
            # The state in a ledger that a job staged does not cover the ledgers before it.
            state.last_event_time = greater(state.last_event_time, fresh.last_event_time)
            # Nor does it know the timestamp with which it was shown.
            state.figures.last_timestamp = max(state.figures.last_timestamp, row.stamp)
    except (EntryLost, NoSuchEntry) as lost:
        raise MessagesLost.tail(
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
        await _doubt_before(ledgers, rows)
    next_version = row.base_version + info.last_entry + 1
    return LaneEnd(state, next_version, row if row.state == "open" else None, end)


async def _doubt_before(ledgers: Ledgers, rows: LaneRows) -> None:
    """Have the copies of the ledger before the last one checked.

    Its writer may have been killed before slower bookies had all of it.
    """
    before = await rows.row(rows.record.current - 1)
    if before is not None and before.state == "closed":
        with suppress(MetadataBroken):  # the audit reports it; the lane can be opened anyway
            await ledgers.catalogue.mark(before.ledger_id, "check")


async def _read_state(
    ledgers: Ledgers, rows: LaneRows, reader: LedgerReader, fresh: LaneState
) -> LaneState:
    """Read back to the last control entry, and count the batches after it."""
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
    # The time of each message is unknown. A producer is rather remembered too long.
    now_ms = ledgers.clock.now_ms()
    for batch in reversed(after):
        state.note(batch, now_ms)
    return state


def _take(
    rows: LaneRows, ledger_id: int, entry_id: int, payload: bytes
) -> LaneState | SealedBatch | None:
    """Return the state or batch in an entry; `None` if it is damaged or of another kind."""
    try:
        header = native_batch.read_header(payload)
    except Corrupt:
        return None  # readers report it
    if header.kind == BatchKind.MESSAGES:
        batch = SealedBatch.of(payload, header)
        return batch if batch.last_timestamp else msgspec.structs.replace(batch, payload=b"")
    if header.kind != BatchKind.LANE_STATE:
        return None
    try:
        return LaneState.decode(payload)
    except Corrupt as wrong:
        raise MessagesLost.batch(
            rows.topic.name, ledger_id=ledger_id, entry_id=entry_id, reason=str(wrong)
        ) from wrong


ATTEMPTS = 3
"""Attempts to close a lane that another client closes at the same time."""


async def close_lane(ledgers: Ledgers, topic: TopicRecord, partition: int, lane: int) -> None:
    """Take a lane as its next writer would, and leave it without an open ledger.

    Its last writer gets no acknowledgement any more. The next writer begins where it ends.

    Raises:
        ProducerBusy: the lane is being written.
        ProducerFenced: another client took it meanwhile.
        NoSuchTopic: the topic was deleted.
        ReplicasUnavailable: the bookies of its last ledger are away.
        MessagesLost: they answer, and none has the end of it: an operator must decide.
        MetadataUnavailable: the store did not answer in time.
    """
    async with hold_lane(
        ledgers.session,
        topic,
        partition,
        access="exclusive",  # of this lane; others may be written
        producer="",
        lane=lane,
        limit_s=ledgers.options.metadata_timeout_s,
        is_closing=True,
    ):
        await _close(ledgers, LaneRows(ledgers.catalogue, topic, partition, lane))


async def close_others(
    ledgers: Ledgers,
    topic: TopicRecord,
    partition: int,
    *,
    producer: str,
    writer: str = "",
    away: Away = nullcontext,
) -> LaneState | None:
    """Close all open lanes but 0. The caller holds the lease of the whole partition.

    A writer whose lease ran out while the store was away may still be writing them; after this
    it gets no acknowledgement. Returns the last state of the lane that belongs to *producer*
    when it shares the partition, `None` without such a lane.

    Args:
        ledgers: whose bookies and metadata.
        topic: the topic.
        partition: its index.
        producer: name of the producer that has the partition now, "" for none.
        writer: owner that takes the lanes over, which fences their writers for good. With ""
            they may come back when the partition is shared again.
        away: entered while bookies are asked.

    Raises:
        As close_lane(), but for ProducerBusy.
    """
    names = await read_lanes(
        ledgers.store, topic.uid, partition, limit_s=ledgers.options.metadata_timeout_s
    )
    own: LaneState | None = None
    for lane, name in names.items():
        is_own = bool(producer) and name == producer
        if lane > 0:
            state = await _close_if_open(
                ledgers, topic, partition, lane, is_wanted=is_own, writer=writer, away=away
            )
            own = state if is_own else own
    return own


async def _close_if_open(
    ledgers: Ledgers,
    topic: TopicRecord,
    partition: int,
    lane: int,
    *,
    is_wanted: bool,
    writer: str,
    away: Away,
) -> LaneState | None:
    """Close a lane, if it is open; return its state, or None if it was not *is_wanted*."""
    for attempts in reversed(range(ATTEMPTS)):
        rows = LaneRows(ledgers.catalogue, topic, partition, lane)
        row = await rows.open_row()
        if row is None and not is_wanted:
            return None
        try:
            if row is not None:
                return await _close(ledgers, rows, writer, away)
            return (await find_end(ledgers, rows, away)).state
        except TopicError:
            if not attempts:
                raise
    return None


async def _close(
    ledgers: Ledgers, rows: LaneRows, writer: str = "", away: Away = nullcontext
) -> LaneState:
    """Claim a lane, and leave it without an open ledger; return its state."""
    await rows.claim(None, writer=writer)
    last = await find_end(ledgers, rows, away)
    row, end = last.unclosed, last.end
    # If an operator deleted the ledger, the next writer skips its versions.
    if (
        row is not None
        and end is not None
        and last.next_version == row.base_version + end.last_entry + 1
    ):
        await rows.close(row, end)
    return last.state

"""Opening a lane: hold its lease, take it over from its last writer, write it, close it.

    lease ──► claim: epoch + 1 ──► recover the last ledger ──► read the state ──► next ledger

After the claim no writer of a lower epoch can change the lane's rows. After the recovery no
other writer gets an acknowledgement. A producer that takes the whole partition first closes its
other lanes, because a writer whose lease ran out may still be writing them. If a process is
killed anywhere in between, the next one takes the lane in the same way; its claim removes the
ledger that was prepared.

A client opens a bounded number of lanes at a time (Ledgers.openings), because its own queue at the
metadata store must not look like an outage. While an opening waits for another writer, or for
bookies that recover a ledger, the next one begins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial

import trio

from ledger_client.background import Background
from ledger_client.errors import (
    LedgerError,
    MetadataUnavailable,
    NotEnoughBookies,
)
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.lanes import lane_end
from ledger_client.topics.lanes.lane_lease import Access, Away, LaneLease, hold_lane
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneState, SealedBatch
from ledger_client.topics.lanes.lane_writer import LaneWriter, new_ledger
from ledger_client.topics.lanes.roll_desk import RollDesk
from metadata.topics import TopicRecord

__all__ = ["Access", "LaneWriter", "SealedBatch", "open_lane"]
Others = Callable[[], Awaitable[LaneState | None]]
ABORT_S = 5.0
"""For closing a lane when its block is left by a cancellation."""


@asynccontextmanager
async def open_lane(
    ledgers: Ledgers,
    topic: TopicRecord,
    partition: int,
    *,
    access: Access = "exclusive",
    producer: str = "",
    lane: int | None = None,
    lane_name: str = "",
    owner: str | None = None,
    is_back: bool = False,
    rolls: RollDesk | None = None,
    topic_version: int | None = None,
) -> AsyncIterator[LaneWriter]:
    """Take a lane of a partition and write it; it is closed at the end of the block.

    Args:
        ledgers: whose bookies and metadata.
        topic: the topic, as it was found lately.
        partition: its index; -1 for the only one of a topic without partitions.
        access: which lane, and what to do if another producer has it: see lane_lease.py.
        producer: name of the producer, "" for none.
        lane: take this lane whatever *access* says, if it is free.
        lane_name: take the lane of this name; the partition must be shared.
        owner: identifies the caller. It may take again a lease that it left behind while the
            store was away. By default each call is a different owner.
        is_back: the owner had the lane and lost it by a failure. If another writer had it
            since, the call fails with ProducerFenced.
        rolls: passes on requests to go on in another ledger; `None` leaves them unheard.
        topic_version: of the topic's record; if it is still that, it is not read again.

    Raises:
        ProducerBusy: another producer writes the lane.
        ProducerFenced: another producer took the lane over while it was being opened, or before
            it was opened anew.
        NoSuchTopic: the topic was deleted.
        NotEnoughBookies: fewer than its replication take writes. A writer is not fenced then,
            unless that was so only later.
        ReplicasUnavailable: the bookies of its last ledger are away.
            The last writer is fenced all the same.
        MessagesLost: they answer, and none has the end of it: an operator must decide.
        MetadataUnavailable: the store did not answer in time.
        LedgerError: at the end of the block, as LaneWriter.close(); an error of the block
            itself takes precedence.
    """
    limit_s = ledgers.options.metadata_timeout_s
    if access == "take-over":  # a writer is fenced for one that can write
        await _check_bookies(ledgers, topic, partition)
    async with (
        ledgers.openings.one() as opening,
        hold_lane(
            ledgers.session,
            topic,
            partition,
            access=access,
            producer=producer,
            lane=lane,
            limit_s=limit_s,
            owner=owner,
            lane_name=lane_name,
            away=opening.away,
        ) as lease,
    ):
        rows = LaneRows(ledgers.catalogue, topic, partition, lease.lane)
        others: Others | None = None
        if lane is None and access != "shared":
            fence = lease.owner if access == "take-over" else ""
            others = partial(
                lane_end.close_others,
                ledgers,
                topic,
                partition,
                producer=producer,
                writer=fence,
                away=opening.away,
            )
        is_own = access == "shared" and lease.lane > 0 and not lane_name
        await rows.claim(
            producer if is_own else None,
            writer=lease.owner,
            is_back=is_back,
            lane_name=lane_name,
            topic_version=topic_version,
            first=partial(new_ledger, ledgers, partition, lease.lane),
        )
        writer: LaneWriter | None = None
        try:
            async with Background() as nursery:
                writer = await _open(ledgers, rows, lease, nursery, producer, others, opening.away)
                opening.leave()
                try:
                    with _heeding(rolls, rows, writer):
                        yield writer
                except Exception as error:
                    await _close_after(error, writer)
                    raise
                await writer.close()
        except BaseException as error:
            if not isinstance(error, Exception) and writer is not None:
                with trio.CancelScope(shield=True):  # cancelled or interrupted: be quick
                    await writer.abort(ABORT_S)
            raise


async def _check_bookies(ledgers: Ledgers, topic: TopicRecord, partition: int) -> None:
    """Raise NotEnoughBookies if there are none for a new ledger of the topic as it is now."""

    async def choose(of: TopicRecord) -> None:
        await ledgers.placement.new_ensemble(of.replication, of.replication, of.ack_quorum)

    try:
        await choose(topic)
    except NotEnoughBookies:
        rows = LaneRows(ledgers.catalogue, topic, partition, 0)
        await rows.refresh_topic()
        await choose(rows.topic)


def _heeding(
    rolls: RollDesk | None, rows: LaneRows, writer: LaneWriter
) -> AbstractContextManager[None]:
    if rolls is None:
        return nullcontext()
    return rolls.heed(rows.topic.uid, rows.partition, rows.lane, writer.roll)


async def _open(
    ledgers: Ledgers,
    rows: LaneRows,
    lease: LaneLease,
    nursery: trio.Nursery,
    producer: str,
    others: Others | None,
    away: Away,
) -> LaneWriter:
    """Take over the lane that was claimed, while its lease is kept.

    *others* closes the other lanes; `None` if the partition is shared. *away* is entered while
    bookies recover ledgers.
    """
    async with Background() as keeping:
        keeping.start_soon(_keep_meanwhile, lease, rows)
        own = None if others is None else await others()
        last = await lane_end.find_end(ledgers, rows, away)
        if own is not None:
            last.state.learn(own, producer)
        writer = LaneWriter(ledgers, rows, last, nursery)
        limit_s = ledgers.options.append_timeout_s
        with trio.move_on_after(limit_s) as scope:
            await writer.open()
        if scope.cancelled_caught:
            raise MetadataUnavailable(f"the lane was not opened within {limit_s:g} s")
    if others is None:
        await lease.check_kept()
    nursery.start_soon(writer.run)
    nursery.start_soon(_keep, lease, rows, writer)
    return writer


async def _keep_meanwhile(lease: LaneLease, rows: LaneRows) -> None:
    """Hold the lease. A failure shows in the next change of the lane's rows, as does a rival."""
    with suppress(LedgerError):
        await lease.hold(rows)


async def _keep(lease: LaneLease, rows: LaneRows, writer: LaneWriter) -> None:
    """Keep the lease; if that is impossible, the writer fails."""
    try:
        await lease.keep(rows)
    except LedgerError as failure:
        writer.fail(failure)


async def _close_after(error: BaseException, writer: LaneWriter) -> None:
    """Close the lane whose block failed; the block's error is the one to raise."""
    try:
        await writer.close()
    except LedgerError as failure:
        error.add_note(f"the lane was not closed: {failure}")

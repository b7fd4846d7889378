"""Opening a lane: hold its lease, take it over from whoever wrote it, write it, close it.

    lease ──► claim: epoch + 1 ──► recover the last ledger ──► read the state ──► next ledger

From the claim on nobody of a lower epoch changes the lane's rows; from the recovery on
nobody else's entry is acknowledged. Who takes the whole partition closes its other lanes
first, as somebody whose lease ran out may write them still. A taker that is killed anywhere
leaves a lane that the next one takes in the same way; what it had prepared is removed by the
next claim.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from ledger_client.background import Background
from ledger_client.client import Client
from ledger_client.errors import LedgerError, MetadataUnavailable
from ledger_client.topics.keeping.idle import close_others
from ledger_client.topics.lanes.lane_choice import Access, hold_lane
from ledger_client.topics.lanes.lane_lease import LaneLease
from ledger_client.topics.lanes.lane_ledgers import find_end
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneState
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.lanes.sealed_batch import SealedBatch
from metadata.topics import TopicRecord

__all__ = ["Access", "LaneWriter", "SealedBatch", "open_lane"]
Others = Callable[[], Awaitable[LaneState | None]]
ABORT_S = 5.0
"""For closing a lane when its block is left by a cancellation."""


@asynccontextmanager
async def open_lane(
    client: Client,
    topic: TopicRecord,
    partition: int,
    *,
    access: Access = "exclusive",
    producer: str = "",
    lane: int | None = None,
    lane_name: str = "",
    owner: str | None = None,
    is_back: bool = False,
) -> AsyncIterator[LaneWriter]:
    """Take a lane of a partition and write it; it is closed at the end of the block.

    Args:
        client: whose bookies and metadata.
        topic: the topic, as it was found lately.
        partition: its index; -1 for the only one of a topic without partitions.
        access: which lane, and what if somebody has it: see lane_choice.py.
        producer: name of the producer, "" for none.
        lane: this very lane, whatever *access* says, if nobody has it.
        lane_name: the lane of this name, when the partition is shared.
        owner: names the caller, this object in this process: a lease that it left behind when
            the store was away is its own. By default each call is somebody else.
        is_back: the same owner had the lane, and lost it by a failure: if somebody else
            wrote it meanwhile, it is fenced.

    Raises:
        ProducerBusy: somebody else writes the lane.
        ProducerFenced: somebody took the lane over while it was being opened, or before it
            was opened anew.
        NoSuchTopic: the topic was deleted.
        NotEnoughBookies: fewer than its replication take writes.
        RecoveryIncomplete, ReplicasUnavailable: the bookies of its last ledger are away.
            Whoever wrote the lane does so no more.
        TailLost: they are there, and none has the end of it: a person decides.
        MetadataUnavailable: the store did not answer in time.
        LedgerError: at the end of the block, as LaneWriter.close(); an error of the block
            itself goes first.
    """
    limit_s = client.options.metadata_timeout_s
    async with hold_lane(
        client.store,
        topic,
        partition,
        access=access,
        producer=producer,
        lane=lane,
        limit_s=limit_s,
        owner=owner,
        lane_name=lane_name,
    ) as lease:
        rows = LaneRows(client.catalogue, topic, partition, lease.lane)
        others: Others | None = None
        if lane is None and access != "shared":
            fence = lease.owner if access == "take-over" else ""
            others = partial(
                close_others, client, topic, partition, producer=producer, writer=fence
            )
        is_own = access == "shared" and lease.lane > 0 and not lane_name
        await rows.claim(
            producer if is_own else None, writer=lease.owner, is_back=is_back, lane_name=lane_name
        )
        writer: LaneWriter | None = None
        try:
            async with Background() as nursery:
                writer = await _open(client, rows, lease, nursery, producer, others)
                try:
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


async def _open(
    client: Client,
    rows: LaneRows,
    lease: LaneLease,
    nursery: trio.Nursery,
    producer: str,
    others: Others | None,
) -> LaneWriter:
    """Take over the lane that was claimed, while its lease is kept.

    *others*: the partition is this writer's alone, and this closes the other lanes.
    """
    async with Background() as keeping:
        keeping.start_soon(_keep_meanwhile, lease, rows)
        own = None if others is None else await others()
        last = await find_end(client, rows)
        if own is not None:
            last.state.learn(own, producer)
        writer = LaneWriter(client, rows, last, nursery)
        limit_s = client.options.append_timeout_s
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
    """Keep the lease; whoever opens the lane learns by itself that it cannot."""
    with suppress(LedgerError):
        await lease.keep(rows)


async def _keep(lease: LaneLease, rows: LaneRows, writer: LaneWriter) -> None:
    """Keep the lease; what makes that impossible ends the writer."""
    try:
        await lease.keep(rows)
    except LedgerError as failure:
        writer.fail(failure)


async def _close_after(error: BaseException, writer: LaneWriter) -> None:
    """Close the lane whose block failed; the block's error is the one to tell."""
    try:
        await writer.close()
    except LedgerError as failure:
        error.add_note(f"the lane was not closed: {failure}")

"""Closing a lane that nobody writes any more, or is to write any more."""

from __future__ import annotations

from ledger_client.client import Client
from ledger_client.topics.errors import TopicError
from ledger_client.topics.lanes.lane_choice import hold_lane, read_lanes
from ledger_client.topics.lanes.lane_ledgers import find_end
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneState
from metadata.topics import TopicRecord

ATTEMPTS = 3
"""At closing a lane that somebody else closes at the same time."""


async def close_lane(client: Client, topic: TopicRecord, partition: int, lane: int) -> None:
    """Take a lane as its next writer would, and leave it without an open ledger.

    Whoever wrote it gets no acknowledgement any more. The next writer begins where it ends.

    Raises:
        ProducerBusy: somebody writes the lane.
        ProducerFenced: somebody took it meanwhile.
        NoSuchTopic: the topic was deleted.
        RecoveryIncomplete, ReplicasUnavailable: the bookies of its last ledger are away.
        TailLost: they are there, and none has the end of it: a person decides.
        MetadataUnavailable: the store did not answer in time.
    """
    async with hold_lane(
        client.store,
        topic,
        partition,
        access="exclusive",  # beside whoever has the others
        producer="",
        lane=lane,
        limit_s=client.options.metadata_timeout_s,
        is_closing=True,
    ):
        await _close(client, LaneRows(client.catalogue, topic, partition, lane))


async def close_others(
    client: Client, topic: TopicRecord, partition: int, *, producer: str, writer: str = ""
) -> LaneState | None:
    """Close all lanes but 0 that are open; who calls has the lease of the whole partition.

    Somebody whose lease ran out, while the store was away, may write them still: from now on
    nothing of his is acknowledged. Returns the last state of the lane that is the *producer*'s
    own, when it shares the partition; None: there is none.

    Args:
        client: whose bookies and metadata.
        topic: the topic.
        partition: its index.
        producer: name of who has the partition now, "" for none.
        writer: who takes the lanes over: then those who wrote them are fenced for good.
            "": they come back when the partition is shared again.

    Raises:
        As close_lane(), but for ProducerBusy.
    """
    names = await read_lanes(
        client.store, topic.uid, partition, limit_s=client.options.metadata_timeout_s
    )
    own: LaneState | None = None
    for lane, name in names.items():
        is_own = bool(producer) and name == producer
        if lane > 0:
            state = await _close_if_open(
                client, topic, partition, lane, is_wanted=is_own, writer=writer
            )
            own = state if is_own else own
    return own


async def _close_if_open(
    client: Client, topic: TopicRecord, partition: int, lane: int, *, is_wanted: bool, writer: str
) -> LaneState | None:
    """Close a lane, if it is open; return its state, or None if it was not *is_wanted*."""
    for attempts in reversed(range(ATTEMPTS)):
        rows = LaneRows(client.catalogue, topic, partition, lane)
        row = await rows.open_row()
        if row is None and not is_wanted:
            return None
        try:
            if row is not None:
                return await _close(client, rows, writer)
            return (await find_end(client, rows)).state
        except TopicError:
            if not attempts:
                raise
    return None


async def _close(client: Client, rows: LaneRows, writer: str = "") -> LaneState:
    """Claim a lane, and leave it without an open ledger; return its state."""
    await rows.claim(None, writer=writer)
    last = await find_end(client, rows)
    row, end = last.unclosed, last.end
    # If a person deleted the ledger, the next writer skips its versions.
    if (
        row is not None
        and end is not None
        and last.next_version == row.base_version + end.last_entry + 1
    ):
        await rows.close(row, end)
    return last.state

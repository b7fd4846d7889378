"""Closing a lane that nobody writes any more."""

from __future__ import annotations

from ledger_client.client import Client
from ledger_client.topics.lane_lease import hold_lane
from ledger_client.topics.lane_ledgers import find_end
from ledger_client.topics.lane_rows import LaneRows
from metadata.topics import TopicRecord


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
        rows = LaneRows(client.catalogue, topic, partition, lane)
        await rows.claim(None)
        last = await find_end(client, rows)
        row, end = last.unclosed, last.end
        if row is None or end is None:
            return
        if last.next_version != row.base_version + end.last_entry + 1:
            return  # a person deleted the ledger: the next writer skips its versions
        await rows.close(row, end)

"""Opening a producer and its lanes, and opening these anew after a failure."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.producing.partition_watch import PartitionWatch
from ledger_client.topics.producing.producer import Producer, open_producer
from ledger_client.topics.producing.producer_options import ProducerOptions, ProducerSettings


class ProducerLanes:
    """Opens the lanes of a producer, on the topic as *watch* has seen it last."""

    def __init__(self, ledgers: Ledgers, watch: PartitionWatch, options: ProducerOptions) -> None:
        self._ledgers = ledgers
        self._watch = watch
        self._options = options
        self._access = options.access_to(watch.topic)
        self._owner = f"{options.producer_name or 'producer'}-{uuid.uuid4().hex}"

    def open(self, partition: int, number: int | None) -> AbstractAsyncContextManager[LaneWriter]:
        """Open a lane of a partition; with *number* that lane, anew after a failure."""
        # A lane opened anew must not be taken from a producer that took it meanwhile.
        is_anew = number is not None
        is_shared = self._access == "shared"
        return open_lane(
            self._ledgers,
            self._watch.topic,
            partition,
            access="exclusive" if is_anew and not is_shared else self._access,
            producer=self._options.producer_name,
            lane=number if is_shared else None,
            lane_name=self._options.lane_name,
            owner=self._owner,
            is_back=is_anew,
        )


@asynccontextmanager
async def topic_producer(
    context: TopicContext, topic: str, **settings: Unpack[ProducerSettings]
) -> AsyncIterator[Producer]:
    """Write a topic for the length of the block; see Client.producer()."""
    options = ProducerOptions(**settings)
    record, _ = await context.catalogue.get(topic)
    watch = PartitionWatch(context.catalogue, record)
    async with open_producer(
        record,
        options,
        ProducerLanes(context.ledgers, watch, options).open,
        context.figures.sending(record.name),
        context.clock.now_ms,
        watch.run if record.partitions and options.partition is None else None,
    ) as producer:
        yield producer

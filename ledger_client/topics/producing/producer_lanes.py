"""Opening a producer and its lanes, and opening these anew after a failure.

A producer also notices that its topic got more partitions: a watch on the topic's record gives a
hint at once. Nothing is asked while nothing happens, but for a look every LOOK_S seconds.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Unpack

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.producing.producer import Producer, open_producer
from ledger_client.topics.producing.producer_options import ProducerOptions, ProducerSettings
from metadata.errors import MetadataError
from metadata.topics import TopicRecord, topic_key

UsePartitions = Callable[[TopicRecord], Awaitable[None]]
LOOK_S = 600.0
"""The record is read so often, in case a hint was lost."""
UNWATCHED_S = 60.0
"""And so often if it cannot be watched."""
AGAIN_S = 5.0
_log = logging.getLogger(__name__)


class PartitionWatch:
    """Watches one topic.

    Attributes:
        topic: its record, with the partitions that are used now.
        version: of that record.
    """

    def __init__(self, catalogue: TopicCatalogue, topic: TopicRecord, version: int) -> None:
        self.topic = topic
        self.version = version
        self._catalogue = catalogue
        self._hint = trio.Event()

    async def run(self, use: UsePartitions) -> None:
        """Until cancelled, call *use* with the topic's record when it has more partitions.

        If *use* raises LedgerError it is called again a few seconds later.
        """
        key, watches = topic_key(self.topic.name), self._catalogue.store.watches
        rest_s = UNWATCHED_S
        with suppress(MetadataError):  # too much is watched already
            watches.subscribe(key, self)
            rest_s = LOOK_S
        try:
            pause_s = rest_s
            while True:
                with trio.move_on_after(pause_s):
                    await self._hint.wait()
                self._hint = trio.Event()
                pause_s = rest_s if await self._look(use) else AGAIN_S
        finally:
            watches.unsubscribe(key, self)

    def notify(self, prefix: str, hint: str) -> None:
        """Look at the topic's record soon, unless *hint* is about a longer name."""
        if hint == prefix:
            self._hint.set()

    async def _look(self, use: UsePartitions) -> bool:
        """Return False if it must be done again."""
        name = self.topic.name
        try:
            record, version = await self._catalogue.get(name)
            if record.uid == self.topic.uid and record.partitions > self.topic.partitions:
                await use(record)
                self.topic, self.version = record, version
        except LedgerError as failure:  # if the topic is gone, its lanes fail
            _log.info("topic %s: added partitions are looked for again later: %s", name, failure)
            return False
        return True


# --- lanes of a producer ---------------------------------------------------------------


class ProducerLanes:
    """Opens the lanes of a producer, on the topic as *watch* has seen it last."""

    def __init__(
        self, context: TopicContext, watch: PartitionWatch, options: ProducerOptions
    ) -> None:
        self._ledgers = context.ledgers
        self._rolls = context.rolls
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
            rolls=self._rolls,
            topic_version=self._watch.version,
        )


@asynccontextmanager
async def topic_producer(
    context: TopicContext, topic: str, **settings: Unpack[ProducerSettings]
) -> AsyncIterator[Producer]:
    """Write a topic for the length of the block; see Client.producer()."""
    options = ProducerOptions(**settings)
    record, version = await context.catalogue.get(topic)
    watch = PartitionWatch(context.catalogue, record, version)
    async with open_producer(
        record,
        options,
        ProducerLanes(context, watch, options).open,
        context.timestamps,
        context.figures.sending(record.name),
        context.clock.now_ms,
        watch.run if record.partitions and options.partition is None else None,
        context.reports,
    ) as producer:
        yield producer

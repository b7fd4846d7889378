"""Notices that a topic that is being written got more partitions.

A watch on the topic's record gives a hint at once; hints may be lost, so the record is also read
every few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.catalogue import TopicCatalogue
from metadata.errors import MetadataError
from metadata.topics import TopicRecord, topic_key

UsePartitions = Callable[[TopicRecord], Awaitable[None]]
LOOK_S = 5.0
"""The record is read so often, without a hint."""
WATCH_RETRY_S = 1.0
_log = logging.getLogger(__name__)


class PartitionWatch:
    """Watches one topic.

    Attributes:
        topic: its record, with the partitions that are used now.
    """

    def __init__(self, catalogue: TopicCatalogue, topic: TopicRecord) -> None:
        self.topic = topic
        self._catalogue = catalogue
        self._hint = trio.Event()

    async def run(self, use: UsePartitions) -> None:
        """Until cancelled, call *use* with the topic's record when it has more partitions.

        If *use* raises LedgerError it is called again a few seconds later.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while True:
                with trio.move_on_after(LOOK_S):
                    await self._hint.wait()
                self._hint = trio.Event()
                await self._look(use)

    async def _watch(self) -> None:
        key = topic_key(self.topic.name)
        while True:
            try:
                async with self._catalogue.store.watch(key) as hints:
                    self._hint.set()  # for changes before the watch began
                    async for hint in hints:
                        if hint == key:
                            self._hint.set()
            except MetadataError:
                await trio.sleep(WATCH_RETRY_S)  # the record is read meanwhile

    async def _look(self, use: UsePartitions) -> None:
        name = self.topic.name
        try:
            record, _ = await self._catalogue.get(name)
            if record.uid == self.topic.uid and record.partitions > self.topic.partitions:
                await use(record)
                self.topic = record
        except LedgerError as failure:  # if the topic is gone, its lanes fail
            _log.info("topic %s: added partitions are looked for again later: %s", name, failure)

"""A producer learns that its topic got more partitions.

A watch on the topic's record tells; as a watch is only a hint, the record is looked at every
few seconds too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ledger_client.errors import LedgerError
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.reading.topic_watch import LOOK_S, WATCH_RETRY_S
from metadata.errors import MetadataError
from metadata.topics import TopicRecord, topic_key

Grow = Callable[[TopicRecord], Awaitable[None]]
_log = logging.getLogger(__name__)


class Growth:
    """Calls *grow* with a topic's record when it has more partitions than before.

    When *grow* fails it is called again at the next look, and what was there goes on.
    """

    def __init__(self, catalogue: TopicCatalogue, topic: TopicRecord, grow: Grow) -> None:
        self._catalogue = catalogue
        self._topic = topic
        self._grow = grow
        self._hint = trio.Event()

    async def run(self) -> None:
        """Watch and look until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while True:
                with trio.move_on_after(LOOK_S):
                    await self._hint.wait()
                self._hint = trio.Event()
                await self._look()

    async def _watch(self) -> None:
        key = topic_key(self._topic.name)
        while True:
            try:
                async with self._catalogue.store.watch(key) as hints:
                    self._hint.set()  # what changed before the watch began
                    async for hint in hints:
                        if hint == key:
                            self._hint.set()
            except MetadataError:
                await trio.sleep(WATCH_RETRY_S)  # looks go on meanwhile

    async def _look(self) -> None:
        name = self._topic.name
        try:
            record, _ = await self._catalogue.get(name)
            if record.uid == self._topic.uid and record.partitions > self._topic.partitions:
                await self._grow(record)
                self._topic = record
        except LedgerError as failure:  # that the topic is gone, its lanes tell
            _log.info("whether topic %s has more partitions is looked at later: %s", name, failure)

"""Noticing that a topic that is followed has new ledgers or lanes, or was deleted."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from ledger_client.errors import MetadataUnavailable
from ledger_client.topics.reading.source import LOOK_S
from metadata.errors import MetadataError
from metadata.store import MetadataStore
from metadata.topics import LANE_LEDGERS, TopicRecord, topic_key, topic_prefix

SOON_S = 5.0
"""Seconds until a look at a topic: after a change of its record or a failure, and if unwatched."""


class TopicWatch:
    """Reports new ledgers of a topic's lanes, new lanes, and the topic's end.

    One watch on the rows of all the topic's ledgers serves all of its lanes: a lane without a
    ledger has nothing to read. Another one is on the topic's record; when that changes, there is
    a look SOON_S later, and a deleted topic's reader has so long to take what has arrived. Nothing
    is asked while nothing happens, but for a look every LOOK_S, in case a hint was lost.

    Args:
        store: the store to watch.
        topic: the topic's record.
        look: called when there may be a new lane, or the topic's record changed.

    Attributes:
        looks: rises when it is called, and when it has returned.
    """

    def __init__(
        self, store: MetadataStore, topic: TopicRecord, look: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._key = topic_key(topic.name)
        self._prefix = topic_prefix(LANE_LEDGERS, topic.uid)
        self.looks = 0
        self._look = look
        self._events: dict[str, trio.Event] = {}
        """by the prefix of a lane's rows"""
        self._new_lane = trio.Event()
        self._due_at = -math.inf
        self._waiting = trio.CancelScope()

    @property
    def tells(self) -> bool:
        """Whether changes of the lanes' rows are told of at once; otherwise later."""
        return self._store.watches.tells(self._prefix)

    def news(self, prefix: str) -> trio.Event:
        """Return an event that is set when a lane's rows, those with *prefix*, may have changed.

        Call this before looking at the rows; then wait for the event LOOK_S seconds at most.
        """
        return self._events.setdefault(prefix, trio.Event())

    async def run(self) -> None:
        """Watch and look, until cancelled. Raises the errors of *look*."""
        watches = self._store.watches
        is_watched = False
        with suppress(MetadataError):  # too much is watched already
            watches.subscribe(self._prefix, self)
            watches.subscribe(self._key, self)
            is_watched = True
        pause_s = LOOK_S if is_watched else SOON_S
        try:
            self._due_at = trio.current_time() + pause_s
            while True:
                with trio.CancelScope(deadline=self._due_at) as self._waiting:
                    await self._new_lane.wait()
                if not is_watched:
                    self.notify(self._prefix, self._prefix)
                self._new_lane = trio.Event()
                self._due_at = trio.current_time() + pause_s
                self.looks += 1
                try:
                    await self._look()
                except MetadataUnavailable:
                    self._look_soon()
                self.looks += 1
        finally:
            watches.unsubscribe(self._prefix, self)
            watches.unsubscribe(self._key, self)

    def look_again(self) -> None:
        """Look once more: what the last looks found was not kept."""
        self._new_lane.set()

    def notify(self, prefix: str, hint: str) -> None:
        """Set the events of the rows that may have changed."""
        if prefix == self._key:
            if hint == prefix:  # otherwise another topic, with a longer name
                self._look_soon()
            return
        prefix = hint.rpartition("/")[0] + "/"
        if prefix not in self._events:
            self._new_lane.set()
        for each in [prefix] if prefix in self._events else list(self._events):
            self._events[each].set()
            self._events[each] = trio.Event()

    def _look_soon(self) -> None:
        self._due_at = min(self._due_at, trio.current_time() + SOON_S)
        self._waiting.deadline = self._due_at

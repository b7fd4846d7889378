"""News of a topic's lanes: new ledgers in them, new lanes, and the topic's end.

One watch for all lanes of a topic, on the rows of their ledgers, since a lane without a
ledger has nothing to read. A watch is only a hint: every few seconds everybody looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from ledger_client.errors import MetadataUnavailable
from metadata.errors import MetadataError
from metadata.store import MetadataStore
from metadata.topics import LANE_LEDGERS, topic_prefix

LOOK_S = 5.0
"""Between two looks without a hint."""
WATCH_RETRY_S = 1.0


class TopicWatch:
    """Wakes those who wait for rows of one topic.

    Args:
        store: what is watched.
        uid: of the topic.
        look: called when there may be a new lane, and every few seconds.
    """

    def __init__(self, store: MetadataStore, uid: int, look: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._prefix = topic_prefix(LANE_LEDGERS, uid)
        self._look = look
        self._known: dict[str, trio.Event] = {}
        self._new_lane = trio.Event()

    def news(self, prefix: str) -> trio.Event:
        """Return what is set when rows with *prefix*, those of a lane, may have changed.

        Ask for it, then look at the rows, then wait: LOOK_S at most.
        """
        return self._known.setdefault(prefix, trio.Event())

    async def run(self) -> None:
        """Watch and look, until cancelled. Raises what *look* raises."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while True:
                with trio.move_on_after(LOOK_S):
                    await self._new_lane.wait()
                self._new_lane = trio.Event()
                with suppress(MetadataUnavailable):  # the next look may reach it
                    await self._look()

    async def _watch(self) -> None:
        while True:
            try:
                async with self._store.watch(self._prefix) as hints:
                    self._tell(self._prefix)  # what changed before the watch began
                    async for hint in hints:
                        self._tell(hint)
            except MetadataError:
                await trio.sleep(WATCH_RETRY_S)  # everybody looks by themselves meanwhile

    def _tell(self, hint: str) -> None:
        prefix = hint.rpartition("/")[0] + "/"
        if prefix not in self._known:
            self._new_lane.set()
        told = [prefix] if prefix in self._known else list(self._known)
        for each in told:
            self._known[each].set()
            self._known[each] = trio.Event()

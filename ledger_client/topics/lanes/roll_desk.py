"""Requests to go on in another ledger, passed to the lanes that this client writes.

    topics/rolls.py ──► lane-rolls/…/<ledger> ──► hint ──► RollDesk ──► LaneWriter.roll(ledger)

A request names the ledger to leave, in its key. So the hint alone says all: nothing is read, a
request that is repeated or late does nothing, and a deletion of one does nothing that the request
did not. When hints were lost, all requests for the topic are read, in one question.

One prefix is watched for each topic, whatever the number of its lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from metadata.errors import MetadataError
from metadata.store import MetadataStore, pages
from metadata.topics import LANE_ROLLS, lane_rolls_prefix, topic_prefix

Roll = Callable[[int], None]
"""Leaves the ledger with this id if it is the lane's; does nothing else."""


class RollDesk:
    """Watches for the requests to lanes of one client."""

    def __init__(self, store: MetadataStore, nursery: trio.Nursery) -> None:
        self._store = store
        self._nursery = nursery
        self._lanes: dict[str, Roll] = {}
        self._watched: Counter[str] = Counter()
        self._looking: set[str] = set()
        self._unsure: set[str] = set()

    @contextmanager
    def heed(self, uid: int, partition: int, lane: int, roll: Roll) -> Iterator[None]:
        """For the block, call *roll* with the ledgers that the lane's writer is asked to leave."""
        place, topic = lane_rolls_prefix(uid, partition, lane), topic_prefix(LANE_ROLLS, uid)
        self._lanes[place] = roll
        self._watched[topic] += 1
        if self._watched[topic] == 1:
            with suppress(MetadataError):  # too many prefixes: whoever asks says so
                self._store.watches.subscribe(topic, self)
        try:
            yield
        finally:
            if self._lanes.get(place) is roll:  # not one that took the lane over since
                del self._lanes[place]
            self._watched[topic] -= 1
            if not self._watched[topic]:
                del self._watched[topic]
                self._store.watches.unsubscribe(topic, self)

    def notify(self, prefix: str, hint: str) -> None:
        """Pass the request on that *hint* names, or look for any."""
        if hint != prefix:
            self._pass_on(hint)
            return
        self._unsure.add(prefix)
        if prefix not in self._looking:
            self._looking.add(prefix)
            self._nursery.start_soon(self._look, prefix)

    def _pass_on(self, key: str) -> None:
        place, _, ledger = key.rpartition("/")
        roll = self._lanes.get(f"{place}/")
        if roll is not None and ledger.isdecimal():
            roll(int(ledger))

    async def _look(self, prefix: str) -> None:
        """Pass on all requests under *prefix*. Without an answer, a request is made again."""
        try:
            while prefix in self._unsure:
                self._unsure.discard(prefix)
                with suppress(MetadataError):
                    async for page in pages(self._store, prefix):
                        for key, _ in page:
                            self._pass_on(key)
        finally:
            self._looking.discard(prefix)

"""The stored ticks of a topic, as a reader follows them from ledger to ledger."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import trio

from ledger_client.errors import MessagesLost, MetadataUnavailable, NoSuchLedger, NoSuchTopic
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.leader_calls import LeaderCalls
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.ledgers.reader import Follower, LedgerReader
from ledger_client.options import Options
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.ticks import Tick, unfolded
from metadata.errors import VersionConflict
from metadata.store import ABSENT, Check, MetadataStore, items_under
from metadata.time.calls import NewestTick, TickNow
from metadata.time.tick_rows import (
    TickLedger,
    decode_tick_ledger,
    lanes_of_topic_key,
    ticks_prefix,
)
from metadata.topics import TopicRecord, last_number
from native.errors import Corrupt
from native.tick import TickEntry

LOOK_S = 0.5
"""Between two looks for the next ledger."""
PAUSE_S = 0.05
"""Between two questions for a newer tick."""
COVERS_MAX = 100_000
"""Covers of the ticks that one read returns, about; each tick has one for every lane."""


class TickReads(Protocol):
    """What reading ticks needs of a connection to the cluster."""

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""

    @property
    def opener(self) -> LedgerOpener:
        """Opens ledgers for reading."""

    @property
    def leader(self) -> LeaderCalls:
        """Asks the leader."""

    @property
    def catalogue(self) -> TopicCatalogue:
        """The records of topics."""

    @property
    def options(self) -> Options:
        """Deadlines and bounds."""


async def tick_rows(reads: TickReads, uid: int) -> list[tuple[int, TickLedger]]:
    """Return number and row of a topic's tick ledgers, in order.

    Raises:
        MetadataUnavailable, MetadataBroken: from the store.
    """
    with translated(reads.options.metadata_timeout_s):
        items = await items_under(reads.store, ticks_prefix(uid))
        return [(last_number(key), decode_tick_ledger(key, found.value)) for key, found in items]


async def was_opened(reads: TickReads, topic: TopicRecord) -> bool:
    """True if a lane of a topic was ever opened; before that the leader makes no ticks.

    Raises:
        NoSuchTopic: the topic was deleted.
        MetadataUnavailable: the store did not answer in time.
    """
    with translated(reads.options.metadata_timeout_s):
        try:
            await reads.store.transact([Check(lanes_of_topic_key(topic.uid), ABSENT)])
        except VersionConflict:
            return True
    found, _ = await reads.catalogue.get(topic.name)
    if found.uid != topic.uid:  # a deletion removes the row, too
        raise NoSuchTopic(topic.name)
    return False


class TickFollower:
    """The stored ticks of a topic later than a timestamp, and its newest one: a TickSource."""

    def __init__(self, reads: TickReads, topic: TopicRecord, *, after: int = 0) -> None:
        self._reads = reads
        self._topic = topic
        self._after = after
        self._number = -1
        """of the ledger that is read; all before it are"""
        self._reader: LedgerReader | None = None
        self._follower: Follower | None = None
        self._entry: TickEntry | None = None
        """the last one that was read of this ledger"""
        self._unread: deque[bytes] = deque()
        """the entries after it that are here"""
        self._next = 0
        """id of the first of them"""

    async def read(self) -> list[Tick]:
        """Return the next stored ticks, at least one; see TickSource."""
        while True:
            if self._follower is None and not await self._open_next():
                return []
            found = await self._read_on()
            ticks = [Tick(t.timestamp, t.covers, t.timestamp) for t in found]
            later = [tick for tick in ticks if tick.timestamp > self._after]
            if later:
                self._after = later[-1].timestamp
                return later

    async def newest(self, after: int = 0, *, limit_s: float | None = None) -> Tick:
        """Return the newest tick; wait until it is later than *after*. See TickSource.

        *limit_s* is the time limit, by default that of appending.
        """
        limit_s, held = self._reads.options.append_timeout_s if limit_s is None else limit_s, ""
        with trio.move_on_after(limit_s):
            while True:
                reply = await self._reads.leader.ask(
                    NewestTick(self._topic.uid), TickNow, timeout_s=limit_s
                )
                if reply.timestamp > after:
                    covers = {(p, lane): version for p, lane, version in reply.covers}
                    return Tick(reply.timestamp, covers, reply.stored)
                held = f"; {reply.holder} holds it back" if reply.holder else ""
                await trio.sleep(PAUSE_S)
        raise MetadataUnavailable(f"no newer tick of {self._topic.name} in {limit_s:g} s{held}")

    def close(self) -> None:
        """Follow no more."""
        self._leave()

    def _leave(self) -> None:
        reader, self._reader, self._follower, self._entry = self._reader, None, None, None
        self._unread.clear()
        if reader is not None:
            reader.unwatch()

    async def _open_next(self) -> bool:
        """Open the ledger that has the next tick, once it is there; False if the topic is gone."""
        while True:
            rows = await tick_rows(self._reads, self._topic.uid)
            row = self._chosen(rows)
            if row is not None:
                try:
                    self._reader = await self._reads.opener.open(row[1].ledger_id)
                except NoSuchLedger:  # trimmed since, or an operator deleted it
                    if row is rows[-1]:
                        await trio.sleep(LOOK_S)
                    else:
                        self._number = row[0]
                    continue
                self._number = row[0]
                self._follower = self._reader.follow()
                return True
            try:
                topic, _ = await self._reads.catalogue.get(self._topic.name)
            except NoSuchTopic:
                return False
            if topic.uid != self._topic.uid:
                return False
            await trio.sleep(LOOK_S)

    def _chosen(self, rows: Sequence[tuple[int, TickLedger]]) -> tuple[int, TickLedger] | None:
        """Return the row of the ledger to read next."""
        left = [row for row in rows if row[0] > self._number]
        for row, following in itertools.pairwise(left):
            if following[1].after > self._after:
                return row
        return left[-1] if left else None

    async def _read_on(self) -> list[TickEntry]:
        """Return ticks of the ledger, none if it has ended and the next one is to be opened."""
        follower, reader = self._follower, self._reader
        assert follower is not None and reader is not None
        if not self._unread:
            try:
                batch = await follower.next_batch()
            except NoSuchLedger:  # trimmed, or deleted with the topic
                batch = None
            if batch is None:
                self._leave()
                return []
            self._unread.extend(batch.payloads())
            self._next = batch.first_entry
        ticks: list[TickEntry] = []
        count = 0
        while self._unread and count < COVERS_MAX:
            try:
                (self._entry,) = unfolded([self._unread[0]], self._entry)
            except Corrupt as wrong:
                if ticks:
                    break
                raise MessagesLost.batch(
                    self._topic.name,
                    ledger_id=reader.id,
                    entry_id=self._next,
                    reason=str(wrong),
                ) from wrong
            self._unread.popleft()
            self._next += 1
            ticks.append(self._entry)
            count += len(self._entry.covers)
        return ticks

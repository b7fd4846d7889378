"""Whoever takes timestamps, follows ticks, or reads by timestamp, and tells a history all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from event import mark_of
from history import Recorder
from time_events import (
    HeldMessage,
    TickSeen,
    TimeAsked,
    TimedBegun,
    TimedEnded,
    TimedLost,
    TimedRead,
    TimeHeld,
    TimeTaken,
)

from ledger_client import Client
from ledger_client.errors import MessagesLost
from ledger_client.message_id import MessageId
from ledger_client.topics.positions import Position
from ledger_client.topics.tick_follower import TickFollower, tick_rows
from ledger_client.topics.tick_log import whole_from
from ledger_client.topics.ticks import Tick
from ledger_client.topics.times import Timestamp
from metadata.topics import TopicRecord

if TYPE_CHECKING:
    from ledger_client.topics.reading.reader import TopicReader


class TimeTaker:
    """Takes timestamps, one request after the other."""

    def __init__(self, history: Recorder, who: str) -> None:
        self._history = history
        self._who = who

    async def take(self, client: Client, count: int = 1) -> int:
        """Take some, and return the first. Raises LedgerError."""
        self._history.add(TimeAsked(who=self._who))
        found = await client.timestamps.allocate(count)
        self._history.add(TimeTaken(who=self._who, first=found.first, count=found.count))
        return found.first


class TickWitness:
    """Sees the ticks of a topic, by one client."""

    def __init__(self, history: Recorder, client: Client, topic: TopicRecord, who: str) -> None:
        self._history = history
        self._topic = topic
        self._who = who
        self._ticks = TickFollower(client._context, topic)

    async def see_stored(self) -> bool:
        """Wait for stored ticks; False if the topic is gone. Raises LedgerError."""
        found = await self._ticks.read()
        for tick in found:
            self._tell(tick)
        return bool(found)

    async def see_newest(self, after: int = 0) -> int:
        """Return the newest tick, once it is later than *after*. Raises LedgerError."""
        tick = await self._ticks.newest(after)
        self._tell(tick)
        return tick.timestamp

    def close(self) -> None:
        """See no more."""
        self._ticks.close()

    def _tell(self, tick: Tick) -> None:
        covers = [(*lane, version) for lane, version in sorted(tick.covers.items())]
        self._history.add(
            TickSeen(
                topic=self._topic.name,
                who=self._who,
                timestamp=tick.timestamp,
                stored=tick.stored,
                covers=covers,
            )
        )


class TimedAudience:
    """One reader by timestamp, which keeps its place between its sessions."""

    def __init__(self, history: Recorder, topic: str, reader: str) -> None:
        self.got: set[MessageId] = set()
        self.position: Position | Timestamp | None = None
        """where it goes on, None for the beginning"""
        self._history = history
        self._topic = topic
        self._reader = reader

    def begun(self, *, start: int = 0, follows: bool) -> None:
        """It is about to be opened for the first time, at the timestamp *start*."""
        self.position = Timestamp(start) if start else None
        self._history.add(
            TimedBegun(topic=self._topic, reader=self._reader, start=start, follows=follows)
        )

    async def read(self, client: Client, *, follow: bool, arrow: bool, size: int) -> None:
        """Read on until the end. Raises LedgerError."""
        start: Position | Timestamp | Literal["earliest"] = self.position or "earliest"
        try:
            async with client.reader(
                self._topic, order="timestamp", start=start, follow=follow, read_ahead_size=size
            ) as reader:
                await (self._read_batches if arrow else self._read_messages)(reader)
        except MessagesLost as lost:
            self._history.add(TimedLost(topic=self._topic, reader=self._reader, reason=str(lost)))
            raise
        self._history.add(TimedEnded(topic=self._topic, reader=self._reader))

    async def _read_messages(self, reader: TopicReader) -> None:
        while found := await reader.next_messages():
            self._got(reader, [each.id for each in found], [each.timestamp for each in found])

    async def _read_batches(self, reader: TopicReader) -> None:
        async for batch in reader.read_batches(rows_min=1):
            table = batch.to_pydict()
            places = ("ledger_id", "entry_id", "partition", "batch_index")
            ids = [MessageId(*row) for row in zip(*(table[name] for name in places), strict=True)]
            self._got(reader, ids, table["timestamp"])

    def _got(self, reader: TopicReader, ids: list[MessageId], timestamps: list[int]) -> None:
        self.got.update(ids)
        self.position = reader.position()
        self._history.add(
            TimedRead(
                topic=self._topic,
                reader=self._reader,
                ids=ids,
                timestamps=timestamps,
                tick=reader.tick.value,
            )
        )


async def hold(history: Recorder, client: Client, topic: str) -> None:
    """Tell all messages and stored ticks of a topic that nobody writes. Raises LedgerError."""
    record, _ = await client._context.catalogue.get(topic)
    messages: list[HeldMessage] = []
    async with client.reader(topic) as reader:
        async for each in reader:
            mark = mark_of(each.value or b"")
            messages.append(HeldMessage(each.id, each.lane, each.version, each.timestamp, mark))
    ticks = await _stored_ticks(client, record)
    history.add(TimeHeld(topic=topic, messages=messages, ticks=ticks))


async def _stored_ticks(client: Client, topic: TopicRecord) -> list[int]:
    context = client._context
    found: list[int] = []
    for _, row in await tick_rows(context, topic.uid):
        reader = await context.opener.open(row.ledger_id)
        try:
            last = reader.last_confirmed
            ticks = [] if last < 0 else await whole_from(topic.name, reader, 0, last, None)
        finally:
            reader.unwatch()
        found += [tick.timestamp for tick in ticks]
    return found

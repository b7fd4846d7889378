"""The newest messages of a key: each lane is read backward to the first message that has it.

    open ledger: entries above the LAC, from its bookies ──► unconfirmed messages
    the lane in reverse, from its last confirmed message ──► the first with the key

The search ends at *since* or after MESSAGES_MAX messages, and reports how far it came. A lane that
cannot be read is reported with the reason: the key may have messages in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ledger_client.errors import BadTopic, LedgerError, NoSuchLedger
from ledger_client.ledgers.copies import ask_copies
from ledger_client.ledgers.replica_reads import LedgerSource, ask_confirmed
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row, lanes_of
from ledger_client.topics.messages import Message, open_batch
from ledger_client.topics.positions import LaneRef
from ledger_client.topics.reading.reader import open_reader
from ledger_client.topics.times import Time
from ledger_client.topics.tracing.whereabouts import KeySearch, UnreadLane
from metadata.records import LedgerState
from metadata.topics import LaneRecord, TopicRecord
from native.route import murmur3

MESSAGES_MAX = 10_000_000
"""Messages that one search reads, unless it is asked for less."""
UNCONFIRMED_MAX = 64
"""Entries above the last confirmed one that are asked for in each lane."""
UNCONFIRMED_S = 10.0
"""Time limit for that."""
READ_AHEAD_SIZE = 4 << 20
_SIGN = 1 << 31

Progress = Callable[[int], None]
"""Called with the number of messages just read."""


def partition_of(topic: TopicRecord, key: bytes) -> int:
    """Return the partition to which producers send messages with a key now."""
    if not topic.partitions:
        return -1
    return (murmur3(key) & ~_SIGN) % topic.partitions


async def search_key(
    context: TopicContext,
    topic: TopicRecord,
    key: bytes,
    *,
    partitions: Sequence[int] | None = None,
    since: Time | None = None,
    messages_max: int = MESSAGES_MAX,
    compacted: bool = False,
    on_progress: Progress = lambda _count: None,
) -> KeySearch:
    """Return the newest messages of a key in some partitions.

    Args:
        context: the client's.
        topic: the topic's record.
        key: the key.
        partitions: where to search; `None` for the partition of the key.
        since: leave out messages before this time.
        messages_max: read at most so many messages.
        compacted: search what readers of the compacted topic get.
        on_progress: called with the number of messages just read.

    Raises:
        BadTopic: there is no such partition.
        MetadataUnavailable, MetadataBroken: the store did not answer, or a row is damaged.
    """
    chosen = [partition_of(topic, key)] if partitions is None else sorted(set(partitions))
    for partition in chosen:
        if partition not in topic.partition_indexes:
            raise BadTopic(f"there is no partition {partition}", topic=topic.name)
    found = KeySearch(topic=topic.name, key=key, partitions=chosen)
    timeout_s = context.catalogue.timeout_s
    lanes = await lanes_of(context.store, topic.uid, timeout_s=timeout_s)
    latest: list[Message] = []
    for partition, lane, record in lanes:
        if partition not in chosen or record.deleted:
            continue
        ref = LaneRef(0, partition, lane, topic.name, topic.uid, topic.order == "event-time")
        search = _LaneSearch(context, ref, key, found, on_progress)
        message = None if compacted else await search.unconfirmed(record)
        if message is None:
            message = await search.confirmed(since, messages_max, compacted=compacted)
        latest += [] if message is None else [message]
    latest.sort(key=lambda message: (message.timestamp, message.publish_time), reverse=True)
    found.newest = [message.id for message in latest]
    return found


class _LaneSearch:
    """The search of one lane; adds to the counts of *found*."""

    def __init__(
        self,
        context: TopicContext,
        lane: LaneRef,
        key: bytes,
        found: KeySearch,
        on_progress: Progress,
    ) -> None:
        self._context = context
        self._lane = lane
        self._key = key
        self._found = found
        self._on_progress = on_progress

    async def confirmed(
        self, since: Time | None, messages_max: int, *, compacted: bool
    ) -> Message | None:
        """Return the lane's newest message of the key among those that readers get."""
        lane = self._lane
        try:
            async with open_reader(
                self._context,
                lane.topic,
                partitions=[lane.partition],
                lanes=[lane.lane],
                end=since,
                reverse=True,
                on_gap="skip",
                compacted=compacted,
                read_ahead_size=READ_AHEAD_SIZE,
            ) as reader:
                while messages := await reader.next_messages():
                    self._count(len(messages))
                    for message in messages:
                        if message.key == self._key:
                            return message
                    if self._found.searched >= messages_max:
                        self._leave(f"the search ended after {self._found.searched:,} messages")
                        break
        except LedgerError as failure:
            self._leave(str(failure))
        return None

    async def unconfirmed(self, record: LaneRecord) -> Message | None:
        """Return the newest message of the key above the last confirmed entry, if any."""
        timeout_s = self._context.catalogue.timeout_s
        rows = LedgerRows(self._context.store, self._lane, timeout_s=timeout_s)
        row = await rows.at(record.current) if record.current >= 0 else None
        if row is None or row.ledger.state != "open":
            return None
        try:
            with trio.move_on_after(UNCONFIRMED_S) as scope:
                return await self._above(row)
            if scope.cancelled_caught:
                self._leave(f"its bookies did not say within {UNCONFIRMED_S:g} s where it ends")
        except NoSuchLedger:  # it was removed meanwhile, or deleted
            pass
        except LedgerError as failure:
            self._leave(str(failure))
        return None

    async def _above(self, row: Row) -> Message | None:
        """Return the newest message of the key above the last confirmed entry of a ledger."""
        ledgers = self._context.ledgers
        record, _ = await ledgers.catalogue.get(row.ledger.ledger_id)
        if record.state is LedgerState.CLOSED:
            return None
        source = LedgerSource(record, bookies=ledgers.bookies, options=ledgers.options)
        first = await ask_confirmed(source) + 1
        newest: Message | None = None
        for entry in range(first, first + UNCONFIRMED_MAX):
            copies = await ask_copies(source, entry)
            if copies.payload is None:
                if not copies.is_absent(record.write_quorum, record.ack_quorum):
                    self._leave("too few of its bookies say where it ends")
                return newest
            payload = memoryview(copies.payload)
            batch = open_batch(self._lane, row.place(entry), payload, row.ledger.stamp)
            messages = [] if batch is None else batch.messages
            self._count(len(messages))
            newest = next((m for m in reversed(messages) if m.key == self._key), newest)
        self._leave(f"more than {UNCONFIRMED_MAX} entries are not confirmed yet")
        return newest

    def _count(self, messages: int) -> None:
        self._found.searched += messages
        self._on_progress(messages)

    def _leave(self, reason: str) -> None:
        self._found.unread.append(UnreadLane(self._lane.partition, self._lane.lane, reason))

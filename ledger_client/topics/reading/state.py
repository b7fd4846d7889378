"""The state of a topic with timesync: the latest message of each key at a moment.

Sending a key inserts or replaces it, and an empty value deletes it. All messages up to the moment
lie in the lanes once the topic's tick is as late, and none comes later that belongs before it. So
the lanes are read as they are, and the greatest timestamp of a key wins.

Where the topic was compacted up to the moment, its compacted beginning is read instead of the
older ledgers. If compaction has gone further, it may have dropped what was latest then: all
messages are read again, as long as retention has left them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from ledger_client.errors import BadTopic, TopicBusy
from ledger_client.topics.context import TopicContext
from ledger_client.topics.cuts import places_at
from ledger_client.topics.lanes.ledger_rows import lanes_of
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LanePlace, Place, Position
from ledger_client.topics.reading.compacted import CompactedSets
from ledger_client.topics.reading.consistency import visible
from ledger_client.topics.reading.options import (
    STALENESS_S,
    UNTIMED,
    AsOf,
    Consistency,
    Start,
    check_moment,
)
from ledger_client.topics.reading.reader import open_reader
from ledger_client.topics.times import Timestamp
from metadata.compaction import CompactedSet
from metadata.topics import TopicRecord

STATE_SIZE_MAX = 256 << 20
"""Bytes of keys and values that a state has in memory."""
ATTEMPTS_MAX = 3
_OVERHEAD = 200
"""Bytes of a message beside its key and value, about."""
_FIRST = Place(0, version=0)


class TopicState(NamedTuple):
    """The keys that a topic has at a moment."""

    timestamp: Timestamp
    """all messages up to it count, and none later"""
    messages: dict[bytes, Message]
    """the latest message of each key; a deleted key is not here"""


class _Latest:
    """The latest message of each key among those that were added, in any order."""

    def __init__(self, topic: str, keys: Iterable[bytes] | None, size_max: int) -> None:
        self._topic = topic
        self._keys = None if keys is None else frozenset(keys)
        self._size_max = size_max
        self._size = 0
        self._found: dict[bytes, Message] = {}
        """tombstones, too: an older message of the key may follow"""

    def add(self, messages: Iterable[Message]) -> None:
        """Count these messages. Raises BadTopic if the state is too large."""
        found, keys = self._found, self._keys
        for message in messages:
            key = message.key
            if key is None or (keys is not None and key not in keys):
                continue
            known = found.get(key)
            if known is None:
                self._size += len(key) + _OVERHEAD
            elif _order(known) > _order(message):
                continue
            else:
                self._size -= len(known.value or b"")
            self._size += len(message.value or b"")
            found[key] = message
        if self._size > self._size_max:
            raise BadTopic(
                f"its state has more than {self._size_max} bytes; ask for some keys or partitions, "
                "or raise size_max",
                topic=self._topic,
            )

    def messages(self) -> dict[bytes, Message]:
        """Return the latest message of each key that is not deleted."""
        return {key: message for key, message in self._found.items() if message.value}


def _order(message: Message) -> tuple[int, ...]:
    """Order messages by timestamp; those that a job wrote may have equal ones."""
    place = message.id
    return message.timestamp, place.partition, message.lane, message.version, place.batch_index


async def topic_state(
    context: TopicContext,
    name: str,
    *,
    keys: Iterable[bytes] | None = None,
    partitions: Sequence[int] | None = None,
    consistency: Consistency = "strong",
    staleness_s: float = STALENESS_S,
    as_of: AsOf | None = None,
    on_gap: Literal["raise", "skip"] = "raise",
    size_max: int = STATE_SIZE_MAX,
) -> TopicState:
    """Return the state of a topic; ClientTopics.state() has the details."""
    topic, _ = await context.catalogue.get(name)
    if not topic.timesync:
        raise BadTopic(UNTIMED, topic=name)
    check_moment(name, consistency, as_of, staleness_s)
    sets = CompactedSets(context.store, timeout_s=context.catalogue.timeout_s)
    wanted = None if keys is None else frozenset(keys)
    if wanted is not None and not all(isinstance(key, bytes) for key in wanted):
        raise BadTopic("keys is several bytes objects, as producers send them", topic=name)
    for _ in range(ATTEMPTS_MAX):
        before = await sets.set_of(topic.uid)
        moment = await visible(context, [topic], consistency, as_of=as_of, staleness_s=staleness_s)
        compacted = before is not None and _reaches(before, moment)
        latest = _Latest(name, wanted, size_max)
        async with open_reader(
            context,
            name,
            start=await _beginning(context, topic),
            end=await _end(context, topic, moment, partitions),
            partitions=partitions,
            compacted=compacted,
            on_gap=on_gap,
        ) as reader:
            while messages := await reader.next_messages():
                latest.add(messages)
        if not compacted or _generation(await sets.set_of(topic.uid)) == _generation(before):
            return TopicState(Timestamp(moment), latest.messages())
    raise TopicBusy("it was compacted each time that its state was read", topic=name)


def _generation(found: CompactedSet | None) -> int:
    return 0 if found is None else found.generation


async def _beginning(context: TopicContext, topic: TopicRecord) -> Position:
    """Return the place before the first message that each lane ever had.

    Reading from there notices messages that retention removed.
    """
    there = await lanes_of(context.store, topic.uid, timeout_s=context.catalogue.timeout_s)
    return Position(
        LanePlace(topic.name, topic.uid, partition, lane, _FIRST) for partition, lane, _ in there
    )


async def _end(
    context: TopicContext, topic: TopicRecord, moment: int, partitions: Sequence[int] | None
) -> Start:
    """Return the place in each lane after its last message up to *moment*.

    Ticks say how far these messages reach, so if no bookie that has them answers, the read fails. A
    read up to a time ends where the bookies that answer know of nothing more.
    """
    if not moment:
        return Timestamp(0)  # there is no tick yet
    return await places_at(
        context,
        [topic],
        Timestamp(moment),
        partitions=partitions,
        is_past=False,
        timeout_s=context.options.append_timeout_s,
    )


def _reaches(found: CompactedSet, moment: int) -> bool:
    """True if all messages of a compacted set are no later than *moment*."""
    return all(each.order_key <= moment for each in found.horizons)

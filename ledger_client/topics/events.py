"""Events of the topics of a namespace, published on its topic ``__events``.

    create, alter, delete ──► one transaction: the topic, its TopicEvent, the last number
                                                    │
    the client that made the change, or the leader ─┴──► message on <namespace>/__events
                                                         then its TopicEvent is removed

Events are numbered in the order of the changes, and the number is the message's sequence number.
So each event is published once, even if a publisher is killed between the two steps, or two
publish at the same time. A topic whose name begins with ``__`` is internal and has no events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol

from metadata.errors import BadRecord
from metadata.store import ABSENT, Delete, MetadataStore, Op, Put
from metadata.topics import (
    EVENTS_NAME,
    TOPIC_EVENTS,
    LastEvent,
    TopicEvent,
    TopicRecord,
    decode_event,
    decode_last_event,
    encode_row,
    event_key,
    last_event_key,
    last_number,
    split_topic,
)

PUBLISHER = "__events"
"""The producer's name. It gives the producer one lane, and sequence numbers that outlive it."""
PAGE_COUNT = 100

Kind = Literal["created", "altered", "deleted"]


class EventSender(Protocol):
    """A producer on an events topic."""

    async def send_many(
        self, values: list[bytes], *, keys: list[bytes | None], sequence: int
    ) -> object:
        """Return once all are durable. *sequence* is of the first; one sent before is dropped."""


OpenSender = Callable[[str], AbstractAsyncContextManager[EventSender]]
"""Opens a producer on a namespace's events topic, which is created if it is missing."""


class Pending(NamedTuple):
    """An event that is not published yet."""

    key: str
    value: bytes
    version: int

    @property
    def namespace(self) -> str:
        """The namespace of the topic that the event is about."""
        return self.key.removeprefix(TOPIC_EVENTS).partition("/")[0]

    @property
    def number(self) -> int:
        """Its number in the namespace, from 1 up."""
        return last_number(self.key)

    @property
    def topic(self) -> str:
        """The topic it is about; "" if it is damaged, so that it does not block the others."""
        try:
            return decode_event(self.key, self.value).topic
        except BadRecord:
            return ""


def is_own(topic: str) -> bool:
    """True if a topic is internal: users cannot create it, and it has no events."""
    return split_topic(topic)[1].startswith("__")


def events_topic(namespace: str) -> str:
    """Return the name of a namespace's events topic."""
    return f"{namespace}/{EVENTS_NAME}"


async def event_ops(
    store: MetadataStore, kind: Kind, record: TopicRecord, timestamp: int = 0
) -> list[Op]:
    """Return the operations that write the event, for the transaction that makes the change.

    *timestamp*: of the change, in the cluster's time; 0 of a topic without timesync.

    If another topic of the namespace changes meanwhile, the transaction raises VersionConflict:
    begin again by reading the topic. Raises MetadataError.
    """
    if is_own(record.name):
        return []
    namespace, _ = split_topic(record.name)
    key = last_event_key(namespace)
    found = await store.get(key)
    last = LastEvent() if found is None else decode_last_event(key, found.value)
    number = last.number + 1
    at_ms = time.time_ns() // 1_000_000
    event = TopicEvent(
        kind=kind, topic=record.name, at_ms=at_ms, record=record, timestamp=timestamp
    )
    return [
        Put(key, encode_row(LastEvent(number)), ABSENT if found is None else found.version),
        Put(event_key(namespace, number), encode_row(event), ABSENT),
    ]


async def pending_events(store: MetadataStore, namespace: str | None = None) -> list[Pending]:
    """Return up to PAGE_COUNT unpublished events, oldest first. Raises MetadataError."""
    prefix = TOPIC_EVENTS if namespace is None else f"{TOPIC_EVENTS}{namespace}/"
    page = await store.list(prefix, limit=PAGE_COUNT)
    return [Pending(key, found.value, found.version) for key, found in page]


async def publish_events(store: MetadataStore, namespace: str, open_sender: OpenSender) -> int:
    """Publish the pending events of *namespace* and return their number.

    Raises:
        MetadataError, LedgerError: some events may be published; none is published twice.
    """
    count = 0
    events = await pending_events(store, namespace)
    if not events:
        return count
    async with open_sender(namespace) as sender:
        while events:
            await _publish(events, sender)
            await store.transact([Delete(event.key) for event in events])
            count += len(events)
            events = await pending_events(store, namespace)
    return count


async def _publish(events: Sequence[Pending], sender: EventSender) -> None:
    """Send events, those with successive numbers together."""
    run: list[Pending] = []
    for event in events:
        if run and event.number != run[-1].number + 1:
            await _send(run, sender)
            run = []
        run.append(event)
    await _send(run, sender)


async def _send(run: Sequence[Pending], sender: EventSender) -> None:
    await sender.send_many(
        [event.value for event in run],
        keys=[event.topic.encode() or None for event in run],
        sequence=run[0].number,
    )


async def waiting_namespaces(store: MetadataStore) -> list[str]:
    """Return the namespaces with unpublished events. Raises MetadataError."""
    found: list[str] = []
    page = await store.list(TOPIC_EVENTS, limit=1)
    while page:
        found.append(Pending(page[0][0], b"", 0).namespace)
        after = f"{TOPIC_EVENTS}{found[-1]}0"  # "0" follows "/": past all keys of the namespace
        page = await store.list(TOPIC_EVENTS, after=after, limit=1)
    return found

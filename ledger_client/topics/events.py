"""What happened to the topics of a namespace, told on its topic ``__events``.

    create, alter, delete ──► one transaction: the topic, its TopicEvent, the last number
                                                    │
    whoever made the change, or else the leader ────┴──► message on <namespace>/__events
                                                         then the TopicEvent is removed

Events are numbered in the order of the changes, and the number is the sequence of the
message: a teller that is killed between the two steps, or two tellers at once, still tell
each event once. A topic whose name begins with ``__`` is this layer's own and has no events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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

TELLER = "__events"
"""The producer's name: it has one lane, and its sequence numbers outlive it."""
PAGE_COUNT = 100

Kind = Literal["created", "altered", "deleted"]


class EventSender(Protocol):
    """A producer on a topic of events."""

    async def send(self, value: bytes, *, key: bytes | None, sequence: int | None) -> object:
        """Return once the message is durable; one with an old sequence is not kept again."""


OpenSender = Callable[[str], AbstractAsyncContextManager[EventSender]]
"""Opens a producer for the topic of events of a namespace, which it makes when it is missing."""


class Pending(NamedTuple):
    """An event that is to be told."""

    key: str
    value: bytes
    version: int

    @property
    def namespace(self) -> str:
        """Of the topic."""
        return self.key.removeprefix(TOPIC_EVENTS).partition("/")[0]


def is_own(topic: str) -> bool:
    """Whether a topic is this layer's own, which users do not make and of which none is told."""
    return split_topic(topic)[1].startswith("__")


def events_topic(namespace: str) -> str:
    """Return the name of the topic on which a namespace's events are told."""
    return f"{namespace}/{EVENTS_NAME}"


async def event_ops(store: MetadataStore, kind: Kind, record: TopicRecord) -> list[Op]:
    """Return what writes the event into the transaction that makes the change.

    Another change in the namespace meanwhile is a VersionConflict: begin again, from
    reading the topic on. Raises MetadataError.
    """
    if is_own(record.name):
        return []
    namespace, _ = split_topic(record.name)
    key = last_event_key(namespace)
    found = await store.get(key)
    last = LastEvent() if found is None else decode_last_event(key, found.value)
    number = last.number + 1
    at_ms = time.time_ns() // 1_000_000
    event = TopicEvent(kind=kind, topic=record.name, at_ms=at_ms, record=record)
    return [
        Put(key, encode_row(LastEvent(number)), ABSENT if found is None else found.version),
        Put(event_key(namespace, number), encode_row(event), ABSENT),
    ]


async def pending_events(store: MetadataStore, namespace: str | None = None) -> list[Pending]:
    """Return some of the events that are to be told, oldest first. Raises MetadataError."""
    prefix = TOPIC_EVENTS if namespace is None else f"{TOPIC_EVENTS}{namespace}/"
    page = await store.list(prefix, limit=PAGE_COUNT)
    return [Pending(key, found.value, found.version) for key, found in page]


async def tell_events(store: MetadataStore, namespace: str, open_sender: OpenSender) -> int:
    """Publish what is to be told of *namespace*; return how many events that were.

    Raises:
        MetadataError, LedgerError: some may be told already; nothing is told twice.
    """
    told = 0
    events = await pending_events(store, namespace)
    if not events:
        return told
    async with open_sender(namespace) as sender:
        while events:
            for event in events:
                await _tell(store, event, sender)
                told += 1
            events = await pending_events(store, namespace)
    return told


async def _tell(store: MetadataStore, event: Pending, sender: EventSender) -> None:
    try:
        topic = decode_event(event.key, event.value).topic
    except BadRecord:
        topic = ""  # told as it is: it would keep all others from being told
    await sender.send(event.value, key=topic.encode() or None, sequence=last_number(event.key))
    await store.transact([Delete(event.key)])


async def waiting_namespaces(store: MetadataStore) -> list[str]:
    """Return the namespaces that have something to tell. Raises MetadataError."""
    found: list[str] = []
    page = await store.list(TOPIC_EVENTS, limit=1)
    while page:
        found.append(Pending(page[0][0], b"", 0).namespace)
        after = f"{TOPIC_EVENTS}{found[-1]}0"  # "0" follows "/": past all keys of the namespace
        page = await store.list(TOPIC_EVENTS, after=after, limit=1)
    return found

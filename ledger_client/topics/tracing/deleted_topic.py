"""When a topic was deleted, by the events of its namespace."""

from __future__ import annotations

from contextlib import suppress

import trio

from ledger_client.errors import LedgerError
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.context import TopicContext
from ledger_client.topics.events import events_topic
from ledger_client.topics.reading.reader import open_reader
from metadata.errors import BadRecord
from metadata.store import items_under
from metadata.topics import TOPIC_EVENTS, TopicEvent, decode_event, split_topic

EVENTS_MAX = 10_000
"""The newest events of a namespace that are looked through."""
EVENTS_S = 5.0
"""Time limit for looking through them."""


async def last_deletion(context: TopicContext, topic: str) -> int | None:
    """Return the Unix time in ms at which a topic of this name was deleted last.

    `None` if the newest events of the namespace do not say: older ones are not searched, and
    events are removed after the retention of their topic.

    Raises:
        MetadataUnavailable, MetadataBroken: the store did not answer, or a row is damaged.
    """
    namespace, _ = split_topic(topic)
    with translated(context.catalogue.timeout_s):
        pending = await items_under(context.store, f"{TOPIC_EVENTS}{namespace}/")
    for key, found in reversed(pending):
        if (at_ms := _deleted_ms(key, found.value, topic)) is not None:
            return at_ms
    left = EVENTS_MAX
    events = events_topic(namespace)
    with trio.move_on_after(EVENTS_S), suppress(LedgerError):
        async with open_reader(context, events, reverse=True, on_gap="skip") as reader:
            async for message in reader:
                at_ms = _deleted_ms(str(message.id), message.value or b"", topic)
                if at_ms is not None:
                    return at_ms
                left -= 1
                if not left:
                    break
    return None


def _deleted_ms(key: str, value: bytes, topic: str) -> int | None:
    """Return the time of an event if it is the deletion of *topic*."""
    event: TopicEvent | None = None
    with suppress(BadRecord):
        event = decode_event(key, value)
    if event is None or event.topic != topic or event.kind != "deleted":
        return None
    return event.at_ms

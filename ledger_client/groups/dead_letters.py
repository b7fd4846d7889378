"""Messages that were delivered too often go to a topic of their own, with where, why and how often.

The dead letter is durable before its message is acknowledged, so a crash between the two repeats
it: the header with the message's id tells such letters apart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

import trio

from ledger_client.errors import LedgerError, NoSuchTopic, TopicExists
from ledger_client.groups.options import DEAD_PREFIX, dead_topic
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.producer_lanes import topic_producer
from ledger_client.topics.topics import Topics

_log = logging.getLogger(__name__)


class Kept:
    """A producer that is kept open."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.over = trio.Event()
        """set to have it closed"""
        self.closed = trio.Event()


class DeadLetters:
    """Sends dead letters. The topics are created, and producers opened, with the first of each.

    Args:
        context: the client's.
        group: name of the group.
        member: name of the member.
        topic: where to; "": group.dead in the namespace of the message's topic.
    """

    def __init__(self, context: TopicContext, group: str, member: str, topic: str) -> None:
        self._context = context
        self._group = group
        self._member = member
        self._topic = topic
        self._producers: dict[str, Kept] = {}
        """those to send with, by topic"""
        self._open: set[Kept] = set()
        """these, and those that are being closed"""
        self._turn = trio.Lock()

    async def send(self, message: Message, *, deliveries: int, reason: str) -> None:
        """Send a dead letter, and return when it is durable. Raises LedgerError.

        A message of the very topic is one already, and stays the only one.
        """
        topic = self.topic_of(message)
        if topic == message.topic:
            return
        kept = await self._kept(topic)
        headers = {**message.headers, **self._headers(message, deliveries, reason)}
        try:
            await kept.producer.send(
                message.value, key=message.key, event_time=message.event_time, headers=headers
            )
        except BaseException:
            kept.over.set()
            if self._producers.get(topic) is kept:
                del self._producers[topic]
            raise

    async def close(self) -> None:
        """Close the producers while the client can still close their ledgers."""
        self._producers.clear()
        for kept in self._open:
            kept.over.set()
        for kept in list(self._open):
            await kept.closed.wait()

    def topic_of(self, message: Message) -> str:
        """Return the name of the topic for the dead letters of a message's topic."""
        return self._topic or dead_topic(message.topic, self._group)

    def _headers(self, message: Message, deliveries: int, reason: str) -> Mapping[str, bytes]:
        facts = {
            "topic": message.topic,
            "partition": message.id.partition,
            "id": str(message.id),
            "group": self._group,
            "member": self._member,
            "deliveries": deliveries,
            "reason": reason,
        }
        return {
            DEAD_PREFIX + name: str(fact).encode(errors="replace") for name, fact in facts.items()
        }

    async def _kept(self, topic: str) -> Kept:
        async with self._turn:
            if topic not in self._producers:
                catalogue = Topics(self._context)
                if not await self._exists(catalogue, topic):
                    with suppress(TopicExists):  # another member was quicker
                        await catalogue.create(topic)
                self._producers[topic] = await self._context.nursery.start(self._keep, topic)
            return self._producers[topic]

    async def _exists(self, catalogue: Topics, topic: str) -> bool:
        try:
            await catalogue.info(topic)
        except NoSuchTopic:
            return False
        return True

    async def _keep(self, topic: str, task_status: trio.TaskStatus[Kept]) -> None:
        """Keep a producer open until it is over. Raises LedgerError before that."""
        kept: Kept | None = None
        try:
            async with topic_producer(self._context, topic) as producer:
                kept = Kept(producer)
                self._open.add(kept)
                task_status.started(kept)
                await kept.over.wait()
        except LedgerError as failure:
            if kept is None:
                raise
            # Each letter was waited for.
            _log.warning("group %s: dead letters: %s", self._group, failure)
        finally:
            if kept is not None:
                self._open.discard(kept)
                kept.closed.set()

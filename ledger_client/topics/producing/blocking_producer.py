"""Writing topics without trio; see ledger_client/blocking.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ledger_client.portal import Portal
from ledger_client.topics.client import TopicClient
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.message_ids import MessageIds
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.scale import Bytes
from ledger_client.topics.producing.tickets import Ticket


class BlockingTicket:
    """A message under way; see ledger_client.topics.producing.tickets.Ticket."""

    def __init__(self, portal: Portal[TopicClient], ticket: Ticket) -> None:
        self._portal = portal
        self._ticket = ticket

    @property
    def id(self) -> MessageId:
        """Wait until the message is durable; its id."""
        return self._portal.call(lambda: self._ticket.id)

    @property
    def done(self) -> bool:
        """Whether it is decided: the message is durable, or failed."""
        return self._ticket.done

    @property
    def sequence(self) -> int:
        """Its number, when the producer has a name; else -1."""
        return self._ticket.sequence


class BlockingProducer:
    """A topic being written; see ledger_client.topics.producing.producer.Producer.

    Any number of threads may use it; what they send at the same time shares batches.
    """

    def __init__(self, portal: Portal[TopicClient], producer: Producer) -> None:
        self._portal = portal
        self._producer = producer

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._producer.topic

    def send(
        self,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        event_time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> MessageId:
        """Send a message and return its id once it is durable."""
        send = partial(self._producer.send, value, key=key, event_time=event_time)
        return self._portal.call(
            partial(send, headers=headers, partition=partition, sequence=sequence)
        )

    def send_nowait(
        self,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        event_time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> BlockingTicket:
        """Accept a message and return a ticket for its id; raises BufferFull without room."""

        async def send_nowait() -> Ticket:
            return self._producer.send_nowait(
                value,
                key=key,
                event_time=event_time,
                headers=headers,
                partition=partition,
                sequence=sequence,
            )

        return BlockingTicket(self._portal, self._portal.call(send_nowait))

    def send_many(
        self,
        values: Any,  # noqa: ANN401 - pyarrow has no types
        *,
        keys: Any = None,  # noqa: ANN401
        event_times: Any = None,  # noqa: ANN401
        headers: Any = None,  # noqa: ANN401
        partition: int | None = None,
        sequence: int | None = None,
    ) -> MessageIds:
        """Send messages in order and return their ids once all are durable."""
        send = partial(self._producer.send_many, values, keys=keys, event_times=event_times)
        return self._portal.call(
            partial(send, headers=headers, partition=partition, sequence=sequence)
        )

    def flush(self) -> None:
        """Wait until everything accepted so far is durable."""
        self._portal.call(self._producer.flush)

    def last_sequence(self, partition: int | None = None) -> int:
        """Return the number of the last message accepted in a partition, -1 for none."""
        return self._portal.call(partial(self._producer.last_sequence, partition))

    def close(self) -> None:
        """Flush, and leave the lanes. Done at the end of the block in any case."""
        self._portal.call(self._producer.close)

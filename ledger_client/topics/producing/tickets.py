"""What send_nowait gives for a message that was accepted and is not durable yet."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from ledger_client.topics.message_id import MessageId
from ledger_client.topics.producing.batching import Batch


class Ticket:
    """A message under way: ``message_id = await ticket.id``, at any time, any number of times."""

    __slots__ = ("_batch", "_place", "sequence")

    def __init__(self, batch: Batch, place: int) -> None:
        self._batch = batch
        self._place = place
        self.sequence = batch.sequence + max(place, 0) if batch.sequence >= 0 else -1
        """its number, when the producer has a name; else -1"""

    @property
    def id(self) -> Coroutine[Any, Any, MessageId]:
        """Wait until the message is durable; its id.

        Raises:
            SendUnknown: it may or may not be kept.
            ProducerFenced: another producer took the lane over.
            LedgerError: it was not sent, for this reason.
        """
        return self._batch.id_of(self._place)

    @property
    def done(self) -> bool:
        """Whether it is decided: the message is durable, or failed."""
        return self._batch.done.is_set()

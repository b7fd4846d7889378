"""Where a message is: its ledger, its entry, its partition, and its place in the batch."""

from __future__ import annotations

import re
from typing import NamedTuple

NOT_PARTITIONED = -1
NOT_BATCHED = -1
_TEXT = re.compile(r"(?:(\d{1,19}):(\d{1,19})|-1:-1):(-1|\d{1,10})(?::(-1|\d{1,10}))?", re.ASCII)
_ID_MAX = (1 << 63) - 1


class MessageId(NamedTuple):
    """The id of a message, in Pulsar's four parts.

    Ledger and entry -1: that of a duplicate of which nobody knows where the first is.
    It orders messages of one lane as they were written. Ids of several lanes, or
    partitions, say nothing about which message was first.
    """

    ledger_id: int
    entry_id: int
    partition: int = NOT_PARTITIONED
    batch_index: int = NOT_BATCHED

    def __str__(self) -> str:
        """Return ledger:entry:partition, with :batch for a message of a batch."""
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index == NOT_BATCHED else f"{text}:{self.batch_index}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Return the id that *text* prints, with three or four parts.

        Raises:
            ValueError: it is no id.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a message id: ledger:entry:partition[:batch]")
        ledger_id, entry_id, partition, index = (int(part or -1) for part in found.groups())
        message_id = cls(ledger_id, entry_id, partition, index)
        if max(message_id) > _ID_MAX:
            raise ValueError(f"{text!r} is not a message id: a number is over 2**63 - 1")
        return message_id

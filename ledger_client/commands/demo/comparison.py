"""What is read beside what was sent: each message once, in order, with its number and id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from ledger_client import Message, MessageId


class Comparison:
    """Takes messages as a reader gives them; *sent*: the ids that a producer got, in order."""

    def __init__(self, sent: Iterable[Iterable[MessageId]]) -> None:
        self._sent = enumerate(chain.from_iterable(sent))
        self._digest = hashlib.sha256()
        self._is_as_sent = True
        self.count = 0

    def take(self, messages: Sequence[Message]) -> None:
        """Compare the next messages."""
        found = [(message.sequence, message.id) for message in messages]
        self._is_as_sent &= found == list(islice(self._sent, len(found)))
        self._digest.update(b"".join(message.value or b"" for message in messages))
        self.count += len(found)

    def ends_as_sent(self) -> bool:
        """Return whether all were as they were sent, and none is left. Ask once, at the end."""
        return self._is_as_sent and next(self._sent, None) is None

    @property
    def sha256(self) -> str:
        """Of all values, one behind the other."""
        return self._digest.hexdigest()

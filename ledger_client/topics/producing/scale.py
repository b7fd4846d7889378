"""One message, checked and weighed before a producer accepts it."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index

from ledger_client.topics.errors import BadTopic, MessageTooLarge
from ledger_client.topics.producing.pieces import headers_size

MESSAGE_OVERHEAD = 16
"""Bytes counted for a message besides its own."""
EVENT_TIME_MIN, EVENT_TIME_MAX = -(1 << 63) + 1, (1 << 63) - 1
Bytes = bytes | bytearray | memoryview


class Scale:
    """What a producer of *topic* lets through; *size_max*: bytes of the largest message."""

    def __init__(self, topic: str, *, size_max: int, is_named: bool) -> None:
        self.size_max = size_max
        self._topic = topic
        self._is_named = is_named

    def weigh(
        self,
        value: Bytes | None,
        key: Bytes | None,
        event_time: int | None,
        headers: Mapping[str, bytes] | None,
        sequence: int | None,
    ) -> tuple[bytes | None, bytes | None, int]:
        """Return value and key as bytes, and what the message counts for."""
        if type(value) is not bytes:
            value = _as_bytes(value)
        if key is not None and type(key) is not bytes:
            key = _as_bytes(key)
        size = len(value or b"") + len(key or b"")
        if headers:
            size += headers_size(headers)
        if size > self.size_max:
            raise MessageTooLarge(self._topic, size=size, size_max=self.size_max)
        if event_time is not None and not EVENT_TIME_MIN <= index(event_time) <= EVENT_TIME_MAX:
            raise ValueError(f"event time {event_time} does not fit 64 bits")
        if sequence is not None:
            self.check_sequence(sequence)
        return value, key, size + MESSAGE_OVERHEAD

    def check_sequence(self, sequence: int) -> None:
        """Raise BadTopic or ValueError unless messages may have this number."""
        if not self._is_named:
            raise BadTopic("only a producer with a name counts its messages", topic=self._topic)
        if not 0 <= index(sequence) < 1 << 62:
            raise ValueError(f"{sequence} is no sequence number")


def _as_bytes(given: object) -> bytes | None:
    if given is None:
        return None
    if not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"values and keys are bytes, not {type(given).__name__}")
    return bytes(given)

"""What a name sent before: ``quire produce --resume`` compares its end with the input.

Messages are numbered by their place in the input, and those below the name's count are taken as
stored. That holds only for a name that sent this input alone. Where it sent anything else, rows
would be left out, so its last messages are compared with those in their places:

    input    0 1 2 3 4 5 6 7 8 ...
    stored   0 1 2 3 4 5 6          count: 7
                     ═════ compared before anything is sent
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from ledger_client.client import Client
from ledger_client.commands.feeds import Messages
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Producer
from metadata.outcome import CommandFailed

COMPARED_MAX = 100
"""Messages to compare; files repeat themselves, so one is too few."""
COMPARED_SIZE_MAX = 1 << 20
"""Bytes of values and keys to compare, unless one message has more."""


class Row(NamedTuple):
    """What a message has of its row."""

    value: bytes | None
    key: bytes | None
    event_time: int | None


class StoredRows:
    """The messages that *name* stored; *last* are those to compare, by number."""

    def __init__(self, topic: str, name: str, count: int, last: Mapping[int, Row]) -> None:
        self._topic = topic
        self._name = name
        self._count = count
        self._last = last

    def check(self, first: int, messages: Messages) -> None:
        """Check messages of the input, whose numbers begin with *first*, before they are sent.

        Raises:
            CommandFailed: the name stored something else in place of one.
        """
        values, keys, times = messages
        for number in range(max(first, min(self._last, default=self._count)), self._count):
            place = number - first
            if place >= len(values):
                return
            key = keys[place] if keys else None
            row = Row(values[place], key, times[place] if times else None)
            if self._last.get(number, row) != row:
                raise self._refusal(f"its message {number + 1:,} is something else here")

    def check_end(self, count: int) -> None:
        """Check the number of messages of the input. Raises CommandFailed if it is too low."""
        if count < self._count:
            raise self._refusal(f"it has {self._count:,} messages, and this input {count:,}")

    def _refusal(self, reason: str) -> CommandFailed:
        return CommandFailed(
            f"{self._name} did not send this input alone to {self._topic}: {reason}. Send what is "
            "missing under another --producer-name, without --resume"
        )


async def stored_rows(client: Client, producer: Producer) -> StoredRows:
    """Look up what a named producer of one partition stored.

    Raises:
        CommandFailed: its last message was removed, so that nothing can be compared.
        LedgerError: the lane cannot be opened or read.
    """
    count = await producer.last_sequence() + 1
    if not count:
        return StoredRows(producer.topic, producer.name, 0, {})
    (writer,) = producer._writers
    # In any lane of the partition: an exclusive producer goes on from numbers of other lanes.
    reader = client.reader(
        producer.topic, partitions=[writer.machine.partition], reverse=True, on_gap="skip"
    )
    async with reader as messages:
        last = await _last_rows(messages, producer.name, count)
    if count - 1 not in last:
        raise CommandFailed(
            f"the last message that {producer.name} stored in {producer.topic} was removed: "
            "--resume cannot tell what is missing. Send it under another --producer-name, "
            "without --resume"
        )
    return StoredRows(producer.topic, producer.name, count, last)


async def _last_rows(messages: AsyncIterator[Message], name: str, count: int) -> dict[int, Row]:
    """Return the rows to compare of the first *count* of a name, from messages in reverse."""
    wanted = range(max(count - COMPARED_MAX, 0), count)
    found: dict[int, Row] = {}
    size = 0
    async for message in messages:
        if message.producer != name:
            continue
        if message.sequence in wanted:
            found[message.sequence] = Row(message.value, message.key, message.event_time)
            size += len(message.value or b"") + len(message.key or b"")
        is_enough = (
            len(found) == len(wanted) or size > COMPARED_SIZE_MAX or message.sequence < wanted.start
        )
        if is_enough and count - 1 in found:
            break
    return found

"""Messages that a member of a shared group has, one by one, until they are acknowledged.

    READY ──► HANDED ──ack──► DONE
      ▲         └──► WAITING (its delay, after nack or a time out)
      └─ noted ─────── DUE

How often a message was delivered must outlive the member. Who takes messages that nobody had
before stores one delivery for all of them at once, before the first is handed out: it is *blind*.
Every later delivery is stored for its message alone, before the message is handed out.
"""

from __future__ import annotations

import math
import secrets
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate

import msgspec

from ledger_client.topics.messages import Message, MessageRange
from ledger_client.topics.positions import Place
from metadata.groups.assignment import Part
from metadata.groups.shares import ShareRecord
from metadata.store import ABSENT
from metadata.topics import RemovedLedgers


class State(IntEnum):
    """Of one message."""

    READY = 0
    HANDED = 1
    DONE = 2
    WAITING = 3
    """it is to be delivered again, later"""
    DUE = 4
    """it is to be delivered again, once that is noted"""
    BEHIND = 5
    """one of its key is to be delivered first"""
    LEAVING = 6
    """others are to have it"""
    LOST = 7
    """it was removed before anybody was done with it, and the application is not told yet"""


_IS_DONE = bytes(0x31 if state == State.DONE else 0x30 for state in range(256))


class Share:
    """The messages of consecutive entries of a ledger. The row is stored by others.

    Args:
        record: as stored, or to be stored.
        name: the end of its key.
        row_version: of its row.
        is_blind: one delivery of each message is counted already.
    """

    __slots__ = (
        "ahead",
        "deliveries",
        "elsewhere",
        "first",
        "handed_at",
        "is_blind",
        "is_held",
        "is_stored",
        "left",
        "messages",
        "name",
        "part",
        "reasons",
        "record",
        "row_version",
        "size",
        "states",
        "tries",
    )

    def __init__(
        self, record: ShareRecord, name: str, row_version: int = ABSENT, *, is_blind: bool
    ) -> None:
        self.is_stored = False
        """nothing is left to store: the row is deleted, as everything is done or given away"""
        self.size = 0
        """bytes that its messages take"""
        self.record = record
        self.name = name
        self.row_version = row_version
        self.is_blind = is_blind
        self.is_held = True
        """False: the member has it no more, so its states say nothing and must not be stored"""
        self.part = Part(record.topic, record.partition)
        self.first = [0, *accumulate(record.counts)]
        """the index of each entry's first message"""
        count = self.first[-1]
        self.states = bytearray(_states(record.done, count))
        self.left = count - self.states.count(State.DONE)
        self.messages: list[Message | None] = []
        self.handed_at = array("d", [math.inf]) * count
        self.tries = dict(record.tries)
        self.reasons: dict[int, str] = {}
        """why messages are delivered again"""
        self.ahead: set[int] = set()
        """messages whose last delivery in *tries* did not take place yet"""
        self.elsewhere: set[int] = set()
        """messages that are leaving, and that the stored row has no more: others have them"""
        self.deliveries = record.deliveries

    @property
    def begin(self) -> Place:
        """The place before its first message."""
        record = self.record
        return Place(record.number, record.entry, 0, record.ledger_id, record.version)

    @property
    def end(self) -> Place:
        """The place after its last entry."""
        count, begin = len(self.record.counts), self.begin
        return begin._replace(entry=begin.entry + count, version=begin.version + count)

    def count(self, index: int) -> int:
        """Return how often a message was delivered, so far."""
        return self.tries.get(index, self.deliveries)

    def entry_ids(self) -> Iterable[int]:
        """Return the ids of the entries of which it has messages."""
        numbered = enumerate(self.record.counts, self.record.entry)
        return [entry for entry, messages in numbered if messages]

    def index_of(self, message: Message) -> int:
        """Return the index of a message of one of its entries."""
        return self.first[message.id.entry_id - self.record.entry] + max(message.id.batch_index, 0)

    def finish(self, index: int) -> None:
        """Note that a message is done, which it was not."""
        self.states[index] = State.DONE
        self.left -= 1
        self.messages[index] = None

    def fill(self, ranges: Iterable[MessageRange]) -> None:
        """Put the messages in that were read."""
        self.messages = [None] * len(self.states)
        for each in ranges:
            number = each.batch.place.entry - self.record.entry
            if self.record.counts[number] != each.batch.count:
                continue  # an entry of which this share has nothing
            first = self.first[number]
            self.messages[first + each.start : first + each.stop] = each.messages
            self.size += each.batch.header.body_size

    def in_state(self, state: State) -> list[int]:
        """Return the messages in this state."""
        found, at = [], self.states.find(state)
        while at >= 0:
            found.append(at)
            at = self.states.find(state, at + 1)
        return found

    def lose(self, removals: Sequence[RemovedLedgers]) -> list[Place]:
        """Note that messages are lost which are not done and not there; return their entries.

        *removals*: what was deleted on purpose, which is no loss.
        """
        lost: dict[Place, None] = {}
        for index in self.in_state(State.READY):
            place = self._entry_of(index)
            if self.messages[index] is None and not any(
                each.version <= place.version < each.stop_version for each in removals
            ):
                self.states[index] = State.LOST
                lost[place] = None
        return list(lost)

    def _entry_of(self, index: int) -> Place:
        number, begin = bisect_right(self.first, index) - 1, self.begin
        return begin._replace(entry=begin.entry + number, version=begin.version + number)

    def note_delivery(self, index: int) -> None:
        """Count one more delivery of a message; it must be stored before the message goes out."""
        self.tries[index] = self.count(index) + 1
        self.ahead.add(index)

    def is_new(self, index: int) -> bool:
        """Return True if a message may go out at once: this delivery is counted."""
        return self.is_blind and index not in self.tries

    def row(self, run: str, *, without: Sequence[int] = ()) -> ShareRecord:
        """Return the record as it is by now, *without* some messages."""
        states = bytearray(self.states)
        for index in (*without, *self.elsewhere):
            states[index] = State.DONE
        tries = {each: n for each, n in self.tries.items() if states[each] != State.DONE}
        return msgspec.structs.replace(
            self.record,
            done=_done_bits(states),
            run=run,
            deliveries=self.deliveries,
            is_blind=self.is_blind,
            tries=tries,
        )

    def note_given(self, stored: ShareRecord) -> None:
        """Learn from the stored row which of the messages that are leaving others have by now.

        Their change was made, and its answer lost: putting the row as it was would undo it.
        """
        gone = _states(stored.done, len(self.states))
        leaving = self.in_state(State.LEAVING)
        self.elsewhere.update(index for index in leaving if gone[index] == State.DONE)

    def part_of(self, indexes: Sequence[int]) -> ShareRecord:
        """Return a record of these messages alone, for others to take.

        Deliveries that were counted, and did not take place, do not count.
        """
        states = bytearray([State.DONE]) * len(self.states)
        tries: dict[int, int] = {}
        for index in indexes:
            states[index] = State.READY
            if index in self.tries or self.handed_at[index] < math.inf:
                tries[index] = self.count(index) - (index in self.ahead)
        deliveries = self.deliveries - self.is_blind
        return msgspec.structs.replace(
            self.record,
            done=_done_bits(states),
            run="",
            deliveries=deliveries,
            is_blind=False,
            tries=tries,
        )


def new_name() -> str:
    """Return a name for a share that no other one has."""
    return secrets.token_hex(8)


def done_bits(count: int, wanted: Iterable[int]) -> bytes:
    """Return the bits of *count* messages of which only *wanted* are left."""
    states = bytearray([State.DONE]) * count
    for index in wanted:
        states[index] = State.READY
    return _done_bits(states)


def messages_left(record: ShareRecord, stop: int | None = None) -> int:
    """Return how many messages of a share, or of its first *stop*, are not acknowledged."""
    count = sum(record.counts) if stop is None else stop
    done = int.from_bytes(record.done, "little") & (1 << count) - 1
    return count - done.bit_count()


def _done_bits(states: bytearray) -> bytes:
    if not states:
        return b""
    digits = states.translate(_IS_DONE)
    digits.reverse()  # the first message is the lowest bit
    return int(digits, 2).to_bytes((len(states) + 7) // 8, "little")


def _states(done: bytes, count: int) -> bytes:
    if not count:
        return b""
    digits = f"{int.from_bytes(done, 'little'):0{count}b}"[-count:].encode()
    table = bytes.maketrans(b"01", bytes([State.READY, State.DONE]))
    return digits[::-1].translate(table)

"""The requests to a cluster and its answers, in order.

A history is a list of events. A simulation keeps it in memory; processes append
JSON lines to a file of their own each, which are merged by time afterwards. The
checker (checker.py) needs nothing else.

    writer   ─► Sent, Acknowledged, Refused, Closed ─┐
    reader   ─► ReadAsked, ReadBack, ReadDone, Absent┼─► History ─► check()
    recoverer─► Recovered ───────────────────────────┤
    audit    ─► Listed, Replica ─────────────────────┘

What is told of topics and their messages is in message_events.py, of groups in group_events.py,
of timestamps in time_events.py.

What is asked is recorded before it is asked, and what was answered after the answer:
between two events of different tasks, the order is that of their records.

A payload stands in a history as its digest: its CRC-32 with its size above that.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, Self

import msgspec
from event import Event, digest_of, size_of
from group_events import GroupEvent
from message_events import MessageEvent
from time_events import TimeEvent

from metadata.records import Fragment, LedgerState

__all__ = ["Event", "digest_of", "size_of"]  # with everything that is made here


class LedgerEvent(Event):
    """Something that happened to a ledger: one of the kinds below."""

    ledger: int


class Created(LedgerEvent):
    """A ledger was made with these quorums."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class Sent(LedgerEvent):
    """A writer is about to append; *first* is the id it expects, None if it cannot tell."""

    writer: str
    first: int | None
    digests: list[int]


class Acknowledged(LedgerEvent):
    """A writer was told that entries from *first* on are durable."""

    writer: str
    first: int
    digests: list[int]


class Refused(LedgerEvent):
    """*count* payloads of a writer were refused; *unknown*: they may be in the ledger."""

    writer: str
    count: int
    reason: str
    unknown: bool


class ReadAsked(LedgerEvent):
    """A reader, which has a name for this alone, is about to ask for entries *first* to *last*.

    *last* is None for one that follows the ledger from *first* on.
    """

    reader: str
    first: int
    last: int | None


class ReadDone(LedgerEvent):
    """A reader came to the end of what it asked for."""

    reader: str


class ReadBack(LedgerEvent):
    """A reader got entries from *first* on."""

    reader: str
    first: int
    digests: list[int]


class Absent(LedgerEvent):
    """A reader was told that there is no such entry, although it is up to the last confirmed."""

    reader: str
    entry: int


class Closed(LedgerEvent):
    """*who*, the writer, was told that the ledger is closed."""

    who: str
    last_entry: int
    length: int


class Recovered(LedgerEvent):
    """*who* was told that its recovery of the ledger is complete."""

    who: str
    last_entry: int
    length: int


class Listed(LedgerEvent):
    """The ledger's record as it stood in metadata at *version*."""

    version: int
    state: LedgerState
    last_entry: int
    fragments: list[Fragment]


class Replica(LedgerEvent):
    """All entries of the ledger that *bookie* holds, once everything was healed."""

    bookie: str
    entries: dict[int, int]


_AnyEvent = (
    Created
    | Sent
    | Acknowledged
    | Refused
    | ReadAsked
    | ReadBack
    | ReadDone
    | Absent
    | Closed
    | Recovered
    | Listed
    | Replica
    | MessageEvent
    | GroupEvent
    | TimeEvent
)
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(_AnyEvent)


class Recorder(Protocol):
    """Takes events: a History in memory, or a HistoryFile."""

    def add(self, event: Event) -> None:
        """Record *event* as happening now."""


class History:
    """Events in order. *clock* gives the time of those that are added."""

    def __init__(
        self, events: Iterable[Event] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.events: list[Event] = list(events)
        self._clock = clock

    def add(self, event: Event) -> None:
        event.at = self._clock()
        self.events.append(event)

    @classmethod
    def merged(cls, paths: Iterable[Path]) -> Self:
        """Read the files of several processes of one machine, by time."""
        return cls(heapq.merge(*map(_read, paths), key=_time))

    def write(self, path: Path) -> None:
        """Write the events to a file that merged() can read."""
        path.write_bytes(b"".join(map(_line, self.events)))


class HistoryFile:
    """A history of one process: each event is with the kernel when add() returns."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._clock = clock

    def add(self, event: Event) -> None:
        event.at = self._clock()
        line = _line(event)
        assert os.write(self._fd, line) == len(line)

    def close(self) -> None:
        os.close(self._fd)


def fingerprint(history: History) -> str:
    """Return a hash of all events, their order and their times."""
    return hashlib.sha256(b"".join(map(_line, history.events))).hexdigest()


def _line(event: Event) -> bytes:
    return _ENCODER.encode(event) + b"\n"


def _read(path: Path) -> list[Event]:
    """Read a file whose writer may have been killed in the middle of its last line."""
    lines = path.read_bytes().split(b"\n")
    return [_DECODER.decode(line) for line in lines[:-1]]


def _time(event: Event) -> float:
    return event.at

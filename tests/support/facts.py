"""The events of one ledger in a history, indexed."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property

from history import (
    Absent,
    Acknowledged,
    Closed,
    Created,
    History,
    LedgerEvent,
    Listed,
    ReadAsked,
    ReadBack,
    ReadDone,
    Recovered,
    Refused,
    Replica,
    Sent,
)

from metadata.records import LedgerState


class Facts:
    """The events of one ledger by kind, and its entries by id.

    Attributes:
        sent_as: digests that a writer sent, by the id that it expected.
        acked: the digest first acknowledged, by entry.
        returned: the digest first read, by entry.
        served: the entries that were read before the audit looked at the bookies.
        asked: what a reader asked for, by its name.
        done: the readers that came to the end of it.
    """

    def __init__(self, ledger: int) -> None:
        self.ledger = ledger
        self.created: Created | None = None
        self.sends: list[Sent] = []
        self.acks: list[Acknowledged] = []
        self.refusals: list[Refused] = []
        self.reads: list[ReadBack] = []
        self.served: set[int] = set()
        self.asked: dict[str, ReadAsked] = {}
        self.done: set[str] = set()
        self.absences: list[Absent] = []
        self.ends: list[Closed | Recovered] = []
        self.listings: list[Listed] = []
        self.replicas: dict[str, Replica] = {}
        self.sent_as: defaultdict[int, set[int]] = defaultdict(set)
        self.sent: Counter[int] = Counter()
        self.acked: dict[int, int] = {}
        self.returned: dict[int, int] = {}

    @property
    def end(self) -> int | None:
        """The last entry of the closed ledger, as it was told first; None: not closed."""
        if self.ends:
            return self.ends[0].last_entry
        closed = (each for each in self.listings if each.state is LedgerState.CLOSED)
        return next((each.last_entry for each in closed), None)

    @cached_property
    def versions(self) -> list[Listed]:
        """The records of the ledger by rising version. Asked for once all events are here."""
        return sorted(self.listings, key=lambda listed: listed.version)

    def add(self, event: LedgerEvent) -> None:
        match event:
            case Created():
                self.created = event
            case Sent():
                self._add_sent(event)
            case Acknowledged():
                self.acks.append(event)
                _note(self.acked, event)
            case Refused():
                self.refusals.append(event)
            case ReadAsked() | ReadBack() | ReadDone() | Absent():
                self._add_read(event)
            case Closed() | Recovered():
                self.ends.append(event)
            case Listed():
                self.listings.append(event)
            case Replica():
                self.replicas[event.bookie] = event

    def _add_read(self, event: ReadAsked | ReadBack | ReadDone | Absent) -> None:
        match event:
            case ReadAsked():
                self.asked[event.reader] = event
            case ReadBack():
                self.reads.append(event)
                _note(self.returned, event)
                if not self.replicas:
                    self.served.update(entry for entry, _ in entries_of(event))
            case ReadDone():
                self.done.add(event.reader)
            case Absent():
                self.absences.append(event)

    def _add_sent(self, event: Sent) -> None:
        self.sends.append(event)
        self.sent.update(event.digests)
        if event.first is not None:
            for entry, digest in enumerate(event.digests, event.first):
                self.sent_as[entry].add(digest)

    def known(self, entry: int) -> int | None:
        """The digest that *entry* must have, as far as anybody was told."""
        if (digest := self.acked.get(entry)) is not None:
            return digest
        if (digest := self.returned.get(entry)) is not None:
            return digest
        copies = (each.entries.get(entry) for each in self.replicas.values())
        return next((digest for digest in copies if digest is not None), None)


def gather(history: History) -> list[Facts]:
    """Return the facts of each ledger in *history*, by rising id."""
    found: dict[int, Facts] = {}
    for event in history.events:
        if not isinstance(event, LedgerEvent):
            continue
        if event.ledger not in found:
            found[event.ledger] = Facts(event.ledger)
        found[event.ledger].add(event)
    return [found[ledger] for ledger in sorted(found)]


def entries_of(event: Acknowledged | ReadBack) -> Iterator[tuple[int, int]]:
    """Yield (entry, digest) of what was acknowledged or read."""
    return zip(itertools.count(event.first), event.digests, strict=False)


def _note(entries: dict[int, int], event: Acknowledged | ReadBack) -> None:
    for entry, digest in entries_of(event):
        entries.setdefault(entry, digest)

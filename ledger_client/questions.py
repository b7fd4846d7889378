"""What a client asks bookies about entries, and how it judges the answers.

A question can be put to any replica. An answer that is no good raises Unsound
with the reason, and whether it says that the entry is not there (ABSENT), that
it is damaged there (DAMAGED), or nothing about the entry (UNAVAILABLE).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from ledger_client.connection import BookieConnection
from ledger_client.entries import EntryBatch
from ledger_client.errors import NoSuchLedger
from ledger_client.replies import Reply
from ledger_client.statements import LedgerName
from native import frame
from native.digest import Digest
from native.errors import Corrupt
from native.frame import Code
from native.link import Response, check_entries

ENTRY_HEADER_SIZE = 32
BATCH_SIZE_MAX = 4 << 20
"""Bytes that a batch read asks for at most; a frame has 5 MiB."""


class Verdict(enum.Enum):
    """What a bad answer says about the entry."""

    ABSENT = enum.auto()
    DAMAGED = enum.auto()
    UNAVAILABLE = enum.auto()


class Unsound(Exception):
    """An answer that does not hold what was asked for."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


_VERDICTS: dict[int, tuple[Verdict, str]] = {
    Code.NO_LEDGER: (Verdict.ABSENT, "no such ledger"),
    Code.NO_ENTRY: (Verdict.ABSENT, "no such entry"),
    Code.IO_ERROR: (Verdict.DAMAGED, "I/O error"),
}

T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """Something that any replica of an entry can answer."""

    @property
    def entry_id(self) -> int:
        """The first entry asked for."""

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Put the question to *bookie*."""

    def judge(self, response: Response, bookie_id: str) -> T_co:
        """Return the answer in *response*. Raises Unsound when it is no good."""


class EntryQuestion(msgspec.Struct, frozen=True):
    """One entry, by READ."""

    ledger: LedgerName
    entry_id: int
    digest: Digest

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Put the question to *bookie*."""
        key = (self.ledger.ledger_id, self.entry_id)
        return bookie.ask(frame.read(*key), key, on_arrival, self.ledger)

    def judge(self, response: Response, bookie_id: str) -> EntryBatch:
        """Return the entry, its digest checked."""
        check_code(response)
        body = response.body
        try:
            self.digest.check(body, self.ledger.ledger_id, self.entry_id)
        except Corrupt:
            raise Unsound(Verdict.DAMAGED, "wrong digest") from None
        offset = ENTRY_HEADER_SIZE + self.digest.size
        return EntryBatch(
            self.ledger.ledger_id, self.entry_id, body, [offset], [len(body) - offset], bookie_id
        )


class BatchQuestion(msgspec.Struct, frozen=True):
    """Up to *count* entries from *entry_id* on, by BATCH_READ.

    *from_log*: only what lies in the bookie's entry logs, and not in its memtable.
    """

    ledger: LedgerName
    entry_id: int
    count: int
    digest: Digest
    from_log: bool = False

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Put the question to *bookie*."""
        request_id = bookie.next_request_id()
        request = frame.batch_read(
            self.ledger.ledger_id,
            self.entry_id,
            request_id=request_id,
            count_max=self.count,
            size_max=BATCH_SIZE_MAX,
            flags=frame.Flag.FROM_LOG if self.from_log else 0,
        )
        return bookie.ask(request, request_id, on_arrival, self.ledger)

    def judge(self, response: Response, bookie_id: str) -> EntryBatch:
        """Return at least one entry; damage after it is the next question's."""
        check_code(response)
        batch = sound_entries(response, self.digest, self.entry_id, self.count, bookie_id)
        if not len(batch):
            raise Unsound(Verdict.DAMAGED, "wrong digest")
        return batch


def check_code(response: Response) -> None:
    """Return when the response is a success, else raise Unsound.

    Raises:
        NoSuchLedger: the ledger was deleted, and another one has its id now.
    """
    if response.code == Code.OTHER_LEDGER:
        raise NoSuchLedger(response.ledger_id)
    if response.code != Code.OK:
        other = (Verdict.UNAVAILABLE, f"answered with code {response.code}")
        verdict, reason = _VERDICTS.get(response.code, other)
        raise Unsound(verdict, reason)


def sound_entries(
    response: Response, digest: Digest, start: int, count: int, bookie_id: str
) -> EntryBatch:
    """Return the entries of *response* from *start* on, up to the first damaged one."""
    found = check_entries(digest, response.body, response.ledger_id, start, count)
    return EntryBatch(
        response.ledger_id, start, response.body, found.offsets, found.sizes, bookie_id
    )

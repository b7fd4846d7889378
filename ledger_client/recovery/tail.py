"""The entries above the last confirmed one: which are there, and where they end.

An entry that any replica serves is there. It is absent when so many replicas
deny it that too few are left to have acknowledged it; each of them was fenced by
the very question, so that none can take the entry afterwards. Everything else
(no answer, damage, a bookie in limbo) says nothing, and is no reason to cut a
ledger off.

Where every bookie has every entry, one question is for a run of entries. In a
striped ledger it is for one, and some of them are asked for at once.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger_client.connection import BookieConnection
from ledger_client.entries import EntryBatch
from ledger_client.errors import NoSuchLedger, RecoveryIncomplete, WrongPassword
from ledger_client.questions import sound_entries
from ledger_client.recovery.inquiry import Answer, Inquiry, describe
from ledger_client.replies import Reply
from ledger_client.source import BATCH_COUNT_MAX, LedgerSource
from native import frame
from native.frame import Code, Flag
from native.link import Response

RECOVERY_READ_FLAGS = Flag.FENCE | Flag.PRIORITY
"""A read that does not fence could be denied by a bookie that takes the entry later."""
WINDOW_SIZE = 1 << 20
"""Bytes that one bookie is asked for at once; a single entry may be larger."""
STRIPED_WIDTH_MAX = 16
"""Entries of a striped ledger that are asked for at once."""


def absent(write_quorum: int, ack_quorum: int, negatives: int) -> bool:
    """True if an entry that *negatives* replicas deny cannot have been acknowledged."""
    return negatives >= write_quorum - ack_quorum + 1


def is_negative(answer: Answer) -> bool:
    """True if the answer says in so many words that the entry is not there."""
    return isinstance(answer, Response) and answer.code in (Code.NO_ENTRY, Code.NO_LEDGER)


class Tail:
    """The entries of a ledger from *start* on; read until there are no more."""

    def __init__(self, source: LedgerSource, start: int) -> None:
        self._source = source
        self._position = start
        self._width = 1
        self._ended = False

    async def next(self) -> list[EntryBatch]:
        """Return the next entries in order, none when the ledger ends here.

        Holds about WINDOW_SIZE bytes from each replica.

        Raises:
            RecoveryIncomplete: nobody knows whether an entry is there.
            WrongPassword: a bookie knows the ledger with another password.
        """
        if self._ended:
            return []
        runs = [Run(self._source, self._position + i) for i in range(self._width)]
        found: list[EntryBatch] = []
        try:
            for run in runs:
                batch = await run.result()
                if batch is None:
                    self._ended = True
                    break
                found.append(batch)
        finally:
            for run in runs:
                run.abandon()
        self._pass(found)
        return found

    def _pass(self, found: list[EntryBatch]) -> None:
        """Go on behind what was found, with as many questions as its size suggests."""
        if found and self._source.striped:
            largest = max(batch.size for batch in found)
            fitting = WINDOW_SIZE // max(largest, 1)
            self._width = max(1, min(2 * self._width, fitting, STRIPED_WIDTH_MAX))
        if found:
            self._position = found[-1].last_entry + 1


class Run:
    """The entries from *entry_id* on, asked of every replica of the first."""

    def __init__(self, source: LedgerSource, entry_id: int) -> None:
        self._source = source
        self._entry_id = entry_id
        self._count = 1 if source.striped else BATCH_COUNT_MAX
        self._found: EntryBatch | None = None
        self._negatives: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._inquiry = Inquiry(self, source.replicas(entry_id), source.options)

    async def result(self) -> EntryBatch | None:
        """Return one entry or more, None when the first is absent.

        Raises:
            RecoveryIncomplete: it is neither there nor absent.
        """
        await self._inquiry.wait(self._is_decided)
        if self._found is None and not self._is_absent():
            raise RecoveryIncomplete(
                ledger_id=self._source.ledger_id, entry_id=self._entry_id, reasons=self._reasons
            )
        return self._found

    def abandon(self) -> None:
        """Drop the answers still under way."""
        self._inquiry.abandon()

    def ask(self, bookie: BookieConnection, on_arrival: Callable[[], None]) -> Reply:
        """Put the question to *bookie*."""
        request_id = bookie.next_request_id()
        key = self._source.digest.master_key if RECOVERY_READ_FLAGS & Flag.FENCE else None
        request = frame.batch_read(
            self._source.ledger_id,
            self._entry_id,
            request_id=request_id,
            count_max=self._count,
            size_max=WINDOW_SIZE,
            flags=RECOVERY_READ_FLAGS,
            key=key,
        )
        return bookie.ask(request, request_id, on_arrival, self._source.name)

    def take(self, bookie_id: str, answer: Answer) -> None:
        """Take note of an answer; the newest one of a bookie counts."""
        if is_negative(answer):
            self._negatives.add(bookie_id)
            self._reasons[bookie_id] = "no such entry"
        elif isinstance(answer, Response) and answer.code == Code.OK:
            self._take_entries(bookie_id, answer)
        elif isinstance(answer, Response) and answer.code == Code.UNAUTHORIZED:
            raise WrongPassword(self._source.ledger_id)
        elif isinstance(answer, Response) and answer.code == Code.OTHER_LEDGER:
            raise NoSuchLedger(self._source.ledger_id)
        else:
            self._reasons[bookie_id] = describe(answer)

    def _take_entries(self, bookie_id: str, response: Response) -> None:
        batch = sound_entries(response, self._source.digest, self._entry_id, self._count, bookie_id)
        if not len(batch):
            self._reasons[bookie_id] = "wrong digest"
        elif self._found is None or len(batch) > len(self._found):
            self._found = batch

    def _is_decided(self) -> bool:
        return self._found is not None or self._is_absent()

    def _is_absent(self) -> bool:
        record = self._source.record
        return absent(record.write_quorum, record.ack_quorum, len(self._negatives))

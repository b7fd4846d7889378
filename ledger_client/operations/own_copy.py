"""What one bookie itself holds of a ledger, entry by entry.

A reader asks whichever replica answers. Here one bookie is asked and no other, and of
each entry is told the fingerprint of its payload, or what is wrong with it.
"""

from __future__ import annotations

import enum
import hashlib

import trio

from ledger_client.client import Client
from ledger_client.entries import EntryBatch
from ledger_client.errors import BookieUnavailable
from ledger_client.questions import BatchQuestion, Unsound, Verdict
from ledger_client.repair.runs import Runs
from ledger_client.statements import LedgerName
from metadata.calls import LedgerRuns, RunPage
from native.digest import Digest

AGAIN_S = 0.2
"""Between two attempts to ask a bookie that cannot be reached."""


class Fault(enum.Enum):
    """What can be wrong with one copy of one entry."""

    MISSING = "missing"
    DAMAGED = "damaged"
    """it cannot be read there, or its digest is wrong"""
    DIFFERENT = "different"
    """it is sound, and not what the others hold"""
    UNKNOWN = "unknown"
    """the bookie could not be asked"""


Seen = bytes | Fault
"""The fingerprint of a sound copy, or what is wrong with it."""


class OwnCopy:
    """The copy of one ledger on one bookie.

    Attributes:
        bookie_id: which bookie.
        silent: why it is not asked any more; "" while it answers.
    """

    def __init__(self, client: Client, bookie_id: str, ledger: LedgerName, digest: Digest) -> None:
        self.bookie_id = bookie_id
        self.silent = ""
        self._client = client
        self._ledger = ledger
        self._digest = digest

    async def look(self, wanted: Runs) -> dict[int, Seen]:
        """Return what is there of the entries *wanted*.

        A bookie that cannot be asked within the client's read_timeout_s is not asked again.
        """
        seen: dict[int, Seen] = {}
        for first, last in wanted:
            await self._look_at(first, last, seen)
        return seen

    async def _look_at(self, first: int, last: int, seen: dict[int, Seen]) -> None:
        while first <= last:
            batch = await self._batch(first, last - first + 1)
            if batch is None:
                seen.update(dict.fromkeys(range(first, last + 1), Fault.UNKNOWN))
                return
            if isinstance(batch, EntryBatch):
                prints = map(fingerprint, batch.payloads())
                seen.update(enumerate(prints, first))
                first += len(batch)
            else:
                end = await self._end_of(batch, first, last)
                seen.update(dict.fromkeys(range(first, end), batch))
                first = end

    async def _batch(self, first: int, count: int) -> EntryBatch | Fault | None:
        """Return some sound entries from *first* on, what is wrong with it, or None: unknown."""
        question = BatchQuestion(self._ledger, first, count, self._digest)
        until = trio.current_time() + self._client.options.read_timeout_s
        while not self.silent:
            try:
                return await self._answer(question)
            except Unsound as unsound:
                if unsound.verdict is not Verdict.UNAVAILABLE:
                    absent = unsound.verdict is Verdict.ABSENT
                    return Fault.MISSING if absent else Fault.DAMAGED
                if trio.current_time() >= until:
                    self.silent = unsound.reason
            await trio.sleep(AGAIN_S)
        return None

    async def _answer(self, question: BatchQuestion) -> EntryBatch:
        arrived = trio.Event()
        connection = self._client.bookies.connection(self.bookie_id)
        reply = question.ask(connection, arrived.set)
        limit_s = self._client.options.request_timeout_s
        try:
            with trio.move_on_after(limit_s):
                await arrived.wait()
        finally:
            reply.abandon()
        if reply.response is not None:
            return question.judge(reply.response, self.bookie_id)
        if reply.failure is None:
            connection.suspect(reply.sent_at)
            raise Unsound(Verdict.UNAVAILABLE, f"no answer in {limit_s:g} s")
        raise Unsound(Verdict.UNAVAILABLE, reply.failure.reason)

    async def _end_of(self, fault: Fault, first: int, last: int) -> int:
        """Return the entry after a fault at *first*; long gaps are skipped at once."""
        if fault is not Fault.MISSING or first == last:
            return first + 1
        ledger_id, incarnation = self._ledger
        try:
            page = await self._client.call(
                self.bookie_id, LedgerRuns(ledger_id, first, 1, incarnation)
            )
        except BookieUnavailable:
            return first + 1
        if not isinstance(page, RunPage) or not page.runs:
            return last + 1
        return min(max(page.runs[0][0], first + 1), last + 1)


def fingerprint(payload: bytes) -> bytes:
    """Return what is the same for equal payloads only."""
    return hashlib.blake2b(payload, digest_size=16).digest()

"""A client that tells a history everything it asks for and is answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from history import (
    Absent,
    Acknowledged,
    Closed,
    Created,
    Event,
    ReadAsked,
    ReadBack,
    ReadDone,
    Recorder,
    Recovered,
    Refused,
    Sent,
    digest_of,
)

from ledger_client import LedgerWriter
from ledger_client.errors import LedgerError, OutcomeUnknown, WriterFailed
from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.ledgers.entries import EntryBatch
from metadata.records import LedgerRecord

_READS = count(1)
"""Each read has a name of its own, whoever makes it."""


class Witness:
    """Records events under one *name*."""

    def __init__(self, history: Recorder, name: str) -> None:
        self._history = history
        self.name = name

    def created(self, record: LedgerRecord | LedgerInfo) -> None:
        self._add(
            Created(
                ledger=record.ledger_id,
                ensemble_size=record.ensemble_size,
                write_quorum=record.write_quorum,
                ack_quorum=record.ack_quorum,
            )
        )

    async def append(self, ledger: LedgerWriter, payloads: Sequence[bytes]) -> bool:
        """Append *payloads*; False when the writer is at its end. Raises no LedgerError."""
        digests = [digest_of(payload) for payload in payloads]
        self._add(Sent(ledger=ledger.id, writer=self.name, first=None, digests=digests))
        try:
            ids = await ledger.append_many(payloads)
        except OutcomeUnknown as unknown:
            self._unknown(unknown, ledger.id, digests)
        except WriterFailed as failed:
            self._refused(ledger.id, len(digests), failed, unknown=False)
        else:
            self._acknowledged(ledger.id, ids.start, digests)
            return True
        return False

    def closed(self, record: LedgerRecord) -> None:
        self._add(
            Closed(
                ledger=record.ledger_id,
                who=self.name,
                last_entry=record.last_entry,
                length=record.length,
            )
        )

    def recovered(self, info: LedgerInfo) -> None:
        self._add(
            Recovered(
                ledger=info.ledger_id,
                who=self.name,
                last_entry=info.last_entry,
                length=info.length,
            )
        )

    @contextmanager
    def reading(self, ledger_id: int, first: int, last: int | None) -> Iterator[Witness]:
        """Record a read that is about to begin; yields the witness of what it gets.

        It has got all that it asked for, up to *last* or, for None, the ledger's end, if the block
        ends without an exception.
        """
        witness = Witness(self._history, f"{self.name} #{next(_READS)}")
        self._add(ReadAsked(ledger=ledger_id, reader=witness.name, first=first, last=last))
        yield witness
        self._add(ReadDone(ledger=ledger_id, reader=witness.name))

    def read(self, ledger_id: int, first: int, payloads: Iterable[bytes]) -> None:
        digests = [digest_of(payload) for payload in payloads]
        self._add(ReadBack(ledger=ledger_id, reader=self.name, first=first, digests=digests))

    def read_batch(self, batch: EntryBatch) -> None:
        self.read(batch.ledger_id, batch.first_entry, batch.payloads())

    def absent(self, ledger_id: int, entry: int) -> None:
        self._add(Absent(ledger=ledger_id, reader=self.name, entry=entry))

    def _acknowledged(self, ledger_id: int, first: int, digests: list[int]) -> None:
        self._add(Acknowledged(ledger=ledger_id, writer=self.name, first=first, digests=digests))

    def _unknown(self, unknown: OutcomeUnknown, ledger_id: int, digests: list[int]) -> None:
        """Entries of the call before the first unknown one are confirmed."""
        confirmed = len(digests) - (unknown.last_entry - unknown.first_entry + 1)
        if confirmed:
            self._acknowledged(ledger_id, unknown.first_entry - confirmed, digests[:confirmed])
        self._refused(ledger_id, len(digests) - confirmed, unknown, unknown=True)

    def _refused(self, ledger_id: int, count: int, error: LedgerError, *, unknown: bool) -> None:
        self._add(
            Refused(
                ledger=ledger_id,
                writer=self.name,
                count=count,
                reason=f"{type(error).__name__}: {error}",
                unknown=unknown,
            )
        )

    def _add(self, event: Event) -> None:
        self._history.add(event)

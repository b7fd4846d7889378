"""The ledgers of a connected client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.ledgers.writer import LedgerWriter
from ledger_client.opening import Opened, Opening
from ledger_client.topics.context import TopicContext
from ledger_client.topics.retention.explanation import LedgerDescription, describe_ledger


class ClientLedgers:
    """The ledgers of one cluster. Any task may use it."""

    def __init__(self, context: TopicContext, opened: Opened | None = None) -> None:
        self._catalogue = context.catalogue
        self._ledgers = context.ledgers
        self._opened = opened or Opened(context.nursery)

    def create(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: str = "crc32c",
        custom: Mapping[str, str] | None = None,
        ledger_id: int | None = None,
    ) -> Opening[LedgerWriter]:
        """Create a ledger and write it. It is sealed at the end of the block, or by close().

        Args:
            ensemble_size: how many bookies its entries are spread over, at most 64.
            write_quorum: how many of them get each entry.
            ack_quorum: how many must have an entry on disk before it is acknowledged.
            password: needed again to open the ledger.
            digest: protects entries from end to end: "crc32c", "crc32", "hmac" (keyed with the
                password) or "dummy" (no protection).
            custom: properties of the application, kept with the ledger.
            ledger_id: an id of your choice. Default: a new one.

        Raises:
            LedgerError: not 1 <= ack_quorum <= write_quorum <= ensemble_size.
            NotEnoughBookies: fewer than ensemble_size bookies take writes.
            LedgerExists: *ledger_id* is taken.
            MetadataUnavailable: the store did not answer in time.
            LedgerError: at the end of the block, as LedgerWriter.close(). An error of the
                block itself takes precedence.
        """
        opening = self._ledgers.create(
            ensemble_size,
            write_quorum,
            ack_quorum,
            password=password,
            digest=digest,
            custom=custom,
            ledger_id=ledger_id,
        )
        return Opening(opening, self._opened, what="ledger", call="client.ledgers.create(...)")

    def open(
        self, ledger_id: int, password: bytes = b"", *, recover: bool = True
    ) -> Opening[LedgerReader]:
        """Open a ledger for reading; by default, close an open one first.

        Args:
            ledger_id: its id.
            password: the one it was created with.
            recover: if it is not closed, fence its writer and close it first. Without, it stays
                open, and is read and followed up to its last confirmed entry.

        Raises:
            NoSuchLedger: there is none with this id.
            WrongPassword: it was created with another password.
            ReplicasUnavailable: it is not closed, and none of its bookies answered, or too few
                to recover it.
            MetadataUnavailable: the store did not answer in time.
        """
        opening = self._ledgers.open(ledger_id, password, recover=recover)
        return Opening(opening, self._opened, what="reader", call="client.ledgers.open(...)")

    async def recover(self, ledger_id: int, password: bytes = b"") -> LedgerInfo:
        """Close a ledger in place of its writer, and return its metadata.

        It keeps every acknowledged entry, and its writer gets no further acknowledgement. A
        closed ledger is not changed. Any number of clients may do this at once, with the same
        result.

        Raises:
            NoSuchLedger: there is none with this id, or it was deleted.
            WrongPassword: it was created with another password.
            ReplicasUnavailable: some of its bookies did not report what they hold, or too few
                took copies. It stays in recovery: call again later.
            MetadataUnavailable: the store did not answer in time; call again.
        """
        return await self._ledgers.recover(ledger_id, password)

    async def info(self, ledger_id: int) -> LedgerInfo:
        """Return a ledger's metadata. Raises NoSuchLedger."""
        return await self._ledgers.info(ledger_id)

    async def describe(self, ledger_id: int) -> LedgerDescription:
        """Return a ledger's metadata with its place and times in a topic, if it is in one.

        Raises:
            NoSuchLedger: there is none with this id.
        """
        return await describe_ledger(self._catalogue, await self._ledgers.info(ledger_id))

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger from metadata; bookies free its space in their time.

        A writer that still has it open cannot close it any more. Raises NoSuchLedger.
        """
        await self._ledgers.delete(ledger_id)

    def list(self) -> AsyncIterator[LedgerInfo]:
        """Iterate over all ledgers by rising id. One page of them is in memory at a time."""
        return self._ledgers.list()

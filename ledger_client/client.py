"""The cluster, as a client sees it: ledgers made, opened, listed and deleted."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from ledger_client.bookies import Bookies
from ledger_client.calling import call_bookie
from ledger_client.catalogue import Catalogue
from ledger_client.connection import OpenStream
from ledger_client.creation import DIGESTS, LedgerPlan, create_record
from ledger_client.errors import WrongPassword
from ledger_client.figures import Figures
from ledger_client.listing import LedgerInfo, LedgerListing
from ledger_client.options import Options
from ledger_client.placement import Placement
from ledger_client.quarantine import Quarantine
from ledger_client.reader import LedgerReader
from ledger_client.recovery.recoveries import Recoveries
from ledger_client.sealing import sealed_after
from ledger_client.source import LedgerSource
from ledger_client.view import LedgerView
from ledger_client.writer import LedgerWriter
from ledger_client.writers import Writers
from metadata.calls import BookieReply, BookieRequest
from metadata.records import BookieRecord, LedgerRecord
from metadata.store import MetadataStore
from native.digest import Digest

DEFAULT_OPTIONS = Options()
CALL_TIMEOUT_S = 10.0


class Client:
    """A client for ledgers. Any task may use it."""

    def __init__(
        self,
        store: MetadataStore,
        nursery: trio.Nursery,
        *,
        options: Options = DEFAULT_OPTIONS,
        open_stream: OpenStream = trio.open_tcp_stream,
        chance: random.Random | None = None,
    ) -> None:
        self.options = options
        self.store = store
        self.figures = Figures()
        self._nursery = nursery
        self._catalogue = Catalogue(store, timeout_s=options.metadata_timeout_s)
        self.clock = self._catalogue.clock
        self._bookies = Bookies(
            self._catalogue, options=options, nursery=nursery, open_stream=open_stream
        )
        quarantine = Quarantine(first_s=options.quarantine_s, longest_s=options.quarantine_max_s)
        self._placement = Placement(self._bookies, quarantine, chance or random.Random())
        self._writers = Writers(
            catalogue=self._catalogue,
            bookies=self._bookies,
            placement=self._placement,
            options=options,
            nursery=nursery,
        )
        self._recoveries = Recoveries(
            catalogue=self._catalogue,
            bookies=self._bookies,
            writers=self._writers,
            options=options,
        )

    @asynccontextmanager
    async def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: str = "crc32c",
        custom: Mapping[str, str] | None = None,
        ledger_id: int | None = None,
    ) -> AsyncIterator[LedgerWriter]:
        """Make a ledger and write it; it is closed at the end of the block.

        Args:
            ensemble_size: how many bookies share its entries, at most 64.
            write_quorum: how many of them get each entry.
            ack_quorum: how many must make an entry durable before it counts.
            password: needed again to open the ledger.
            digest: how entries are protected from end to end: "crc32c",
                "crc32", "hmac" (keyed with the password) or "dummy" (not).
            custom: what the application wants kept with the ledger.
            ledger_id: an id of the caller's choice; by default a fresh one.

        Raises:
            InvalidQuorum: not 1 <= ack_quorum <= write_quorum <= ensemble_size.
            NotEnoughBookies: fewer than ensemble_size take writes.
            LedgerExists: *ledger_id* is taken.
            MetadataUnavailable: the store did not answer in time.
            LedgerError: at the end of the block, as LedgerWriter.close(); an
                error of the block itself goes first.
        """
        plan = LedgerPlan(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=password,
            digest=digest,
            custom=custom or {},
            ledger_id=ledger_id,
        )
        record = await create_record(plan, catalogue=self._catalogue, placement=self._placement)
        async with sealed_after(self._writers.open(record)) as writer:
            yield writer

    @asynccontextmanager
    async def open_ledger(
        self, ledger_id: int, password: bytes = b"", *, recover: bool = True
    ) -> AsyncIterator[LedgerReader]:
        """Open a ledger for reading.

        Args:
            ledger_id: which ledger.
            password: the one it was created with.
            recover: a ledger that is not closed is recovered first: whoever writes it is
                fenced, and it is closed at its end. With False it stays as it is, and
                is read and followed up to its last confirmed entry while it is written.

        Raises:
            NoSuchLedger: there is none with this id.
            WrongPassword: it was created with another password.
            RecoveryIncomplete: with *recover*; as recover_ledger().
            ReplicasUnavailable: it is not closed, and none of its bookies answered.
            MetadataUnavailable: the store did not answer in time.
        """
        record = await self._checked(ledger_id, password)
        if recover:
            record = await self._recoveries.recovered(record)
        source = LedgerSource(
            record, digest=_digest(record), bookies=self._bookies, options=self.options
        )
        view = LedgerView(source, self._catalogue, self._nursery)
        await view.learn_confirmed()
        try:
            yield LedgerReader(view)
        finally:
            view.close()

    async def recover_ledger(self, ledger_id: int, password: bytes = b"") -> LedgerInfo:
        """Close a ledger in its writer's place; return what it is then.

        Every acknowledged entry is in it, and its writer gets no further
        acknowledgement. A ledger that is closed stays as it is. Any number of
        clients may do this at once, and all get the same.

        Raises:
            NoSuchLedger: there is none with this id, or it was deleted.
            WrongPassword: it was created with another password.
            RecoveryIncomplete: some of its bookies could not say what they hold,
                or too few could take it. It stays in recovery: call again later.
            MetadataUnavailable: the store did not answer in time; call again.
        """
        record = await self._checked(ledger_id, password)
        return LedgerInfo.of(await self._recoveries.recovered(record))

    async def _checked(self, ledger_id: int, password: bytes) -> LedgerRecord:
        record, _ = await self._catalogue.get(ledger_id)
        if record.password_bytes != password:
            raise WrongPassword(ledger_id)
        return record

    async def ledger_info(self, ledger_id: int) -> LedgerInfo:
        """Return what metadata says of a ledger. Raises NoSuchLedger."""
        record, _ = await self._catalogue.get(ledger_id)
        return LedgerInfo.of(record)

    def list_ledgers(self) -> LedgerListing:
        """Return an async iterator of LedgerInfo, by rising id."""
        return LedgerListing(self._catalogue)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Remove a ledger from metadata; bookies free its space in their time.

        Whoever is writing it cannot close it any more. Raises NoSuchLedger.
        """
        await self._catalogue.delete(ledger_id)

    async def list_bookies(self) -> list[BookieRecord]:
        """Return the bookies that are registered now, with their room and load."""
        return await self._bookies.live()

    async def call(
        self, bookie_id: str, request: BookieRequest, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> BookieReply:
        """Ask one bookie about itself or what it holds.

        Raises:
            BookieUnavailable: it cannot be reached, said nothing for *timeout_s*, or
                could not do it.
        """
        return await call_bookie(self._bookies.connection(bookie_id), request, timeout_s=timeout_s)

    @property
    def catalogue(self) -> Catalogue:
        """The metadata in terms of ledgers, for what is built on them."""
        return self._catalogue

    @property
    def placement(self) -> Placement:
        """Which bookies take new ledgers, for who makes their records."""
        return self._placement

    @property
    def writers(self) -> Writers:
        """Opens writers for ledgers whose records exist; who does, closes them."""
        return self._writers

    @property
    def bookies(self) -> Bookies:
        """The connections to the bookies, for who copies from one to another."""
        return self._bookies


def _digest(record: LedgerRecord) -> Digest:
    return Digest(DIGESTS[record.digest], record.password_bytes)

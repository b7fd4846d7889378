"""Ledgers created, opened, recovered, listed and deleted."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, cast

import msgspec
import trio

from ledger_client.background import Places
from ledger_client.errors import (
    LedgerError,
    LedgerExists,
    NoSuchLedger,
    WrongPassword,
)
from ledger_client.figures import Figures
from ledger_client.ledgers.catalogue import Catalogue, LedgerInfo, LedgerListing
from ledger_client.ledgers.entries import DIGESTS
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.ledgers.placement import Placement, Quarantine
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.ledgers.recovery import Recoveries
from ledger_client.ledgers.settling import settle
from ledger_client.ledgers.writer import LedgerWriter, WriteDriver, Writers
from ledger_client.options import DEFAULT_OPTIONS, Options
from ledger_client.wire.bookies import Bookies
from ledger_client.wire.streams import OpenStream
from metadata.calls import BookieReply, BookieRequest
from metadata.records import (
    ENSEMBLE_SIZE_MAX,
    BookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    encode_password,
)
from metadata.sessions import ProcessSession
from metadata.store import MetadataStore

CALL_TIMEOUT_S = 10.0
OPENINGS_MAX = 64
"""Lanes that a client opens at a time: each costs a score of calls to the metadata store."""


class Ledgers:
    """The ledgers of one cluster. Any task may use it.

    Attributes:
        options: deadlines and bounds.
        store: the metadata store.
        session: what the leases of this client belong to.
        figures: counts for metrics.
        clock: estimates the store's time.
        catalogue: the records of ledgers and bookies.
        bookies: the connections to the bookies, shared by all readers and writers of the client.
        placement: chooses bookies, for callers that create records themselves.
        writers: opens writers for ledgers whose records exist; the caller closes them.
        opener: opens ledgers for reading, without recovery.
        openings: places for tasks that open a lane.
    """

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
        self.catalogue = Catalogue(store, timeout_s=options.metadata_timeout_s)
        self.clock = self.catalogue.clock
        self.session = ProcessSession(store, nursery, on_kept=self.catalogue.refresh_clock)
        self.bookies = Bookies(
            self.catalogue.bookies, options=options, nursery=nursery, open_stream=open_stream
        )
        quarantine = Quarantine(first_s=options.quarantine_s, longest_s=options.quarantine_max_s)
        self.placement = Placement(
            self.bookies, quarantine, chance or random.Random(), racks_min=options.racks_min
        )
        self.writers = Writers(
            catalogue=self.catalogue,
            bookies=self.bookies,
            placement=self.placement,
            options=options,
            nursery=nursery,
        )
        self.openings = Places(OPENINGS_MAX)
        nursery.start_soon(store.watches.run)
        self._recoveries = Recoveries(
            catalogue=self.catalogue,
            bookies=self.bookies,
            writers=self.writers,
            options=options,
        )
        self.opener = LedgerOpener(
            catalogue=self.catalogue,
            bookies=self.bookies,
            options=options,
            settle=partial(settle, recover=self._recoveries.recovered),
        )

    @asynccontextmanager
    async def create(
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
        """Create a ledger and write it; Client.ledgers documents the arguments and errors."""
        plan = LedgerPlan(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=password,
            digest=digest,
            custom=custom or {},
            ledger_id=ledger_id,
        )
        record = await create_record(plan, catalogue=self.catalogue, placement=self.placement)
        async with sealed_after(self.writers.open(record)) as driver:
            yield LedgerWriter(driver)

    @asynccontextmanager
    async def open(
        self, ledger_id: int, password: bytes = b"", *, recover: bool = True
    ) -> AsyncIterator[LedgerReader]:
        """Open a ledger for reading. See Client.ledgers."""
        record = await self._checked(ledger_id, password)
        if recover:
            record = await self._recoveries.recovered(record)
        reader = await self.opener.reader_of(record)
        try:
            yield reader
        finally:
            reader.unwatch()

    async def recover(self, ledger_id: int, password: bytes = b"") -> LedgerInfo:
        """Close a ledger in its writer's place; return its metadata. See Client.ledgers."""
        record = await self._checked(ledger_id, password)
        return LedgerInfo.of(await self._recoveries.recovered(record))

    async def _checked(self, ledger_id: int, password: bytes) -> LedgerRecord:
        record, _ = await self.catalogue.get(ledger_id)
        if record.password_bytes != password:
            raise WrongPassword(ledger_id)
        return record

    async def info(self, ledger_id: int) -> LedgerInfo:
        """Return a ledger's metadata. Raises NoSuchLedger."""
        record, _ = await self.catalogue.get(ledger_id)
        return LedgerInfo.of(record)

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger from metadata; bookies free its space in their time.

        A writer that still has it open cannot close it any more. Raises NoSuchLedger.
        """
        await self.catalogue.delete(ledger_id)

    async def list_bookies(self) -> list[BookieRecord]:
        """Return the bookies that are registered now, with their room and load."""
        return await self.bookies.live()

    async def call(
        self, bookie_id: str, request: BookieRequest, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> BookieReply:
        """Ask one bookie about itself or what it holds.

        Raises:
            BookieUnavailable: it cannot be reached, sent nothing for *timeout_s*, or
                could not do it.
        """
        return await self.bookies.connections[bookie_id].call(request, timeout_s=timeout_s)

    def list(self) -> LedgerListing:
        """Return an async iterator of LedgerInfo, by rising id."""
        return LedgerListing(self.catalogue)


@asynccontextmanager
async def sealed_after(writer: WriteDriver) -> AsyncIterator[WriteDriver]:
    """Lend *writer* to the block, then close it, however the block ends.

    Raises:
        LedgerError: as LedgerWriter.close(); an error of the block itself takes precedence.
    """
    try:
        try:
            yield writer
        except Exception as error:
            await _close_after(error, writer.close)
            raise
        await writer.close()
    except BaseException as error:
        if not isinstance(error, Exception):  # cancelled or interrupted: be quick
            await _close_after(error, writer.abort)
        raise


async def _close_after(error: BaseException, close: Callable[[], Awaitable[None]]) -> None:
    """Close a ledger whose block failed; a failure to close becomes a note of *error*."""
    try:
        await close()
    except LedgerError as failure:
        error.add_note(f"the ledger was not closed: {failure}")


# --- creating a ledger: check the arguments, choose bookies, write the record --------------


LEDGER_ID_MAX = (1 << 63) - 1
DigestName = Literal["crc32", "hmac", "crc32c", "dummy"]


class LedgerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of Ledgers.create, not checked until check()."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    password: bytes = b""
    digest: str = "crc32c"
    custom: Mapping[str, str] = {}
    ledger_id: int | None = None

    def check(self) -> None:
        """Raise LedgerError or ValueError if no such ledger can exist."""
        sizes = (1, self.ack_quorum, self.write_quorum, self.ensemble_size, ENSEMBLE_SIZE_MAX)
        if list(sizes) != sorted(sizes):
            raise LedgerError(
                f"ensemble size {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum "
                f"{self.ack_quorum}: must be 1 <= ack <= write <= ensemble <= {ENSEMBLE_SIZE_MAX}"
            )
        if self.ledger_id is not None and not 0 <= self.ledger_id <= LEDGER_ID_MAX:
            raise ValueError(f"ledger id {self.ledger_id} is not between 0 and 2**63 - 1")
        if self.digest not in DIGESTS:
            raise ValueError(f"digest {self.digest!r} is none of {', '.join(DIGESTS)}")


async def create_record(
    plan: LedgerPlan, *, catalogue: Catalogue, placement: Placement
) -> LedgerRecord:
    """Store the record of a new, open ledger on bookies that can be reached.

    Raises:
        NotEnoughBookies: fewer than ensemble_size take writes and answer.
        LedgerExists: the id is taken.
        MetadataUnavailable: the store did not answer in time.
    """
    record = await new_record(plan, catalogue=catalogue, placement=placement)
    await catalogue.create(record)
    return record


async def new_record(
    plan: LedgerPlan, *, catalogue: Catalogue, placement: Placement
) -> LedgerRecord:
    """Return the record of a new ledger without storing it.

    Raises as create_record().
    """
    plan.check()
    if plan.ledger_id is not None:
        await _check_free(plan.ledger_id, catalogue)
    await catalogue.refresh_clock()
    ensemble = await placement.new_ensemble(plan.ensemble_size, plan.write_quorum, plan.ack_quorum)
    ledger_id = await catalogue.new_id() if plan.ledger_id is None else plan.ledger_id
    return LedgerRecord(
        ledger_id=ledger_id,
        ensemble_size=plan.ensemble_size,
        write_quorum=plan.write_quorum,
        ack_quorum=plan.ack_quorum,
        state=LedgerState.OPEN,
        fragments=[Fragment(0, ensemble)],
        digest=cast(DigestName, plan.digest),
        password=encode_password(plan.password),
        created_ms=catalogue.clock.now_ms(),
        custom=dict(plan.custom),
        incarnation=_new_incarnation(),
    )


def _new_incarnation() -> int:
    """Return 63 random bits, never 0: that means a ledger without an incarnation."""
    return int.from_bytes(secrets.token_bytes(8), "big") >> 1 or 1


async def _check_free(ledger_id: int, catalogue: Catalogue) -> None:
    """Raise LedgerExists before any bookie is contacted; create() decides in the end."""
    try:
        await catalogue.get(ledger_id)
    except NoSuchLedger:
        return
    raise LedgerExists(ledger_id)

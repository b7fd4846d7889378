"""Where a bounded read ends in a ledger whose writer is silent, dead or replaces bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, LedgerReader, Options
from ledger_client.errors import LedgerFenced, OutcomeUnknown, ReplicasUnavailable, WriterFailed
from ledger_client.ledgers.reader import settle
from ledger_client.ledgers.writer import LedgerWriter
from metadata.records import LedgerState
from native.frame import Code, Opcode, Request

SILENT = Options(explicit_lac_s=0.0)
"""A writer that confirms an entry with the next one alone, as if it were stopped after it."""


async def written() -> bool:
    return True


async def left() -> bool:
    return False


class Lost:
    """A lease that is over after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    async def __call__(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


class Silent:
    """A ledger whose writer is silent after *entries*, and a reader in another client."""

    def __init__(
        self, cluster: MemoryCluster, client: Client, ledger: LedgerWriter, reader: LedgerReader
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.ledger = ledger
        self.reader = reader

    @property
    def id(self) -> int:
        return self.ledger.id

    async def recovered_end(self) -> int:
        return (await self.client.ledgers.recover(self.id)).last_entry

    async def read(self) -> list[bytes]:
        last = self.reader.last_confirmed
        return [entry.payload for entry in await self.reader.read(0, last)]

    def holders(self, entry_id: int) -> set[str]:
        bookies = self.cluster.bookies
        return {name for name in bookies if entry_id in bookies[name].entries(self.id)}


@asynccontextmanager
async def silent(
    *quorums: int, entries: int = 3, bookies: int = 4, options: Options = SILENT
) -> AsyncIterator[Silent]:
    async with (
        memory_cluster(bookies) as cluster,
        cluster.client(options) as writing,
        cluster.client() as client,
    ):
        try:
            async with writing.ledgers.create(*quorums or (3, 3, 2)) as ledger:
                for number in range(entries):
                    await ledger.append(b"%d" % number)
                async with client.ledgers.open(ledger.id, recover=False) as reader:
                    yield Silent(cluster, client, ledger, reader)
        except* WriterFailed:
            pass  # another client closed it, or its bookies are away


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2), (2, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("entries", [1, 3])
async def test_the_last_entry_of_a_silent_writer_belongs_to_a_read(
    autojump_clock: MockClock, quorums: tuple[int, int, int], entries: int
) -> None:
    async with silent(*quorums, entries=entries) as here:
        assert here.reader.last_confirmed == entries - 2
        assert await settle(here.reader, written) == entries - 1
        assert await here.read() == [b"%d" % number for number in range(entries)]
        assert not here.reader.closed
        async with here.client.ledgers.open(here.id, recover=False) as later:
            assert later.last_confirmed == entries - 1
        await here.ledger.append(b"next")  # the writer was not disturbed
        assert await settle(here.reader, written) == entries
    assert here.cluster.record(here.id).last_entry == entries


async def test_a_writer_whose_lease_is_over_is_closed_first(autojump_clock: MockClock) -> None:
    async with silent() as here:
        assert await settle(here.reader, Lost(0)) == 2
        assert here.reader.closed
        assert await here.read() == [b"0", b"1", b"2"]
        with pytest.raises((LedgerFenced, OutcomeUnknown)):
            await here.ledger.append(b"late")


async def test_a_quiet_ledger_is_not_closed_although_nobody_writes_it(
    autojump_clock: MockClock,
) -> None:
    async with silent(options=Options()) as here:
        await trio.sleep(1)
        assert await settle(here.reader, left) == 2
        assert not here.reader.closed
        await here.ledger.append(b"next")


async def test_an_entry_of_too_few_bookies_is_not_returned_and_may_get_lost(
    autojump_clock: MockClock,
) -> None:
    """One of three has it; it was not acknowledged."""
    async with silent(bookies=3) as here, trio.open_nursery() as nursery:
        for name in ("b1", "b2"):
            here.cluster.bookies[name].add_code = Code.IO_ERROR
        nursery.start_soon(append_in_vain, here.ledger)
        await trio.sleep(0.5)
        assert here.holders(3) == {"b3"}
        assert await settle(here.reader, written) == 2
        here.cluster.bookies["b3"].drop_connections()
        nursery.cancel_scope.cancel()


async def append_in_vain(ledger: LedgerWriter) -> None:
    await ledger.append(b"in vain")


async def test_what_one_reader_returned_outlives_the_bookie_and_its_substitute(
    autojump_clock: MockClock,
) -> None:
    """The writer heard of one copy, replaces the other bookie, and dies before it is filled."""
    async with silent(2, 2, 2, entries=1, bookies=3) as here, trio.open_nursery() as nursery:
        record = here.cluster.record(here.id)
        deaf, (spare,) = (
            record.fragments[0].bookies[1],
            {"b1", "b2", "b3"} - {*record.fragments[0].bookies},
        )
        here.cluster.bookies[deaf].holding = True  # it stores, and its answers get lost
        nursery.start_soon(append_in_vain, here.ledger)
        await trio.sleep(0.1)
        assert len(here.holders(1)) == 2
        assert await settle(here.reader, written) == 1
        here.cluster.bookies[spare].delay_s = add_late
        here.cluster.kill(deaf)
        await trio.sleep(5)
        assert spare in here.cluster.record(here.id).fragments[-1].bookies
        assert spare not in here.holders(1)
        here.cluster.bookies[record.fragments[0].bookies[0]].delay_s = read_late
        assert await here.recovered_end() == 1
        nursery.cancel_scope.cancel()


def add_late(request: Request) -> float:
    return 1000.0 if request.opcode == Opcode.ADD else 0.0


def read_late(request: Request) -> float:
    return 1.0 if request.opcode == Opcode.BATCH_READ else 0.0


async def test_a_ledger_that_somebody_began_to_recover_is_recovered(
    autojump_clock: MockClock,
) -> None:
    """What a recovery adds again counts only once it has closed the ledger."""
    async with silent() as here:
        catalogue = here.client._context.ledgers.catalogue
        record, version = await catalogue.get(here.id)
        begun = msgspec.structs.replace(record, state=LedgerState.IN_RECOVERY)
        await catalogue.replace(begun, version)
        assert await settle(here.reader, written) == 2
        assert here.reader.closed


async def test_bookies_that_died_with_the_writer_leave_the_end_open_until_its_lease_is_over(
    autojump_clock: MockClock,
) -> None:
    """Both copies were acknowledged; with one of them alone, nobody can tell."""
    async with silent(2, 2, 2, bookies=2) as here:
        here.cluster.kill("b1")
        lease = Lost(5)
        with pytest.raises(ReplicasUnavailable) as failure:
            await settle(here.reader, lease)
        assert failure.value.entry_id == 2
        assert lease.looks < 0
        assert await here.read() == [b"0", b"1"]


async def test_bookies_that_are_away_may_have_more_only_if_nobody_writes(
    autojump_clock: MockClock,
) -> None:
    """With one acknowledgement, an entry may be on the bookie that is away alone."""
    async with silent(2, 2, 1, bookies=2, options=Options()) as here:
        await trio.sleep(1)
        here.cluster.kill("b1")
        assert await settle(here.reader, written) == 2
        with pytest.raises(ReplicasUnavailable) as failure:
            await settle(here.reader, left)
        assert failure.value.entry_id == 3
        here.cluster.revive("b1")
        assert await settle(here.reader, left) == 2


async def test_a_writer_that_never_says_more_ends_the_wait_with_an_error(
    autojump_clock: MockClock,
) -> None:
    async with silent(2, 2, 2, bookies=2) as here:
        here.cluster.kill("b1")
        with pytest.raises(ReplicasUnavailable) as failure:
            await settle(here.reader, written)
        assert failure.value.entry_id == 2


async def test_a_read_of_a_busy_ledger_ends(autojump_clock: MockClock) -> None:
    """Entries that come during the read need not belong to it."""
    async with silent(options=Options()) as here, trio.open_nursery() as nursery:
        for bookie in here.cluster.bookies.values():
            bookie.delay_s = lambda _request: 0.002

        async def write() -> None:
            while True:
                await here.ledger.append(b"x")

        nursery.start_soon(write)
        await trio.sleep(1)
        acknowledged = here.ledger.last_confirmed
        last = await settle(here.reader, written)
        assert last >= acknowledged
        assert here.cluster.record(here.id).fragments[1:] == []
        nursery.cancel_scope.cancel()


async def test_a_read_of_a_busy_ledger_ends_though_a_bookie_is_away_for_good(
    autojump_clock: MockClock,
) -> None:
    """With one acknowledgement, nobody can tell what that bookie alone has."""
    async with (
        silent(2, 2, 1, bookies=2, options=Options()) as here,
        trio.open_nursery() as nursery,
    ):
        for bookie in here.cluster.bookies.values():
            bookie.delay_s = lambda _request: 0.002
        here.cluster.kill("b1")

        async def write() -> None:
            while True:
                await here.ledger.append(b"x")

        nursery.start_soon(write)
        await trio.sleep(5)
        acknowledged = here.ledger.last_confirmed
        assert await settle(here.reader, written) >= acknowledged
        nursery.cancel_scope.cancel()

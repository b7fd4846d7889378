"""A ledger id that is used again: clients and real bookies, end to end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import trio
import v2
from memory_cluster import memory_cluster
from rig import settings
from running import running
from trio.testing import MockClock

import ledger_client
from ledger_client import Client, LedgerWriter
from ledger_client.cluster.operations.verification import verify
from ledger_client.errors import (
    LedgerError,
    LedgerFenced,
    NoSuchLedger,
    OutcomeUnknown,
    WriterFailed,
)
from ledger_client.ledgers.ledgers import Ledgers
from metadata.calls import CollectGarbage, FlushNow
from metadata.records import encode_record, ledger_key
from metadata.store import MetadataStore, Versioned
from metadata.urls import open_store
from native.digest import Digest
from native.frame import Code
from native.link import add_frame

LEDGER = 7
BOOKIES = ("b1", "b2")


class Cluster:
    """Two bookies in this process, their metadata in one SQLite file, and clients."""

    def __init__(self, folder: Path, store: MetadataStore) -> None:
        self.store = store
        self.addresses: list[str] = []
        self._folder = folder

    @asynccontextmanager
    async def bookies(self) -> AsyncIterator[None]:
        """Both of them, until the end of the block."""
        async with AsyncExitStack() as stack:
            self.addresses = []
            for name in BOOKIES:
                config = settings(
                    self._folder / name,
                    bookie_id=name,
                    metadata=f"sqlite://{self._folder / 'metadata.db'}",
                )
                ready = await stack.enter_async_context(running(config, self.store))
                self.addresses.append(ready.address)
            yield

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with ledger_client.connect(f"bookie://{','.join(self.addresses)}") as client:
            yield client


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    for name in BOOKIES:
        (folder / name).mkdir()
    async with open_store(f"sqlite://{folder / 'metadata.db'}") as store:
        yield Cluster(folder, store)


@asynccontextmanager
async def made(client: Client) -> AsyncIterator[LedgerWriter]:
    async with client.ledgers.create(2, 2, 2, ledger_id=LEDGER) as ledger:
        yield ledger


async def write(client: Client, payloads: list[bytes]) -> None:
    async with made(client) as ledger:
        await ledger.append_many(payloads)


async def read(client: Client) -> list[bytes]:
    async with client.ledgers.open(LEDGER) as ledger:
        return [bytes(e.payload) for e in await ledger.read(0, ledger.last_confirmed)]


async def settle_on_disk(client: Client) -> None:
    """Flush, collect garbage and compact on every bookie."""
    for name in BOOKIES:
        await client._context.ledgers.call(name, FlushNow())
        await client._context.ledgers.call(name, CollectGarbage(major=True), timeout_s=60.0)


async def test_a_ledger_created_again_shows_nothing_of_the_former(tmp_path: Path) -> None:
    former, later = [b"old %d" % i for i in range(50)], [b"new %d" % i for i in range(20)]
    async with cluster(tmp_path) as here:
        async with here.bookies(), here.client() as client:
            await write(client, former)
            assert await read(client) == former
            await client._context.ledgers.call("b1", FlushNow())
            await client.ledgers.delete(LEDGER)
            await write(client, later)
            assert await read(client) == later
            async with here.client() as other:
                assert await read(other) == later
            await settle_on_disk(client)
            assert await read(client) == later
        async with here.bookies(), here.client() as client:
            assert await read(client) == later
            record, _ = await client._context.ledgers.catalogue.get(LEDGER)
            assert (await verify(client._context.ledgers, record)).whole


async def test_recovery_finds_the_end_of_the_ledger_of_today(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, here.bookies(), here.client() as client:
        await write(client, [b"old"] * 50)
        await client.ledgers.delete(LEDGER)
        async with here.client() as writing, here.client() as other:
            with pytest.raises((WriterFailed, OutcomeUnknown)):
                async with made(writing) as ledger:
                    await ledger.append_many([b"new 0", b"new 1", b"new 2"])
                    info = await other.ledgers.recover(LEDGER)
                    assert info.last_entry == 2
                    await ledger.append(b"late")
            assert await read(other) == [b"new 0", b"new 1", b"new 2"]


async def test_a_ledger_made_again_and_left_empty_is_empty(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, here.bookies(), here.client() as client:
        await write(client, [b"old"] * 5)
        await client.ledgers.delete(LEDGER)
        async with made(client) as ledger:
            assert ledger.metadata.incarnation > 0
            async with here.client() as other:
                assert (await other.ledgers.recover(LEDGER)).last_entry == -1


async def test_the_former_writer_is_told_and_writes_nothing_into_the_next(tmp_path: Path) -> None:
    """By the bookies, or by the metadata when it asks for other bookies."""
    async with (
        cluster(tmp_path) as here,
        here.bookies(),
        here.client() as writing,
        here.client() as other,
    ):
        with pytest.raises(OutcomeUnknown) as told:
            async with made(writing) as ledger:
                await ledger.append(b"old")
                await other.ledgers.delete(LEDGER)
                await write(other, [b"new 0", b"new 1"])
                await ledger.append(b"old too")
        assert isinstance(told.value.__cause__, (LedgerFenced, NoSuchLedger))
        assert await read(other) == [b"new 0", b"new 1"]
        async with here.client() as third:
            assert await read(third) == [b"new 0", b"new 1"]


async def test_the_former_writer_closes_no_later_ledger(tmp_path: Path) -> None:
    """Its close would cut the new ledger where the old one ended."""
    async with (
        cluster(tmp_path) as here,
        here.bookies(),
        here.client() as writing,
        here.client() as other,
    ):
        with pytest.raises(NoSuchLedger):
            async with made(writing) as ledger:
                await ledger.append(b"old")
                await other.ledgers.delete(LEDGER)
                later = other.ledgers.create(2, 2, 2, ledger_id=LEDGER)
                async with later as fresh:
                    await fresh.append_many([b"new 0", b"new 1"])
                    with pytest.raises(NoSuchLedger):
                        await ledger.close()
                    await fresh.append(b"new 2")
        assert await read(other) == [b"new 0", b"new 1", b"new 2"]


async def test_a_reader_of_the_former_ledger_is_told_that_it_is_gone(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as here,
        here.bookies(),
        here.client() as reading,
        here.client() as other,
    ):
        await write(other, [b"old"] * 3)
        async with reading.ledgers.open(LEDGER) as ledger:
            await other.ledgers.delete(LEDGER)
            await write(other, [b"new"] * 3)
            with pytest.raises(NoSuchLedger):
                await ledger.read(0, 2)
            with pytest.raises(NoSuchLedger):
                await ledger.refresh()
            assert await read(reading) == [b"new"] * 3, "over the same connections"


async def test_metadata_from_a_backup_issue_ids_again(tmp_path: Path) -> None:
    """A reader finds what was written since, and nothing from before."""
    async with cluster(tmp_path) as here, here.bookies(), here.client() as client:
        kept: list[int] = []
        for turn in range(4):
            async with client.ledgers.create(2, 2, 2) as ledger:
                await ledger.append_many([b"turn %d" % turn] * 5)
                kept.append(ledger.id)
        issued_again = kept[2:]
        for ledger_id in issued_again:  # as the backup has it: nobody heard of these
            await client.ledgers.delete(ledger_id)
        await client._context.ledgers.call("b2", FlushNow())
        for ledger_id in issued_again:
            async with client.ledgers.create(2, 2, 2, ledger_id=ledger_id) as ledger:
                await ledger.append(b"since")
        for ledger_id in issued_again:
            async with client.ledgers.open(ledger_id) as reader:
                found = await reader.read(0, reader.last_confirmed)
                assert [bytes(e.payload) for e in found] == [b"since"]
        for turn, ledger_id in enumerate(kept[:2]):
            async with client.ledgers.open(ledger_id) as reader:
                found = await reader.read(0, 4)
                assert [bytes(e.payload) for e in found] == [b"turn %d" % turn] * 5


async def test_another_entry_in_the_place_of_one_ends_the_writer(tmp_path: Path) -> None:
    """Somebody wrote under this id without asking the metadata."""
    async with cluster(tmp_path) as here, here.bookies(), here.client() as client:
        stranger = add_frame(Digest(), LEDGER, 1, 0, 10, b"theirs")
        with pytest.raises(OutcomeUnknown) as told:
            async with made(client) as ledger:
                await ledger.append(b"ours")
                host, _, port = here.addresses[0].rpartition(":")
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    await stream.send_all(stranger)
                    assert (await stream.receive_some(100))[8:12] == bytes(4)
                await ledger.append(b"ours too")
        assert "a different entry with the same id" in str(told.value.__cause__)


async def frames_to_all(addresses: list[str], frames: list[bytes]) -> list[int]:
    """Send *frames* to each bookie as a client of the bare wire does; return the codes."""
    codes = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            for each in frames:
                await stream.send_all(each)
                codes.append(int.from_bytes((await stream.receive_some(100))[8:12], "big"))
    return codes


async def test_a_client_of_the_bare_wire_spoils_no_id_that_is_yet_to_be_issued(
    tmp_path: Path,
) -> None:
    """Neither with entries nor with fences under any key."""
    async with cluster(tmp_path) as here, here.bookies(), here.client() as client:
        ids = range(1, 9)
        adds = [add_frame(Digest(), each, 0, -1, 10, b"theirs") for each in ids]
        fences = [v2.read(each, -1, fence_key=v2.OTHER_KEY) for each in ids]
        codes = await frames_to_all(here.addresses, [*adds, *fences])
        assert codes == [Code.NO_LEDGER] * 2 * len(ids) * len(BOOKIES)
        async with client.ledgers.create(2, 2, 2) as ledger:
            assert ledger.id in ids
            await ledger.append_many([b"ours"] * 3)
        await client.topics.create("a/t", partitions=1, replication=2, ack_quorum=2)
        async with client.producer("a/t") as producer:
            await producer.send(b"message")


async def test_recovery_of_a_ledger_without_entries_finds_none_of_a_stranger_s(
    tmp_path: Path,
) -> None:
    """Its writer died before its first entry, and a client of the bare wire used its id."""
    async with cluster(tmp_path) as here, here.bookies():
        theirs = [add_frame(Digest(), LEDGER, each, -1, 10, b"theirs") for each in range(3)]
        assert set(await frames_to_all(here.addresses, theirs)) == {Code.NO_LEDGER}
        async with here.client() as client, made(client) as ledger:
            async with here.client() as other, other.ledgers.open(LEDGER) as entries:
                assert entries.last_confirmed == -1
            assert ledger.id == LEDGER


@pytest.mark.parametrize("do", [Ledgers.delete, Ledgers.recover])
async def test_who_means_the_former_ledger_changes_no_later_one(
    do: Callable[[Ledgers, int], Awaitable[object]],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    """The id is used again after the first look at the record."""
    async with memory_cluster(2) as cluster, cluster.client() as writing, cluster.client() as other:
        with suppress(LedgerError):
            async with writing.ledgers.create(2, 2, 2, ledger_id=LEDGER):
                former = cluster.record(LEDGER)
                later = msgspec.structs.replace(former, incarnation=former.incarnation + 1)
                get, key = cluster.store.get, ledger_key(LEDGER)

                async def get_and_use_again(asked: str) -> Versioned | None:
                    found = await get(asked)
                    if asked == key and cluster.record(LEDGER) == former:
                        await cluster.store.put(key, encode_record(later))
                    return found

                monkeypatch.setattr(cluster.store, "get", get_and_use_again)
                with pytest.raises(NoSuchLedger):
                    await do(other._context.ledgers, LEDGER)
                assert cluster.record(LEDGER) == later

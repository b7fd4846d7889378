"""Reading over bookies in memory: replicas, damage, speculation, bounds."""

from __future__ import annotations

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, LedgerReader, Options
from ledger_client.errors import (
    EntryLost,
    NoSuchEntry,
    NoSuchLedger,
    ReplicasUnavailable,
    WrongPassword,
)
from native.frame import Code, Opcode, Request


async def write(client: Client, count: int, quorums: tuple[int, int, int] = (3, 3, 3)) -> int:
    """Write a closed ledger of numbered entries, all of them on every replica."""
    async with client.ledgers.create(*quorums) as ledger:
        await ledger.append_many([b"entry %d" % i for i in range(count)])
        await trio.sleep(1)
    return ledger.id


async def check(reader: LedgerReader, first: int, last: int) -> None:
    entries = await reader.read(first, last)
    assert [entry.entry_id for entry in entries] == list(range(first, last + 1))
    assert [entry.payload for entry in entries] == [b"entry %d" % i for i in range(first, last + 1)]
    assert {entry.ledger_id for entry in entries} <= {reader.id}


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (5, 3, 2), (4, 2, 1), (3, 1, 1)])
@pytest.mark.parametrize("batch_size", [1, 200, 1 << 20])
async def test_any_range_of_any_layout_is_read_back(
    autojump_clock: MockClock, quorums: tuple[int, int, int], batch_size: int
) -> None:
    options = Options(read_batch_size=batch_size)
    async with memory_cluster(5) as cluster, cluster.client(options) as client:
        ledger_id = await write(client, 300, quorums)
        async with client.ledgers.open(ledger_id) as reader:
            for first, last in [(0, 299), (0, 0), (299, 299), (7, 150), (8, 7)]:
                await check(reader, first, last)


async def test_reading_past_the_end_or_before_the_start_names_the_entry(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        client.ledgers.open(await write(client, 10)) as reader,
    ):
        for first, last, named in [(0, 10, 10), (12, 20, 12), (-1, 3, -1)]:
            with pytest.raises(NoSuchEntry) as missing:
                await reader.read(first, last)
            assert (missing.value.entry_id, missing.value.last_confirmed) == (named, 9)


async def test_an_empty_ledger_has_nothing_to_read(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with (
            client.ledgers.create() as ledger,
            client.ledgers.open(ledger.id, recover=False) as reader,
        ):
            assert reader.last_confirmed == -1
            assert list(await reader.read(0, -1)) == []
        async with client.ledgers.open(ledger.id) as reader:
            assert reader.closed
            assert [entry async for entry in reader.follow(0)] == []


async def test_an_open_ledger_is_read_up_to_its_last_confirmed_entry(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"entry 0")
        await trio.sleep(0.1)  # the explicit last confirmed entry travels
        for bookie in cluster.bookies.values():
            bookie.holding = True
        async with (
            client.ledgers.open(ledger.id, recover=False) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(ledger.append, b"entry 1")
            await trio.sleep(0.1)
            assert reader.last_confirmed == 0
            with pytest.raises(NoSuchEntry):
                await reader.read(0, 1)
            for bookie in cluster.bookies.values():
                bookie.holding = False
                await bookie.release()
            await trio.sleep(0.1)
            await check(reader, 0, 1)  # read() asks again before it refuses


async def test_damage_on_one_replica_is_served_from_another(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 100)
        for name, entry_id in [("b1", 10), ("b2", 20), ("b3", 30)]:
            cluster.bookies[name].damage(ledger_id, entry_id)
        async with client.ledgers.open(ledger_id) as reader:
            await check(reader, 0, 99)


async def test_damage_on_every_replica_is_a_lost_entry_and_not_a_missing_one(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 20)
        cluster.bookies["b1"].damage(ledger_id, 7)
        cluster.bookies["b2"].damage(ledger_id, 7)
        del cluster.bookies["b3"].entries(ledger_id)[7]
        async with client.ledgers.open(ledger_id) as reader:
            with pytest.raises(EntryLost) as lost:
                await reader.read(0, 19)
            assert (lost.value.ledger_id, lost.value.entry_id) == (ledger_id, 7)
            assert sorted(lost.value.reasons) == ["b1", "b2", "b3"]
            await check(reader, 8, 19)


@pytest.mark.parametrize("quorums", [(3, 3, 3), (3, 2, 2)])
async def test_holes_on_replicas_are_filled_from_the_others(
    autojump_clock: MockClock, quorums: tuple[int, int, int]
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 90, quorums)
        for number, bookie in enumerate(cluster.bookies.values()):
            for entry_id in range(number * 30, number * 30 + 30):
                holders = [b for b in cluster.bookies.values() if entry_id in b.entries(ledger_id)]
                if len(holders) > 1:
                    bookie.entries(ledger_id).pop(entry_id, None)
        async with client.ledgers.open(ledger_id) as reader:
            await check(reader, 0, 89)


async def test_an_entry_that_all_replicas_deny_is_missing(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 10)
        for bookie in cluster.bookies.values():
            del bookie.entries(ledger_id)[4]
        async with client.ledgers.open(ledger_id) as reader:
            with pytest.raises(NoSuchEntry) as missing:
                await reader.read(4, 4)
            assert missing.value.entry_id == 4


async def test_denials_do_not_count_while_a_replica_cannot_be_asked(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client(Options(read_timeout_s=3)) as client:
        ledger_id = await write(client, 10)
        del cluster.bookies["b1"].entries(ledger_id)[4]
        del cluster.bookies["b2"].entries(ledger_id)[4]
        cluster.kill("b3")
        async with client.ledgers.open(ledger_id) as reader:
            start = trio.current_time()
            with pytest.raises(ReplicasUnavailable) as unavailable:
                await reader.read(4, 4)
            assert sorted(unavailable.value.reasons) == ["b1", "b2", "b3"]
            assert trio.current_time() - start == pytest.approx(3, abs=1)
            cluster.revive("b3")
            await check(reader, 4, 4)


@pytest.mark.parametrize("code", [Code.IO_ERROR, Code.TOO_MANY, Code.BAD_REQUEST])
async def test_a_replica_that_answers_with_an_error_is_passed_over(
    autojump_clock: MockClock, code: Code
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 50)
        cluster.bookies["b1"].read_code = code
        cluster.bookies["b2"].read_code = code
        async with client.ledgers.open(ledger_id) as reader:
            await check(reader, 0, 49)


@pytest.mark.parametrize("quorums", [(3, 3, 3), (3, 2, 2)])
async def test_a_dead_bookie_costs_readers_nothing_but_a_try(
    autojump_clock: MockClock, quorums: tuple[int, int, int]
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 50, quorums)
        cluster.kill("b2")
        async with client.ledgers.open(ledger_id) as reader:
            start = trio.current_time()
            await check(reader, 0, 49)
            assert trio.current_time() - start < 0.5


async def test_a_late_replica_is_backed_by_a_second_one_and_asked_last_from_then_on(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client(Options(speculative_s=2)) as client:
        ledger_id = await write(client, 10)
        late = cluster.record(ledger_id).fragments[0].bookies[-1]  # the first to be asked
        cluster.bookies[late].delay_s = slow_reads
        async with client.ledgers.open(ledger_id) as reader:
            start = trio.current_time()
            await check(reader, 0, 9)
            assert trio.current_time() - start == pytest.approx(2, abs=0.1)
            await check(reader, 0, 9)
            assert trio.current_time() - start == pytest.approx(2, abs=0.1)


async def test_speculation_doubles_its_patience(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client(Options(speculative_s=1)) as client:
        ledger_id = await write(client, 10)
        for bookie in cluster.bookies.values():
            bookie.delay_s = slow_reads
        async with client.ledgers.open(ledger_id) as reader:
            with trio.move_on_after(9):
                await reader.read(0, 9)
        asked = reads_by_bookie(cluster)
        assert sorted(asked.values()) == [1, 1, 1]


async def test_a_silent_bookie_counts_as_unavailable_and_its_connection_is_dropped(
    autojump_clock: MockClock,
) -> None:
    options = Options(request_timeout_s=4, read_timeout_s=1)
    async with memory_cluster(1) as cluster, cluster.client(options) as client:
        ledger_id = await write(client, 10, (1, 1, 1))
        cluster.bookies["b1"].answering = False
        async with client.ledgers.open(ledger_id) as reader:
            with pytest.raises(ReplicasUnavailable):
                await reader.read(0, 9)
            await trio.sleep(1.5)  # so long it has for a sign of life
            cluster.bookies["b1"].answering = True
            await check(reader, 0, 9)
        assert cluster.bookies["b1"].connections == 2


async def test_opening_says_what_is_wrong(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        async with client.ledgers.create(1, 1, 1, password=b"secret", digest="hmac") as ledger:
            await ledger.append(b"entry 0")
        with pytest.raises(WrongPassword) as wrong:
            async with client.ledgers.open(ledger.id, b"guess"):
                pass
        assert wrong.value.ledger_id == ledger.id
        with pytest.raises(NoSuchLedger):
            async with client.ledgers.open(77):
                pass
        async with client.ledgers.open(ledger.id, b"secret") as reader:
            await check(reader, 0, 0)


@pytest.mark.parametrize("digest", ["crc32", "hmac", "crc32c", "dummy"])
async def test_every_digest_works_with_and_without_striping(
    autojump_clock: MockClock, digest: str
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        for quorums in [(3, 3, 2), (3, 2, 2)]:
            async with client.ledgers.create(*quorums, digest=digest) as ledger:
                await ledger.append_many([b"entry 0", b"entry 1"])
            async with client.ledgers.open(ledger.id) as reader:
                await check(reader, 0, 1)


async def test_batches_hold_what_was_asked_for_and_no_object_per_entry(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 1000)
        async with client.ledgers.open(ledger_id) as reader:
            batches = [batch async for batch in reader.read_batches(10, 989)]
        assert sum(map(len, batches)) == 980
        assert (batches[0].first_entry, batches[-1].last_entry) == (10, 989)
        assert b"".join(batches[0].payloads()).startswith(b"entry 10entry 11")
        assert bytes(batches[0].payload(1)) == b"entry 11"


def slow_reads(request: Request) -> float:
    return 60.0 if request.opcode in (Opcode.READ, Opcode.BATCH_READ) else 0.0


def reads_by_bookie(cluster: MemoryCluster) -> dict[str, int]:
    return {
        name: sum(request.opcode == Opcode.BATCH_READ for request in bookie.requests)
        for name, bookie in cluster.bookies.items()
    }


async def test_batches_go_on_after_a_cancellation_and_do_not_end_after_an_error(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await write(client, 100)
        async with client.ledgers.open(ledger_id) as reader:
            batches = reader.read_batches(0, 99)
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(batches)
            assert sum([len(batch) async for batch in batches]) == 100
            for bookie in cluster.bookies.values():
                del bookie.entries(ledger_id)[4]
            batches = reader.read_batches(4, 99)
            for _ in range(2):
                with pytest.raises(NoSuchEntry):
                    await anext(batches)

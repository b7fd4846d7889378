"""Writing over bookies in memory: order, quorums, back-pressure, failures."""

from __future__ import annotations

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client import LedgerWriter, Options
from ledger_client.errors import (
    AckQuorumLost,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    OutcomeUnknown,
    PayloadTooLarge,
    WriterFailed,
    WrongPassword,
)
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from metadata.records import LedgerState
from native.frame import Code, Opcode, Request


async def test_what_is_appended_is_read_back_and_the_ledger_is_closed_at_its_end(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create() as ledger:
            assert await ledger.append(b"one") == 0
            assert await ledger.append_many([b"two", b"three"]) == range(1, 3)
            assert ledger.last_confirmed == 2
        record = cluster.record(ledger.id)
        assert (record.state, record.last_entry, record.length) == (LedgerState.CLOSED, 2, 11)
        async with client.ledgers.open(ledger.id) as reader:
            entries = await reader.read(0, reader.last_confirmed)
            assert [entry.payload for entry in entries] == [b"one", b"two", b"three"]
            assert [entry async for entry in reader.follow(0)] == list(entries)


@pytest.mark.parametrize("seed", range(5))
async def test_entries_are_confirmed_in_order_although_answers_come_shuffled(
    autojump_clock: MockClock, seed: int
) -> None:
    async with (
        memory_cluster(3, seed=seed) as cluster,
        cluster.client() as client,
        client.ledgers.create(3, 3, 2) as ledger,
        trio.open_nursery() as nursery,
    ):
        for bookie in cluster.bookies.values():
            bookie.holding = True
        confirmed: list[int] = []

        async def append(number: int) -> None:
            entry_id = await ledger.append(b"%d" % number)
            assert ledger.last_confirmed >= entry_id
            confirmed.append(entry_id)

        for number in range(20):
            nursery.start_soon(append, number)
            await wait_all_tasks_blocked()  # one entry a turn
        assert confirmed == []
        await cluster.bookies["b1"].release(shuffled=True)
        await wait_all_tasks_blocked()
        assert confirmed == []
        await cluster.bookies["b3"].release(shuffled=True)
        await wait_all_tasks_blocked()
        assert sorted(confirmed) == list(range(20))
        for bookie in cluster.bookies.values():
            bookie.holding = False


async def test_many_tasks_that_append_in_one_turn_share_one_pass_through_c(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        async with client.ledgers.create(1, 1, 1) as ledger:
            ids: list[int] = []

            async def append() -> None:
                ids.append(await ledger.append(b"x"))

            async with trio.open_nursery() as nursery:
                for _ in range(500):
                    nursery.start_soon(append)
                await wait_all_tasks_blocked()
            assert sorted(ids) == list(range(500))
        lacs = {request.body[16:24] for request in adds(cluster, "b1")}
        assert lacs == {(-1).to_bytes(8, "big", signed=True)}  # all built before any answer


async def test_a_large_call_goes_out_in_pieces_and_keeps_its_ids_together(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            results: list[range] = []

            async def append_many(size: int) -> None:
                results.append(await ledger.append_many([bytes(size)] * 300))

            for size in (10_000, 10, 5_000):
                nursery.start_soon(append_many, size)
        covered = sorted(results, key=lambda ids: ids.start)
        assert [len(ids) for ids in covered] == [300, 300, 300]
        assert [i for ids in covered for i in ids] == list(range(900))
        for bookie in cluster.bookies.values():
            assert sorted(bookie.entries(ledger.id)) == list(range(900))


async def test_striping_puts_each_entry_on_its_write_quorum(autojump_clock: MockClock) -> None:
    async with memory_cluster(5) as cluster, cluster.client() as client:
        async with client.ledgers.create(5, 3, 2) as ledger:
            await ledger.append_many([b"%d" % i for i in range(50)])
            await trio.sleep(1)
        ensemble = cluster.record(ledger.id).fragments[0].bookies
        for index, name in enumerate(ensemble):
            expected = [e for e in range(50) if (index - e) % 5 < 3]
            assert sorted(cluster.bookies[name].entries(ledger.id)) == expected


async def test_a_bookie_that_crashes_is_done_without_while_the_quorum_stands(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"before")
            cluster.kill("b2")
            assert await ledger.append_many([b"after", b"that"]) == range(1, 3)
        assert cluster.record(ledger.id).last_entry == 2
        async with client.ledgers.open(ledger.id) as reader:
            assert len(await reader.read(0, 2)) == 3


async def test_losing_the_ack_quorum_fails_the_writer_and_nothing_acknowledged_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"kept")
            for bookie in cluster.bookies.values():
                bookie.answering = False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect_unknown, ledger, b"pending", 1)
                await wait_all_tasks_blocked()
                cluster.kill("b1")
                cluster.kill("b3")
            with pytest.raises(AckQuorumLost) as lost:
                await ledger.append(b"refused")
            assert {"b1", "b3"} <= set(lost.value.lost)  # b2 keeps silent, and is lost in time
            assert isinstance(lost.value.__cause__, NotEnoughBookies)
            assert lost.value.ledger_id == ledger.id
            for bookie in cluster.bookies.values():
                bookie.answering = True
        record = cluster.record(ledger.id)
        assert (record.state, record.last_entry, record.length) == (LedgerState.CLOSED, 0, 4)
        async with client.ledgers.open(ledger.id) as reader:
            assert [entry.payload for entry in await reader.read(0, 0)] == [b"kept"]


async def test_a_refusal_gives_the_bookie_up(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            cluster.bookies["b2"].add_code = Code.READ_ONLY
            assert await ledger.append(b"one") == 0
            await trio.sleep(1)
            assert await ledger.append(b"two") == 1
        assert len(adds(cluster, "b2")) == 1


async def test_a_fenced_ledger_ends_the_writer(autojump_clock: MockClock) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"one")
        for bookie in cluster.bookies.values():
            bookie.ledgers[ledger.id].fenced = True
        await expect_unknown(ledger, b"two", 1, cause=LedgerFenced)
        with pytest.raises(LedgerFenced):
            await ledger.append(b"three")


async def test_a_foreign_key_on_the_bookies_is_told_as_wrong_password(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        for bookie in cluster.bookies.values():
            bookie.add_code = Code.UNAUTHORIZED
        async with client.ledgers.create() as ledger:
            with pytest.raises(WrongPassword):
                await ledger.append(b"one")


async def test_an_entry_that_nobody_acknowledges_fails_the_writer_after_the_time_allowed(
    autojump_clock: MockClock,
) -> None:
    options = Options(append_timeout_s=7.0, explicit_lac_s=0)
    async with (
        memory_cluster(3) as cluster,
        cluster.client(options) as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"one")
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda request: 100.0 if request.opcode == Opcode.ADD else 0.0
        start = trio.current_time()
        await expect_unknown(ledger, b"two", 1, cause=WriterFailed)
        assert trio.current_time() - start == pytest.approx(7.0, abs=0.1)


async def test_bookies_that_answer_other_things_do_not_keep_an_entry_waiting_for_ever(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client(Options(append_timeout_s=5)) as client,
        client.ledgers.create(3, 3, 2) as ledger,
        trio.open_nursery() as nursery,
    ):
        await ledger.append(b"one")
        for bookie in cluster.bookies.values():
            bookie.holding = True
        nursery.start_soon(expect_unknown, ledger, b"two", 1, WriterFailed)
        await trio.sleep(1)
        async with client.ledgers.open(ledger.id, recover=False) as reader:
            await reader.read(0, 0)
            await reader.refresh()


async def test_appends_wait_while_too_many_bytes_are_in_flight(autojump_clock: MockClock) -> None:
    limit = 1 << 20
    options = Options(bytes_in_flight_max=limit)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        async with client.ledgers.create(3, 3, 2) as ledger, trio.open_nursery() as nursery:
            for bookie in cluster.bookies.values():
                bookie.holding = True
            nursery.start_soon(ledger.append_many, [bytes(10_000)] * 1000)
            await wait_all_tasks_blocked()
            sent = sum(len(request.body) for request in adds(cluster, "b1"))
            assert limit <= sent < limit + (1 << 20)
            for bookie in cluster.bookies.values():
                bookie.holding = False
                await bookie.release()
        assert cluster.record(ledger.id).last_entry == 999


async def test_a_stalled_bookie_is_given_up_when_the_quorum_can_spare_it(
    autojump_clock: MockClock,
) -> None:
    options = Options(
        queue_size_max=1 << 20, slow_bookie_s=2.0, send_timeout_s=60, bookie_timeout_s=60
    )
    async with (
        memory_cluster(3) as cluster,
        cluster.client(options) as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"first")
        cluster.stalled["b3"] = trio.Event()
        start = trio.current_time()
        ids = await ledger.append_many([bytes(100_000)] * 200)
        assert ids == range(1, 201)
        assert 2.0 <= trio.current_time() - start < 5.0
        connection = client._context.ledgers.bookies.connections["b3"]
        assert connection.queued < 1 << 20  # what was queued there is dropped


async def test_a_stalled_bookie_that_the_quorum_needs_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    options = Options(queue_size_max=1 << 20, slow_bookie_s=2.0, send_timeout_s=60)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            await ledger.append(b"first")
            cluster.stalled["b3"] = trio.Event()
            nursery.start_soon(ledger.append_many, [bytes(100_000)] * 100)
            await trio.sleep(10)
            assert ledger.last_confirmed == 0
            cluster.stalled.pop("b3").set()
        assert cluster.record(ledger.id).last_entry == 100


async def test_a_bookie_that_takes_no_bytes_is_dropped_after_the_send_timeout(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client(Options(send_timeout_s=3, bookie_timeout_s=60)) as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        cluster.stalled["b1"] = trio.Event()
        await ledger.append(b"one")
        await trio.sleep(4)
        assert not client._context.ledgers.bookies.connections["b1"].standing
        await ledger.append(b"two")


@pytest.mark.parametrize("turns", range(6))
async def test_cancelling_an_append_leaves_the_writer_usable(
    autojump_clock: MockClock, turns: int
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ledger.append, b"cancelled")
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            entry_id = await ledger.append(b"next")
            assert ledger.last_confirmed == entry_id <= 1
        async with client.ledgers.open(ledger.id) as reader:
            payloads = [e.payload for e in await reader.read(0, reader.last_confirmed)]
        assert payloads in ([b"next"], [b"cancelled", b"next"])


async def test_cancelling_half_of_a_large_call_sends_no_more_of_it(
    autojump_clock: MockClock,
) -> None:
    options = Options(bytes_in_flight_max=1 << 20)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            for bookie in cluster.bookies.values():
                bookie.holding = True
            with trio.move_on_after(1):
                await ledger.append_many([bytes(100_000)] * 100)
            for bookie in cluster.bookies.values():
                bookie.holding = False
                await bookie.release()
            entry_id = await ledger.append(b"next")
            assert entry_id < 30
        assert cluster.record(ledger.id).last_entry == entry_id


async def test_payloads_that_cannot_be_sent_are_refused_before_anything_is(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        async with client.ledgers.create(1, 1, 1) as ledger:
            with pytest.raises(PayloadTooLarge) as large:
                await ledger.append_many([b"small", bytes(PAYLOAD_SIZE_MAX + 1)])
            assert large.value.size == PAYLOAD_SIZE_MAX + 1
            with pytest.raises(TypeError):
                await ledger.append("text")  # type: ignore[arg-type]
            assert await ledger.append_many([]) == range(0)
            assert await ledger.append(bytes(PAYLOAD_SIZE_MAX)) == 0
            assert await ledger.append_many([bytearray(b"a"), memoryview(b"b")]) == range(1, 3)
        async with client.ledgers.open(ledger.id) as reader:
            entries = await reader.read(0, 2)
            assert [len(entry.payload) for entry in entries] == [PAYLOAD_SIZE_MAX, 1, 1]


async def test_a_closed_writer_takes_nothing_and_closes_twice(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create() as ledger:
            await ledger.append(b"one")
            await ledger.close()
            assert ledger.closed
            with pytest.raises(LedgerClosed) as closed:
                await ledger.append(b"two")
            assert closed.value.ledger_id == ledger.id
            await ledger.close()
        assert cluster.record(ledger.id).last_entry == 0


async def expect_unknown(
    ledger: LedgerWriter,
    payload: bytes,
    entry_id: int,
    cause: type[Exception] = AckQuorumLost,
) -> None:
    with pytest.raises(OutcomeUnknown) as unknown:
        await ledger.append(payload)
    assert (unknown.value.first_entry, unknown.value.last_entry) == (entry_id, entry_id)
    assert unknown.value.ledger_id == ledger.id
    assert isinstance(unknown.value.__cause__, cause)
    assert "\n" not in str(unknown.value)


def adds(cluster: MemoryCluster, name: str) -> list[Request]:
    return [r for r in cluster.bookies[name].requests if r.opcode == Opcode.ADD]

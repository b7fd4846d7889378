"""Ledgers that fail under a lane: what is in them stays, the rest is sent again."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from lane_history import check_rows
from lane_process import HASTY, Process
from lane_rig import batch, lane_record, make_topic, messages, rows, stored
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client import Client
from ledger_client.errors import LedgerError, MetadataUnavailable, SendUnknown
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_writer import LaneWriter
from metadata.records import UNDERREPLICATED
from native.frame import Code, Opcode


async def append_each(lane: LaneWriter, count: int, first: int = 0) -> list[tuple[int, int]]:
    places: dict[int, tuple[int, int]] = {}

    async def append(number: int) -> None:
        (places[number],) = await lane.append([batch(str(number))])

    async with trio.open_nursery() as nursery:
        for number in range(first, first + count):
            nursery.start_soon(append, number)
            await wait_all_tasks_blocked()
    return [places[number] for number in sorted(places)]


async def check_lane(client: Client, cluster: MemoryCluster, count: int) -> None:
    assert await messages(client, cluster) == [b"%d" % number for number in range(count)]
    check_rows(cluster, await stored(client, cluster))


def current_bookies(cluster: MemoryCluster) -> list[str]:
    return cluster.record(rows(cluster)[-1].ledger_id).fragments[-1].bookies


@pytest.mark.parametrize("reached", [0, 1, 2, 3])
async def test_what_a_failed_ledger_holds_is_acknowledged_and_the_rest_sent_again(
    autojump_clock: MockClock, reached: int
) -> None:
    """Each entry that was under way is in one of the two ledgers, in its place."""
    async with memory_cluster(6) as cluster, cluster.client(HASTY) as client:
        topic = make_topic(cluster, replication=3, ack_quorum=3)
        async with (
            open_lane(client._context.ledgers, topic, -1) as lane,
            trio.open_nursery() as nursery,
        ):
            await append_each(lane, 2)
            chosen = current_bookies(cluster)
            for name in chosen[reached:]:
                cluster.bookies[name].add_code = Code.IO_ERROR
            for name in chosen[:reached]:
                cluster.bookies[name].holding = True
            for name in set(cluster.bookies) - set(chosen):
                cluster.bookies[name].answering = False  # nobody can come in
            nursery.start_soon(append_each, lane, 5, 2)
            await trio.sleep(HASTY.replace_timeout_s / 2)
            for bookie in cluster.bookies.values():
                bookie.holding = False
                bookie.answering = True
                bookie.add_code = Code.OK
        await check_lane(client, cluster, 7)


async def test_a_ledger_recovered_by_a_reader_is_followed_by_the_next(
    autojump_clock: MockClock,
) -> None:
    """open_ledger fences the writer; as the epoch is the same, the lane goes on."""
    async with memory_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            places = await append_each(lane, 3)
            async with other.ledgers.open(places[0][0]) as reader:
                assert reader.closed
            places += await append_each(lane, 3, 3)
            assert places[2][0] != places[3][0]
            assert lane.epoch == 1
        await check_lane(client, cluster, 6)


async def test_a_ledger_closed_by_another_before_it_is_full_is_no_harm(
    autojump_clock: MockClock,
) -> None:
    """The transaction that turns finds it sealed: it is recovered, at the same end."""
    async with memory_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        topic = make_topic(cluster, entries=3)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await append_each(lane, 2)
            for bookie in cluster.bookies.values():
                bookie.delay_s = lambda _request: 0.5
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append_each, lane, 2, 2)
                await trio.sleep(0.6)
                await other.ledgers.recover(rows(cluster)[0].ledger_id)
        await check_lane(client, cluster, 4)


async def test_a_prepared_ledger_that_was_recovered_is_skipped(autojump_clock: MockClock) -> None:
    """A repair closes ledgers whose bookies are lost: another is made, none is left over."""
    async with memory_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        topic = make_topic(cluster, entries=4)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await append_each(lane, 2)
            await wait_all_tasks_blocked()
            _, prepared = rows(cluster)
            assert prepared.state == "prepared"
            await other.ledgers.recover(prepared.ledger_id)
            await append_each(lane, 4, 2)
        assert prepared.ledger_id not in [row.ledger_id for row in rows(cluster)]
        await check_lane(client, cluster, 6)


async def test_a_prepared_ledger_whose_bookies_are_gone_is_replaced(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(6) as cluster, cluster.client(HASTY) as client:
        topic = make_topic(cluster, entries=4)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await append_each(lane, 2)
            await wait_all_tasks_blocked()
            for name in current_bookies(cluster)[:2]:
                cluster.kill(name)
            await trio.sleep(10)
            await append_each(lane, 4, 2)
        await check_lane(client, cluster, 6)


async def test_a_full_ledger_takes_batches_while_the_store_is_away(
    autojump_clock: MockClock,
) -> None:
    """The limits are soft: with the store down, appends to open ledgers go on."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=3)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await append_each(lane, 1)
            cluster.store.available = False
            with trio.fail_after(20):
                await append_each(lane, 20, 1)
            assert len(rows(cluster)) <= 2
            cluster.store.available = True
            await trio.sleep(5)
            await append_each(lane, 2, 21)
            assert len([row for row in rows(cluster) if row.state != "prepared"]) == 2
        await check_lane(client, cluster, 23)


async def test_calls_wait_while_the_store_is_away_and_the_ledger_failed(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        topic = make_topic(cluster)
        async with (
            open_lane(client._context.ledgers, topic, -1) as lane,
            trio.open_nursery() as nursery,
        ):
            await append_each(lane, 2)
            await other.ledgers.recover(rows(cluster)[0].ledger_id)
            cluster.store.available = False
            nursery.start_soon(append_each, lane, 5, 2)
            await trio.sleep(20)
            cluster.store.available = True
        await check_lane(client, cluster, 7)


async def test_what_cannot_be_decided_in_time_is_unknown(autojump_clock: MockClock) -> None:
    """And the lane takes nothing any more: later messages must not come before these."""
    async with memory_cluster(4) as cluster, cluster.client() as client, cluster.client() as other:
        topic = make_topic(cluster)
        with pytest.raises(MetadataUnavailable):
            async with open_lane(client._context.ledgers, topic, -1) as lane:
                await append_each(lane, 1)
                await other.ledgers.recover(rows(cluster)[0].ledger_id)
                cluster.store.available = False
                with pytest.raises(SendUnknown) as unknown:
                    await lane.append([batch("x", "y"), batch("z")])
                assert unknown.value.count == 3
                with pytest.raises(MetadataUnavailable):
                    await lane.append([batch("z")])
        cluster.store.available = True
        async with open_lane(client._context.ledgers, topic, -1, access="take-over") as lane:
            await append_each(lane, 1, 1)
        await check_lane(client, cluster, 2)


async def test_a_cancelled_call_leaves_no_hole(autojump_clock: MockClock) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            with trio.CancelScope() as scope:
                scope.cancel()
                await lane.append([batch("0")])
            await append_each(lane, 2, 1)
        await check_lane(client, cluster, 3)


async def test_a_cancelled_block_closes_the_lane_if_nothing_is_under_way(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        with trio.CancelScope() as scope:
            async with open_lane(client._context.ledgers, topic, -1) as lane:
                await append_each(lane, 2)
                scope.cancel()
                await trio.sleep_forever()
        assert [row.state for row in rows(cluster)] == ["closed"]
        await check_lane(client, cluster, 2)


async def test_enough_bookies_for_the_next_ledger_are_waited_for(
    autojump_clock: MockClock,
) -> None:
    """PS-29: what queues meanwhile is not lost; the ledger that is full takes it."""
    async with memory_cluster(3) as cluster, cluster.client(HASTY) as client:
        topic = make_topic(cluster, entries=2)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await append_each(lane, 1)
            cluster.bookies["b3"].delay_s = lambda _request: 0.0
            record = cluster.store.bookies.pop("b3")
            with trio.fail_after(10):
                await append_each(lane, 5, 1)
            cluster.store.bookies["b3"] = record
            await trio.sleep(5)
            await append_each(lane, 2, 6)
        assert lane_record(cluster).current > 0
        await check_lane(client, cluster, 8)


def marked(cluster: MemoryCluster) -> list[int]:
    keys = sorted(key for key in cluster.store.values if key.startswith(UNDERREPLICATED))
    return [int(key.removeprefix(UNDERREPLICATED)) for key in keys]


@pytest.mark.parametrize(("delay_s", "is_marked"), [(0.05, False), (5.0, True)])
async def test_a_bookie_behind_the_others_holds_no_turn_up(
    autojump_clock: MockClock, delay_s: float, is_marked: bool
) -> None:
    """It has a moment once the lane has turned; then somebody is asked to look at the copies."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await append_each(lane, 1)
            cluster.bookies["b1"].delay_s = lambda request: (
                delay_s if request.opcode == Opcode.ADD else 0.0
            )
            before = trio.current_time()
            await append_each(lane, 2, 1)
            assert trio.current_time() - before < 0.05
            ledger_id = rows(cluster)[0].ledger_id
            await trio.sleep(1)
            assert marked(cluster) == ([ledger_id] if is_marked else [])
        await check_lane(client, cluster, 3)


async def test_one_who_takes_over_asks_after_the_ledger_that_just_ended(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        process = Process(cluster)
        with suppress(LedgerError):
            async with (
                process.client(HASTY) as doomed,
                open_lane(doomed._context.ledgers, topic, -1) as lane,
            ):
                await append_each(lane, 3)
                process.kill()
        ended = rows(cluster)[0].ledger_id
        assert marked(cluster) == []
        async with open_lane(client._context.ledgers, topic, -1, access="take-over"):
            assert ended in marked(cluster)

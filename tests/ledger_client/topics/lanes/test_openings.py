"""Many lanes that are opened at once, some of which wait for others."""

from __future__ import annotations

import msgspec
import pytest
import trio
from lane_rig import UID, make_topic, rows as rows_of
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.ledgers.ledgers import OPENINGS_MAX
from ledger_client.topics.lanes import lane_end
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_rows import FRESH_S, LaneRows
from metadata.topics import TopicRecord, encode_row, topic_key

MANY = OPENINGS_MAX + 6


async def test_lanes_that_wait_for_another_writer_let_others_be_opened(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        got: list[int] = []

        async def wait(number: int) -> None:
            async with open_lane(theirs._context.ledgers, topic, -1, access="wait"):
                got.append(number)

        async with open_lane(ours._context.ledgers, topic, -1), trio.open_nursery() as nursery:
            for number in range(MANY):
                nursery.start_soon(wait, number)
            await trio.sleep(10)
            await open_another(cluster, theirs)
            assert got == []
            nursery.cancel_scope.cancel()


async def test_lanes_whose_ledgers_are_recovered_let_others_be_opened(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookies that are away keep a recovery waiting for many seconds."""
    found = lane_end._find_end

    async def hang(ledgers: object, rows: LaneRows, *rest: object) -> object:
        if rows.topic.uid == UID:
            await trio.sleep_forever()
        return await found(ledgers, rows, *rest)  # type: ignore[arg-type]

    async with memory_cluster(3) as cluster, cluster.client() as client:
        ledgers, topic = client._context.ledgers, make_topic(cluster)

        async def hold(partition: int) -> None:
            async with open_lane(ledgers, topic, partition):
                pass

        async with trio.open_nursery() as nursery:
            for partition in range(MANY):
                nursery.start_soon(hold, partition)
        monkeypatch.setattr(lane_end, "_find_end", hang)
        async with trio.open_nursery() as nursery:
            for partition in range(MANY):
                nursery.start_soon(hold, partition)
            await trio.sleep(1)
            await open_another(cluster, client)
            nursery.cancel_scope.cancel()


async def open_another(cluster: MemoryCluster, client: Client) -> None:
    """Open a lane of another topic, which nothing is in the way of."""
    other: TopicRecord = msgspec.structs.replace(
        make_topic(cluster), name="shop/other", uid=UID + 1
    )
    await cluster.store.put(topic_key(other.name), encode_row(other))
    with trio.fail_after(1):
        async with open_lane(client._context.ledgers, other, -1):
            pass


async def test_settings_that_change_during_a_long_opening_hold_for_its_first_ledger(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = lane_end._find_end

    async def change(ledgers: object, rows: LaneRows, *rest: object) -> object:
        make_topic(cluster, replication=2, ack_quorum=2)
        await trio.sleep(2 * FRESH_S)
        return await found(ledgers, rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(lane_end, "_find_end", change)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        for _ in range(2):
            async with open_lane(client._context.ledgers, topic, -1):
                pass
        sizes = [cluster.record(row.ledger_id).ensemble_size for row in rows_of(cluster)]
        assert sizes == [3, 2]

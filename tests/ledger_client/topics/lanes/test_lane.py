"""Writing a lane: order, rolling, and what its rows say."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
from lane_rig import batch, lane_record, make_topic, messages, rows, stored
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import EventTimeBack, PayloadTooLarge, ProducerClosed
from ledger_client.topics.lanes.lane import open_lane
from metadata.records import LedgerState


async def test_batches_are_appended_in_order_and_told_where_they_are(
    autojump_clock: MockClock,
) -> None:
    """PS-04, PS-05, PS-06: a lane is a series of ledgers; entry 0 of each is the lane's state."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            first = await lane.append([batch("a", "b"), batch("c")])
            second = await lane.append([batch("d")])
            assert (lane.lane, lane.epoch) == (0, 1)
        (row,) = rows(cluster)
        assert first == [(row.ledger_id, 1), (row.ledger_id, 2)]
        assert second == [(row.ledger_id, 3)]
        assert await messages(client, cluster) == [b"a", b"b", b"c", b"d"]
        found = await stored(client, cluster)
        assert [item.state is not None for item in found] == [True, False, False, False, True]
        assert (row.state, row.entries, row.messages, row.base_version) == ("closed", 5, 4, 0)
        assert row.size == cluster.record(row.ledger_id).length
        assert lane_record(cluster).next_version == 5


async def test_a_ledger_that_is_full_is_followed_by_the_next(autojump_clock: MockClock) -> None:
    """PS-07, PS-27, TB-27: the entry that fills the ledger is its last; versions go on."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=3)
        async with (
            open_lane(client._context.ledgers, topic, -1) as lane,
            trio.open_nursery() as nursery,
        ):
            for number in range(10):
                nursery.start_soon(lane.append, [batch(str(number))])
                await trio.lowlevel.checkpoint()
        found = rows(cluster)
        assert [row.state for row in found] == ["closed"] * 4
        assert [row.messages for row in found] == [3, 3, 3, 1]
        versions = [item.version for item in await stored(client, cluster)]
        assert versions == list(range(len(versions)))
        assert sorted(await messages(client, cluster)) == [b"%d" % n for n in range(10)]
        for row in found:
            record = cluster.record(row.ledger_id)
            assert (record.state, record.last_entry) == (LedgerState.CLOSED, row.entries - 1)


async def test_appends_queue_while_the_lane_turns(autojump_clock: MockClock) -> None:
    """PS-29, TB-07: one call may go to several ledgers, and its order is kept."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            ids = await lane.append([batch(str(number)) for number in range(7)])
            assert len({ledger_id for ledger_id, _ in ids}) == 4
            assert [entry_id for _, entry_id in ids] == [1, 2, 1, 2, 1, 2, 1]
        assert await messages(client, cluster) == [b"%d" % n for n in range(7)]


async def test_nothing_is_sent_of_a_call_that_is_refused(autojump_clock: MockClock) -> None:
    """TB-14, TB-60: an event time that goes back names lane, time and the last accepted."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, order="event-time")
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch("a", times=[5])])
            with pytest.raises(EventTimeBack) as back:
                await lane.append([batch("b", times=[6]), batch("c", times=[4])])
            assert (back.value.event_time, back.value.last_event_time) == (4, 6)
            big = batch("x")
            big = type(big)(payload=bytes(6 << 20), count=1, size=6 << 20)
            with pytest.raises(PayloadTooLarge):
                await lane.append([big])
            assert lane.last_event_time == 5
            assert await lane.append([]) == []
        with pytest.raises(ProducerClosed):
            await lane.append([batch("d", times=[9])])
        assert await messages(client, cluster) == [b"a"]

"""Reading lanes while they are written, turn, change hands, and are purged."""

from __future__ import annotations

import pytest
import trio
from lane_rig import batch, make_topic, rows
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import MessageId
from ledger_client.errors import Gap
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.reader import TopicReader

TOPIC = "shop/orders"


async def keep(reader: TopicReader, got: list[Message]) -> None:
    while True:
        got.append(await anext(reader))


@pytest.mark.parametrize("hints", [True, False])
async def test_a_follower_gets_every_message_with_the_id_that_the_writer_was_told(
    autojump_clock: MockClock, hints: bool
) -> None:
    """TB-07, TB-27, TD-05: through turns and takeovers, in order, once."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        cluster.store.hints = hints
        topic = make_topic(cluster, entries=3)
        got: list[Message] = []
        told: list[MessageId] = []
        async with (
            client.reader(TOPIC, follow=True) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(keep, reader, got)
            for writer in range(3):
                async with open_lane(
                    client._context.ledgers, topic, -1, access="take-over"
                ) as lane:
                    for number in range(7):
                        value = f"{writer}.{number}"
                        places = await lane.append([batch(value, value)])
                        told += [MessageId(*place, -1, i) for place in places for i in (0, 1)]
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        assert [message.id for message in got] == told
        versions = [message.version for message in got]
        assert versions == sorted(versions)
        async with client.reader(TOPIC, reverse=True) as reader:
            assert [message.id async for message in reader] == told[::-1]


async def test_a_lane_whose_writer_loses_its_bookies_is_followed_on(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(6) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        got: list[Message] = []
        async with (
            client.reader(TOPIC, follow=True) as reader,
            open_lane(client._context.ledgers, topic, -1) as lane,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(keep, reader, got)
            for number in range(12):
                await lane.append([batch(str(number))])
                if number % 4 == 3:
                    name = cluster.record(rows(cluster)[-1].ledger_id).fragments[-1].bookies[-1]
                    cluster.kill(name)
                    await trio.sleep(1)
                    cluster.revive(name)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        assert [message.value for message in got] == [b"%d" % number for number in range(12)]


async def test_purging_under_writers_and_readers_disturbs_only_who_is_behind(
    autojump_clock: MockClock,
) -> None:
    """TB-76, TB-73: the beginning is what is left; whoever is behind is told."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        ahead: list[Message] = []
        async with (
            client.reader(TOPIC, follow=True) as leader,
            client.reader(TOPIC, follow=True) as straggler,
            open_lane(client._context.ledgers, topic, -1) as lane,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(keep, leader, ahead)
            await lane.append([batch("0")])
            behind = [await anext(straggler)]
            position = straggler.position()
            for number in range(1, 9):
                await lane.append([batch(str(number))])
                await trio.sleep(1)  # for the leader to read it
                await client.topics.purge(TOPIC)
            await lane.append([batch("9")])
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        values = [b"%d" % number for number in range(10)]
        assert [message.value for message in ahead] == values
        async with client.reader(TOPIC, start=position) as reader:
            with pytest.raises(Gap) as told:
                await anext(reader)
            assert told.value.first == MessageId(rows(cluster)[0].ledger_id, 0)
            rest = [message.value async for message in reader]
        assert rest == values[-len(rest) :]
        assert behind[0].value == b"0"
        async with client.reader(TOPIC) as reader:
            assert [message.value async for message in reader] == rest

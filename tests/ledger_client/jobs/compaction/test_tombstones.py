"""Tombstones stay while an older message of their key may come, from whichever partition."""

from __future__ import annotations

import pytest
from batches import Sent
from compacted import Kept, kept_of, the_set
from laid_topic import TOPIC, LaidTopic, laid_topic
from trio.testing import MockClock

from ledger_client.jobs.compaction.job import Compaction, compact_topic
from ledger_client.jobs.compaction.plan import NEVER, least_of_others
from ledger_client.jobs.compaction.runner import LocalRunner
from native.route import murmur3


def key_of(partition: int, number: int = 0) -> bytes:
    """Return a key that belongs to one of two partitions."""
    keys = (b"k%d" % i for i in range(100))
    return [key for key in keys if (murmur3(key) & 0x7FFF_FFFF) % 2 == partition][number]


async def compacted(topic: LaidTopic) -> Compaction:
    return await compact_topic(topic.client._context, TOPIC, LocalRunner(topic.client._context))


async def kept(topic: LaidTopic) -> list[Kept]:
    return await kept_of(topic.client, await the_set(topic))


async def tombstones(topic: LaidTopic) -> int:
    return sum(not each.sent.value for each in await kept(topic))


@pytest.mark.parametrize("own_lanes", [1, 2])
async def test_a_deleted_key_stays_deleted_when_another_partition_had_an_older_message_of_it(
    autojump_clock: MockClock, own_lanes: int
) -> None:
    """PS-37: the older message named its partition, and its ledger was open."""
    async with laid_topic(partitions=2) as topic:
        own = [topic.lane(0, lane) for lane in range(own_lanes)]
        other = topic.lane(1)
        await other.lay([Sent(b"v1", key=key_of(0))], state="open", created_ms=1000)
        for lane in own:
            await lane.lay([Sent(None, key=key_of(0))], created_ms=2000)
        await compacted(topic)
        other.shut()
        await compacted(topic)
        assert await kept(topic) == []


async def test_a_tombstone_goes_at_once_if_all_open_lanes_are_compacted_past_it(
    autojump_clock: MockClock,
) -> None:
    """PS-37: it does not matter that other partitions are written all the time."""
    async with laid_topic(partitions=2) as topic:
        own, other = topic.lane(0), topic.lane(1)
        await other.lay([Sent(b"v1", key=key_of(1))], created_ms=3000)
        await other.lay([Sent(b"v2", key=key_of(1))], state="open", created_ms=4000)
        await compacted(topic)
        await own.lay([Sent(None, key=key_of(0))], created_ms=2000)
        await compacted(topic)
        assert await tombstones(topic) == 0


async def test_tombstones_go_without_new_ledgers_once_no_older_message_can_come(
    autojump_clock: MockClock,
) -> None:
    """PS-37: the partition is written again for the last of them, and no more after that."""
    async with laid_topic(partitions=2) as topic:
        own, other = topic.lane(0), topic.lane(1)
        for number, created_ms in enumerate((2000, 2500)):
            await own.lay([Sent(None, key=key_of(0, number))], created_ms=created_ms)
        await other.lay([Sent(b"v", key=key_of(1))], state="open", created_ms=1000)
        for created_ms in (2200, 3000, 4000):
            await compacted(topic)
            other.shut()
            await other.lay([Sent(b"v", key=key_of(1))], state="open", created_ms=created_ms)
        await compacted(topic)  # up to 3000; before, up to 2200
        assert await tombstones(topic) == 2
        done = await compacted(topic)
        assert (done.published, done.partitions) == (True, 1)
        assert await tombstones(topic) == 0
        assert not (await compacted(topic)).published


def test_each_gets_the_least_order_of_the_others() -> None:
    assert least_of_others({}) == {}
    assert least_of_others({4: 7}) == {4: NEVER}
    assert least_of_others({0: 3, 1: 5, 2: NEVER}) == {0: 5, 1: 3, 2: 3}
    assert least_of_others({0: 3, 1: 3, 2: 9}) == {0: 3, 1: 3, 2: 3}

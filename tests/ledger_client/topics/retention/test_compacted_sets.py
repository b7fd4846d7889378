"""Sets of compacted topics: what they pin, and how their ledgers go."""

from __future__ import annotations

import msgspec
import pytest
from laid_topic import TOPIC, LaidTopic, laid_topic, said
from trio.testing import MockClock

from ledger_client.topics.retention.explanation import explain
from ledger_client.topics.retention.holdings import read_set, remove_retired, remove_set
from ledger_client.topics.retention.job_rows import read_pins, set_pins
from ledger_client.topics.retention.removal import Deletion
from metadata.compaction import (
    RETIRED_MS,
    CompactedLedger,
    CompactedSet,
    Horizon,
    MessageOrigin,
    Retired,
    compacted_key,
    encode_set,
)
from metadata.records import ledger_key

AT = MessageOrigin(0, 1, 0, 0)


async def ledgers(topic: LaidTopic, count: int) -> list[int]:
    """Make ledgers that are no lane's."""
    made: list[int] = []
    for _ in range(count):
        async with topic.client.ledgers.create(1, 1, 1) as ledger:
            await ledger.append(b"x")
        made.append(ledger.id)
    return made


def set_of(kept: list[int], retired: list[int], *, number: int = 0) -> CompactedSet:
    row = CompactedLedger(
        partition=-1, lane=0, ledger_id=0, first=AT, last=AT, entries=1, messages=1, size=1
    )
    return CompactedSet(
        generation=1,
        horizons=[Horizon(partition=-1, lane=0, number=number, ledger_id=1, version=9)],
        ledgers=[msgspec.structs.replace(row, ledger_id=each) for each in kept],
        retired=[Retired(each, 1000) for each in retired],
    )


def put(topic: LaidTopic, compacted: CompactedSet) -> None:
    key = compacted_key(topic.record.uid)
    topic.cluster.store.change(key, encode_set(compacted))


def there(topic: LaidTopic, ledger_ids: list[int]) -> list[int]:
    return [each for each in ledger_ids if ledger_key(each) in topic.cluster.store.values]


async def test_retired_ledgers_go_after_ten_minutes(autojump_clock: MockClock) -> None:
    """PS-37: a reader of the former generation has time to end."""
    async with laid_topic() as topic:
        store = topic.cluster.store
        kept, old = await ledgers(topic, 2), await ledgers(topic, 2)
        put(topic, set_of(kept, old))
        assert await remove_retired(store, topic.record.uid, 1000 + RETIRED_MS - 1) == 0
        assert there(topic, old) == old
        assert await remove_retired(store, topic.record.uid, 1000 + RETIRED_MS) == 2
        assert there(topic, old) == []
        found = await read_set(store, topic.record.uid)
        assert found is not None
        assert found.set == set_of(kept, [])
        assert there(topic, kept) == kept


@pytest.mark.parametrize("sound", [True, False])
async def test_a_topic_is_deleted_with_its_set(autojump_clock: MockClock, *, sound: bool) -> None:
    async with laid_topic() as topic:
        kept, old = await ledgers(topic, 2), await ledgers(topic, 1)
        put(topic, set_of(kept, old))
        if not sound:
            topic.cluster.store.change(compacted_key(topic.record.uid), b"{")
        client = topic.client
        topic.record = msgspec.structs.replace(topic.record, state="deleting")
        topic.put()
        await Deletion(client._context.ledgers, client._context.catalogue, topic.record).run()
        assert await read_set(topic.cluster.store, topic.record.uid) is None
        assert there(topic, [*kept, *old]) == ([] if sound else [*kept, *old])


async def test_a_set_is_removed_with_all_its_ledgers(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        kept, old = await ledgers(topic, 2), await ledgers(topic, 1)
        put(topic, set_of(kept, old))
        await remove_set(topic.cluster.store, topic.record.uid)
        assert await remove_set(topic.cluster.store, topic.record.uid) is None
        assert there(topic, [*kept, *old]) == []
        assert await read_pins(topic.cluster.store, topic.record) == []


async def test_what_is_behind_the_horizon_is_kept_for_the_next_compaction(
    autojump_clock: MockClock,
) -> None:
    """PS-37: retention passes over it, and explain tells who needs it."""
    async with laid_topic() as topic:
        lanes = topic.lane(), topic.lane(lane=1)
        for lane in lanes:
            for _ in range(3):
                await lane.lay(said(["x"]))
        assert await set_pins(topic.cluster.store, topic.record) == []
        put(topic, set_of([], [], number=0))
        pins = await read_pins(topic.cluster.store, topic.record)
        assert [(pin.lane, pin.number) for pin in pins] == [(0, 1), (1, 0)]
        explained = await explain(topic.client._context.catalogue, TOPIC)
        fates = {
            (lane.lane, fate.number): fate for lane in explained.lanes for fate in lane.ledgers
        }
        assert fates[0, 1].reason == "pinned"
        assert "next compaction" in fates[0, 1].why
        assert fates[0, 0].reason != "pinned"
        assert fates[1, 0].reason == "pinned"

"""How far a group is behind, in messages and seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from group_rig import ORDERS, shop
from laid_topic import laid_topic
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.groups.consumers import GroupLane
from ledger_client.groups.lanes import GroupLanes
from ledger_client.groups.options import ConsumerSettings
from ledger_client.groups.progress import encode_progress
from ledger_client.topics.reading import lag as lag_module
from metadata.groups.rows import progress_key
from metadata.groups.shares import slot_part
from metadata.topics import RollPolicy


@pytest.fixture
async def client(autojump_clock: MockClock) -> AsyncIterator[Client]:
    async with shop(1) as (_, client):
        await client.topics.delete(ORDERS)
        await client.topics.create(ORDERS, roll=RollPolicy(entries=6))
        yield client


async def send(client: Client, *batches: int) -> None:
    """Send batches with these numbers of messages, each of which is an entry."""
    async with client.producer(ORDERS) as producer:
        for count in batches:
            await producer.send_many([b"m"] * count)


async def lag(client: Client, group: str = "billing") -> GroupLane:
    (lane,) = await client.groups.lag(group, [ORDERS])
    return lane


async def consume(client: Client, count: int) -> None:
    async with client.consumer(
        ORDERS, group="billing", start="earliest", auto_commit_s=None
    ) as consumer:
        for _ in range(count):
            await anext(consumer)
        await consumer.commit()


async def test_messages_are_counted_over_ledgers_and_within_batches(
    client: Client, autojump_clock: MockClock
) -> None:
    await send(client, *[3] * 20)
    for consumed in (1, 3, 16, 27):
        await consume(client, consumed)
    found = await lag(client)
    assert (found.lag, found.is_exact) == (60 - 47, True)


async def test_a_group_that_read_everything_has_no_lag(
    client: Client, autojump_clock: MockClock
) -> None:
    await send(client, 5, 5)
    async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
        while await consumer.poll(wait_s=3):
            pass
    found = await lag(client)
    assert (found.lag, found.is_exact, found.lag_s) == (0, True, 0.0)


async def test_a_group_that_committed_nothing_lags_behind_the_first_message(
    client: Client, autojump_clock: MockClock
) -> None:
    await send(client, *[2] * 9)
    async with client.consumer(ORDERS, group="billing", start="earliest", auto_commit_s=None):
        pass
    found = await lag(client)
    assert (found.committed, found.lag) == (-1, 18)


async def test_a_lane_whose_writer_only_prepared_a_ledger_has_no_lag(
    autojump_clock: MockClock,
) -> None:
    """Its writer was killed before the first message."""
    async with laid_topic() as topic:
        topic.lane(0, 0).prepare(7)
        (found,) = await GroupLanes(topic.client._context, "billing").lag([topic.record])
    assert (found.committed, found.lag) == (-1, 0)


async def test_lag_in_seconds_is_the_age_of_the_oldest_message_left(
    client: Client, autojump_clock: MockClock
) -> None:
    await send(client, 1)
    await trio.sleep(100)
    await send(client, 1, 1)
    await consume(client, 1)
    await trio.sleep(50)
    assert 50 <= (await lag(client)).lag_s < 60
    async with client.consumer(ORDERS, group="audit", start="earliest"):
        pass
    assert 150 <= (await lag(client, "audit")).lag_s < 170


async def test_a_long_rest_of_a_ledger_is_estimated(
    client: Client, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_module, "ENTRIES_MAX", 2)
    await send(client, *[10] * 30)
    await consume(client, 5)
    found = await lag(client)
    assert not found.is_exact
    assert 250 < found.lag < 330


@pytest.mark.parametrize("gone", [(4, 13), (12, 29), (1, 29), (0, 17)])
async def test_deleted_messages_are_no_part_of_an_estimate(
    client: Client,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    gone: tuple[int, int],
) -> None:
    """Some are among those that are read of the ledger, or before them, or all are after them."""
    monkeypatch.setattr(lag_module, "ENTRIES_MAX", 8)
    await client.topics.delete(ORDERS)
    await client.topics.create(ORDERS)
    await send(client, *[10] * 30)
    await consume(client, 5)
    async with client.reader(ORDERS) as reader:
        sent = [message async for message in reader]
    first, last = gone[0] * 10, gone[1] * 10 + 9
    await client.topics.delete_messages(ORDERS, sent[first].id, sent[last].id)
    found = await lag(client)
    left = len([n for n in range(5, 300) if not first <= n <= last])
    assert found.lag == pytest.approx(left, abs=10)


async def test_a_slot_that_is_behind_others_makes_the_lag_an_estimate(
    client: Client, autojump_clock: MockClock
) -> None:
    """Messages after it count, though faster slots are done with theirs."""
    async with client.producer(ORDERS) as producer:
        for each in range(20):
            await producer.send(b"m", key=b"%d" % each)
    settings = ConsumerSettings(group="billing", mode="key-shared", start="earliest")
    async with client.consumer(ORDERS, **settings) as consumer:
        for _ in range(20):
            await consumer.ack(await anext(consumer))
    found = await lag(client)
    assert (found.lag, found.is_exact) == (0, True)
    part = slot_part((await client.topics.info(ORDERS)).uid, 0, 3)
    await client.topics._context.store.put(progress_key("billing", part), encode_progress({}))
    found = await lag(client)
    assert (found.lag, found.is_exact, found.committed) == (20, False, -1)

"""A member begins partitions, and something is in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import trio
from group_rig import ORDERS, rest, send, shop, take
from trio.testing import MockClock

from ledger_client.errors import MemberRemoved, ReplicasUnavailable
from ledger_client.groups import feed, membership
from ledger_client.groups.feed import TopicFeed
from metadata.groups.rows import GROUP_MEMBERS
from metadata.store import Op, Put, Versions

OTHER = "shop/other"


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Topics whose ends cannot be found, as their bookies are away."""
    topics: set[str] = set()
    begin = TopicFeed.begin

    async def begin_if_there(self: TopicFeed, *arguments: object) -> Mapping[int, object]:
        if self.topic.name in topics:
            await trio.sleep(1)
            raise ReplicasUnavailable(ledger_id=1, entry_id=0, reasons={"b3": "gone"})
        return await begin(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(feed.TopicFeed, "begin", begin_if_there)
    return topics


async def test_a_topic_that_cannot_be_begun_holds_no_other_one_back(
    autojump_clock: MockClock, away: set[str]
) -> None:
    async with shop() as (_, client):
        await client.topics.create(OTHER, 2)
        away.add(OTHER)
        async with client.consumer([ORDERS, OTHER], group="billing") as consumer:
            await consumer.poll(wait_s=10)
            await send(client, 0, 10)
            assert sorted(await take(consumer, 10)) == list(range(10))
            assert {part.topic for part in consumer.assignment()} == {ORDERS}
            away.clear()
            await consumer.poll(wait_s=10)
            await send(client, 10, 20, OTHER)
            assert sorted(await take(consumer, 10)) == list(range(10, 20))
            assert len(consumer.assignment()) == 6


async def test_a_member_that_cannot_begin_a_topic_gives_up_others_in_time(
    autojump_clock: MockClock, away: set[str]
) -> None:
    """Else two members have them."""
    async with shop() as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 2)
        away.add(OTHER)
        settings = {"group": "billing", "start": "latest", "revoke_s": 10}
        async with client.consumer([ORDERS, OTHER], **settings) as one:  # type: ignore[arg-type]
            await one.poll(wait_s=10)
            assert len(one.assignment()) == 4
            async with theirs.consumer(ORDERS, **settings) as two:  # type: ignore[arg-type]
                for _ in range(30):
                    await one.poll(wait_s=1)
                    await two.poll(wait_s=1)
                    assert not set(one.assignment()) & set(two.assignment())
                assert len(two.assignment()) >= 2
                assert len(one.assignment()) + len(two.assignment()) == 4


async def test_a_run_that_was_removed_leaves_its_name_to_the_one_that_has_it(
    autojump_clock: MockClock,
) -> None:
    """It hung, and another process was started instead."""
    async with (
        shop() as (cluster, client),
        cluster.client() as theirs,
        client.consumer(ORDERS, group="billing", member="till") as first,
    ):
        await first.poll(wait_s=5)
        first._membership._heartbeats.remove(first._membership.pulse)
        await trio.sleep(60)
        assert not first._membership.is_member
        async with theirs.consumer(ORDERS, group="billing", member="till") as second:
            await second.poll(wait_s=5)
            with pytest.raises(MemberRemoved, match=membership.REPLACED), trio.fail_after(60):
                while True:
                    await first.poll(wait_s=1)
            await send(client, 0, 5)
            assert sorted(await rest(second)) == list(range(5))


async def test_a_consumer_that_is_closed_while_it_joins_again_is_no_member_afterwards(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        transact = cluster.store.transact

        async def slowly(ops: Sequence[Op]) -> Versions:
            made = await transact(ops)
            if any(isinstance(op, Put) and op.key.startswith(GROUP_MEMBERS) for op in ops):
                joining.set()
                await trio.sleep(2)
            return made

        async with client.consumer(ORDERS, group="billing", session_s=60) as consumer:
            await consumer.poll(wait_s=5)
            consumer._membership._heartbeats.remove(consumer._membership.pulse)
            await trio.sleep(120)
            assert (await client.groups.describe("billing")).members == []
            joining = trio.Event()
            cluster.store.transact = slowly  # type: ignore[method-assign]
            await consumer.poll(wait_s=0)
            await joining.wait()
        await trio.sleep(5)
        assert (await client.groups.describe("billing")).members == []

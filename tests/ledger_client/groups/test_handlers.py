"""Functions of the application that are called as partitions come and go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from group_rig import ORDERS, send, shop, take
from shared_shop import shop as shared_shop, until
from trio.testing import MockClock

from ledger_client.errors import CommitRefused
from ledger_client.groups.beginnings import Beginnings, OpenTopic
from ledger_client.groups.options import TopicPartition
from ledger_client.topics.positions import Places
from metadata.groups.assignment import Part

OTHER = "shop/other"


async def test_a_handler_is_called_when_the_one_before_is_done(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []

    async def assigned(parts: Sequence[TopicPartition]) -> None:
        told.append(f"begin {parts[0].topic}")
        await trio.sleep(5)
        told.append(f"end {parts[0].topic}")

    async def revoked(parts: Sequence[TopicPartition]) -> None:
        told.append("begin revoked")
        await trio.sleep(1)
        told.append("end revoked")

    async with shop() as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 2)
        async with client.consumer(
            [ORDERS, OTHER],
            group="billing",
            start="latest",
            on_assigned=assigned,
            on_revoked=revoked,
        ) as one:
            await one.poll(wait_s=15)
            assert len(told) == 4
            await client.topics.alter(OTHER, partitions=4)
            while len(told) < 5:
                await one.poll(wait_s=0.1)
            async with theirs.consumer([ORDERS], group="billing", start="latest"):
                await one.poll(wait_s=20)
    assert told[4:8] == [f"begin {OTHER}", f"end {OTHER}", "begin revoked", "end revoked"]
    for first, second in zip(told[::2], told[1::2], strict=True):
        assert (first.split()[0], second.split()[0]) == ("begin", "end")
        assert first.split()[1] == second.split()[1]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_handler_that_takes_long_keeps_no_partition_from_going(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Of what went before it was told of, an application is told nothing; of the rest, all."""
    told: list[str] = []

    async def assigned(parts: Sequence[TopicPartition]) -> None:
        told.append(f"assigned {parts[0].topic}")
        is_told.set()
        if parts[0].topic == ORDERS:
            await trio.sleep(60)
        told.append("done")

    async def revoked(parts: Sequence[TopicPartition]) -> None:
        told.append(f"revoked {parts[0].topic}")

    starts, first, is_told = Beginnings.starts, ORDERS if is_first else OTHER, trio.Event()

    async def in_order(
        self: Beginnings, feed: OpenTopic, parts: set[Part], up_ms: int
    ) -> dict[Part, Places]:
        if feed.topic.name != first:
            await is_told.wait()
        return await starts(self, feed, parts, up_ms)

    monkeypatch.setattr(Beginnings, "starts", in_order)
    async with shop(1) as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 1)
        async with client.consumer(
            [ORDERS, OTHER],
            group="billing",
            start="latest",
            on_assigned=assigned,
            on_revoked=revoked,
        ) as one:
            while f"assigned {ORDERS}" not in told:
                await one.poll(wait_s=0.1)
            async with theirs.consumer(OTHER, group="billing", start="latest") as two:
                for _ in range(20):
                    await one.poll(wait_s=1)
                    await two.poll(wait_s=1)
                assert {each.topic for each in one.assignment()} == {ORDERS}
                assert {each.topic for each in two.assignment()} == {OTHER}
                assert told[-1] == f"assigned {ORDERS}"
                await one.poll(wait_s=60)
    before = [] if is_first else [f"assigned {OTHER}", "done"]
    after = [] if is_first else [f"revoked {OTHER}"]
    assert told == [*before, f"assigned {ORDERS}", "done", *after]


async def test_a_handler_that_seeks_where_it_is_refused_ends_no_consumer(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition went while it was at work."""

    async def assigned(_parts: Sequence[TopicPartition]) -> None:
        raise CommitRefused("billing", [])

    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest", on_assigned=assigned) as one,
    ):
        await send(client, 0, 5)
        assert sorted(await take(one, 5)) == list(range(5))
    assert any("on_assigned: " in each.getMessage() for each in caplog.records)


async def test_no_handler_is_told_that_it_loses_what_it_was_never_told_it_had(
    autojump_clock: MockClock,
) -> None:
    """The member is lost while one topic waits until the handler of another one is done."""
    had, strange, calls = set[TopicPartition](), list[TopicPartition](), 0

    async def assigned(parts: Sequence[TopicPartition]) -> None:
        nonlocal calls
        calls += 1
        had.update(parts)
        if calls == 2:
            await trio.sleep(20)

    def revoked(parts: Sequence[TopicPartition]) -> None:
        strange.extend(part for part in parts if part not in had)
        had.difference_update(parts)

    async with shop(1) as (_, client):
        await client.topics.create(OTHER, 1)
        await client.topics.create("shop/third", 1)
        async with client.consumer(
            [ORDERS, OTHER, "shop/third"],
            group="billing",
            session_s=10,
            revoke_s=30,
            on_assigned=assigned,
            on_revoked=revoked,
        ) as one:
            await one.poll(wait_s=3)
            assert len(one.assignment()) == 3
            assert len(had) == 2
            one._membership._heartbeats.remove(one._membership.pulse)
            await trio.sleep(60)
            assert not one.assignment()
            assert strange == []
            assert had == set()


async def test_a_late_call_of_a_handler_holds_nothing_up_for_ever(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def assigned(_parts: Sequence[TopicPartition]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            await trio.sleep(25)

    async def revoked(_parts: Sequence[TopicPartition]) -> None:
        await trio.sleep(1000)

    async with shop(1) as (_, client):
        await client.topics.create(OTHER, 1)
        async with client.consumer(
            [ORDERS, OTHER],
            group="billing",
            start="earliest",
            session_s=10,
            revoke_s=5,
            on_assigned=assigned,
            on_revoked=revoked,
        ) as one:
            await one.poll(wait_s=3)
            one._membership._heartbeats.remove(one._membership.pulse)
            await trio.sleep(60)
            await send(client, 0, 5)
            assert sorted(await take(one, 5)) == list(range(5))
    assert any("cut off after 5 s" in each.getMessage() for each in caplog.records)


async def test_a_handler_is_done_before_the_first_message_of_what_another_member_left(
    autojump_clock: MockClock,
) -> None:
    is_done = False

    async def assigned(_parts: Sequence[TopicPartition]) -> None:
        nonlocal is_done
        await trio.sleep(20)
        is_done = True

    async with shared_shop() as (cluster, client), cluster.client() as theirs:
        async with theirs.consumer(
            ORDERS, group="billing", mode="key-shared", start="earliest"
        ) as lost:
            await until(lambda: bool(lost.assignment()))
            await send(client, 0, 8)
            await trio.sleep(2)
        async with client.consumer(
            ORDERS, group="billing", mode="key-shared", on_assigned=assigned
        ) as one:
            assert await one.poll(wait_s=15) == []
            assert not is_done
            assert await one.poll(wait_s=15)
            assert is_done

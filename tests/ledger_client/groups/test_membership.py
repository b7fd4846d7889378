"""How a member joins, learns of its partitions, reports, and ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from group_rig import ORDERS, PARTITIONS, nothing_more, rest, send, shop, take
from trio.testing import MockClock

from ledger_client import BadGroup, BadSchema, Client, CommitRefused, MemberRemoved
from ledger_client.groups import heartbeats, membership
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import TopicPartition
from metadata.errors import MetadataUnavailable
from metadata.groups.calls import GroupReply, GroupRequest, ReportIn
from metadata.groups.coordinator import Coordinator
from metadata.groups.rows import PROGRESS, Mode
from metadata.store import Op, Put, Versions


def note_reports(
    coordinator: Coordinator | None, monkeypatch: pytest.MonkeyPatch
) -> list[ReportIn]:
    """Return a list that gets every report of members that comes in."""
    assert coordinator is not None
    answer, seen = coordinator.answer, list[ReportIn]()

    async def note(request: GroupRequest) -> GroupReply:
        if isinstance(request, ReportIn):
            seen.append(request)
        return await answer(request)

    monkeypatch.setattr(coordinator, "answer", note)
    return seen


async def test_before_its_first_rebalance_a_member_gets_nothing(autojump_clock: MockClock) -> None:
    """TD-38: nor does it fail; it asks on."""
    async with shop() as (_, client):
        await send(client, 0, 5)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await consumer.poll(wait_s=0.1) == []
            assert consumer.assignment() == []
            group = await client.groups.describe("billing")
            assert group.state == "rebalancing"
            assert len(await take(consumer, 5)) == 5
            assert len(consumer.assignment()) == PARTITIONS


@pytest.mark.parametrize("learns", ["by reports", "by looking"])
async def test_a_member_that_hears_no_hint_still_learns_of_its_row(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, learns: str
) -> None:
    """TD-35, TD-39, TD-54: an answer with another epoch than its own makes it look."""
    if learns == "by reports":
        monkeypatch.setattr(membership, "LOOK_S", 1000.0)
    async with shop() as (cluster, client):
        cluster.store.hints = False
        async with client.consumer(ORDERS, group="billing", start="earliest") as first:
            assert await nothing_more(first, wait_s=10)
            assert len(first.assignment()) == PARTITIONS
            if learns == "by looking":
                monkeypatch.setattr(first._membership, "_hear", lambda _answer: None)
                first._membership.pulse.on_answer = lambda _answer: None
            async with client.consumer(ORDERS, group="billing", start="earliest") as second:
                await first.poll(wait_s=12)
                await second.poll(wait_s=12)
                assert len(first.assignment()) == len(second.assignment()) == PARTITIONS / 2


async def test_the_members_of_a_process_report_together_every_three_seconds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TD-35, TD-49: a report says when each of them asked for messages."""
    async with shop() as (cluster, client):
        settings = {"group": "billing", "client_id": "till"}
        async with (
            client.consumer(ORDERS, **settings) as first,  # type: ignore[arg-type]
            client.consumer(ORDERS, **settings),  # type: ignore[arg-type]
        ):
            monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
            await first.poll(wait_s=10)
            seen = note_reports(cluster.bookies["b1"].coordinator, monkeypatch)
            await first.poll(wait_s=30)
            assert 9 <= len(seen) <= 11
            assert {len(report.beats) for report in seen} == {2}
            asked, never = sorted(seen[-1].beats, key=lambda beat: beat.polled_s)
            assert asked.polled_s < 4
            assert never.polled_s > 25
            group = await client.groups.describe("billing")
            assert {each.record.client_id for each in group.members} == {"till"}
            assert all(each.silent_s <= 3.1 and each.record.host for each in group.members)


async def test_a_member_that_asks_for_nothing_for_long_is_removed_until_it_asks_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TD-31: one that waits for messages asks all the time, however few come."""
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", poll_s_max=30) as busy,
        client.consumer(ORDERS, group="billing", poll_s_max=30) as idle,
    ):
        await idle.poll(wait_s=10)
        await busy.poll(wait_s=20)
        assert len(busy.assignment()) == len(idle.assignment()) == PARTITIONS / 2
        await busy.poll(wait_s=40)
        assert len(busy.assignment()) == PARTITIONS
        assert len((await client.groups.describe("billing")).members) == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(busy.poll, wait_s=20))
            nursery.start_soon(partial(idle.poll, wait_s=20))
        assert len(busy.assignment()) == len(idle.assignment()) == PARTITIONS / 2


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_member_that_was_removed_comes_back_however_short_it_waits_for_messages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """The leader's answer takes longer, and it would have a member that reads nothing."""
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with (
        shop() as (cluster, client),
        client.consumer(ORDERS, group="billing", mode=mode, poll_s_max=30) as consumer,
    ):
        await consumer.poll(wait_s=5)
        await trio.sleep(60)
        assert (await client.groups.describe("billing")).members == []
        transact, slow = cluster.store.transact, 0

        async def slowly(ops: Sequence[Op]) -> Versions:
            nonlocal slow
            slow += 1
            await trio.sleep(0.02)
            return await transact(ops)

        cluster.store.transact = slowly  # type: ignore[method-assign]
        await send(client, 0, 5)
        got: list[int] = []
        with trio.fail_after(20):
            while len(got) < 5:
                got += [int(each.value or b"") for each in await consumer.poll(wait_s=0)]
                await trio.sleep(0.05)
        assert sorted(got) == list(range(5))
        assert slow < 60


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_member_that_asks_all_the_time_and_never_waits_stays(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """TD-31: nothing arrives, and it waits at no moment at which it is looked at."""
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", mode=mode, poll_s_max=30) as consumer,
    ):
        for _ in range(600):
            assert await consumer.poll(wait_s=0) == []
            await trio.sleep(0.0937)  # no beat comes at the moment of a poll
        (member,) = (await client.groups.describe("billing")).members
        assert (member.record.epoch, member.polled_s) == (2, 0)


async def test_a_member_without_partitions_that_never_waits_stays(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing to take from, so only that it asks can be seen."""
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with shop() as (_, client), AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(client.consumer(ORDERS, group="billing", poll_s_max=30))
            for _ in range(PARTITIONS + 1)
        ]
        for _ in range(600):
            for consumer in consumers:
                assert await consumer.poll(wait_s=0) == []
            await trio.sleep(0.0937)
        assert sum(not consumer.assignment() for consumer in consumers) == 1
        members = (await client.groups.describe("billing")).members
        assert [member.polled_s for member in members] == [0] * len(consumers)


async def test_a_member_that_may_not_come_back_is_told_so_and_may_ask_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", poll_s_max=30) as consumer,
    ):
        await consumer.poll(wait_s=5)
        await trio.sleep(60)
        await client.groups.delete("billing")
        async with client.consumer(ORDERS, group="billing", mode="shared") as other:
            await other.poll(wait_s=5)
            for _ in range(2):
                with pytest.raises(BadGroup, match="is used in mode shared"):
                    await consumer.poll(wait_s=5)
        await client.groups.delete("billing")
        await consumer.poll(wait_s=5)
        assert len(consumer.assignment()) == PARTITIONS


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_consumer_that_is_closed_while_the_store_hangs_is_no_member_for_long(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """Nobody would read its partitions while others of the process report on."""
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time))
    async with shop() as (cluster, client):
        settings = {"group": "billing", "mode": mode, "session_s": 6}
        await send(client, 0, 20)
        async with client.consumer(ORDERS, start="earliest", **settings) as other:  # type: ignore[arg-type]
            transact = cluster.store.transact

            async def hang(ops: Sequence[Op]) -> Versions:
                if any("progress" in getattr(op, "key", "") for op in ops):
                    await trio.sleep(8)
                    raise MetadataUnavailable("no answer")
                return await transact(ops)

            async with client.consumer(ORDERS, start="earliest", **settings) as closed:  # type: ignore[arg-type]
                await other.poll(wait_s=5)
                assert await closed.poll(wait_s=5)
                cluster.store.transact = hang  # type: ignore[method-assign]
            assert not closed._membership.is_member
            cluster.store.transact = transact  # type: ignore[method-assign]
            await other.poll(wait_s=0.1)
            await trio.sleep(15)
            members = (await client.groups.describe("billing")).members
            assert [each.member for each in members] == [other._membership.member]


async def test_a_member_that_joined_again_before_it_looked_who_has_its_name_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it finds is its own row."""
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", member="till") as consumer,
    ):
        await consumer.poll(wait_s=5)
        membership = consumer._membership
        assert not await membership._is_replaced()


async def test_the_topics_of_a_member_are_stored_sorted_and_once(
    autojump_clock: MockClock,
) -> None:
    """TD-58: leaving the block is to subscribe to nothing."""
    async with shop() as (_, client):
        await client.topics.create("shop/a")
        topics = [ORDERS, "shop/a", ORDERS, "shop/x*", "shop/*", "shop/x*"]
        async with client.consumer(topics, group="billing", missing="wait"):
            (member,) = (await client.groups.describe("billing")).members
            assert member.record.wanted.topics == ["shop/a", ORDERS]
            assert member.record.wanted.patterns == ["shop/*", "shop/x*"]
        assert (await client.groups.describe("billing")).members == []


async def test_a_consumer_that_is_closed_or_replaced_says_so(autojump_clock: MockClock) -> None:
    """TD-59: it waits for ever only while it is a member."""
    async with shop() as (cluster, client):
        async with client.consumer(ORDERS, group="billing") as closed:
            await closed.poll(wait_s=3)
        with pytest.raises(MemberRemoved, match="it was closed"):
            await closed.poll()
        assert (await client.groups.describe("billing")).members == []
        async with (
            cluster.client() as other,
            client.consumer(ORDERS, group="billing", member="till") as first,
        ):
            await first.poll(wait_s=3)
            async with other.consumer(ORDERS, group="billing", member="till") as second:
                await second.poll(wait_s=3)
                with (
                    pytest.raises(MemberRemoved, match="was started under this name"),
                    trio.fail_after(30),
                ):
                    await first.poll(wait_s=math.inf)
                assert len(second.assignment()) == PARTITIONS


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_member_that_is_removed_as_it_begins_a_new_partition_begins_it_later(
    autojump_clock: MockClock, is_answered: bool
) -> None:
    """Its first commit there is not stored, and what was written once it is assigned comes.

    It notices that it was removed when it knows that.
    """
    async with shop(1) as (cluster, client):
        transact, commits, told = cluster.store.transact, 0, 0

        async def slowly(ops: Sequence[Op]) -> Versions:
            nonlocal commits
            if any(isinstance(op, Put) and op.key.startswith(PROGRESS) for op in ops):
                commits += 1
                if commits == 1:
                    await remove_member()
            return await transact(ops)

        async def remove_member() -> None:
            membership, is_removed = consumer._membership, trio.Event()
            look = membership._look

            async def later() -> None:
                await is_removed.wait()
                await trio.sleep(1)
                await look()

            membership._look = later  # type: ignore[method-assign]
            membership._heartbeats.remove(membership.pulse)
            while (await client.groups.describe("billing")).members:  # noqa: ASYNC110
                await trio.sleep(1)
            is_removed.set()
            if not is_answered:
                raise MetadataUnavailable("the answer was lost")

        async def note(_parts: Sequence[TopicPartition]) -> None:
            nonlocal told
            told += 1
            await send(client, 0, 3)

        cluster.store.transact = slowly  # type: ignore[method-assign]
        async with client.consumer(
            ORDERS, group="billing", start="latest", session_s=6, on_assigned=note
        ) as consumer:
            assert await take(consumer, 3, wait_s=60) == [0, 1, 2]
            assert told == 1
            assert commits > 1


@pytest.mark.parametrize("settings", [{}, {"member": "first"}, {"mode": "key-shared"}])
async def test_a_start_that_fails_leaves_no_group_behind(
    autojump_clock: MockClock, settings: dict[str, str]
) -> None:
    """TD-50: the mode of a group that nobody meant would be fixed for good."""
    async with shop() as (cluster, client):
        await send(client, 0, 5)
        for _ in range(2):
            with pytest.raises(BadGroup, match="has committed nothing"):
                async with client.consumer(ORDERS, group="bilking", start="none", **settings) as it:  # type: ignore[arg-type]
                    await it.poll(wait_s=5)
            assert await client.groups.list() == []
            assert not [key for key in cluster.store.values if key.startswith("group")]


async def test_a_block_that_fails_before_there_is_anything_to_read_leaves_no_group_behind(
    autojump_clock: MockClock,
) -> None:
    """As `quire consume --json` does if a schema needs a package that is not there."""
    async with shop() as (_, client):
        await send(client, 0, 5)
        for wait_s, groups in ((0, 0), (5, 1)):
            with pytest.raises(BadSchema):
                async with client.consumer(ORDERS, group="bilking"):
                    await trio.sleep(wait_s)
                    raise BadSchema("needs fastavro", topic=ORDERS)
            assert len(await client.groups.list()) == groups


@pytest.mark.parametrize("kept", ["a commit", "another member", "the group"])
async def test_a_start_that_fails_leaves_a_group_of_others_as_it_is(
    autojump_clock: MockClock, kept: str
) -> None:
    async with shop() as (_, client), trio.open_nursery() as nursery:
        await send(client, 0, 5)
        other: GroupConsumer | None = None
        if kept == "another member":
            other = await nursery.start(open_for_ever, client)
        elif kept == "a commit":
            async with client.reader(ORDERS) as reader:
                await anext(reader)
                await client.groups.commit("billing", reader.position())
        else:
            async with client.consumer(ORDERS, group="billing"):
                pass
        before = await client.groups.committed("billing")
        with pytest.raises(BadGroup, match="has committed nothing"):
            async with client.consumer(ORDERS, group="billing", start="none") as late:
                await late.poll(wait_s=15)
        assert [each.group for each in await client.groups.list()] == ["billing"]
        if other is not None:
            await send(client, 5, 6)
            assert sorted(await take(other, 6)) == list(range(6))
        else:
            assert await client.groups.committed("billing") == before
        nursery.cancel_scope.cancel()


async def open_for_ever(
    client: Client, *, task_status: trio.TaskStatus[GroupConsumer] = trio.TASK_STATUS_IGNORED
) -> None:
    async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
        task_status.started(consumer)
        await trio.sleep_forever()


async def test_a_handler_that_is_cut_off_is_logged_and_the_next_commit_says_what_comes_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """TD-17: with auto_commit_s=None, on_revoked is the last place to commit in."""
    began: list[int] = []

    async def slowly(parts: Sequence[TopicPartition]) -> None:
        began.extend(part.partition for part in parts)
        await trio.sleep(60)

    async with (
        shop(2) as (_, client),
        client.consumer(
            ORDERS,
            group="billing",
            start="earliest",
            auto_commit_s=None,
            revoke_s=5,
            on_revoked=slowly,
        ) as first,
    ):
        await send(client, 0, 20)
        assert sorted(await rest(first)) == list(range(20))
        async with client.consumer(ORDERS, group="billing", start="earliest") as second:
            again = await second.poll(wait_s=20)
            assert {each.id.partition for each in again} == {*began}
        assert "on_revoked was cut off, as 0.8 of revoke_s was over (4 s)" in caplog.text
        with pytest.raises(CommitRefused, match=f"partition {began[0]} of shop/orders"):
            await first.commit()
        await first.commit()

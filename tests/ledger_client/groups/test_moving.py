"""Partitions that move to another member, and those that stay, while messages come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from group_rig import ORDERS, send, shop
from shared_shop import until
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import CommitRefused
from ledger_client.groups import arrivals
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import ConsumerSettings, TopicPartition
from ledger_client.opening import Opening
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LanePlace
from metadata.groups.rows import PROGRESS
from metadata.store import Op, Put, Versions


async def test_a_commit_while_a_partition_is_revoked_is_where_its_next_owner_begins(
    autojump_clock: MockClock,
) -> None:
    """TD-22, TD-29: with commits by the handler alone, nothing comes twice, and nothing is lost."""
    count = 300
    seen: list[tuple[str, int, int]] = []
    committed: list[LanePlace] = []

    async def consume(name: str, consumer: GroupConsumer) -> None:
        async for message in consumer:
            seen.append((name, message.id.partition, int(message.value or b"")))
            await trio.sleep(0.02)

    async def commit(parts: Sequence[TopicPartition]) -> None:
        (part,) = parts
        await first.commit()
        committed.extend(p for p in first.committed() if p.partition == part.partition)
        assert committed == [p for p in first.position() if p.partition == part.partition]

    async with shop(2) as (_, client):
        await send(client, 0, count)
        settings = {"group": "billing", "start": "earliest", "auto_commit_s": None}
        async with (
            client.consumer(ORDERS, **settings, on_revoked=commit) as first,  # type: ignore[arg-type]
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consume, "first", first)
            await until(lambda: len(seen) > 5)
            async with client.consumer(ORDERS, **settings) as second:  # type: ignore[arg-type]
                nursery.start_soon(consume, "second", second)
                await until(lambda: len(seen) >= count)
                await trio.sleep(5)
                (moved,) = {each.partition for each in second.assignment()}
                nursery.cancel_scope.cancel()
    assert sorted(value for _, _, value in seen) == list(range(count))
    of_moved = [(name, value) for name, partition, value in seen if partition == moved]
    owners = [name for name, _ in of_moved]
    handed_over = owners.index("second")
    assert handed_over > 0
    assert set(owners[handed_over:]) == {"second"}, "the former owner reads it no longer"
    assert [value for _, value in of_moved] == sorted(value for _, value in of_moved)
    assert [each.partition for each in committed] == [moved]


async def test_partitions_that_stay_bring_messages_while_others_move(
    autojump_clock: MockClock,
) -> None:
    """TD-14, TD-33: a slow member holds the rebalance open; all that is not revoked goes on."""
    log: list[str] = []
    go_on = trio.Event()

    async with shop(6) as (_, client), trio.open_nursery() as nursery:

        async def begin(name: str) -> GroupConsumer:
            """Start a member, which notes what happens to it."""

            async def note_revoked(parts: Sequence[TopicPartition]) -> None:
                log.append(f"{name} is asked for {len(parts)}")
                if name == "slow":
                    await go_on.wait()
                    log.append("slow is done")

            async def note_assigned(parts: Sequence[TopicPartition]) -> None:
                log.append(f"{name} gets {len(parts)}")

            consumer = await client.consumer(
                ORDERS,
                group="billing",
                start="earliest",
                revoke_s=300,
                on_revoked=note_revoked,
                on_assigned=note_assigned,
            )
            nursery.start_soon(consume, name, consumer)
            return consumer

        async def consume(name: str, consumer: GroupConsumer) -> None:
            async for message in consumer:
                log.append(f"{name} reads {message.id.partition}")
                await trio.lowlevel.checkpoint()

        quick, slow = await begin("quick"), await begin("slow")
        await until(lambda: {"quick gets 3", "slow gets 3"} <= {*log})
        new = await begin("new")
        # One partition of each moves; that of the quick member does not wait for the slow one.
        await until(lambda: {"slow is asked for 1", "quick is asked for 1", "new gets 1"} <= {*log})
        assert await is_rebalancing(client)
        stay = [len(each.assignment()) for each in (quick, new)]
        assert stay == [2, 1]
        reads = {
            f"{name} reads {each.partition}"
            for name, consumer in (("quick", quick), ("new", new))
            for each in consumer.assignment()
        }
        for _ in range(3):  # also long after it began
            del log[:]
            await send_to_all(client)
            await until(lambda: len(log) >= 5)
            assert reads < {*log}, "they were read while the rebalance was held open"
            assert len(log) == len({*log}) == 5, "all but the one that is given up"
            assert sum(each.startswith("slow") for each in log) == 2
            assert await is_rebalancing(client)
            await trio.sleep(20)
        del log[:]
        go_on.set()
        await until(lambda: len(log) >= 5)
        assert log[:2] == ["slow is done", "new gets 1"]
        assert len(set(log[2:])) == 1, "the messages that waited for their next owner"
        assert log[2].startswith("new reads")
        assert not await is_rebalancing(client)
        assert [len(each.assignment()) for each in (quick, slow, new)] == [2, 2, 2]
        nursery.cancel_scope.cancel()


async def test_a_handler_that_commits_is_not_called_as_its_consumer_leaves(
    autojump_clock: MockClock,
) -> None:
    """The row goes while the consumer is still there; its partitions were not taken from it."""
    calls = 0

    async def commit(_: Sequence[TopicPartition]) -> None:
        nonlocal calls
        calls += 1
        await consumer.commit()

    async with shop(2) as (_, client):
        await send(client, 0, 10)
        for _ in range(10):
            async with client.consumer(
                ORDERS, group="billing", start="earliest", on_revoked=commit
            ) as consumer:
                await consumer.poll(wait_s=5)
                assert len(consumer.assignment()) == 2
    assert calls == 0


class Busy:
    """A member that is at work on all messages, and whose handler commits."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.revoked: list[int] = []
        self.messages: list[Message] = []
        self.go_on = trio.Event()
        """its handler waits for this one before it commits"""
        self.go_on.set()
        self._settings = ConsumerSettings(
            group="billing", start="earliest", auto_commit_s=None, revoke_s=4
        )

    def other(self) -> Opening[GroupConsumer]:
        """Return another member of its group."""
        return self.client.consumer(ORDERS, **self._settings)

    @asynccontextmanager
    async def member(self, messages: int) -> AsyncGenerator[GroupConsumer]:
        async def note(parts: Sequence[TopicPartition]) -> None:
            self.revoked.extend(each.partition for each in parts)
            await self.go_on.wait()
            await consumer.commit()

        settings: ConsumerSettings = {**self._settings, "on_revoked": note}
        async with self.client.consumer(ORDERS, **settings) as consumer:
            await send(self.client, 0, messages)
            await trio.sleep(5)
            self.messages = await consumer.poll()
            assert len(self.messages) == messages
            yield consumer


@pytest.mark.parametrize("commits_in_time", [False, True])
async def test_who_is_busy_for_too_long_hears_what_it_does_not_have_any_more(
    autojump_clock: MockClock, commits_in_time: bool
) -> None:
    """What it is at work on comes again elsewhere, unless it was committed; it can know both."""
    async with shop(2) as (_, client), (rig := Busy(client)).member(10) as busy:
        if commits_in_time:
            await busy.commit()
        async with rig.other() as other:
            again = await other.poll(wait_s=20)
            (moved,) = (each.partition for each in other.assignment())
            assert rig.revoked == [moved]
            in_it = [each for each in rig.messages if each.id.partition == moved]
            assert [each.value for each in again] == (
                [] if commits_in_time else [each.value for each in in_it]
            )
            if not commits_in_time:
                with pytest.raises(CommitRefused):
                    await busy.commit()
            await busy.commit()
            with pytest.raises(CommitRefused):
                await busy.commit(in_it[0])


async def test_a_handler_that_commits_after_a_lapse_does_not_end_its_consumer(
    autojump_clock: MockClock,
) -> None:
    """The lapse is of one rebalance, and the handler commits in time in the next one."""
    async with (
        shop(3) as (_, client),
        (rig := Busy(client)).member(30) as busy,
        rig.other() as other,
    ):
        await other.poll(wait_s=20)
        assert len(rig.revoked) == 1
        async with rig.other() as third:
            assert await busy.poll(wait_s=20) == []
            assert await third.poll(wait_s=1) == [], "the handler has committed"
            assert len(rig.revoked) == 2
            await send(client, 30, 60)
            assert await busy.poll(wait_s=20)
            with pytest.raises(CommitRefused):
                await busy.commit()  # the application was not told yet
            await busy.commit()


@pytest.mark.parametrize("partition", [0, 1])
async def test_a_handler_commits_nothing_that_its_application_is_at_work_on(
    autojump_clock: MockClock, partition: int
) -> None:
    """Of partitions that stay. It is called in time unless that work is on the one that moves."""
    async with shop(2) as (_, client), (rig := Busy(client)).member(10) as busy:
        async with client.producer(ORDERS) as producer:
            await producer.send(b"last", partition=partition)
        (last,) = await busy.poll(wait_s=5)
        async with rig.other() as other:
            messages = [*await other.poll(wait_s=20), *await other.poll(wait_s=1)]
            again = [each.value for each in messages]
            (moved,) = rig.revoked
            (kept,) = (each for each in busy.committed() if each.partition != moved)
            (reached,) = (each for each in busy.position() if each.partition != moved)
            if moved == partition:  # too late to commit the partition that moves
                of_moved = [each.value for each in rig.messages if each.id.partition == moved]
                assert again == [*of_moved, last.value]
                assert kept == reached
            else:
                assert again == []
                assert kept.place.at < reached.place.at


async def test_a_commit_beside_the_handler_tells_what_lapsed(autojump_clock: MockClock) -> None:
    async with shop(2) as (_, client), (rig := Busy(client)).member(10) as busy:
        rig.go_on = trio.Event()
        async with rig.other(), trio.open_nursery():
            await until(lambda: bool(rig.revoked))
            with pytest.raises(CommitRefused):
                await busy.commit()
            rig.go_on.set()
            await trio.sleep(5)
            await busy.commit()


async def test_a_handler_that_is_cut_off_still_commits_nothing_that_is_in_hand(
    autojump_clock: MockClock,
) -> None:
    """One in a thread goes on after its time, and hears that it is too late for its partition."""
    failures: list[Exception] = []

    async with shop(2) as (_, client), trio.open_nursery() as nursery:
        settings = ConsumerSettings(group="billing", start="earliest", auto_commit_s=None)

        async def commit_late() -> None:
            await trio.sleep(20)
            try:
                await first.commit()
            except CommitRefused as refused:
                failures.append(refused)

        async def hang(_: Sequence[TopicPartition]) -> None:
            nursery.start_soon(commit_late)
            await trio.sleep_forever()

        async with client.consumer(ORDERS, **settings, on_revoked=hang, revoke_s=4) as first:  # type: ignore[misc]
            await send_to_all(client, 2)
            await trio.sleep(5)
            assert len(await first.poll()) == 2
            assert await first.poll(wait_s=1) == []
            async with client.consumer(ORDERS, **settings) as second:
                await until(lambda: len(second.assignment()) == 1)
                await send_to_some(client, first.assignment())
                assert await first.poll(wait_s=5)
                await trio.sleep(20)
                (kept,), (reached,) = first.committed(), first.position()
                assert kept.place.at < reached.place.at
    assert len(failures) == 1


@pytest.mark.parametrize(
    ("takes_s", "handler_s", "waits", "again"),
    [(2, 0, True, 0), (8, 0, True, 1), (6, 3, True, 0), (6, 3, False, 0)],
)
async def test_a_commit_that_is_under_way_as_time_runs_out_is_told_of_once_or_not_at_all(
    autojump_clock: MockClock, takes_s: float, handler_s: float, waits: bool, again: int
) -> None:
    """It is stored in time, and nothing comes again; or it is not, and all does.

    A handler that is called late, and takes its time, hears the same.
    """
    settings = ConsumerSettings(
        group="billing", start="earliest", revoke_s=20, auto_commit_s=None, session_s=60
    )
    told: list[str] = []

    async def commit(who: str) -> None:
        try:
            await first.commit()
        except CommitRefused:
            told.append(who)

    async def hear(_: Sequence[TopicPartition]) -> None:
        await trio.sleep(handler_s)
        if handler_s:
            await commit("handler")

    async with (
        shop(2) as (cluster, client),
        client.consumer(ORDERS, **settings, on_revoked=hear) as first,  # type: ignore[misc]
    ):
        await send_to_all(client, 2)
        await trio.sleep(1)
        assert len(await first.poll()) == 2
        transact = cluster.store.transact

        async def slowly(ops: Sequence[Op]) -> Versions:
            if any(isinstance(op, Put) and op.key.startswith(PROGRESS) for op in ops):
                await trio.sleep(takes_s)
            return await transact(ops)

        async with client.consumer(ORDERS, **settings) as second:
            while not await is_rebalancing(client):  # noqa: ASYNC110 - a row of the store
                await trio.sleep(0.01)
            await trio.sleep(14)
            cluster.store.transact = slowly  # type: ignore[method-assign]
            if not waits:
                first.commit_nowait()
                await trio.sleep(9)
            for _ in range(3):
                await commit("application")
            assert len(await second.poll(wait_s=20)) == again
            assert told == ["application"] * again
            await first.commit()


async def test_what_lapsed_is_told_although_the_partition_came_back(
    autojump_clock: MockClock,
) -> None:
    """What the application had of it comes again, to itself."""
    settings = ConsumerSettings(
        group="billing", start="earliest", revoke_s=4, auto_commit_s=None, session_s=60
    )
    async with shop(2) as (_, client), client.consumer(ORDERS, **settings) as first:
        await send_to_all(client, 2)
        await trio.sleep(1)
        assert len(await first.poll()) == 2
        async with client.consumer(ORDERS, **settings) as second:
            await until(lambda: len(second.assignment()) == 1)
            (moved,) = second.assignment()
        await until(lambda: len(first.assignment()) == 2)
        with pytest.raises(CommitRefused) as refused:
            await first.commit()
        assert [partition for _, partition in refused.value.parts] == [moved.partition]
        assert len(await first.poll(wait_s=5)) == 1
        await first.commit()


async def test_batches_of_a_partition_that_goes_just_as_they_arrive_are_not_returned(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "BATCHES_PER_CHECKPOINT", 1)
    checkpoint = trio.lowlevel.cancel_shielded_checkpoint
    settings = ConsumerSettings(group="billing", start="earliest", auto_commit_s=None)
    async with shop(2) as (_, client), client.consumer(ORDERS, **settings) as consumer:
        await send_to_all(client, 2)
        await trio.sleep(1)
        in_order, partitions = consumer._exclusive(""), consumer._partitions
        assert in_order is not None
        has_gone = False

        async def lose() -> None:
            nonlocal has_gone
            await checkpoint()
            if in_order._current is not None and not has_gone:
                has_gone = True
                await partitions._give_up(set(partitions.active), in_order, is_lost=True)

        monkeypatch.setattr(trio.lowlevel, "cancel_shielded_checkpoint", lose)
        assert await consumer.poll_batches(wait_s=5) == []
        assert has_gone


async def test_who_asks_too_late_hears_that_what_it_had_comes_again(
    autojump_clock: MockClock,
) -> None:
    """It was left out of the last commit of the partition, which is under way by then."""
    settings = ConsumerSettings(group="billing", start="earliest", revoke_s=20, auto_commit_s=1000)
    async with shop(2) as (cluster, client), client.consumer(ORDERS, **settings) as first:
        for _ in range(2):
            await send_to_all(client, 2)
            await trio.sleep(1)
            assert len(await first.poll()) == 2
        transact, begun = cluster.store.transact, trio.Event()

        async def slowly(ops: Sequence[Op]) -> Versions:
            if any(isinstance(op, Put) and op.key.startswith(PROGRESS) for op in ops):
                begun.set()
                await trio.sleep(2)
            return await transact(ops)

        cluster.store.transact = slowly  # type: ignore[method-assign]
        async with client.consumer(ORDERS, **settings) as second:
            await begun.wait()
            assert await first.poll(wait_s=0.5) == []
            assert len(await second.poll(wait_s=20)) == 1
            with pytest.raises(CommitRefused):
                await first.commit()
            await first.commit()


async def test_a_handler_may_commit_while_its_consumer_leaves(autojump_clock: MockClock) -> None:
    settings = {"group": "billing", "start": "earliest", "auto_commit_s": None}
    async with shop(2) as (_, client), trio.open_nursery() as nursery:

        async def join() -> None:
            async with client.consumer(ORDERS, **settings) as other:  # type: ignore[arg-type]
                assert await other.poll(wait_s=30) == [], "all was committed"

        async def note(_parts: Sequence[TopicPartition]) -> None:
            await leaving.commit()

        await send(client, 0, 10)
        async with client.consumer(ORDERS, **settings, on_revoked=note) as leaving:  # type: ignore[arg-type]
            await trio.sleep(5)
            assert len(await leaving.poll()) == 10
            nursery.start_soon(join)
            while not await is_rebalancing(client):  # noqa: ASYNC110 - a row of the store
                await trio.sleep(0.1)
            await trio.sleep(1)


async def send_to_all(client: Client, partitions: int = 6) -> None:
    """Send a message to each partition."""
    async with client.producer(ORDERS) as producer:
        for partition in range(partitions):
            await producer.send(b"one", partition=partition)


async def send_to_some(client: Client, parts: Sequence[TopicPartition]) -> None:
    async with client.producer(ORDERS) as producer:
        for each in parts:
            await producer.send(b"one", partition=each.partition)


async def is_rebalancing(client: Client) -> bool:
    return (await client.groups.describe("billing")).state == "rebalancing"


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(
    "calls", ["commit poll commit", "commit_nowait poll commit", "poll commit", "close"]
)
async def test_started_commits_one_after_the_other_tell_once_of_what_lapsed(
    autojump_clock: MockClock, calls: str, is_stored: bool
) -> None:
    """The first one is under way as the partition goes, and nobody knows yet what it stores."""
    settings = ConsumerSettings(
        group="billing", start="earliest", revoke_s=20, auto_commit_s=None, session_s=60
    )
    told: list[list[int]] = []
    async with shop(2) as (cluster, client), client.consumer(ORDERS, **settings) as first:
        for _ in range(2):
            await send_to_all(client, 2)
        await trio.sleep(1)
        messages = {each.id.partition: each for each in reversed(await first.poll())}
        transact = cluster.store.transact

        async def slowly(ops: Sequence[Op]) -> Versions:
            is_commit = any(isinstance(op, Put) and op.key.startswith(PROGRESS) for op in ops)
            made = await transact(ops) if is_stored else None
            await trio.sleep(8 * is_commit)
            return made or await transact(ops)

        async with client.consumer(ORDERS, **settings) as second:
            while not await is_rebalancing(client):  # noqa: ASYNC110 - a row of the store
                await trio.sleep(0.01)
            await trio.sleep(14)
            cluster.store.transact = slowly  # type: ignore[method-assign]
            for each in messages.values():
                first.commit_nowait(each)
            await until(lambda: len(first.assignment()) == 1)
            (moved,) = await first_assignment(second)
            assert first._exclusive("")._commits.under_way
            first.commit_nowait()
            await trio.sleep(9)
            cluster.store.transact = transact  # type: ignore[method-assign]
            for call in calls.split():
                try:
                    result = getattr(first, call)()
                    if call != "commit_nowait":
                        await result
                except CommitRefused as refused:
                    told.append([partition for _, partition in refused.parts])
            assert told == [[moved.partition]]
            await poll_for(second, 2 - is_stored)


@pytest.mark.parametrize("takes_more", [False, True])
async def test_who_hears_of_a_refusal_before_its_partitions_go_hears_of_no_lapse(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, takes_more: bool
) -> None:
    """Unless more was handed out meanwhile."""
    settings = ConsumerSettings(group="billing", start="earliest", auto_commit_s=None, session_s=6)
    async with shop(2) as (_, client), client.consumer(ORDERS, **settings) as consumer:
        await send_to_all(client, 2)
        await poll_for(consumer, 2)
        membership = consumer._membership
        monkeypatch.setattr(membership, "_look", trio.lowlevel.checkpoint)
        membership._heartbeats.remove(membership.pulse)
        while (await client.groups.describe("billing")).members:  # noqa: ASYNC110 - a call
            await trio.sleep(0.1)
        with pytest.raises(CommitRefused):
            await consumer.commit()
        if takes_more:
            await send_to_all(client, 2)
            await poll_for(consumer, 2)
        assert len(consumer.assignment()) == 2
        monkeypatch.undo()
        await until(lambda: not consumer.assignment())
        if takes_more:
            with pytest.raises(CommitRefused):
                await consumer.commit()
        await consumer.commit()
        await poll_for(consumer, 2 + 2 * takes_more)
        await consumer.commit()


async def first_assignment(consumer: GroupConsumer) -> list[TopicPartition]:
    await until(lambda: bool(consumer.assignment()))
    return consumer.assignment()


async def poll_for(consumer: GroupConsumer, count: int) -> None:
    """Take *count* messages, all that there are."""
    with trio.fail_after(60):
        while count > 0:
            count -= len(await consumer.poll())
    assert count == 0

"""Commits that are waited for, and commits that are only started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
import trio
from group_rig import ORDERS, rest, send, shop, take
from memory_cluster import MemoryCluster
from trio.testing import MockClock

from ledger_client import BadGroup, BadTopic, CommitRefused, MemberRemoved, MetadataUnavailable
from ledger_client.groups import arrivals
from ledger_client.groups.commits import Commits
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.feed import TopicFeed
from ledger_client.groups.lapses import Lapses
from ledger_client.groups.options import ConsumedLane
from ledger_client.groups.progress import Progress
from ledger_client.topics.positions import Place
from metadata.groups.assignment import Part
from metadata.groups.rows import PROGRESS
from metadata.store import Op, Put, Versions

STRANGE = r"behind the end of lane \d|there is no lane \d"


def count_commits(cluster: MemoryCluster) -> list[int]:
    """Return a list that gets the number of progress rows of each transaction."""
    transact, seen = cluster.store.transact, list[int]()

    async def note(ops: Sequence[Op]) -> Versions:
        rows = sum(isinstance(op, Put) and op.key.startswith(PROGRESS) for op in ops)
        if rows:
            seen.append(rows)
            await trio.sleep(0.1)
        return await transact(ops)

    cluster.store.transact = note  # type: ignore[method-assign]
    return seen


async def test_a_started_commit_is_durable_soon(autojump_clock: MockClock) -> None:
    """TD-61: asynchronous, of one message and of all."""
    async with shop(1) as (_, client):
        await send(client, 0, 10)
        for count, what in ((10, 2), (7, None), (0, None)):
            async with client.consumer(
                ORDERS, group="billing", start="earliest", auto_commit_s=None
            ) as consumer:
                messages = await consumer.poll(wait_s=5)
                assert len(messages) == count
                consumer.commit_nowait(None if what is None else messages[what])
                before = consumer.committed()
                await trio.sleep(1)
                assert (consumer.committed() != before) == (count > 0)


async def test_commits_started_during_another_one_travel_together(
    autojump_clock: MockClock,
) -> None:
    """However many they are, they take no more memory than the lanes do."""
    async with shop(2) as (cluster, client):
        await send(client, 0, 40)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            await trio.sleep(5)
            messages = await consumer.poll(wait_s=5)
            assert len(messages) == 40
            seen = count_commits(cluster)
            for message in messages:
                consumer.commit_nowait(message)
                await trio.sleep(0.01)
            started = consumer._exclusive("")._commits._started
            assert sum(map(len, started.values())) <= 2
            await consumer.commit()
            assert len(seen) <= 7
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await rest(consumer) == []


@pytest.mark.parametrize("call", ["poll", "next", "commit"])
async def test_the_next_call_tells_why_a_started_commit_failed(
    autojump_clock: MockClock, call: str
) -> None:
    async with shop(1) as (cluster, client):
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            assert await take(consumer, 3) == [0, 1, 2]
            cluster.store.available = False
            consumer.commit_nowait()
            await trio.sleep(8)
            cluster.store.available = True
            with pytest.raises(MetadataUnavailable):
                if call == "poll":
                    await consumer.poll()
                elif call == "next":
                    await anext(consumer)
                else:
                    await consumer.commit()
            assert await take(consumer, 7) == list(range(3, 10))
            await consumer.commit()


async def test_the_end_of_the_block_tells_why_a_started_commit_failed(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 4)
        with pytest.raises(BadTopic, match="behind the end"):
            async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
                await take(consumer, 4)
                (place,) = consumer.position()
                ahead = place.place._replace(entry=place.place.entry + 100)
                consumer.commit_nowait((place._replace(place=ahead),))


async def test_a_place_that_was_named_last_wins(autojump_clock: MockClock) -> None:
    """Also if it lies before the one that was committed before it."""
    async with shop(1) as (_, client):
        await send(client, 0, 10)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            await take(consumer, 3)
            early = consumer.position()
            await take(consumer, 5)
            await consumer.commit()
            consumer.commit_nowait(early)
            await trio.sleep(1)
            assert consumer.committed() == early
            consumer.commit_nowait(early)
            consumer.commit_nowait()
            await consumer.commit()
            assert consumer.committed() == consumer.position() != early
            await consumer.commit()
            consumer.commit_nowait()
            consumer.commit_nowait(early)
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await rest(consumer) == list(range(3, 10))


async def test_a_commit_that_is_cancelled_forgets_nothing_that_was_started(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (cluster, client):
        await send(client, 0, 10)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            await take(consumer, 3)
            early = consumer.position()
            await take(consumer, 5)
            await consumer.commit()
            count_commits(cluster)
            consumer.commit_nowait(early)
            with trio.move_on_after(0.05) as scope:
                await consumer.commit((consumer.position()[0],))
            assert scope.cancelled_caught
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await rest(consumer) == list(range(3, 10))


async def test_a_commit_of_nothing_is_refused(autojump_clock: MockClock) -> None:
    """TD-61: a consumer that has asked for nothing has nothing to commit."""
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        with pytest.raises(BadGroup, match="no partitions yet; poll"):
            await consumer.commit()
        with pytest.raises(BadGroup, match="no partitions yet; poll"):
            consumer.commit_nowait()
        await consumer.poll(wait_s=5)
        await consumer.commit()
        for strange in ("shop", [3], 3):
            with pytest.raises(TypeError, match="neither a message nor what position"):
                await consumer.commit(strange)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="neither a message nor what position"):
                await consumer.seek(strange)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 4, 10], ids=["ahead", "within", "reached"])
async def test_an_index_behind_the_end_of_its_batch_is_neither_committed_nor_sought(
    autojump_clock: MockClock, count: int
) -> None:
    """Stored, it made the group's lag too small. The end itself is a place."""
    async with shop(1) as (_, client):
        await send(client, 0, 1)
        async with client.producer(ORDERS, linger_ms=50) as producer:
            ids = list(await producer.send_many([b"%d" % i for i in range(1, 11)]))
        assert len({(each.ledger_id, each.entry_id) for each in ids}) == 1
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, count + 1) == list(range(count + 1))
            await consumer.commit()
            (here,), before = consumer.position(), consumer.committed()
            end = Place(1, ids[0].entry_id, 10, ids[0].ledger_id)
            for wrong in (end._replace(skip=11), end._replace(skip=9999)):
                for call in (consumer.commit, consumer.seek):
                    with pytest.raises(BadTopic, match="is behind the end of entry"):
                        await call((here._replace(place=wrong),))
            with pytest.raises(BadTopic, match="is behind the end of entry"):
                consumer.commit_nowait((here._replace(place=end._replace(skip=11)),))
                await consumer.commit((here,))
            assert consumer.position() == (here,)
            assert consumer.committed() == before
            await consumer.commit((here._replace(place=end),))
            assert [each.lag for each in await client.groups.lag("billing")] == [0]
            await consumer.seek((here._replace(place=end._replace(skip=9)),))
            assert await take(consumer, 1) == [10]


async def test_a_place_within_the_batch_at_hand_is_committed_without_a_look_at_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookies may be away."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS, linger_ms=50) as producer:
            await producer.send_many([b"%d" % i for i in range(10)])
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 5) == list(range(5))
            monkeypatch.delattr(TopicFeed, "known")
            (here,) = consumer.position()
            assert here.place.skip == 5
            await consumer.commit((here,))
            await consumer.commit((here._replace(place=here.place._replace(skip=2)),))
            assert consumer.committed() != (here,)
            monkeypatch.undo()


async def test_a_place_behind_the_end_of_a_former_ledger_is_neither_committed_nor_sought(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 2)
        await send(client, 2, 4)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 1) == [0]
            (here,), before = consumer.position(), consumer.committed()
            assert here.place.number == 0
            for call in (consumer.commit, consumer.seek):
                with pytest.raises(BadTopic, match="is behind the end of ledger"):
                    await call((here._replace(place=here.place._replace(entry=50)),))
            assert (consumer.position(), consumer.committed()) == ((here,), before)


async def test_a_place_behind_the_end_is_neither_committed_nor_sought(
    autojump_clock: MockClock,
) -> None:
    """TD-61, TD-62: the same check; nothing changes."""
    async with shop(1) as (_, client):
        await send(client, 0, 10)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 4) == [0, 1, 2, 3]
            await consumer.commit()
            (here,), before = consumer.position(), consumer.committed()
            end = (await consumer.lag())[0].end
            last = here.place._replace(entry=end)
            for wrong in (
                here._replace(place=last._replace(entry=end + 1)),
                here._replace(place=last._replace(number=7)),
                here._replace(lane=5),
            ):
                with pytest.raises(BadTopic, match=STRANGE):
                    await consumer.commit((wrong,))
                with pytest.raises(BadTopic, match=STRANGE):
                    await consumer.seek((wrong,))
            assert consumer.committed() == before
            assert await take(consumer, 2) == [4, 5]
            await consumer.seek((here._replace(place=last),))
            assert await rest(consumer) == []
            await consumer.commit((here._replace(place=last),))


async def test_what_was_started_is_stored_before_a_partition_moves(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (cluster, client):
        await send(client, 0, 40)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as first:
            await trio.sleep(5)
            messages = await first.poll()
            assert len(messages) == 40
            count_commits(cluster)
            async with client.consumer(
                ORDERS, group="billing", start="earliest", auto_commit_s=None
            ) as second:
                await trio.sleep(5)
                first.commit_nowait(messages[0])
                await trio.sleep(0.05)
                first.commit_nowait()  # waits for the other, which is being stored
                assert await first.poll(wait_s=3) == []
                assert len(first.assignment()) == 1
                assert await rest(second) == []


async def test_a_started_commit_of_a_partition_that_moved_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with shop(2) as (_, client):
        await send(client, 0, 20)
        async with client.consumer(ORDERS, group="billing", start="earliest") as first:
            await trio.sleep(5)
            await first.poll()
            position = first.position()
            async with client.consumer(ORDERS, group="billing", start="earliest") as second:
                await first.poll(wait_s=3)
                await second.poll(wait_s=15)
                first.commit_nowait(position)
                with pytest.raises(CommitRefused):
                    await first.poll(wait_s=5)


async def test_a_consumer_says_where_it_is_and_what_lies_before_it(
    autojump_clock: MockClock,
) -> None:
    """TD-63, TD-64, TD-65: position, committed place, begin and end of each partition."""
    async with shop(2) as (_, client):
        await client.topics.create("shop/refunds")
        await send(client, 0, 5, "shop/refunds")
        async with client.consumer(
            ["shop/refunds", ORDERS], group="billing", start="earliest"
        ) as consumer:
            assert await take(consumer, 3) == [0, 1, 2]
            await consumer.commit()
            await take(consumer, 1)
            assert len(consumer.assignment()) == 3
            (lane,) = await consumer.lag()
            assert isinstance(lane, ConsumedLane)
            assert (lane.topic, lane.partition, lane.lane) == ("shop/refunds", -1, 0)
            assert 0 <= lane.begin < lane.committed < lane.position < lane.end
            assert lane.entries_left == lane.end - lane.position > 0
            await rest(consumer)
            (lane,) = await consumer.lag()
            assert (lane.position, lane.entries_left) == (lane.end, 0)


async def test_progress_counts_in_versions(autojump_clock: MockClock) -> None:
    """TD-19: those that messages have."""
    async with shop(1) as (_, client):
        async with client.producer(ORDERS) as producer:
            for _each in range(3):
                await producer.send_many([b"1", b"2"])
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            messages = await consumer.poll(wait_s=5)
            versions = [message.version for message in messages]
            assert versions == sorted(versions)
            for index, expected in ((0, versions[0]), (-1, versions[-1] + 1)):
                await consumer.commit(messages[index])
                (lane,) = await consumer.lag()
                assert lane.committed == expected


@pytest.mark.parametrize("change", [{"entry": -5}, {"skip": -1}, {"number": -2}, {"entry": "1"}])
async def test_what_is_no_place_is_stored_by_nobody(
    autojump_clock: MockClock, change: dict[str, Any]
) -> None:
    """The group's progress could not be read again."""
    async with shop(1) as (_, client):
        await send(client, 0, 3)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await take(consumer, 3)
            (place,) = consumer.position()
            wrong = [place._replace(place=place.place._replace(**change))]
            for call in (consumer.commit, consumer.seek):
                with pytest.raises(BadTopic, match="it is no position"):
                    await call(wrong)
            with pytest.raises(BadTopic, match="it is no position"):
                consumer.commit_nowait(wrong)
        with pytest.raises(BadTopic, match="it is no position"):
            await client.groups.commit("billing", wrong)
        assert [each.lag for each in await client.groups.lag("billing")] == [0]


async def test_a_consumer_that_is_over_says_so_to_each_call(autojump_clock: MockClock) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 3)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            (message, *_) = await consumer.poll(wait_s=5)
        position = consumer.position()
        for call in (lambda: consumer.commit(), lambda: consumer.seek(position), consumer.poll):
            with pytest.raises(MemberRemoved, match="it was closed"):
                await call()
        with pytest.raises(MemberRemoved, match="it was closed"):
            consumer.commit_nowait(message)


@pytest.mark.parametrize("count", [0, -1, 1.5, "x", None, True, 10**30])
async def test_a_poll_takes_a_number_of_messages(autojump_clock: MockClock, count: object) -> None:
    async with shop(1) as (_, client), client.consumer(ORDERS, group="billing") as consumer:
        for poll in (consumer.poll, consumer.poll_batches):
            with pytest.raises(ValueError, match="messages_max takes 1 to 2147483647"):
                await poll(messages_max=count)  # type: ignore[arg-type]


async def test_every_partition_in_which_started_commits_were_refused_is_told_once(
    autojump_clock: MockClock,
) -> None:
    """Beside a commit that is waited for, and refused as well."""
    async with shop(3) as (_, client):
        await send(client, 0, 30)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            await trio.sleep(5)
            first = {each.id.partition: each for each in await consumer.poll(wait_s=5)}
            assert len(first) == 3

            async def refuse(places: Mapping[Part, object], **_: object) -> None:
                raise CommitRefused("billing", sorted(places))

            consumer._exclusive("")._progress.commit = refuse  # type: ignore[method-assign]
            for partition in (0, 1):
                consumer.commit_nowait(first[partition])
                await trio.sleep(1)
            told: list[list[int]] = []
            for _ in range(2):
                with pytest.raises(CommitRefused) as refused:
                    await consumer.commit(first[2])
                told.append([partition for _, partition in refused.value.parts])
            assert told == [[0, 1, 2], [2]]


def refuse_once(consumer: GroupConsumer) -> None:
    """Let the next commit of *consumer* be refused, in all its partitions."""
    progress = consumer._exclusive("")._progress
    commit = progress.commit

    async def refuse(places: Mapping[Part, object], **_: object) -> None:
        progress.commit = commit  # type: ignore[method-assign]
        raise CommitRefused("billing", sorted(places))

    progress.commit = refuse  # type: ignore[method-assign]


@pytest.mark.parametrize("tells", ["commit", "poll_batches", "close"])
async def test_a_refusal_that_comes_as_batches_do_is_told_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tells: str
) -> None:
    """By the next call, which need not be one that asks for messages."""
    monkeypatch.setattr(arrivals, "BATCHES_PER_CHECKPOINT", 1)
    checkpoint = trio.lowlevel.cancel_shielded_checkpoint
    async with shop(1) as (_, client):
        await send(client, 0, 3)
        consumer = await client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        )
        assert await take(consumer, 1) == [0]
        await trio.sleep(1)

        async def commit_meanwhile() -> None:
            monkeypatch.setattr(trio.lowlevel, "cancel_shielded_checkpoint", checkpoint)
            refuse_once(consumer)
            consumer.commit_nowait()
            await consumer._exclusive("").finish_commits()

        monkeypatch.setattr(trio.lowlevel, "cancel_shielded_checkpoint", commit_meanwhile)
        assert sum(batch.num_rows for batch in await consumer.poll_batches()) > 0
        with pytest.raises(CommitRefused):
            await getattr(consumer, tells)()
        if tells != "close":
            await consumer.commit()
        await consumer.close()


async def test_the_end_tells_of_a_refusal_and_of_another_failure(autojump_clock: MockClock) -> None:
    async with shop(1) as (cluster, client):
        await send(client, 0, 3)
        with pytest.raises(CommitRefused) as refused:
            async with client.consumer(
                ORDERS, group="billing", start="earliest", auto_commit_s=None
            ) as consumer:
                await take(consumer, 2)
                cluster.store.available = False
                consumer.commit_nowait()
                await trio.sleep(8)
                cluster.store.available = True
                refuse_once(consumer)
                consumer.commit_nowait()
        (note,) = refused.value.__notes__
        assert "another commit failed, too: " in note
        assert "the store is away" in note


async def test_a_refusal_and_another_failure_are_told_by_a_call_each(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop(1) as (cluster, client),
        client.consumer(ORDERS, group="billing", start="earliest", auto_commit_s=None) as consumer,
    ):
        await send(client, 0, 3)
        await take(consumer, 2)
        cluster.store.available = False
        consumer.commit_nowait()
        await trio.sleep(8)
        cluster.store.available = True
        refuse_once(consumer)
        consumer.commit_nowait()
        await trio.sleep(1)
        for failure in (CommitRefused, MetadataUnavailable):
            with pytest.raises(failure):
                await consumer.poll()
        await consumer.poll()


@pytest.mark.parametrize("closes", [False, True])
async def test_the_end_tells_once_that_a_started_commit_is_not_over(
    autojump_clock: MockClock, closes: bool
) -> None:
    async with shop(1) as (cluster, client):
        await send(client, 0, 3)
        with pytest.raises(MetadataUnavailable, match="may have been made, or not"):
            async with client.consumer(
                ORDERS, group="billing", start="earliest", auto_commit_s=None
            ) as consumer:
                await take(consumer, 3)
                transact = cluster.store.transact

                async def slowly(ops: Sequence[Op]) -> Versions:
                    await trio.sleep(8)
                    return await transact(ops)

                cluster.store.transact = slowly  # type: ignore[method-assign]
                consumer.commit_nowait()
                if closes:
                    await consumer.close()
        await consumer.close()


async def test_a_commit_that_is_cancelled_repeats_nothing_that_was_refused(
    autojump_clock: MockClock,
) -> None:
    calls: list[bool] = []

    class Refusing:
        async def commit(self, places: Mapping[Part, object], *, goes_back: bool) -> None:
            calls.append(goes_back)
            if not goes_back:
                raise CommitRefused("billing", sorted(places))
            await trio.sleep(2)

    async def check(_: object) -> None: ...

    refused, named = Part(1, 0), Part(1, 1)
    progress = cast(Progress, Refusing())
    commits = Commits(progress, check, Lapses(), lambda: None)
    commits.start({refused: {0: Place(0, 1, 0)}})
    commits.start({named: {0: Place(0, 1, 0)}}, explicit=True)
    with trio.move_on_after(1):
        await commits.finish()
    assert commits.under_way == {named}
    assert commits.take_refused() == {refused}
    await commits.finish()
    assert calls == [False, True, True]
    assert not commits.has_failed
    assert commits.under_way == set()


@pytest.mark.parametrize("explicit", [False, True])
async def test_commits_under_way_that_are_refused_after_each_other_are_told_once(
    autojump_clock: MockClock, explicit: bool
) -> None:
    """Their messages come again all the same. What was started after that is told of anew."""

    class Refusing:
        async def commit(self, places: Mapping[Part, object], *, goes_back: bool) -> None:
            await trio.sleep(2)
            raise CommitRefused("billing", sorted(places))

    async def check(_: object) -> None: ...

    part, told = Part(1, 0), list[float]()
    commits = Commits(
        cast(Progress, Refusing()), check, Lapses(), lambda: told.append(trio.current_time())
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        commits.start({part: {0: Place(0, 1, 0)}})
        await trio.sleep(1)
        commits.start({part: {0: Place(0, 2, 0)}}, explicit=explicit)
        await trio.sleep(1.5)
        assert commits.take_refused() == {part}
        await trio.sleep(5)
        assert not commits.under_way
        assert (commits.take_refused(), len(told)) == (set(), 1)
        commits.start({part: {0: Place(0, 3, 0)}}, explicit=explicit)
        await trio.sleep(5)
        assert (commits.take_refused(), len(told)) == ({part}, 2)
        nursery.cancel_scope.cancel()

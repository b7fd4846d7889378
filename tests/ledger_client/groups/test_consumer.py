"""Consumers in groups, on bookies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
import trio
from group_rig import ORDERS, PARTITIONS, nothing_more, rest, send, shop, take
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import (
    BadGroup,
    BadTopic,
    CommitRefused,
    Gap,
    MetadataUnavailable,
    NoSuchTopic,
)
from ledger_client.groups.options import TopicPartition


async def test_a_group_reads_everything_once(autojump_clock: MockClock) -> None:
    """TD-11, TD-13: a consumer has a group, always."""
    async with shop() as (_, client):
        with pytest.raises(TypeError, match="group"):
            async with client.consumer(ORDERS):
                pass
        await send(client, 0, 100)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert sorted(await take(consumer, 100)) == list(range(100))
            assert await nothing_more(consumer)
            await send(client, 100, 120)
            assert sorted(await take(consumer, 20)) == list(range(100, 120))


async def test_the_next_consumer_goes_on_where_the_last_one_stopped(
    autojump_clock: MockClock,
) -> None:
    """TD-18, TD-22, TD-29, TD-44: progress survives its members."""
    async with shop(1) as (_, client):
        await send(client, 0, 10)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 4) == [0, 1, 2, 3]
            await consumer.commit()
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 6) == [4, 5, 6, 7, 8, 9]


async def test_commit_3_means_that_the_next_consumer_starts_at_the_fourth_record(
    autojump_clock: MockClock,
) -> None:
    """TD-47: what is committed is the next message to read."""
    async with shop(1) as (_, client):
        await send(client, 0, 6)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            messages = await consumer.poll(wait_s=5)
            assert len(messages) == 6
            await consumer.commit(messages[2])
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await take(consumer, 3) == [3, 4, 5]


async def test_a_message_that_is_not_done_comes_again(autojump_clock: MockClock) -> None:
    """TD-17, TD-20: automatic commits count what the application has left behind."""
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=1
        ) as consumer:
            async for message in consumer:
                if message.value == b"2":
                    await trio.sleep(3)
                    assert [each.place.at for each in consumer.committed()] == [
                        (0, message.id.entry_id, message.id.batch_index)
                    ]
                    break


async def test_what_has_arrived_is_there_without_a_wait(autojump_clock: MockClock) -> None:
    """Also when it is the turn of other tasks."""
    async with shop(1) as (_, client):
        await send(client, 0, 100)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 1) == [0]
            await trio.sleep(1)
            for number in range(1, 41):
                (message,) = await consumer.poll(wait_s=0, messages_max=1)
                assert message.value == b"%d" % number


async def test_groups_do_not_disturb_each_other(autojump_clock: MockClock) -> None:
    """TD-23."""
    async with shop() as (_, client):
        await send(client, 0, 20)
        for group in ("billing", "audit"):
            async with client.consumer(ORDERS, group=group, start="earliest") as consumer:
                assert sorted(await take(consumer, 20)) == list(range(20))


async def test_each_group_takes_a_subset_of_what_loaders_write(autojump_clock: MockClock) -> None:
    """TB-36: C1={L1}, C2={L1,L2,L3}, C3={L1,L3}, C4={L3}, each with progress of its own."""
    cursors = {"c1": [1], "c2": [1, 2, 3], "c3": [1, 3], "c4": [3]}
    async with memory_cluster() as cluster, cluster.client() as client:
        cluster.lead("b1")
        for loader in (1, 2, 3):
            await client.topics.create(f"load/l{loader}")
        for first in (0, 10):  # the second time, each goes on where it was
            for loader in (1, 2, 3):
                async with client.producer(f"load/l{loader}") as producer:
                    for number in range(first, first + 10):
                        await producer.send(b"%d" % (100 * loader + number))
            for group, loaders in cursors.items():
                due = [
                    100 * each + number for each in loaders for number in range(first, first + 10)
                ]
                async with client.consumer(
                    [f"load/l{each}" for each in loaders], group=group, start="earliest"
                ) as consumer:
                    assert sorted(await take(consumer, len(due))) == due
                    assert await nothing_more(consumer)


async def test_a_group_that_starts_at_the_latest_message_sees_all_later_ones(
    autojump_clock: MockClock,
) -> None:
    """TD-21, TD-45, TD-51: also those written before its first member is back."""
    async with shop() as (_, client):
        await send(client, 0, 20)
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await nothing_more(consumer)
        await send(client, 20, 30)
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert sorted(await take(consumer, 10)) == list(range(20, 30))


async def test_what_comes_after_a_group_is_read_from_its_first_message(
    autojump_clock: MockClock,
) -> None:
    """TD-21, TD-45, TD-56: a topic, and a partition, however late the group learns of them."""
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer("shop/*", group="billing") as consumer:
            assert await nothing_more(consumer)
            await client.topics.create("shop/refunds")
            await send(client, 5, 10, "shop/refunds")
            assert sorted(await take(consumer, 5)) == list(range(5, 10))
            await client.topics.alter(ORDERS, partitions=8)
            await send(client, 10, 50)
            assert sorted(await take(consumer, 40)) == list(range(10, 50))
            assert len({each.partition for each in consumer.position()}) > 4
        async with client.consumer("shop/*", group="other") as consumer:
            assert await nothing_more(consumer)


async def test_a_start_counts_only_before_the_first_commit(autojump_clock: MockClock) -> None:
    """TD-46."""
    async with shop(1) as (_, client):
        await send(client, 0, 4)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await take(consumer, 4)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await nothing_more(consumer)


async def test_without_progress_and_start_none_the_first_poll_fails(
    autojump_clock: MockClock,
) -> None:
    """TD-50."""
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", start="none") as consumer,
    ):
        with pytest.raises(BadGroup, match="has committed nothing"):
            await consumer.poll(wait_s=5)


async def test_seeking_changes_what_is_read_and_not_what_is_committed(
    autojump_clock: MockClock,
) -> None:
    """TD-28, TD-62, TD-63, TD-64: messages that had arrived do not come after it."""
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await send(client, 0, 10)
        assert await take(consumer, 2) == [0, 1]
        begin = consumer.position()
        assert await take(consumer, 4) == [2, 3, 4, 5]
        await consumer.commit()
        committed = consumer.committed()
        await consumer.seek(begin)
        assert consumer.position() == begin
        assert consumer.committed() == committed
        assert await take(consumer, 8) == list(range(2, 10))


async def test_seeking_in_a_partition_of_another_member_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop(1) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await send(client, 0, 5)
        await take(consumer, 2)
        (place,) = consumer.position()
        with pytest.raises(CommitRefused, match="partition 3 of shop/orders: not this"):
            await consumer.seek((place._replace(partition=3),))
        assert await take(consumer, 3) == [2, 3, 4]


async def test_a_seek_that_fails_changes_nothing(autojump_clock: MockClock) -> None:
    async with (
        shop(1) as (cluster, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await send(client, 0, 10)
        assert await take(consumer, 2) == [0, 1]
        begin = consumer.position()
        assert await take(consumer, 3) == [2, 3, 4]
        here = consumer.position()
        cluster.store.available = False
        with pytest.raises(MetadataUnavailable):
            await consumer.seek(begin)
        cluster.store.available = True
        assert consumer.position() == here
        assert await take(consumer, 5) == [5, 6, 7, 8, 9]


async def test_a_seek_in_a_partition_that_is_revoked_does_not_keep_it(
    autojump_clock: MockClock,
) -> None:
    """What its next owner gets is not handed out here as well."""
    async with shop(2) as (_, client):
        await send(client, 0, 20)
        async with client.consumer(ORDERS, group="billing", start="earliest") as first:
            await trio.sleep(5)
            while any(each.place.number < 0 for each in first.position()):
                await take(first, 1)
            begin = first.position()
            await first.poll()
            async with client.consumer(ORDERS, group="billing", start="earliest") as second:
                await trio.sleep(5)  # the first one is asked to give one up, and is not done
                await first.seek(begin)
                await rest(first)
                assert len(first.assignment()) == len(second.assignment()) == 1
                await send(client, 20, 60)
                assert sorted(await rest(first) + await rest(second))[-40:] == list(range(20, 60))
                assert len(first._partitions.feeds) == 1
                (feed,) = first._partitions.feeds.values()
                assert {ref.partition for ref in feed.places()} == {
                    each.partition for each in first.assignment()
                }


async def test_a_paused_partition_stays_assigned_and_goes_on_when_it_is_resumed(
    autojump_clock: MockClock,
) -> None:
    async with (
        shop(2) as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest") as consumer,
    ):
        await send(client, 0, 20)
        first = await take(consumer, 3)
        consumer.pause()
        assert await nothing_more(consumer)
        assert len(consumer.assignment()) == 2
        consumer.resume(consumer.assignment()[:1])
        second = await rest(consumer)
        assert 0 < len(second) < 17
        consumer.resume()
        assert sorted(first + second + await rest(consumer)) == list(range(20))
        consumer.pause([TopicPartition(ORDERS, 7)])  # it may have moved elsewhere
        for strange in (5, ORDERS, consumer.assignment()[0], [0], [(ORDERS, 0)]):
            for call in (consumer.pause, consumer.resume):
                with pytest.raises(TypeError, match="no partitions as assignment"):
                    call(strange)  # type: ignore[arg-type]


async def test_a_consumer_that_is_over_has_no_partitions(autojump_clock: MockClock) -> None:
    async with shop(2) as (_, client):
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await consumer.poll(wait_s=3)
            assert len(consumer.assignment()) == 2
        assert consumer.assignment() == []


async def test_a_commit_of_a_partition_of_another_member_is_refused(
    autojump_clock: MockClock,
) -> None:
    """The rest is committed; invariant 11."""
    async with shop(2) as (_, client):
        await send(client, 0, 20)
        async with client.consumer(ORDERS, group="billing", start="earliest") as first:
            await trio.sleep(5)
            messages = await first.poll()
            position = first.position()
            assert len(messages) == 20
            async with client.consumer(ORDERS, group="billing", start="earliest") as second:
                await second.poll(wait_s=15)
                (kept,), (lost,) = first.assignment(), second.assignment()
                with pytest.raises(CommitRefused, match=f"partition {lost.partition} of shop"):
                    await first.commit(position)
                assert {place.partition for place in first.committed()} == {kept.partition}
                before = first.committed()
                strange = next(m for m in messages if m.id.partition == lost.partition)
                with pytest.raises(CommitRefused):
                    await first.commit(strange)
                assert first.committed() == before


async def test_a_second_member_takes_half_and_gives_it_back(autojump_clock: MockClock) -> None:
    """TD-14, TD-15, TD-24, TD-36: evenly, without a manual step; what does not move never stops."""
    revoked: list[TopicPartition] = []

    async def note(parts: Sequence[TopicPartition]) -> None:
        revoked.extend(parts)

    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="billing", start="earliest", on_revoked=note) as first,
    ):
        await first.poll(wait_s=3)
        assert len(first.assignment()) == PARTITIONS
        async with client.consumer(ORDERS, group="billing", start="earliest") as second:
            await second.poll(wait_s=4)
            assert len(first.assignment()) == len(second.assignment()) == 2
            assert {*first.assignment()}.isdisjoint(second.assignment())
            assert revoked == second.assignment()
            await send(client, 0, 40)
            assert sorted(await rest(first) + await rest(second)) == list(range(40))
        await first.poll(wait_s=4)
        assert len(first.assignment()) == PARTITIONS


async def test_a_handler_may_finish_and_commit_what_is_revoked(autojump_clock: MockClock) -> None:
    async with shop(2) as (_, client):
        await send(client, 0, 40)
        async with client.consumer(ORDERS, group="billing", start="earliest") as first:
            await trio.sleep(5)
            assert len(await first.poll()) == 40
            async with client.consumer(ORDERS, group="billing", start="earliest") as second:
                await trio.sleep(5)  # the first one is still at work on its messages
                assert len(first.assignment()) == 2
                assert await first.poll(wait_s=3) == []
                assert len(first.assignment()) == 1
                assert await nothing_more(second)


async def test_a_member_that_goes_away_is_replaced_after_its_session(
    autojump_clock: MockClock,
) -> None:
    """TD-30, TD-40: its messages that were not committed come again. It does not leave."""
    async with shop() as (cluster, client):
        await send(client, 0, 20)
        async with cluster.client() as other, trio.open_nursery() as nursery:
            gone = trio.CancelScope()

            async def vanish() -> None:
                with gone:
                    async with other.consumer(
                        ORDERS, group="billing", start="earliest", auto_commit_s=None
                    ) as consumer:
                        await take(consumer, 20)
                        consumer._membership._heartbeats.remove(consumer._membership.pulse)
                        vars(consumer._membership).update(is_member=False, _has_asked=False)
                        await trio.sleep_forever()

            nursery.start_soon(vanish)
            await trio.sleep(5)
            gone.cancel()
            async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
                assert await nothing_more(consumer)
                assert sorted(await take(consumer, 20)) == list(range(20))


async def test_topics_that_match_a_pattern_are_read_once_they_exist(
    autojump_clock: MockClock,
) -> None:
    """TD-16."""
    async with (
        shop() as (_, client),
        client.consumer("shop/*", group="billing", start="earliest") as consumer,
    ):
        await send(client, 0, 5)
        assert sorted(await take(consumer, 5)) == list(range(5))
        await client.topics.create("shop/refunds")
        await client.topics.create("other/orders")
        await send(client, 5, 10, "shop/refunds")
        await send(client, 10, 15, "other/orders")
        assert sorted(await take(consumer, 5)) == list(range(5, 10))
        assert await nothing_more(consumer)


async def test_a_topic_that_does_not_exist_fails_or_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (_, client):
        with pytest.raises(NoSuchTopic):
            async with client.consumer("shop/refunds", group="billing"):
                pass
        async with client.consumer(
            "shop/refunds", group="billing", start="earliest", missing="wait"
        ) as consumer:
            assert await nothing_more(consumer)
            await client.topics.create("shop/refunds")
            await send(client, 0, 5, "shop/refunds")
            assert await take(consumer, 5) == list(range(5))


async def test_a_group_goes_on_under_the_next_leader(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leading = cluster.lead("b1")
        await client.topics.create(ORDERS, PARTITIONS)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await consumer.poll(wait_s=3)
            cluster.lead("b2")
            leading.cancel()
            cluster.kill("b1")
            cluster.bookies["b1"].coordinator = None
            await send(client, 0, 20)
            assert sorted(await take(consumer, 20)) == list(range(20))
            await trio.sleep(20)
            await send(client, 20, 30)
            assert sorted(await take(consumer, 10)) == list(range(20, 30))


async def test_a_group_is_reset_to_a_place_while_it_has_no_members(
    autojump_clock: MockClock,
) -> None:
    """A dry run changes nothing; with members it is refused."""
    async with shop(2) as (_, client):
        await send(client, 0, 20)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert len(await rest(consumer)) == 20
            with pytest.raises(BadGroup, match="has members"):
                await client.groups.reset("billing", "earliest")
        assert [lane.lag for lane in await client.groups.lag("billing")] == [0, 0]
        await client.groups.reset("billing", "earliest", dry_run=True)
        assert [lane.lag for lane in await client.groups.lag("billing")] == [0, 0]
        await client.groups.reset("billing", "earliest")
        assert sum(lane.lag for lane in await client.groups.lag("billing")) == 20
        async with client.consumer(ORDERS, group="billing") as consumer:
            messages = await consumer.poll(wait_s=5)
            await rest(consumer)
        await client.groups.reset("billing", messages[0].id)
        async with client.consumer(ORDERS, group="billing") as consumer:
            again = await rest(consumer)
        same = {m.id.partition for m in messages[:1]}
        assert again
        assert int(messages[0].value or b"") == again[0]
        assert len(same) == 1


async def test_a_message_is_a_place_in_its_own_topic_alone(autojump_clock: MockClock) -> None:
    """TD-31: what the group has read of other topics stays read, and of other partitions."""
    refunds = "shop/refunds"
    async with shop(2) as (_, client):
        await client.topics.create(refunds, 1)
        await send(client, 0, 20)
        await send(client, 20, 25, refunds)
        async with client.consumer([ORDERS, refunds], group="billing", start="earliest") as both:
            messages = []
            while found := await both.poll(wait_s=3):
                messages += found
        assert len(messages) == 25

        async def reset_to(topic: str, partition: int, index: int) -> None:
            of_it = [m for m in messages if (m.topic, m.id.partition) == (topic, partition)]
            for dry_run in (True, False):
                position = await client.groups.reset("billing", of_it[index].id, dry_run=dry_run)
                assert {(each.topic, each.partition) for each in position} <= {(topic, partition)}
            lanes = await client.groups.lag("billing")
            lag = {(each.topic, each.partition): each.lag for each in lanes}
            assert lag.pop((topic, partition)) == len(of_it) - index
            assert set(lag.values()) == {0}
            await client.groups.reset("billing", "latest")

        await reset_to(refunds, 0, 2)
        await reset_to(ORDERS, 0, 1)
        await reset_to(ORDERS, 1, 1)
        strange = messages[0].id._replace(ledger_id=10_000)
        with pytest.raises(BadTopic, match="orders, shop/refunds: none of these"):
            await client.groups.reset("billing", strange)


async def test_a_group_that_does_not_exist_cannot_be_reset(autojump_clock: MockClock) -> None:
    async with shop() as (cluster, client):
        before = dict(cluster.store.values)
        with pytest.raises(BadGroup, match="there is no group"):
            await client.groups.reset("billing", "earliest", [ORDERS])
        with pytest.raises(BadGroup, match="is not a name"):
            await client.groups.reset("a/b", "earliest", [ORDERS])
        assert cluster.store.values == before


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"group": "a:b"}, "is not a name"),
        ({"group": "billing", "session_s": 5}, "session_s 5"),
        ({"group": "billing", "beat_s": 12}, "beat_s 12"),
        ({"group": "billing", "poll_s_max": 0}, "poll_s_max 0"),
        ({"group": "billing", "client_id": "x" * 256}, "client_id"),
        ({"group": "billing", "mode": "sharde"}, "mode 'sharde' is none of exclusive, shared"),
        ({"group": "billing", "order": "time"}, "order 'time' is none of arrival"),
        ({"group": "billing", "start": "begin"}, "start 'begin' is neither earliest"),
        ({"group": "billing", "missing": "ignore"}, "missing 'ignore' is none of fail"),
        ({"group": "billing", "on_gap": "ignore"}, "on_gap 'ignore' is none of raise"),
    ],
)
async def test_an_option_that_is_not_possible_is_refused(
    autojump_clock: MockClock, settings: dict[str, object], reason: str
) -> None:
    """TD-48."""
    async with shop() as (_, client):
        with pytest.raises(BadGroup, match=reason):
            async with client.consumer(ORDERS, **settings):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("gone", [0, 1])
async def test_messages_that_arrived_before_a_failure_are_handed_out(
    autojump_clock: MockClock, gone: int
) -> None:
    """One partition has a gap; messages of the other one have arrived in the same call."""
    async with shop(2) as (_, client):
        for first in (0, 10):
            async with client.producer(ORDERS) as producer:
                for number in range(first, first + 10):
                    await producer.send(b"%d" % number, partition=number % 2)
        seen: list[int] = []
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            while len({number % 2 for number in seen}) < 2:
                seen += [int(each.value or b"") for each in await consumer.poll(messages_max=1)]
        await client.topics.purge(ORDERS, partition=gone)
        gaps = polls = 0
        async with client.consumer(ORDERS, group="billing") as consumer:
            await trio.sleep(5)
            while polls < 5:
                try:
                    seen += [int(each.value or b"") for each in await consumer.poll(wait_s=5)]
                    polls += 1
                except Gap:
                    gaps += 1
        assert gaps == 1
        assert sorted(each for each in seen if each % 2 != gone) == list(range(1 - gone, 20, 2))


# --- closed by another task --------------------------------------------------------------


@pytest.mark.parametrize("closed", ["client", "consumer", "consumer of a block"])
async def test_a_message_in_hand_comes_again_if_another_task_closes_its_consumer(
    closed: str, autojump_clock: MockClock
) -> None:
    async with shop(1) as (cluster, client):
        await send(client, 0, 5)
        async with cluster.client() as closing, AsyncExitStack() as block:
            opening = closing.consumer(ORDERS, group="billing", start="earliest")
            if closed == "consumer of a block":
                consumer = await block.enter_async_context(opening)
            else:
                consumer = await opening
            assert await take(consumer, 3) == [0, 1, 2]
            await (closing.close() if closed == "client" else consumer.close())
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await take(consumer, 3) == [2, 3, 4]


async def test_what_was_polled_comes_again_unless_it_was_committed_before_the_close(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        for count, committed in ((2, False), (2, True)):
            consumer = await client.consumer(ORDERS, group="billing", start="earliest")
            messages = await consumer.poll(wait_s=20, messages_max=count)
            assert [message.value for message in messages] == [b"0", b"1"]
            if committed:
                await consumer.commit()
            await consumer.close()
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await take(consumer, 3) == [2, 3, 4]


async def test_the_end_of_a_consumers_block_counts_the_message_in_hand(
    autojump_clock: MockClock,
) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 3) == [0, 1, 2]
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await take(consumer, 2) == [3, 4]

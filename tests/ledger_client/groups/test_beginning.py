"""A member begins partitions, and something is in the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from group_rig import ORDERS, rest, send, shop, take
from shared_shop import shop as shared_shop, until
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import (
    MemberRemoved,
    MetadataUnavailable,
    NoSuchTopic,
    ReplicasUnavailable,
)
from ledger_client.groups import membership
from ledger_client.groups.beginnings import Beginnings, OpenTopic
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.feed import FoundLanes, TopicFeed
from ledger_client.groups.options import TopicPartition
from ledger_client.groups.sharing import Fetched, Sharing
from ledger_client.topics.positions import LanePlace, Place
from metadata.groups.assignment import Part
from metadata.groups.rows import GROUP_MEMBERS
from metadata.store import Item, Op, Put, Versions

OTHER = "shop/other"


@dataclass
class Away:
    """Topics whose ends cannot be found, as their bookies are away; who asks waits for a while."""

    topics: set[str] = field(default_factory=set)
    silent_s: float = 1


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    nothing, begin = Away(), TopicFeed.begin

    async def begin_if_there(self: TopicFeed, *arguments: object) -> Mapping[int, object]:
        if self.topic.name in nothing.topics:
            await trio.sleep(nothing.silent_s)
            raise ReplicasUnavailable(ledger_id=1, entry_id=0, reasons={"b3": "gone"})
        return await begin(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicFeed, "begin", begin_if_there)
    return nothing


async def test_a_topic_that_cannot_be_begun_holds_no_other_one_back(
    autojump_clock: MockClock, away: Away
) -> None:
    async with shop() as (_, client):
        await client.topics.create(OTHER, 2)
        away.topics.add(OTHER)
        async with client.consumer([ORDERS, OTHER], group="billing") as consumer:
            await consumer.poll(wait_s=10)
            await send(client, 0, 10)
            assert sorted(await take(consumer, 10)) == list(range(10))
            assert {part.topic for part in consumer.assignment()} == {ORDERS}
            away.topics.clear()
            await consumer.poll(wait_s=10)
            await send(client, 10, 20, OTHER)
            assert sorted(await take(consumer, 10)) == list(range(10, 20))
            assert len(consumer.assignment()) == 6


@pytest.mark.parametrize(("topics", "silent_s"), [(1, 1), (3, 10)])
async def test_a_member_that_cannot_begin_topics_gives_up_others_in_time(
    autojump_clock: MockClock, away: Away, topics: int, silent_s: float
) -> None:
    """Else two members have them. Nor does it begin what was another's by the time it could."""
    away.topics, away.silent_s = {f"{OTHER}{i}" for i in range(topics)}, silent_s
    async with shop() as (cluster, client), cluster.client() as theirs:
        for topic in sorted(away.topics):
            await client.topics.create(topic, 2)
        open_one = partial(client.consumer, group="billing", start="latest", revoke_s=10)
        open_two = partial(theirs.consumer, group="billing", start="latest", revoke_s=10)
        async with open_one([ORDERS, *away.topics]) as one:
            await one.poll(wait_s=10)
            assert len(one.assignment()) == 4
            async with open_two([ORDERS, *away.topics]) as two:
                for second in range(90):
                    await one.poll(wait_s=1)
                    await two.poll(wait_s=1)
                    assert not set(one.assignment()) & set(two.assignment())
                    if second == 20:
                        assert len(one.assignment()) + len(two.assignment()) == 4
                    if second == 35:
                        away.topics.clear()
                assert len(two.assignment()) >= 2
                assert len(one.assignment()) + len(two.assignment()) == 4 + 2 * topics


async def test_a_member_begins_nothing_that_went_while_it_looked_where_to_begin(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on from the group's progress, so it stores nothing that would be refused."""
    starts, hung = Beginnings.starts, trio.Event()

    async def slowly(
        self: Beginnings, feed: OpenTopic, parts: set[Part], up_ms: int
    ) -> Mapping[Part, object]:
        found = await starts(self, feed, parts, up_ms)
        if feed.topic.name == OTHER and not hung.is_set():
            hung.set()
            await trio.sleep(20)
        return found

    async with shop() as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 2)
        async with client.consumer([ORDERS, OTHER], group="billing", start="latest") as first:
            await first.poll(wait_s=10)
        monkeypatch.setattr(Beginnings, "starts", slowly)
        async with client.consumer([ORDERS, OTHER], group="billing") as one:
            await one.poll(wait_s=2)
            assert hung.is_set()
            async with theirs.consumer([ORDERS, OTHER], group="billing") as two:
                for _ in range(40):
                    await one.poll(wait_s=1)
                    await two.poll(wait_s=1)
                    assert not set(one.assignment()) & set(two.assignment())
                assert len(one.assignment()) == len(two.assignment()) == 3


async def test_topics_that_cannot_be_begun_cost_a_few_calls_and_one_line_each(
    autojump_clock: MockClock, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop() as (cluster, client):
        away.topics, away.silent_s = {f"{OTHER}{i}" for i in range(20)}, 0
        for topic in sorted(away.topics):
            await client.topics.create(topic)
        get, gets = cluster.store.get, list[str]()

        async def counted(key: str) -> object:
            gets.append(key)
            return await get(key)

        cluster.store.get = counted  # type: ignore[method-assign, assignment]
        with caplog.at_level(logging.WARNING):
            async with client.consumer([*away.topics], group="billing", start="latest") as consumer:
                await consumer.poll(wait_s=10)
                begun = len(gets)
                await consumer.poll(wait_s=60)
        assert begun < 20 * 15
        assert len(gets) - begun < 20 * 60
        lines = [each.getMessage() for each in caplog.records if "not begun" in each.getMessage()]
        assert {line.split()[4] for line in lines} == away.topics
        assert len(lines) == 20


@pytest.fixture
def lost_look(monkeypatch: pytest.MonkeyPatch) -> list[TopicFeed]:
    """Lanes cannot be looked up the first time; returns whose that were."""
    failed, look_up = list[TopicFeed](), TopicFeed.look_up

    async def look(self: TopicFeed, *arguments: object) -> FoundLanes:
        if not failed:
            failed.append(self)
            raise MetadataUnavailable("the store is away")
        return await look_up(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicFeed, "look_up", look)
    return failed


async def test_partitions_whose_lanes_cannot_be_looked_up_are_read_later(
    autojump_clock: MockClock, lost_look: list[TopicFeed]
) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            assert await take(consumer, 5) == list(range(5))
            assert lost_look


async def test_what_a_handler_pauses_stays_paused_though_lanes_are_looked_up_later(
    autojump_clock: MockClock, lost_look: list[TopicFeed]
) -> None:
    async with shop(1) as (_, client):
        await send(client, 0, 5)
        async with client.consumer(
            ORDERS,
            group="billing",
            start="earliest",
            on_assigned=lambda parts: consumer.pause(parts),
        ) as consumer:
            assert await rest(consumer) == []
            assert lost_look
            consumer.resume()
            assert await take(consumer, 5) == list(range(5))


async def test_a_seek_of_a_handler_holds_though_another_lane_is_looked_up_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that fails is that of the partitions which the handler left alone."""
    look_up, failed = TopicFeed.look_up, list[object]()

    async def look(self: TopicFeed, places: Mapping[int, object]) -> FoundLanes:
        if has_sought and not failed:
            failed.append(places)
            raise MetadataUnavailable("the store is away")
        return await look_up(self, places)  # type: ignore[arg-type]

    has_sought = False
    monkeypatch.setattr(TopicFeed, "look_up", look)
    async with shop(2) as (_, client):
        await send(client, 0, 20)
        begin = Place(number=-1, entry=0, skip=0, ledger_id=-1, version=-1)

        async def seek(parts: Sequence[TopicPartition]) -> None:
            nonlocal has_sought
            uid = consumer.position()[0].uid
            await consumer.seek([LanePlace(ORDERS, uid, 0, 0, begin)])
            has_sought = True

        async with client.consumer(
            ORDERS, group="billing", start="latest", on_assigned=seek
        ) as consumer:
            found = await rest(consumer)
            assert failed
            assert 0 < len(found) < 20, "those of one partition"
            await send(client, 20, 40)
            assert sorted(await take(consumer, 20)) == list(range(20, 40))


async def test_a_member_that_begins_late_goes_on_where_another_one_was(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for the end, which lies behind what the other one left, and may have stored it."""
    begin, found, hung = TopicFeed.begin, trio.Event(), trio.Event()

    async def slowly(self: TopicFeed, *arguments: object) -> Mapping[int, object]:
        if self.topic.name == OTHER and not hung.is_set():
            hung.set()
            await found.wait()
        return await begin(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicFeed, "begin", slowly)
    async with shop(1) as (cluster, client), cluster.client() as theirs:
        await client.topics.create(OTHER, 1)
        await trio.sleep(10)  # or it is younger than the group
        async with client.consumer([ORDERS, OTHER], group="billing", start="latest") as one:
            await one.poll(wait_s=5)
            assert hung.is_set()
            async with theirs.consumer(OTHER, group="billing", start="latest") as two:
                while not two.assignment():
                    await two.poll(wait_s=1)
                    await one.poll(wait_s=0)
                await send(client, 0, 5, OTHER)
                assert sorted(await take(two, 5)) == list(range(5))
                await two.commit()
            await send(client, 5, 10, OTHER)
            await one.poll(wait_s=20)
            found.set()
            assert sorted(await take(one, 5)) == list(range(5, 10))


async def test_a_topic_stays_open_until_its_partitions_are_given_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though another partition of it is just tried again, which went, too."""
    begin, tried = TopicFeed.begin, list[object]()

    async def in_part(
        self: TopicFeed, partitions: set[int], *arguments: object
    ) -> Mapping[int, object]:
        if partitions == {1}:
            tried.append(partitions)
            raise ReplicasUnavailable(ledger_id=1, entry_id=0, reasons={"b3": "gone"})
        return await begin(self, partitions, *arguments)  # type: ignore[arg-type]

    async def revoked(_parts: Sequence[TopicPartition]) -> None:
        await trio.sleep(8)

    monkeypatch.setattr(TopicFeed, "begin", in_part)
    async with (
        shop(1) as (_, client),
        client.consumer(
            ORDERS,
            group="billing",
            start="latest",
            mode="shared",
            session_s=30,
            on_revoked=revoked,
        ) as one,
    ):
        await one.poll(wait_s=5)
        await client.topics.alter(ORDERS, partitions=2)
        await one.poll(wait_s=15)
        assert one.assignment()
        assert tried
        one._membership._heartbeats.remove(one._membership.pulse)
        await trio.sleep(120)
        assert not one._membership.is_member
        await send(client, 0, 8)
        assert await one.poll(wait_s=20)


async def test_what_is_taken_back_goes_on_though_another_topic_was_deleted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, gone = TopicFeed.look_up, list[str]()

    async def look(self: TopicFeed, *arguments: object) -> FoundLanes:
        if self.topic.name in gone:
            raise NoSuchTopic(self.topic.name)
        return await look_up(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicFeed, "look_up", look)
    async with shop(1) as (_, client):
        await client.topics.create(OTHER, 1)
        async with client.consumer([ORDERS, OTHER], group="billing", start="earliest") as one:
            await one.poll(wait_s=5)
            await send(client, 0, 5)
            await send(client, 5, 10, OTHER)
            await trio.sleep(1)
            assert {each.topic for each in await one.poll(wait_s=5)} == {ORDERS, OTHER}
            gone.append(OTHER)
            one.take_back()
            with pytest.raises(NoSuchTopic, match=OTHER):
                await one.poll(wait_s=5)
            assert sorted(await rest(one)) == list(range(5))


async def test_a_group_that_a_commit_founded_begins_at_the_end_of_older_topics(
    autojump_clock: MockClock,
) -> None:
    """The first member that names a topic wants what comes from then on."""
    async with shop() as (_, client):
        async with client.consumer(ORDERS, group="other", start="latest") as consumer:
            await consumer.poll(wait_s=3)
            position = consumer.position()
        await client.groups.commit("billing", position)
        await client.topics.create(OTHER)
        await send(client, 0, 5, OTHER)
        async with client.consumer(OTHER, group="billing", start="latest") as consumer:
            assert await rest(consumer) == []
            await send(client, 5, 8, OTHER)
            assert sorted(await take(consumer, 3)) == [5, 6, 7]


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


async def removed(client: Client, consumer: GroupConsumer) -> None:
    """Let a consumer's session run out."""
    await consumer.poll(wait_s=5)
    consumer._membership._heartbeats.remove(consumer._membership.pulse)
    await trio.sleep(120)
    assert (await client.groups.describe("billing")).members == []


async def test_a_consumer_that_is_closed_while_it_joins_again_is_no_member_afterwards(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        transact = cluster.store.transact

        async def slowly(ops: Sequence[Op]) -> Versions:
            made = await transact(ops)
            if any(isinstance(op, Put) and op.key.startswith(GROUP_MEMBERS) for op in ops):
                joining.set()
                await trio.sleep(1.5)
            return made

        async with client.consumer(ORDERS, group="billing", session_s=60) as consumer:
            await removed(client, consumer)
            joining = trio.Event()
            cluster.store.transact = slowly  # type: ignore[method-assign]
            await consumer.poll(wait_s=0)
            await joining.wait()
        await trio.sleep(10)
        assert (await client.groups.describe("billing")).members == []


async def test_a_consumer_that_is_closed_while_its_request_to_join_waits_is_no_member_afterwards(
    autojump_clock: MockClock,
) -> None:
    """To leave is asked by another connection, and must not come first."""
    async with shop() as (cluster, client):
        now_ms = cluster.store.now_ms

        async def slowly() -> int:
            joining.set()
            await trio.sleep(1)
            return await now_ms()

        async with client.consumer(ORDERS, group="billing", session_s=60) as consumer:
            await removed(client, consumer)
            joining = trio.Event()
            cluster.store.now_ms = slowly  # type: ignore[method-assign]
            await consumer.poll(wait_s=0)
            await joining.wait()
        await trio.sleep(10)
        assert (await client.groups.describe("billing")).members == []


async def send_keys(client: Client, first: int, stop: int) -> None:
    async with client.producer(ORDERS, batching=False) as producer:
        for number in range(first, stop):
            await producer.send(b"%d" % number, key=b"k%d" % (number % 16))


async def test_slots_that_went_before_they_began_leave_their_messages_to_who_has_them(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next member is ahead in a key of which this one has messages yet."""
    starts, hung = Beginnings.starts, trio.Event()

    async def slowly(
        self: Beginnings, feed: OpenTopic, parts: set[Part], up_ms: int
    ) -> Mapping[Part, object]:
        if is_slow and not hung.is_set():
            hung.set()
            await trio.sleep(5)
        return await starts(self, feed, parts, up_ms)

    is_slow = False
    monkeypatch.setattr(Beginnings, "starts", slowly)
    async with shared_shop() as (cluster, client), cluster.client() as theirs:
        open_one = partial(client.consumer, ORDERS, group="a", mode="key-shared")
        async with open_one(start="earliest") as lost:
            while not lost.assignment():
                await lost.poll(wait_s=0)
                await trio.sleep(0.1)
            await send_keys(client, 0, 32)
            await trio.sleep(2)
        is_slow = True
        async with open_one() as one:
            await one.poll(wait_s=3, messages_max=1)
            assert hung.is_set()
            async with theirs.consumer(ORDERS, group="a", mode="key-shared") as two:
                await trio.sleep(8)
                await send_keys(client, 32, 64)
                found: list[int] = []
                for _ in range(4):
                    found += [int(each.value or b"") for each in await two.poll(wait_s=1)]
    assert found
    for key in {number % 16 for number in found}:
        of_key = [number for number in found if number % 16 == key]
        assert of_key == sorted(of_key)
        assert of_key[0] < 32, "not before what was left of its key"


async def test_slots_that_begin_while_others_leavings_are_looked_through_keep_their_order(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was passed over comes before what follows it."""
    starts, take_over, passed = Beginnings.starts, Sharing._take_over, trio.Event()

    async def late(
        self: Beginnings, feed: OpenTopic, parts: set[Part], up_ms: int
    ) -> Mapping[Part, object]:
        if is_slow:
            await passed.wait()
        return await starts(self, feed, parts, up_ms)

    async def until_it_began(
        self: Sharing, item: Item, parts: AbstractSet[Part], fetched: Fetched
    ) -> bool:
        is_done = await take_over(self, item, parts, fetched)
        if is_slow and not passed.is_set():
            passed.set()
            await until(lambda: bool(self._partitions.begun))
        return is_done

    is_slow = False
    monkeypatch.setattr(Beginnings, "starts", late)
    monkeypatch.setattr(Sharing, "_take_over", until_it_began)
    async with shared_shop() as (cluster, client), cluster.client() as theirs:
        async with theirs.consumer(ORDERS, group="a", mode="key-shared", start="earliest") as lost:
            await until(lambda: bool(lost.assignment()))
            for number in range(3):
                await send_keys(client, 8 * number, 8 * number + 8)
                await trio.sleep(2)
        is_slow = True
        async with client.consumer(ORDERS, group="a", mode="key-shared") as one:
            found: list[int] = []
            for _ in range(100):
                messages = await one.poll(wait_s=0.1, messages_max=4)
                found += [int(each.value or b"") for each in messages]
                await one.ack(messages)
    assert passed.is_set()
    assert len(found) == 24
    for key in range(16):
        of_key = [number for number in found if number % 16 == key]
        assert of_key == sorted(of_key)

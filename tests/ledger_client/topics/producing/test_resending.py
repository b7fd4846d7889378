"""Acknowledged means kept exactly once, however partitions were added in between."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager, suppress

import pytest
import trio
from fake_lane import FakeLanes, make_record, producing
from hypothesis import given, settings, strategies as st
from leases import grant
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import BufferFull, LedgerError, ProducerBusy, ProducerFenced, SendUnknown
from ledger_client.topics.producing import routing
from ledger_client.topics.producing.partition_writer import Ticket
from ledger_client.topics.producing.producer import Producer
from metadata.topics import LaneOwner, encode_row, writer_lease
from native.route import murmur3

TOPIC = "shop/orders"


def partition_of(key: bytes, partitions: int) -> int:
    return (murmur3(key) & 0x7FFFFFFF) % partitions


def key_between(before: int, after: int) -> bytes:
    """A key of partition *before* of 3 and *after* of 4."""
    keys = (b"k%d" % number for number in range(1000))
    return next(k for k in keys if (partition_of(k, 3), partition_of(k, 4)) == (before, after))


K, J, NEW = key_between(0, 2), key_between(2, 2), key_between(0, 3)


async def values_of(client: Client) -> list[bytes]:
    async with client.reader(TOPIC) as reader:
        return sorted([message.value or b"" async for message in reader])


async def grown(client: Client, producer: Producer, partitions: int) -> None:
    await client.topics.alter(TOPIC, partitions=partitions)
    with trio.fail_after(60):
        while len(producer._writers) < partitions:  # noqa: ASYNC110 - nobody is told
            await trio.sleep(0.1)


# --- what was lost is no duplicate --------------------------------------------------------


@pytest.mark.parametrize("access", ["shared", "exclusive"])
async def test_what_a_crash_lost_is_kept_when_it_is_sent_again_after_partitions_were_added(
    autojump_clock: MockClock, access: str
) -> None:
    """Number 2 was never kept; that 3 of another key lies where it goes by now says nothing."""
    options = {"producer_name": "p", "access": access}
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=3)
        async with client.producer(TOPIC, **options) as producer:  # type: ignore[arg-type]
            await producer.send(b"1", key=K, sequence=1)
            await producer.send(b"3", key=J, sequence=3)
        await client.topics.alter(TOPIC, partitions=4)
        async with client.producer(TOPIC, **options) as producer:  # type: ignore[arg-type]
            sent = await producer.send(b"2", key=K, sequence=2)
            assert sent.ledger_id >= 0
            await producer.send(b"3", key=J, sequence=3)
            await producer.send(b"4", key=K, sequence=4)
        assert await values_of(client) == [b"1", b"2", b"3", b"4"]


async def test_a_lane_that_was_not_closed_tells_how_its_messages_were_routed(
    autojump_clock: MockClock,
) -> None:
    """Their writer is paused, or dead: it told nobody, and another takes its lanes over."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC, partitions=3)
        with suppress(ProducerFenced):
            async with ours.producer(TOPIC, producer_name="p", access="exclusive") as producer:
                await producer.send(b"1", key=K, sequence=1)
                await producer.send(b"3", key=J, sequence=3)
                await _go_on_with_more(theirs)
        assert await values_of(ours) == [b"1", b"2", b"3"]


async def _go_on_with_more(client: Client) -> None:
    """Add a partition that the producer has no access to, and take the others away from it."""
    topic = await client.topics.info(TOPIC)
    owner = encode_row(LaneOwner(producer="other"))
    lease = await grant(
        client._context.store, writer_lease(topic.uid, 3, 0), "other/1", ttl_s=60, value=owner
    )
    await client.topics.alter(TOPIC, partitions=4)
    async with client.producer(TOPIC, producer_name="p", access="take-over") as producer:
        assert (await producer.send(b"2", key=K, sequence=2)).partition == 0
    await client._context.store.release(lease)


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_session_that_routes_by_the_old_count_loses_nothing_either(
    autojump_clock: MockClock, kept: int
) -> None:
    """It does not know what became of 2 when it goes over, and sends 3 first."""
    lanes = FakeLanes()
    async with producing(lanes, make_record(partitions=3), producer_name="p") as producer:
        await producer.send(b"1", key=K, sequence=1)
        lanes.fail_next(kept=kept)
        with pytest.raises(SendUnknown):
            await producer.send(b"2", key=K, sequence=2)
        await producer._use_partitions(make_record(partitions=4))
        await producer.send(b"3", key=J, sequence=3)
        await producer.send(b"2", key=K, sequence=2)
        await producer.send(b"4", key=K, sequence=4)
    assert [lanes.values(index) for index in range(4)] == [[b"1", b"2"], [], [b"3", b"4"], []]


async def test_partitions_that_somebody_else_adds_while_numbers_are_sent_lose_none(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC, partitions=3)
        keys = [b"k%d" % number for number in range(20)]
        async with ours.producer(TOPIC, producer_name="p") as producer:
            for number in range(200):
                if number % 50 == 10:
                    await theirs.topics.alter(TOPIC, partitions=4 + number // 50)
                await producer.send(b"%03d" % number, key=keys[number % 20], sequence=number)
            await grown(ours, producer, 7)
        async with theirs.producer(TOPIC, producer_name="p") as producer:
            for number in reversed(range(200)):
                sent = await producer.send(b"?", key=keys[number % 20], sequence=number)
                assert sent.ledger_id == -1
        assert await values_of(ours) == [b"%03d" % number for number in range(200)]


async def test_messages_without_a_key_go_by_their_number(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "TURN_MESSAGES", 2)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=3)
        async with client.producer(TOPIC, producer_name="p") as producer:
            at = [await producer.send(b"%d" % n, sequence=n) for n in range(8)]
        assert [each.partition for each in at] == [0, 0, 1, 1, 2, 2, 0, 0]
        for partitions in (5, 6):
            await client.topics.alter(TOPIC, partitions=partitions)
            async with client.producer(TOPIC, producer_name="p") as producer:
                for n in (7, 3, 0, 5):
                    assert (await producer.send(b"again", sequence=n)).ledger_id == -1
                assert (await producer.send(b"8", sequence=8)).partition == 4
        assert await values_of(client) == [b"%d" % n for n in range(9)]


# --- two sessions of one name -------------------------------------------------------------


async def test_a_session_whose_first_lane_was_taken_goes_over_to_no_new_partition(
    autojump_clock: MockClock,
) -> None:
    """Else it and its successor would disagree on where a number belongs."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC, partitions=3)
        with pytest.raises(ProducerFenced):
            async with ours.producer(TOPIC, producer_name="p", access="exclusive") as producer:
                await producer.send(b"1", key=K, sequence=1)
                async with theirs.producer(
                    TOPIC, producer_name="p", access="take-over", partition=0
                ):
                    topic = await theirs.topics.alter(TOPIC, partitions=4)
                    with suppress(ProducerBusy, ProducerFenced):
                        await producer._use_partitions(topic)
                    assert producer._count.known == [(3, 0)]
                    await producer.send(b"4", key=K, sequence=4)


async def test_a_session_learns_of_partitions_that_only_its_lanes_know_of(
    autojump_clock: MockClock,
) -> None:
    """It looked at the topic before they were added, and took the lanes afterwards."""
    lanes = FakeLanes()
    old, new = make_record(partitions=3), make_record(partitions=4)
    async with producing(lanes, old, producer_name="p") as producer:
        await producer.send(b"1", key=K, sequence=1)
        await producer._use_partitions(new)
        await producer.send(b"2", key=NEW, sequence=2)
    async with producing(lanes, old, producer_name="p") as producer:
        assert (await producer.send(b"?", key=NEW, sequence=2)).ledger_id == -1
        assert (await producer.send(b"3", key=NEW, sequence=3)).partition == 3
    assert [lanes.values(index) for index in range(4)] == [[b"1"], [], [], [b"2", b"3"]]


# --- a change that fails halfway ----------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1])
async def test_until_the_boundary_is_durable_nothing_is_accepted(
    autojump_clock: MockClock, kept: int
) -> None:
    """Whether the lane knows it or not: a number above it must not be routed as before."""
    lanes = FakeLanes()
    old, new = make_record(partitions=3), make_record(partitions=4)
    async with producing(lanes, old, producer_name="p") as producer:
        await producer.send(b"1", key=K, sequence=1)
        lanes.fail_next(kept=kept)
        with pytest.raises(SendUnknown):
            await producer._use_partitions(new)
        with pytest.raises(BufferFull):
            producer.send_nowait(b"2", key=K, sequence=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, producer)
            await trio.testing.wait_all_tasks_blocked()
            lanes.fail_next(kept=kept)
            with pytest.raises(SendUnknown):
                await producer._use_partitions(new)
        await producer._use_partitions(make_record(partitions=5))
        where = (await producer.send(b"2", key=K, sequence=2)).partition
        assert where == partition_of(K, 5)
    assert lanes.routes[0, "p"] == [(3, 0), (5, 2)]


async def _refused(producer: Producer) -> None:
    with pytest.raises(SendUnknown):
        await producer.send(b"2", key=K, sequence=2)


async def test_a_producer_is_left_while_it_goes_over(autojump_clock: MockClock) -> None:
    """Whoever waits to send is refused, and all lanes are left."""
    lanes = FakeLanes()
    async with producing(lanes, make_record(partitions=3), producer_name="p") as producer:
        await producer.send(b"1", key=K, sequence=1)
        lanes.shut()
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as change:
                nursery.start_soon(_cancel_soon, change)
                await producer._use_partitions(make_record(partitions=4))
            nursery.start_soon(_closed, producer)
            await trio.testing.wait_all_tasks_blocked()
            lanes.gate.set()
            await producer.close()
    assert lanes.left == 4
    async with producing(lanes, make_record(partitions=4), producer_name="p") as producer:
        assert (await producer.send(b"?", key=K, sequence=1)).ledger_id == -1


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await trio.sleep(1)  # the boundary is under way to the lane
    scope.cancel()


async def _closed(producer: Producer) -> None:
    with pytest.raises(LedgerError):
        await producer.send(b"2", key=K, sequence=2)


# --- a model ------------------------------------------------------------------------------

KEYS: list[bytes | None] = [None, *(b"k%d" % number for number in range(9))]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 12)),
        st.tuples(st.just("fail"), st.integers(0, 2)),
        st.tuples(st.just("again"), st.integers(0, 40)),
        st.tuples(st.just("grow"), st.integers(1, 3)),
        st.tuples(st.just("crash"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
    ),
    max_size=25,
)


class Application:
    """Numbers its messages, and sends again what was not acknowledged before it goes on.

    Whatever it was told is kept is exactly once in the lanes at the end.
    """

    def __init__(self) -> None:
        self.lanes = FakeLanes()
        self.partitions = 3
        self.next = 0
        self.unsure: list[int] = []
        self.acknowledged: set[int] = set()

    def producing(self) -> AbstractAsyncContextManager[Producer]:
        record = make_record(partitions=self.partitions)
        return producing(self.lanes, record, producer_name="p", batch_messages=2)

    async def run(self, todo: list[tuple[str, int]]) -> None:
        todo = [*todo, ("leave", 0)]
        while todo:
            with suppress(LedgerError), trio.CancelScope() as scope:
                async with self.producing() as producer, trio.open_nursery() as nursery:
                    nursery.start_soon(self.look, producer)
                    await self.session(producer, todo, scope)
                    nursery.cancel_scope.cancel()
            self.lanes.failing.clear()
        async with self.producing() as producer:
            await self.resend(producer)

    async def session(
        self, producer: Producer, todo: list[tuple[str, int]], scope: trio.CancelScope
    ) -> None:
        await self.resend(producer)
        while todo:
            what, count = todo.pop(0)
            if what == "send":
                await self.resend(producer)
                await self.send(producer, range(self.next, self.next + count))
            elif what == "fail":
                self.lanes.fail_next(kept=count)
            elif what == "again" and self.acknowledged:
                number = sorted(self.acknowledged)[count % len(self.acknowledged)]
                with suppress(LedgerError):
                    await producer.send(b"again", key=key_of(number), sequence=number)
            elif what == "grow":
                self.partitions += count
                await trio.sleep(self.lanes.delay_s * count * 500)
            elif what in {"crash", "leave"}:
                self.partitions += count
                if what == "crash":
                    scope.cancel()
                return

    async def look(self, producer: Producer) -> None:
        """Go over to partitions that are added, as PartitionWatch does."""
        while True:
            await trio.sleep(1)
            if len(producer._writers) < self.partitions:
                with suppress(LedgerError):
                    await producer._use_partitions(make_record(partitions=self.partitions))

    async def resend(self, producer: Producer) -> None:
        """Until all is acknowledged, in the order of the numbers."""
        while self.unsure:
            unsure, self.unsure = self.unsure, []
            await self.send(producer, unsure)

    async def send(self, producer: Producer, numbers: range | list[int]) -> None:
        """Send as many as are taken at once, and learn what becomes of them."""
        self.next = max(self.next, numbers[-1] + 1)
        self.unsure += numbers
        tickets: list[tuple[int, Ticket]] = []
        with suppress(LedgerError):
            await producer._writer_for(key_of(numbers[0]), None, numbers[0]).wait_ready()
            for number in numbers:
                value = b"%d" % number
                ticket = producer.send_nowait(value, key=key_of(number), sequence=number)
                tickets += [(number, ticket)]
        for number, ticket in tickets:
            with suppress(LedgerError):
                await ticket.message_id()
                self.acknowledged.add(number)
        self.unsure = [number for number in self.unsure if number not in self.acknowledged]


def key_of(number: int) -> bytes | None:
    return KEYS[number * 7 % len(KEYS)]


@given(steps)
@settings(max_examples=60, deadline=None)
def test_what_is_acknowledged_is_kept_exactly_once(todo: list[tuple[str, int]]) -> None:
    app = Application()

    async def story() -> None:
        with trio.fail_after(3600):
            await app.run(todo)

    trio.run(story, clock=MockClock(autojump_threshold=0))
    kept = Counter(m.sequence for index in range(app.partitions) for m in app.lanes.messages(index))
    assert app.acknowledged == set(range(app.next))
    assert kept == Counter(range(app.next))

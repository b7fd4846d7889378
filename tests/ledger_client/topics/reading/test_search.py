"""Searching for times by rows and headers agrees with reading everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from batches import Sent
from hypothesis import given, settings, strategies as st
from laid_topic import CONTROL, TOPIC, Laid, LaidLane, LaidTopic, said
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client, LedgerReader
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LaneRef
from ledger_client.topics.reading.search import TimeSearch
from ledger_client.topics.times import EventTime, PublishTime, Time, Timestamp

Ledgers = list[list[list[int | None]]]
"""For each ledger its batches, for each batch its messages' times."""


class CountingOpener(LedgerOpener):
    """Keeps which ledgers it opened."""

    def __init__(self, client: Client) -> None:
        super().__init__(
            catalogue=client._context.ledgers.catalogue,
            bookies=client._context.ledgers.bookies,
            options=client._context.options,
            settle=client._context.opener._settle,
        )
        self.opened: list[int] = []

    async def open(self, ledger_id: int, *, confirmed: int = -1) -> LedgerReader:
        self.opened.append(ledger_id)
        return await super().open(ledger_id, confirmed=confirmed)


def in_memory(work: Callable[[], Awaitable[None]]) -> None:
    trio.run(work, clock=MockClock(autojump_threshold=0))


async def lay(lane: LaidLane, ledgers: Ledgers, *, stamped: bool, open_last: bool) -> None:
    for number, batches in enumerate(ledgers):
        sent = [
            [
                Sent(b"v", timestamp=time or 0) if stamped else Sent(b"v", event_time=time)
                for time in batch
            ]
            for batch in batches
        ]
        state = "open" if open_last and number == len(ledgers) - 1 else "closed"
        await lane.lay(CONTROL, *sent, state=state)  # type: ignore[arg-type]  # a literal


async def read(client: Client, *, start: Time, inclusive: bool = True) -> list[Message]:
    async with client.reader(TOPIC, start=start, inclusive=inclusive) as reader:
        return [message async for message in reader]


def first_at(messages: Sequence[Laid], reached: Callable[[Sent], bool]) -> int:
    return next((i for i, laid in enumerate(messages) if reached(laid.sent)), len(messages))


def grouped(times: list[int], cuts: list[int], ledger_cuts: list[int]) -> Ledgers:
    """Cut rising times into batches, and batches into ledgers."""
    ends = sorted({*(c % (len(times) + 1) for c in cuts), len(times)} - {0})
    batches = [times[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    ledger_ends = sorted({*(c % (len(batches) + 1) for c in ledger_cuts), len(batches)} - {0})
    return [list(batches[a:b]) for a, b in zip([0, *ledger_ends], ledger_ends, strict=False)]  # type: ignore[arg-type]


rising = st.builds(
    grouped,
    st.lists(st.integers(1, 30), max_size=30).map(sorted),
    st.lists(st.integers(0, 30), max_size=12),
    st.lists(st.integers(0, 12), max_size=5),
)
any_times = st.lists(
    st.lists(st.lists(st.none() | st.integers(1, 30), min_size=1, max_size=5), max_size=5),
    max_size=5,
)


@settings(max_examples=60)
@given(rising, st.booleans(), st.integers(0, 32))
def test_event_times_of_an_ordered_lane_are_found_as_by_reading_everything(
    ledgers: Ledgers, open_last: bool, time: int
) -> None:
    """TB-03, TB-15, TB-16, TB-17, TB-19: ranges do not overlap, and one ledger is looked into."""

    async def check() -> None:
        async with memory_cluster(1) as cluster, cluster.client() as client:
            topic = LaidTopic(cluster, client, order="event-time")
            lane = topic.lane()
            await lay(lane, ledgers, stamped=False, open_last=open_last)
            for inclusive in (True, False):
                found = await read(client, start=EventTime(time), inclusive=inclusive)
                low = time if inclusive else time + 1
                wanted = [laid.id for laid in lane.messages if (laid.sent.event_time or 0) >= low]
                assert [m.id for m in found] == wanted
            opener = CountingOpener(client)
            ref = LaneRef(0, -1, 0, TOPIC, topic.record.uid, True)
            rows = LedgerRows(cluster.store, ref, timeout_s=1)
            await TimeSearch(ref, rows, opener).find(EventTime(time))
            assert len(opener.opened) <= 1

    in_memory(check)


@settings(max_examples=40)
@given(any_times, st.booleans(), st.integers(0, 32))
def test_event_times_of_a_lane_without_order_are_found_as_by_reading_everything(
    ledgers: Ledgers, open_last: bool, time: int
) -> None:
    async def check() -> None:
        async with memory_cluster(1) as cluster, cluster.client() as client:
            lane = LaidTopic(cluster, client).lane()
            await lay(lane, ledgers, stamped=False, open_last=open_last)
            found = await read(client, start=EventTime(time))
            first = first_at(
                lane.messages, lambda sent: sent.event_time is not None and sent.event_time >= time
            )
            assert [m.id for m in found] == [laid.id for laid in lane.messages[first:]]

    in_memory(check)


@settings(max_examples=40)
@given(rising, st.booleans(), st.integers(1, 32))
def test_timestamps_are_found_as_by_reading_everything(
    ledgers: Ledgers, open_last: bool, stamp: int
) -> None:
    async def check() -> None:
        async with memory_cluster(1) as cluster, cluster.client() as client:
            lane = LaidTopic(cluster, client, timesync=True).lane()
            await lay(lane, ledgers, stamped=True, open_last=open_last)
            found = await read(client, start=Timestamp(stamp))
            first = first_at(lane.messages, lambda sent: sent.timestamp >= stamp)
            assert [m.id for m in found] == [laid.id for laid in lane.messages[first:]]

    in_memory(check)


@settings(max_examples=30)
@given(rising, st.integers(0, 32))
def test_ranges_of_event_time_are_mirrored_in_reverse(ledgers: Ledgers, time: int) -> None:
    """TB-72."""

    async def check() -> None:
        async with memory_cluster(1) as cluster, cluster.client() as client:
            lane = LaidTopic(cluster, client, order="event-time").lane()
            await lay(lane, ledgers, stamped=False, open_last=False)
            low, high = EventTime(time), EventTime(time + 4)
            for low_in in (True, False):
                for high_in in (True, False):
                    wanted = [
                        laid.id
                        for laid in lane.messages
                        if (time + (not low_in)) <= (laid.sent.event_time or 0) < time + 4 + high_in
                    ]
                    async with client.reader(
                        TOPIC, start=low, inclusive=low_in, end=high, end_inclusive=high_in
                    ) as reader:
                        assert [m.id async for m in reader] == wanted
                    async with client.reader(
                        TOPIC,
                        start=high,
                        inclusive=high_in,
                        end=low,
                        end_inclusive=low_in,
                        reverse=True,
                    ) as reader:
                        assert [m.id async for m in reader] == wanted[::-1]

    in_memory(check)


async def test_publish_times_are_found(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client).lane()
        for number in range(3):
            async with lane.write() as writer:
                for step in range(4):
                    writer.created_ms = 100 * number + 10 * step
                    await writer.send(said([f"{writer.created_ms}.{i}" for i in range(3)]))
        for ms in range(0, 260, 5):
            found = await read(client, start=PublishTime(ms))
            expected = [laid.id for laid in lane.messages if laid.created_ms >= ms]
            assert [m.id for m in found] == expected


async def test_publish_times_are_found_where_a_clock_that_is_behind_closed_the_ledger(
    autojump_clock: MockClock,
) -> None:
    """A truncation up to such a time would delete messages that were published later."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        lane = LaidTopic(cluster, client).lane()
        for number in range(3):
            async with lane.write() as writer:
                writer.created_ms = 300_000 * number + 50_000
                await writer.send(said([f"{number}"]))
                writer.created_ms -= 20_000
        for laid in lane.messages:
            found = await read(client, start=PublishTime(laid.created_ms))
            assert found[0].id == laid.id


async def test_one_ledger_is_opened_and_few_of_its_entries_are_read(
    autojump_clock: MockClock,
) -> None:
    """TB-19, TD-06: random access by time, without an index of its own."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time")
        lane = topic.lane()
        for number in range(10):
            first = 1000 * number
            await lane.lay(
                *[
                    said(["x"] * 10, times=range(first + 10 * i, first + 10 * i + 10))
                    for i in range(64)
                ]
            )
        opener = CountingOpener(client)
        ref = LaneRef(0, -1, 0, TOPIC, topic.record.uid, True)
        rows = LedgerRows(cluster.store, ref, timeout_s=1)
        before = len(cluster.bookies["b1"].requests)
        found = await TimeSearch(ref, rows, opener).find(EventTime(4321))
        assert opener.opened == [lane.rows[4].ledger_id]
        assert len(cluster.bookies["b1"].requests) - before <= 9
        assert found.exact
        assert found.place.at == (4, 32, 1)


async def test_nothing_older_than_the_start_is_ever_delivered(autojump_clock: MockClock) -> None:
    """TB-70: also what is written later, and in lanes that appear later."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time", partitions=2)
        lane = topic.lane(0)
        await lane.lay(said(["a", "b"], times=[1, 2]))
        async with client.reader(TOPIC, start=EventTime(10), follow=True) as reader:
            async with lane.write() as writer:
                await writer.send(said(["c", "d"], times=[3, 9]))
                await writer.send(said(["e", "f"], times=[9, 10]))
                assert (await anext(reader)).value == b"f"
            await topic.lane(1).lay(said(["g", "h", "i"], times=[1, 11, 12]))
            assert [(await anext(reader)).value for _ in range(2)] == [b"h", b"i"]


@pytest.mark.parametrize("follow", [False, True])
async def test_a_time_ends_a_follower_too(autojump_clock: MockClock, follow: bool) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time")
        lane = topic.lane()
        await lane.lay(said(["a", "b"], times=[1, 2]))
        await lane.lay(said(["c", "d"], times=[2, 3]))
        async with client.reader(TOPIC, end=EventTime(2), follow=follow) as reader:
            with trio.fail_after(1):
                assert [m.value async for m in reader] == [b"a", b"b", b"c"]


async def test_a_search_ends_in_a_ledger_that_was_open_though_the_lane_has_a_later_one_by_then(
    autojump_clock: MockClock,
) -> None:
    """What the open ledger got after the search of it lies before what the later one has."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        topic = LaidTopic(cluster, client, order="event-time")
        lane = topic.lane()
        await lane.lay(CONTROL, [Sent(b"v", event_time=1)], state="open")
        await lane.lay(CONTROL, [Sent(b"v", event_time=9)], state="open")
        ref = LaneRef(0, -1, 0, TOPIC, topic.record.uid, True)
        rows = LedgerRows(cluster.store, ref, timeout_s=1)
        found = await TimeSearch(ref, rows, CountingOpener(client)).find(EventTime(5))
    assert (found.exact, found.place.number, found.place.entry) == (False, 0, 2)

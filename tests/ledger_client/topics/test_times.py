"""Times as users name them: numbers, and datetimes with a time zone."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import cast

import pytest
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import BadGroup, BadTopic, EventTime, PublishTime, Timestamp
from ledger_client.groups.options import ConsumerOptions

TOPIC = "shop/orders"
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_NS = 1_714_564_800_000_000_000
MICROSECOND = timedelta(microseconds=1)
IN_ROME = timezone(timedelta(hours=2))


def test_a_datetime_with_a_time_zone_is_a_time() -> None:
    assert EventTime(NOON) == EventTime(NOON_NS)
    assert EventTime(NOON.astimezone(IN_ROME) + MICROSECOND) == EventTime(NOON_NS + 1000)
    assert EventTime(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)).ns == -1_000_000_000
    assert PublishTime(NOON).ms == NOON_NS // 1_000_000


def test_a_publish_time_between_two_milliseconds_is_the_later_one() -> None:
    """Nothing that was published before the datetime is then at that time or later."""
    assert PublishTime(NOON + MICROSECOND).ms == NOON_NS // 1_000_000 + 1
    assert PublishTime(NOON + 1000 * MICROSECOND).ms == NOON_NS // 1_000_000 + 1


@pytest.mark.parametrize(("kind", "name"), [(EventTime, "event"), (PublishTime, "publish")])
def test_a_time_that_could_mean_several_moments_is_refused(
    kind: type[EventTime | PublishTime], name: str
) -> None:
    with pytest.raises(TypeError, match=f"the {name} time 2024-05-01 .* has no time zone: name"):
        kind(NOON.replace(tzinfo=None))
    with pytest.raises(TypeError, match=f"an? {name} time is .* since 1970 .*, not '2024-05-01'"):
        kind(cast(int, "2024-05-01"))


def test_a_timestamp_has_64_bits() -> None:
    with pytest.raises(TypeError, match="a timestamp is 64 bits as an int, not 'x'"):
        Timestamp(cast(int, "x"))
    for value in (-1, 1 << 64):
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*64 - 1"):
            Timestamp(value)
    last = Timestamp((1 << 64) - 1)
    assert last.next() > last
    assert pickle.loads(pickle.dumps(last)) == last


@pytest.mark.parametrize("time", [EventTime(NOON), PublishTime(NOON)])
def test_a_time_stays_of_its_kind(time: EventTime | PublishTime) -> None:
    assert repr(time) in {"EventTime(ns=1714564800000000000)", "PublishTime(ms=1714564800000)"}
    assert isinstance(time.next(), type(time))
    kept = pickle.loads(pickle.dumps(time))  # as Spark's executors get it
    assert (kept, type(kept)) == (time, type(time))


async def test_bounds_may_be_datetimes(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, order="event-time")
        async with client.producer(TOPIC) as producer:
            for minute in range(5):
                await producer.send(b"%d" % minute, event_time=NOON + timedelta(minutes=minute))
        start, end = (EventTime(NOON + timedelta(minutes=minute)) for minute in (1, 3))
        async with client.reader(TOPIC, start=start, end=end) as reader:
            assert [message.value async for message in reader] == [b"1", b"2", b"3"]
            await reader.seek(EventTime(NOON + timedelta(seconds=90)))
            assert (await anext(reader)).value == b"2"


async def test_a_bare_datetime_is_refused_with_what_to_write(autojump_clock: MockClock) -> None:
    bare = cast(EventTime, NOON)
    named = r"EventTime\(\.\.\.\) or PublishTime\(\.\.\.\)"
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer, client.reader(TOPIC) as reader:
            await producer.send(b"one")
            with pytest.raises(BadTopic, match=named):
                await reader.seek(bare)
        with pytest.raises(BadTopic, match=named):
            async with client.reader(TOPIC, start=bare):
                raise AssertionError
        with pytest.raises(BadTopic, match="before takes an EventTime, a Timestamp"):
            await client.topics.purge(TOPIC, before=bare, dry_run=True)
    with pytest.raises(BadGroup, match="nor an EventTime, a Timestamp or a PublishTime"):
        ConsumerOptions(group="g", start=bare).check()

"""Places on the command line."""

from __future__ import annotations

import time

import click
import pytest
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.commands.options import MomentParam
from ledger_client.commands.places import (
    BYS,
    By,
    MomentOfRead,
    PlaceOrTime,
    Point,
    timestamp_of,
)
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from metadata.time.timestamps import TIMESTAMP_MAX, compose, split

DAY = "2024-05-01T00:00:00.0005Z"
DAY_MS = 1_714_521_600_000


def point(text: str) -> Point:
    found = PlaceOrTime().convert(text, None, None)
    assert found.start is None
    return found


def test_a_date_is_the_same_moment_in_each_kind_of_time() -> None:
    """The first millisecond that is not before it, where a kind is no finer."""
    times = {by: point(DAY).time(by) for by in BYS}
    assert times == {
        "event-time": EventTime(DAY_MS * 10**6 + 500_000),
        "publish-time": PublishTime(DAY_MS + 1),
        "timestamp": Timestamp(compose(DAY_MS + 1)),
    }


def test_a_duration_is_so_long_ago_in_each_kind_of_time() -> None:
    ago = point("7d")
    publish = ago.time("publish-time")
    assert isinstance(publish, PublishTime)
    assert ago.time("timestamp") == Timestamp(compose(publish.ms))


@pytest.mark.parametrize(
    ("by", "time"),
    [
        ("event-time", EventTime(5 * 10**18)),
        ("publish-time", PublishTime(5 * 10**12)),
        ("timestamp", Timestamp(5 * 10**18)),
    ],
)
def test_a_number_is_nanoseconds_or_a_timestamp(by: By, time: object) -> None:
    assert point(str(5 * 10**18)).time(by) == time


@pytest.mark.parametrize("text", [str(TIMESTAMP_MAX + 1), "1969-01-01", "9999-01-01"])
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="is not"):
        point(text).time("timestamp")


@pytest.mark.parametrize("text", ["2020", "1714521600", "1714521600000", "1714521600000000"])
def test_a_number_in_another_unit_than_nanoseconds_is_no_publish_time(text: str) -> None:
    with pytest.raises(click.UsageError, match="before any publish time; write a date"):
        point(text).time("publish-time")
    assert point(text).time("event-time") == EventTime(int(text))
    assert point("0").time("publish-time") == PublishTime(0)


async def test_a_moment_so_long_ago_is_reckoned_by_the_clusters_timestamps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host whose clock is behind, a cut would be of another moment."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        cluster.lead("b1", has_ticks=True, wall_ms=lambda: 2 * 10**12)
        monkeypatch.setattr(time, "time_ns", lambda: 10**18)
        asked = MomentOfRead().convert("5min", None, None)
        now_ms = split((await client.timestamps.allocate()).first).physical_ms
        found = await timestamp_of(client, asked)
        assert found is not None
        assert 0 <= split(found.value).physical_ms - (now_ms - 300_000) < 60_000
        assert await timestamp_of(client, None) is None
        assert await timestamp_of(client, found) is found


@pytest.mark.parametrize("text", ["1714557600.123456789", "1714557600.5 ago", "2.5"])
def test_seconds_with_a_fraction_are_not_that_many_seconds_ago(text: str) -> None:
    """A deletion from "date +%s.%N" on would begin in 1972."""
    for kind in (PlaceOrTime(), MomentParam()):
        with pytest.raises(click.UsageError, match="is not a p"):
            kind.convert(text, None, None)
    assert point("2.5h").is_moment

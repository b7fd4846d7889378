"""What the next writer of a lane finds out."""

from __future__ import annotations

import time

import pytest
import trio
from hypothesis import given, settings, strategies as st
from lane_rig import batch, make_topic, rows, stored
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import ProducerFenced, SendUnknown
from ledger_client.topics.lanes import lane_state, written_ledger
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_state import LaneState
from native.batch import BatchKind, encode_control
from native.errors import Corrupt

NOW_MS = time.time_ns() // 1_000_000
appended = st.tuples(
    st.sampled_from(["", "p", "q"]),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(-(1 << 62), 1 << 62)),
)


@given(st.lists(appended))
@settings(max_examples=60)
def test_the_state_agrees_with_a_model(batches: list[tuple[str, int, int | None]]) -> None:
    state, last, times, count = LaneState(), {"p": -1, "q": -1}, list[int](), 0
    for producer, size, time_ns in batches:
        sequence = last[producer] + 1 if producer else -1
        values = [b"v"] * size
        when = None if time_ns is None else [time_ns] * size
        state.note(batch(*values, times=when, producer=producer, sequence=sequence), NOW_MS)
        count += size
        times += [] if time_ns is None else [time_ns]
        if producer:
            last[producer] += size
    found = LaneState.decode(state.encode(NOW_MS))
    assert found == state
    assert {name: found.last_sequence(name) for name in last} == last
    assert found.figures.messages == count
    assert found.figures.first_event_time == min(times, default=None)
    assert found.last_event_time == found.figures.last_event_time == max(times, default=None)


def test_who_was_idle_for_hours_is_forgotten() -> None:
    """PS-39: after 360 minutes; and of more than 10 000, the idlest."""
    state = LaneState(producers={"old": (5, NOW_MS - 361 * 60_000), "new": (6, NOW_MS)})
    assert LaneState.decode(state.encode(NOW_MS)).producers == {"new": (6, NOW_MS)}
    ahead = LaneState(producers={"only": (5, NOW_MS)})
    ahead.forget(NOW_MS + 24 * 3600_000)  # the clock was set ahead, nobody wrote
    assert ahead.last_sequence("only") == 5
    many = {f"p{n}": (n, NOW_MS - n) for n in range(lane_state.PRODUCERS_MAX + 10)}
    found = LaneState.decode(LaneState(producers=many).encode(NOW_MS)).producers
    assert len(found) == lane_state.PRODUCERS_MAX
    assert "p9999" in found
    assert "p10000" not in found


def test_a_state_fits_an_entry_however_long_the_names_are() -> None:
    many = {f"{n}{'x' * 4000}": (n, NOW_MS) for n in range(4000)}
    assert 0 < len(LaneState.decode(LaneState(producers=many).encode(NOW_MS)).producers) < 2000


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"QB",
        batch("a").payload,
        encode_control(BatchKind.TICK, b""),
        encode_control(BatchKind.LANE_STATE, b""),
        encode_control(BatchKind.LANE_STATE, b"\x91\x01"),
        LaneState(producers={"p": (1, NOW_MS)}).encode(NOW_MS)[:-1],
    ],
    ids=["nothing", "cut", "messages", "tick", "empty", "not all fields", "a byte short"],
)
def test_what_is_no_state_is_corrupt(payload: bytes) -> None:
    with pytest.raises(Corrupt):
        LaneState.decode(payload)


async def test_the_state_is_told_again_from_time_to_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS-39: every 1000 entries or 120 s; the next writer reads no further back."""
    monkeypatch.setattr(written_ledger, "STATE_ENTRIES", 5)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch(str(n), producer="p", sequence=n) for n in range(12)])
            await trio.sleep(121)
            await lane.append([batch("12", producer="p", sequence=12)])
            assert lane.last_sequence("p") == 12
            assert lane.last_sequence("q") == -1
        states = [i for i in await stored(client, cluster) if i.state is not None]
        assert [item.entry_id for item in states] == [0, 6, 12, 15, 17]
        told = [item.state.last_sequence("p") for item in states if item.state is not None]
        assert told == [-1, 4, 9, 11, 12]


async def test_the_next_writer_knows_what_the_last_one_wrote(autojump_clock: MockClock) -> None:
    """PS-39: sequence numbers, event time and versions, also when somebody else recovered."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        with pytest.raises(ProducerFenced):
            async with open_lane(ours._context.ledgers, topic, -1) as lane:
                await lane.append([batch("a", "b", times=[3, 9], producer="p", sequence=4)])
                await lane.append([batch("c", times=[7], producer="q", sequence=0)])
                await theirs.ledgers.recover(rows(cluster)[0].ledger_id)
                async with open_lane(
                    theirs._context.ledgers, topic, -1, access="take-over"
                ) as following:
                    assert following.last_sequence("p") == 5
                    assert following.last_sequence("q") == 0
                    assert following.last_event_time == 9
        first, second = rows(cluster)
        assert (first.messages, first.first_event_time, first.last_event_time) == (3, 3, 9)
        assert (first.entries, first.size) == (3, cluster.record(first.ledger_id).length)
        assert second.base_version == 3


ROUTES = [(3, 0), (4, 117)]


async def test_how_numbers_are_routed_is_durable_when_the_call_returns(
    autojump_clock: MockClock,
) -> None:
    """PS-39: whoever takes the lane afterwards knows it; who was fenced before cannot say it."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        with pytest.raises(ProducerFenced):
            async with open_lane(ours._context.ledgers, topic, -1) as lane:
                assert lane.routes("p") == []
                await lane.keep_routes("p", ROUTES)
                async with open_lane(
                    theirs._context.ledgers, topic, -1, access="take-over"
                ) as following:
                    assert following.routes("p") == ROUTES
                    with pytest.raises((ProducerFenced, SendUnknown)):
                        await lane.keep_routes("p", [(5, 0)])
        async with open_lane(theirs._context.ledgers, topic, -1) as last:
            assert last.routes("p") == ROUTES


async def test_how_numbers_are_routed_is_kept_while_the_lane_rolls_and_its_ledger_fails(
    autojump_clock: MockClock,
) -> None:
    """The call takes its place among what is appended, and disturbs nothing of it."""
    async with memory_cluster(5) as cluster, cluster.client() as client:
        topic = make_topic(cluster, order="event-time", size=1000)
        expected = [b"%d" % number for number in range(60)]
        async with (
            open_lane(client._context.ledgers, topic, -1) as lane,
            trio.open_nursery() as nursery,
        ):
            for number in range(60):
                made = batch(expected[number], b"x" * 100, times=[number // 7] * 2)
                nursery.start_soon(lane.append, [made])
                await trio.testing.wait_all_tasks_blocked()
                if number % 10 == 5:
                    nursery.start_soon(lane.keep_routes, f"p{number}", ROUTES)
                if number % 20 == 10:
                    cluster.bookies["b1"].drop_connections()
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            assert [lane.routes(f"p{number}") for number in range(5, 60, 10)] == [ROUTES] * 6
        found = [value for item in await stored(client, cluster) for value in item.values]
        assert found[::2] == expected

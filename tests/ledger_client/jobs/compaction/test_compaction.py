"""Compaction against a dictionary: what is kept, whatever was sent and however often it runs."""

from __future__ import annotations

from typing import Literal

import trio
import trio.testing
from batches import Sent
from compacted import Kept, Place, kept_of, survivors_of, the_set, without_tombstones
from hypothesis import given, settings, strategies as st
from laid_topic import TOPIC, Laid, LaidLane, LaidTopic, laid_topic, read_all

from ledger_client.jobs.compaction.job import compact_topic
from ledger_client.jobs.compaction.runner import LocalRunner

KEYS = [b"k%d" % i for i in range(6)] + [b""]
HEADERS = st.sampled_from([{}, {"h": b"1"}])
VALUES = st.sampled_from([None, b"", b"x", b"yy" * 40])


@st.composite
def message(draw: st.DrawFn, *, keys: list[bytes | None]) -> Sent:
    value, key = draw(VALUES), draw(st.sampled_from(keys))
    return Sent(value, key=key, timestamp=draw(st.integers(0, 5)), headers=draw(HEADERS))


@st.composite
def step(draw: st.DrawFn, *, lanes: int, keys: list[bytes | None]) -> tuple[str, int, list[object]]:
    kind = draw(st.sampled_from(["lay", "lay", "open", "shut", "compact"]))
    batch = st.lists(message(keys=keys), min_size=1, max_size=5)
    return kind, draw(st.integers(0, lanes - 1)), draw(st.lists(batch, min_size=1, max_size=3))


class Story:
    """Lanes that grow while they are compacted, and which of their ledgers are closed."""

    def __init__(self, topic: LaidTopic, lanes: list[LaidLane], *, memory_max: int) -> None:
        self.topic = topic
        self.lanes = lanes
        self.left_open: set[int] = set()
        self._memory_max = memory_max
        self._now = 1000
        self._time = 0

    async def take(self, kind: str, at: int, batches: list[list[Sent]]) -> None:
        lane = self.lanes[at]
        if at in self.left_open and kind in {"lay", "open", "shut"}:
            lane.shut()
            self.left_open.discard(at)
        if kind in {"lay", "open"}:
            self._now += 1
            created_ms = self._now
            if self.topic.record.order == "event-time":
                batches = [[self._timed(each, at) for each in batch] for batch in batches]
            if self.topic.record.timesync:
                batches = [[self._stamped(each) for each in batch] for batch in batches]
                created_ms = self._now % 7  # clocks of producers differ
            state: Literal["closed", "open"] = "open" if kind == "open" else "closed"
            await lane.lay(*batches, state=state, created_ms=created_ms)
            if state == "open":
                self.left_open.add(at)
        if kind == "compact":
            await self.compact()

    def _timed(self, each: Sent, at: int) -> Sent:
        self._time += 1
        return each._replace(event_time=self._time - 7 * (len(self.lanes) - at))

    def _stamped(self, each: Sent) -> Sent:
        self._time += 1
        time = each.event_time if self.topic.record.order == "event-time" else -self._time
        return each._replace(timestamp=self._time << 30, event_time=time)

    def closed(self) -> dict[Place, list[Laid]]:
        found: dict[Place, list[Laid]] = {}
        for at, lane in enumerate(self.lanes):
            last = lane.rows[-1].ledger_id if at in self.left_open else -1
            messages = [each for each in lane.messages if each.id.ledger_id != last]
            found[lane.partition, lane.lane] = messages
        return found

    async def compact(self, *, null_keys: Literal["keep", "drop"] = "drop") -> None:
        client = self.topic.client
        runner = LocalRunner(client._context, memory_max=self._memory_max)
        await compact_topic(client._context, TOPIC, runner, null_keys=null_keys)
        await self.check(null_keys=null_keys)

    async def check(self, *, null_keys: str = "drop") -> None:
        if not any(self.closed().values()):
            return
        ordered = self.topic.record.order == "event-time"
        timed = self.topic.record.timesync
        wanted = survivors_of(self.closed(), ordered=ordered, timed=timed, null_keys=null_keys)
        found = await kept_of(self.topic.client, await the_set(self.topic))
        assert without_tombstones(found) == wanted
        await self._check_reader(found)

    async def _check_reader(self, kept: list[Kept]) -> None:
        """PS-38: readers get what was kept, and the raw ledgers behind it."""
        async with self.topic.client.reader(TOPIC, compacted=True) as reader:
            messages = await read_all(reader)
        for at, lane in enumerate(self.lanes):
            place = lane.partition, lane.lane
            wanted = [each.id for each in kept if (each.id.partition, each.lane) == place]
            if at in self.left_open:
                wanted += [each.id for each in lane.of_ledger(len(lane.rows) - 1)]
            found = [each.id for each in messages if (each.id.partition, each.lane) == place]
            assert found == wanted


def tell(
    steps: list[tuple[str, int, list[list[Sent]]]],
    *,
    places: list[Place],
    memory_max: int = 1 << 24,
    **given_settings: object,
) -> None:
    async def story() -> None:
        async with laid_topic(**given_settings) as topic:
            lanes = [topic.lane(*place) for place in places]
            told = Story(topic, lanes, memory_max=memory_max)
            for each in steps:
                await told.take(*each)
            await told.compact()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


MANY = settings(max_examples=60)
FEWER = settings(max_examples=30)


@MANY
@given(st.lists(step(lanes=1, keys=[*KEYS, None]), max_size=8))
def test_every_prefix_of_a_lane_is_its_dictionary(steps: list[object]) -> None:
    """PS-37: null keys, tombstones, half-dead batches, runs over runs."""
    tell(steps, places=[(-1, 0)])  # type: ignore[arg-type]


@MANY
@given(st.lists(step(lanes=3, keys=[*KEYS, None]), max_size=10))
def test_every_prefix_of_several_lanes_is_their_dictionary(steps: list[object]) -> None:
    """PS-37: between lanes the greater time of publication is later, whichever was closed first."""
    tell(steps, places=[(-1, 0), (-1, 1), (-1, 5)])  # type: ignore[arg-type]


@MANY
@given(st.lists(step(lanes=2, keys=[*KEYS, None]), max_size=10))
def test_in_a_topic_ordered_by_event_time_the_greater_event_time_is_later(
    steps: list[object],
) -> None:
    """PS-37."""
    tell(steps, places=[(-1, 0), (-1, 1)], order="event-time")  # type: ignore[arg-type]


def test_clocks_of_producers_do_not_count_in_a_topic_with_timesync() -> None:
    """PS-37: that of the first one is ahead."""

    async def story() -> None:
        async with laid_topic(timesync=True) as topic:
            lanes = [topic.lane(-1, number) for number in range(2)]
            for lane, value, created_ms in ((0, b"old", 2000), (1, b"new", 1000)):
                sent = Sent(value, key=b"k", timestamp=(lane + 1) << 30)
                await lanes[lane].lay([sent], created_ms=created_ms)
            await Story(topic, lanes, memory_max=1 << 24).compact()
            kept = await kept_of(topic.client, await the_set(topic))
            assert [each.sent.value for each in kept] == [b"new"]

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


@FEWER
@given(st.lists(step(lanes=3, keys=[*KEYS, None]), max_size=10))
def test_in_a_topic_with_timesync_the_greater_timestamp_is_later(steps: list[object]) -> None:
    """MV-04, PS-37: whatever the clocks of producers and the event times say, in any partition."""
    places = [(0, 0), (0, 3), (1, 0)]
    tell(steps, places=places, partitions=2, timesync=True)  # type: ignore[arg-type]
    ordered = {"order": "event-time", "timesync": True}
    tell(steps, places=[(-1, 0), (-1, 1), (-1, 2)], **ordered)  # type: ignore[arg-type]


@MANY
@given(st.lists(step(lanes=3, keys=[*KEYS, None]), max_size=10))
def test_keys_in_several_partitions_are_compared_across_all(steps: list[object]) -> None:
    """PS-37: routed explicitly, in turn, or when there were fewer partitions."""
    tell(steps, places=[(0, 0), (1, 0), (1, 2)], partitions=2)  # type: ignore[arg-type]

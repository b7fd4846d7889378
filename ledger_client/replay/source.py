"""The messages of a replay: lanes from where it is up to its fixed end, merged.

The places of a replay are those of plan_spans(), once; from then on they are kept as marks.
A lane that is young enough not to be among them has nothing in the range.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from ledger_client.background import Background
from ledger_client.replay.errors import ReplayError
from ledger_client.replay.order import clocks_of, new_order, time_of
from ledger_client.topics.client import TopicClient
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.lane_set import LaneSet, Opening
from ledger_client.topics.reading.lane_stream import LaneStream
from ledger_client.topics.reading.merging import Run
from ledger_client.topics.reading.places import LanePlace, LaneRef, Place
from ledger_client.topics.reading.read_options import Reading
from ledger_client.topics.reading.starting import Begin, Position
from metadata.replays import LaneMark, Order as OrderName
from metadata.topics import TopicRecord

NS_PER_MS = 1_000_000
CHUNK_SIZE = 16 << 20
"""Bytes of a chunk, about, where there are as many; small entries are joined."""
CHUNK_ROWS = 200_000


class Chunk(NamedTuple):
    """Consecutive messages of a replay."""

    runs: tuple[Run, ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(run.rows for run in self.runs)

    def record_batch(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return them as one RecordBatch with arrow.SCHEMA."""
        batches = [run.record_batch() for run in self.runs]
        if len(batches) == 1:
            return batches[0]
        import pyarrow as pa

        return pa.concat_batches(batches)

    def times(self, order: OrderName) -> list[int | None]:
        """Return the time of each message in nanoseconds: that by which it is merged."""
        return [time for run in self.runs for time in _times(run, order)]

    def messages(self) -> list[Message]:
        """Return them as objects."""
        return [message for run in self.runs for message in run.messages()]


class Source:
    """The messages of a replay, chunk by chunk. Made by open_source()."""

    def __init__(
        self,
        order: OrderName,
        marks: Sequence[LaneMark],
        lanes: Sequence[LaneRef],
        watch: Callable[[Run], None] | None = None,
    ) -> None:
        self._watch = watch
        clocks = {lane: mark.clock for lane, mark in zip(lanes, marks, strict=True)}
        self._order = new_order(order, clocks)
        self._streams: list[LaneStream] = []
        self._news = trio.Event()

    async def chunk(self, *, size: int = CHUNK_SIZE) -> Chunk | None:
        """Return the next messages, about *size* bytes if there are as many; None: the end.

        Raises:
            Gap: messages of the range were removed.
            BadBatch, LedgerError: as TopicReader.next_messages().
        """
        runs: list[Run] = []
        rows = taken = 0
        while taken < size and rows < CHUNK_ROWS and (run := await self._run()) is not None:
            runs.append(run)
            rows += run.rows
            taken += _size(run)
        await trio.lowlevel.checkpoint()  # however much is here already
        return Chunk(tuple(runs)) if runs else None

    def reached(self) -> list[LaneMark]:
        """Return the place in each lane behind the last chunk."""
        clocks = clocks_of(self._order)
        return [
            mark_of(stream.lane, stream.place, clocks.get(stream.lane, 0))
            for stream in self._streams
        ]

    def tell(self) -> None:
        """Something may be there to take."""
        self._news.set()

    def start(self, lanes: LaneSet, openings: Sequence[Opening], nursery: trio.Nursery) -> None:
        """Begin to read."""
        for opening in openings:
            stream = lanes.stream(opening)
            self._streams.append(stream)
            nursery.start_soon(lanes.run, opening, stream)

    async def _run(self) -> Run | None:
        while True:
            news = self._news = trio.Event()
            run = self._order.next_run(self._streams, frozenset())
            if run is not None or all(stream.ended for stream in self._streams):
                if run is not None and self._watch is not None:
                    self._watch(run)
                return run
            await news.wait()


@asynccontextmanager
async def open_source(
    client: TopicClient,
    topics: Sequence[TopicRecord],
    order: OrderName,
    *,
    begin: Sequence[LaneMark],
    end: Sequence[LaneMark],
    watch: Callable[[Run], None] | None = None,
) -> AsyncIterator[Source]:
    """Read from the marks *begin* to the marks *end*, of the same lanes, for the block.

    *watch* is shown what comes next before it is given out.

    Raises:
        NoSuchTopic: a topic is gone.
        ReplayError: a lane of it is gone.
        LedgerError: metadata is away.
    """
    reading, opener = Reading(), client.ledger_opener()
    marks = sorted(begin, key=_lane_of)
    refs = [_ref(topics, mark) for mark in marks]
    source = Source(order, marks, refs, watch)
    lanes = LaneSet(
        catalogue=client.topics,
        opener=opener,
        topics=topics,
        reading=reading,
        tell=source.tell,
    )
    known = {each.lane: each for each in await lanes.lanes()}
    ends = {_lane_of(mark): place_of(mark) for mark in end}
    openings: list[Opening] = []
    for ref, mark in zip(refs, marks, strict=True):
        if ref not in known:
            raise ReplayError(f"{ref} was removed, and the replay needs it", topic=ref.topic)
        begin_here = Begin(place_of(mark))
        openings.append(Opening(known[ref], begin_here, ends[_lane_of(mark)], True))
    opener.share(reading.read_ahead_size, len(openings))
    async with Background() as nursery:
        source.start(lanes, openings, nursery)
        yield source


def mark_of(lane: LaneRef, place: Place, clock: int = 0) -> LaneMark:
    """Return a place in a lane as metadata keeps it."""
    return LaneMark(lane.topic_index, lane.partition, lane.lane, *place, clock)


def place_of(mark: LaneMark) -> Place:
    """Return the place that a mark keeps."""
    return Place(mark.number, mark.entry, mark.skip, mark.ledger_id, mark.version)


def position_of(topics: Sequence[TopicRecord], marks: Sequence[LaneMark]) -> Position:
    """Return marks as a position, as readers and plans take it."""
    return tuple(
        LanePlace(
            topics[mark.topic].name,
            topics[mark.topic].uid,
            mark.partition,
            mark.lane,
            place_of(mark),
        )
        for mark in marks
    )


def _size(run: Run) -> int:
    """Return the bytes of a run, nearly, and 1 at least."""
    sizes = (
        piece.batch.header.body_size * (piece.stop - piece.start) // piece.batch.count
        for piece in run.slices
    )
    return max(sum(sizes), 1)


def _times(run: Run, order: OrderName) -> list[int | None]:
    found: list[int | None] = []
    for piece in run.slices:
        if order == "event-time":
            found += piece.batch.event_times[piece.start : piece.stop]
        else:
            found += [time_of(piece) * NS_PER_MS] * (piece.stop - piece.start)
    return found if run.order is None else [found[place] for place in run.order]


def _lane_of(mark: LaneMark) -> tuple[int, int, int]:
    return mark.topic, mark.partition, mark.lane


def _ref(topics: Sequence[TopicRecord], mark: LaneMark) -> LaneRef:
    topic = topics[mark.topic]
    ordered = topic.order == "event-time"
    return LaneRef(mark.topic, mark.partition, mark.lane, topic.name, topic.uid, ordered)

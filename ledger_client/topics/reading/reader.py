"""Reading topics: messages, or Arrow batches of them, from a place on, there or back.

    lanes ──tasks──► streams ──order──► runs ──► Message objects, or RecordBatches

A reader belongs to no group and keeps nothing: who wants to go on later keeps its
position(). What it holds in memory is bounded by read_ahead_size and a batch for each lane.

Nothing is passed over in silence. When messages at its place were removed, a reader raises
Gap, once, and goes on at the first that is there if it is asked again. Any other error leaves
it where it was: asked again, it tries again. seek() moves it past an entry that is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import length_hint
from typing import Any

import trio

from ledger_client.background import Background
from ledger_client.errors import LedgerError
from ledger_client.figures import Figures
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.errors import Gap
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.arrow_runs import RecordBatches
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.merging import Run
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.read_options import Reading
from ledger_client.topics.reading.runs import Runs
from ledger_client.topics.reading.starting import Position, Start, as_position
from ledger_client.topics.reading.topic_watch import TopicWatch
from metadata.topics import TopicRecord


class TopicReader:
    """An async iterator of Message; made by TopicClient.topic_reader.

    One task takes messages. seek(), pause(), resume(), position() and wait_caught_up() may
    be called from others meanwhile.
    """

    def __init__(
        self, topics: Sequence[TopicRecord], reading: Reading, lanes: LaneSet, runs: Runs
    ) -> None:
        self._topics = topics
        self._reading = reading
        self._lanes = lanes
        self._runs = runs
        self._start = reading.begin
        self._run: Run | None = None
        self._ready: Any = iter(())
        """what of *_run* is to be handed out yet"""

    def __aiter__(self) -> TopicReader:
        return self

    async def __anext__(self) -> Message:
        for message in self._ready:
            return message  # type: ignore[no-any-return] # of an iterator over messages
        if not await self._load():
            raise StopAsyncIteration
        return next(self._ready)  # type: ignore[no-any-return] # as above

    async def next_messages(self) -> list[Message]:
        """Return the next messages, those of a batch or more; waits for one. None: the end.

        Raises:
            Gap: messages at the place were removed; asked again, it goes on behind them.
            BadBatch: an entry is damaged, or none of a topic.
            NoSuchTopic: the topic was deleted.
            EntryLost, ReplicasUnavailable, MetadataUnavailable: as LedgerReader.read().
        """
        if not length_hint(self._ready) and not await self._load():
            return []
        return list(self._ready)

    def give_back(self, count: int) -> None:
        """Take back the last *count* messages of those that next_messages() returned last.

        They come again, and position() is in front of them.

        Raises:
            ValueError: those were fewer.
        """
        left = length_hint(self._ready) + count
        run, self._run, self._ready = self._run, None, iter(())
        if left and (run is None or left > run.rows):
            raise ValueError(f"{count} messages given back, which were not handed out")
        if run is not None and left:
            self._runs.give_back(run, left)

    def read_batches(self, *, rows_min: int = 1000, rows_max: int = 50_000) -> RecordBatches:
        """Return an async iterator of pyarrow RecordBatches; no object is made for a message.

        The columns of a batch of *rows_min* messages or more lie over the memory in which it
        came, and keep that. Smaller ones are joined with what is here already. None has
        more than *rows_max* rows. Raises as next_messages().
        """
        self.give_back(0)
        return RecordBatches(self._runs, rows_min=rows_min, rows_max=rows_max)

    def position(self) -> Position:
        """Return the place in each lane behind what was handed out; start or seek() take it.

        In reverse it is in front of that.
        """
        return as_position(self._runs.places(self._run, length_hint(self._ready)))

    async def seek(self, start: Start, *, inclusive: bool = True) -> None:
        """Go on from *start*, which may be whatever the first start may be.

        Until this returns the reader goes on as before, and if it fails nothing changes.

        Raises:
            BadTopic: there is no such place.
            LedgerError: the place could not be looked for.
        """
        behind = inclusive == self._reading.reverse
        openings = await self._lanes.openings(start, behind=behind)
        self._run, self._ready = None, iter(())
        self._start = start
        self._runs.begin(self._lanes, openings)

    def pause(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out nothing more of these partitions, or of any; reading ahead ends soon.

        Merged by event time, nothing that belongs behind their next message comes either.
        """
        self.give_back(0)
        if partitions is None:
            partitions = {index for topic in self._topics for index in topic.partition_indexes}
        self._runs.pause(partitions)

    def resume(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out these partitions again, or all."""
        self._runs.resume(partitions)

    @property
    def gaps(self) -> Sequence[Gap]:
        """What was passed over with on_gap="skip", the last hundred."""
        return self._runs.gaps

    @property
    def caught_up(self) -> bool:
        """Whether all that was there when reading began was handed out, of every lane."""
        return self._runs.caught_up.is_set()

    async def wait_caught_up(self) -> None:
        """Wait until caught_up is true; after that it stays so until seek()."""
        await self._runs.caught_up.wait()

    async def open(self, nursery: trio.Nursery) -> None:
        """Find the lanes and begin to read them, in *nursery*. Raises as seek()."""
        if self._reading.follow:
            for index, topic in enumerate(self._topics):
                look = partial(self._look, index)
                self._lanes.watches.append(TopicWatch(self._lanes.store, topic.uid, look))
        await self.seek(self._start, inclusive=self._reading.inclusive)
        for watch in self._lanes.watches:
            nursery.start_soon(self._watch, watch)

    async def _look(self, index: int) -> None:
        await self._runs.look(index, self._start)

    async def _watch(self, watch: TopicWatch) -> None:
        try:
            await watch.run()
        except* LedgerError as group:
            self._runs.fail(first_of(group))

    async def _load(self) -> bool:
        """Make ready the next run; False at the end."""
        self._run = None
        self._run = await self._runs.wait()
        if self._run is None:
            return False
        self._ready = iter(self._run.messages())
        return True


def first_of(error: BaseExceptionGroup[LedgerError]) -> LedgerError:
    """Return the first error of a group."""
    found: Any = error
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, LedgerError)
    return found


@asynccontextmanager
async def open_reader(
    names: Sequence[str],
    reading: Reading,
    *,
    catalogue: TopicCatalogue,
    opener: LedgerOpener,
    figures: Figures,
) -> AsyncIterator[TopicReader]:
    """Read topics for the length of the block; what is read is counted in *figures*.

    Raises:
        NoSuchTopic: one of them does not exist.
        BadTopic: what was asked for cannot be.
        LedgerError: the place to begin could not be looked for.
    """
    topics = [(await catalogue.get(name))[0] for name in names]
    reading.check(topics)
    async with Background() as nursery:
        runs = Runs(reading, nursery, figures)
        lanes = LaneSet(
            catalogue=catalogue, opener=opener, topics=topics, reading=reading, tell=runs.tell
        )
        reader = TopicReader(topics, reading, lanes, runs)
        await reader.open(nursery)
        yield reader

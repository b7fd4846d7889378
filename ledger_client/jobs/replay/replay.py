"""A replay from its beginning, or from where it stopped, to its end.

    lease ──► record ──► range, once ──► pins ──► target ──► copy ──► verify ──► done

The record is saved before anything is sent, and again as the target acknowledges messages.

Pace. At full speed messages are not held back. Otherwise the first message of a run is due at
once, and each later one after the difference of their times divided by the speed. Times that go
back count as standing still, and messages without a time go with those before them. Messages due
within TICK_S are sent together.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path

import msgspec
import trio

from ledger_client.errors import BadTopic, ReplayConflict
from ledger_client.jobs.replay.log import (
    WHOLE,
    ReplayLog,
    ReplayProgress,
    ReplayReport,
    open_log,
    report_of,
    sent_of,
    sums_of,
)
from ledger_client.jobs.replay.options import ReplayOptions, fix_range, up_to_tick
from ledger_client.jobs.replay.parquet_target import (
    FILE_SIZE,
    check_complete,
    file_name,
    open_parquet_target,
    read_back_files,
)
from ledger_client.jobs.replay.rounds import Rounds, Workers, end_mark
from ledger_client.jobs.replay.source import CHUNK_SIZE, ReplayChunk, ReplaySource, open_source
from ledger_client.jobs.replay.target import (
    Destination,
    ReplayTarget,
    StreamTarget,
    Write,
    pin_of,
    verify,
)
from ledger_client.jobs.replay.topic_target import (
    CreateTopic,
    check_target,
    find_target,
    open_topic_target,
    read_back_topic,
)
from ledger_client.jobs.staging.job import open_job
from ledger_client.topics.context import TopicContext
from metadata.cluster_url import shown
from metadata.replays import PARTS_MAX, LaneMark, ReplayRecord, SourceTopic
from metadata.topics import TopicRecord
from native.checksum import Checksum

TICK_S = 0.005
NS_PER_S = 1_000_000_000
Times = Sequence[int | None]
"""Nanoseconds."""


class Pace:
    """The clock of one run; at speed 0 nothing waits."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._first_ns: int | None = None
        self._last_ns = 0
        self._started_at = 0.0

    def cut(self, times: Times) -> Iterator[tuple[int, int, float]]:
        """Split messages with these times into groups: start, stop, and when they are due.

        Due times are of trio's clock.
        """
        rising = self._rising(times)
        start = 0
        while start < len(rising):
            due_at = self._due_at(rising[start])
            stop = start + 1
            while stop < len(rising) and self._due_at(rising[stop]) < due_at + TICK_S:
                stop += 1
            yield start, stop, due_at
            start = stop

    async def wait(self, due_at: float) -> None:
        """Sleep until *due_at* by trio's clock; return at once if it has passed."""
        if due_at > trio.current_time():
            await trio.sleep_until(due_at)

    def _rising(self, times: Times) -> list[int]:
        """Return times that never go back; a missing time repeats the one before."""
        if self._first_ns is None:
            self._first_ns = next((time for time in times if time is not None), None)
            self._last_ns = self._first_ns or 0
            self._started_at = trio.current_time()
        known = (self._last_ns if time is None else time for time in times)
        rising = list(accumulate(known, max, initial=self._last_ns))[1:]
        self._last_ns = rising[-1] if rising else self._last_ns
        return rising

    def _due_at(self, time_ns: int) -> float:
        passed_s = (time_ns - (self._first_ns or 0)) / NS_PER_S
        return self._started_at + (passed_s / self.speed if self.speed else 0.0)


SAVE_S = 1.0
"""Interval between two saves of the record."""
LAST_SAVE_S = 2.0
"""Time limit for the save at an interruption."""


async def run_replay(
    context: TopicContext, topics: Sequence[TopicRecord], aim: Destination, options: ReplayOptions
) -> ReplayReport:
    """Replay to the end, from the beginning or from where an earlier run stopped.

    A finished replay sends nothing, but is verified if options.verify is set.

    Raises:
        TopicBusy, JobLost: another process runs the replay.
        Gap: messages of the range were removed.
        ReplayConflict: the name is another replay's, messages of the range may have been removed,
            or the target does not hold what was sent (with verify).
        LedgerError: as reading, and as the target.
    """
    name = options.name_of(topics, aim.text)
    limit_s = context.options.metadata_timeout_s
    async with open_log(context.ledgers.session, name, topics[0].name, limit_s=limit_s) as log:
        before = await log.load()
        found = None if options.restart else before
        if found is None:
            record = await _begin(context, topics, aim, options, name)
            await log.save(record)
            if before is not None and before.target_uid == aim.uid:
                await _forget(aim, before)
        else:
            record = found
            _check_same(record, topics, aim, options)
            if record.state == "done":
                return await _look_again(aim, record, options)
            _check_engine(record, aim)
        if aim.work is not None:
            return await aim.work(log, record)
        run = _Run(context, topics, log, record, options, resumed=found is not None)
        return await run.run(aim)


async def run_once(
    context: TopicContext, topics: Sequence[TopicRecord], aim: Destination, options: ReplayOptions
) -> ReplayReport:
    """Replay from beginning to end without a record, for a target that cannot resume.

    Raises as run_replay().
    """
    record = await _begin(context, topics, aim, options, options.name_of(topics, aim.text))
    return await _Run(context, topics, None, record, options, resumed=False).run(aim)


async def _begin(
    context: TopicContext,
    topics: Sequence[TopicRecord],
    aim: Destination,
    options: ReplayOptions,
    name: str,
) -> ReplayRecord:
    wanted = options.wanted
    if options.order == "timestamp":
        wanted = await up_to_tick(context, topics, wanted)
    fixed = await fix_range(context, topics, wanted)
    if 2 * len(fixed.end) + aim.partitions > PARTS_MAX:
        reason = f"{len(fixed.end)} lanes are more than a replay can keep; name some partitions"
        raise BadTopic(reason, topic=topics[0].name)
    now_ms = await context.catalogue.now_ms()
    return ReplayRecord(
        name=name,
        run=f"replay-{name}-{secrets.token_hex(8)}",
        sources=_sources(topics),
        order=options.order_of(topics),
        engine=aim.engine,
        range_text=options.describe(),
        target=aim.text,
        target_uid=aim.uid,
        target_partitions=aim.partitions,
        one_to_one=aim.one_to_one,
        entries=fixed.entries,
        end=fixed.end,
        reached=fixed.begin,
        started_ms=now_ms,
        updated_ms=now_ms,
    )


async def _look_again(
    aim: Destination, record: ReplayRecord, options: ReplayOptions
) -> ReplayReport:
    """Return the report of a finished replay, checking that its messages are there."""
    started = time.monotonic()
    await _forget(aim, record)  # the run that finished may have been killed before this
    if aim.check is not None:
        await trio.to_thread.run_sync(aim.check, record)
    if options.verify:
        await verify(aim, record)
    report = report_of(record, record, time.monotonic() - started, finished_before=True)
    return msgspec.structs.replace(report, verified=options.verify)


async def _forget(aim: Destination, record: ReplayRecord) -> None:
    if aim.forget is not None and record.engine == "workers":
        await aim.forget(record)


def _check_same(
    record: ReplayRecord, topics: Sequence[TopicRecord], aim: Destination, options: ReplayOptions
) -> None:
    now = (_sources(topics), options.order_of(topics), options.describe(), aim.text)
    if record.target_uid != aim.uid and record.target == aim.text:
        reason = "its target was deleted and made again since the replay began; use --restart"
        raise ReplayConflict(reason, topic=topics[0].name)
    for was, wanted, what in zip(
        (record.sources, record.order, record.range_text, record.target),
        now,
        ("the topics {}", "the order {}", "the range {}", "the target {}"),
        strict=True,
    ):
        if was != wanted:
            text = ", ".join(s.name for s in was) if isinstance(was, list) else str(was)
            reason = what.format(text)
            raise _begun_with(record, reason)


def _begun_with(record: ReplayRecord, what: str) -> ReplayConflict:
    return ReplayConflict(
        f"replay {record.name} was begun with {what}; begin it anew with --restart, or name this "
        "one with --name",
        topic=record.sources[0].name,
    )


def _check_engine(record: ReplayRecord, aim: Destination) -> None:
    """Raise ReplayConflict if the engine changed: the two deduplicate by different means."""
    if record.engine != aim.engine:
        by = {"process": "--no-spark", "workers": "--spark"}[record.engine]
        reason = f"{by}, and goes on so only"
        raise _begun_with(record, reason)


class _Run:
    """One run of a replay in this process."""

    def __init__(
        self,
        context: TopicContext,
        topics: Sequence[TopicRecord],
        log: ReplayLog | None,
        record: ReplayRecord,
        options: ReplayOptions,
        *,
        resumed: bool,
    ) -> None:
        self._context = context
        self._topics = topics
        self._log = log
        self._record = record
        self._options = options
        self._resumed = resumed
        self._saved_at = trio.current_time()

    async def run(self, aim: Destination) -> ReplayReport:
        first, started = self._record, time.monotonic()
        async with AsyncExitStack() as stack:
            for index, topic in enumerate(self._topics):
                pins = [pin_of(mark) for mark in first.reached if mark.topic == index]
                await stack.enter_async_context(
                    open_job(self._context.ledgers, topic, "replay", pins=pins)
                )
            opened = aim.open(first, self._resumed)
            target = await stack.enter_async_context(opened)
            known = target.reached()
            if known is not None:  # more exact than the record
                self._note(target, known)
                first = self._record
            begin, end = self._record.reached, self._record.end
            async with open_source(
                self._context, self._topics, self._record.order, begin=begin, end=end
            ) as source:
                await self._copy(source, target)
                await target.finish(source.reached)
                self._note(target, source.reached())
            if self._options.verify:
                await verify(aim, self._record)
            repeated = target.repeated
        self._record = msgspec.structs.replace(self._record, state="done")
        await self._save()
        seconds = time.monotonic() - started
        report = report_of(self._record, first, seconds, repeated=repeated)
        return msgspec.structs.replace(report, verified=self._options.verify)

    async def _copy(self, source: ReplaySource, target: ReplayTarget) -> None:
        """Copy the rest; save the record when interrupted."""
        pace = Pace(self._options.speed)
        try:
            while (chunk := await source.chunk(size=self._chunk_size)) is not None:
                if await self._put(chunk, source, target, pace):
                    self._note(target, source.reached())
                    if trio.current_time() >= self._saved_at + SAVE_S:
                        await self._save()
                self._report_progress(source, target)
        except trio.Cancelled:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_SAVE_S):
                await self._save()
            raise

    @property
    def _chunk_size(self) -> int:
        """1 if paced, so that each entry is recorded by itself and little is sent again."""
        return 1 if self._options.speed else CHUNK_SIZE

    async def _put(
        self, chunk: ReplayChunk, source: ReplaySource, target: ReplayTarget, pace: Pace
    ) -> bool:
        batch = target.batch_of(chunk)
        if not pace.speed:
            return await target.put(batch, source.reached)
        durable = False
        for start, stop, due_at in pace.cut(chunk.times(self._record.order)):
            await pace.wait(due_at)
            reached = source.reached if stop == batch.num_rows else None
            durable = await target.put(batch.slice(start, stop - start), reached)
        return durable

    async def _save(self) -> None:
        self._saved_at = trio.current_time()
        if self._log is not None:
            await self._log.save(self._record)

    def _note(self, target: ReplayTarget, reached: list[LaneMark]) -> None:
        self._record = msgspec.structs.replace(
            self._record,
            reached=reached,
            sent=sent_of(target.sent),
            bytes=target.bytes,
            updated_ms=self._context.clock.now_ms(),
        )

    def _report_progress(self, source: ReplaySource, target: ReplayTarget) -> None:
        if self._options.on_progress is None:
            return
        pairs = zip(self._record.end, source.reached(), strict=True)
        left = sum(max(end.version - here.version, 0) for end, here in pairs)
        total = self._record.entries
        whole = target.sent.get(WHOLE, Checksum())
        kept = sums_of(self._record.sent).get(WHOLE, Checksum()).count
        progress = ReplayProgress(whole.count, target.bytes, max(total - left, 0), total, kept)
        self._options.on_progress(progress)


def _sources(topics: Sequence[TopicRecord]) -> list[SourceTopic]:
    return [SourceTopic(topic.name, topic.uid) for topic in topics]


async def replay_into_parquet(
    context: TopicContext,
    names: Sequence[str],
    folder: Path,
    options: ReplayOptions,
    *,
    file_size: int = FILE_SIZE,
) -> ReplayReport:
    """Replay *names* into files in *folder*; see Client.replay.

    A file ends once it has *file_size* bytes of values and keys.
    """
    topics = [(await context.catalogue.get(name))[0] for name in names]
    options.check(topics)

    def open_it(record: ReplayRecord, resumed: bool) -> AbstractAsyncContextManager[ReplayTarget]:
        return open_parquet_target(
            folder, record, resumed=resumed, restart=options.restart, file_size=file_size
        )

    aim = Destination(
        _text(folder),
        open_it,
        check=partial(check_complete, folder),
        read_back=partial(read_back_files, folder),
        name_of=file_name,
    )
    return await run_replay(context, topics, aim, options)


def _text(folder: Path) -> str:
    return f"folder {folder.absolute()}"


async def replay_into_topic(
    context: TopicContext,
    names: Sequence[str],
    to: str,
    options: ReplayOptions,
    *,
    target: TopicContext | None = None,
    cluster: str = "",
    create: CreateTopic | None = None,
    replication: int | None = None,
    workers: Workers | None = None,
    part_size: int = 0,
) -> ReplayReport:
    """Replay *names* into the topic *to*; see Client.replay.

    *target* is connected to the topic's cluster, if that is another one, and *cluster* is its
    URL: without its password it identifies the replay and is stored. *create* is called if the
    topic is missing. *workers* copy parts of about
    *part_size* bytes at full speed; by default this process sends the messages.
    """
    topics = [(await context.catalogue.get(name))[0] for name in names]
    options.check(topics)
    there = target or context
    topic = await find_target(there, to, topics, create=create, replication=replication)
    order = options.order_of(topics)
    check_target(topic, topics, order, is_same_cluster=target is None)

    def open_it(record: ReplayRecord, resumed: bool) -> AbstractAsyncContextManager[ReplayTarget]:
        return open_topic_target(there, topic, record, resumed=resumed, keep_ids=options.keep_ids)

    aim = Destination(
        f"topic {to}{f' of {shown(cluster)}' if cluster else ''}",
        open_it,
        uid=topic.uid,
        partitions=topic.partitions,
        one_to_one=_alike(topic, topics),
        read_back=partial(read_back_topic, there, topic),
        name_of="partition {}".format,
        forget=partial(end_mark, there.ledgers, topic),
    )
    if workers is not None:
        if options.speed:
            reason = "workers do it at full speed; --speed needs --no-spark"
            raise BadTopic(reason, topic=topic.name)
        rounds = Rounds(
            context, topics, there.ledgers, topic, aim, options, workers, part_size=part_size
        )
        aim = aim._replace(engine="workers", work=rounds.run)
    return await run_replay(context, topics, aim, options)


def _alike(target: TopicRecord, topics: Sequence[TopicRecord]) -> bool:
    return all(topic.partitions == target.partitions for topic in topics)


async def replay_into_stream(
    context: TopicContext,
    names: Sequence[str],
    write: Write,
    options: ReplayOptions,
    *,
    as_objects: bool,
) -> ReplayReport:
    """Replay *names* to *write*, batch by batch. Raises as Client.replay, and as *write*."""
    topics = [(await context.catalogue.get(name))[0] for name in names]
    options.check(topics)

    @asynccontextmanager
    async def open_it(record: ReplayRecord, resumed: bool) -> AsyncIterator[StreamTarget]:
        yield StreamTarget(write, as_objects=as_objects)

    return await run_once(context, topics, Destination("a stream", open_it), options)

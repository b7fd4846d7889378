"""A replay from its beginning, or from where it was, to its end.

    lease ──► record ──► range, once ──► pins ──► target ──► copy ──► verify ──► done

The record is put before anything is sent, and again behind what the target acknowledged.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NamedTuple

import msgspec
import trio

from ledger_client.replay.errors import ChecksumDiffers, ReplayDiffers, TargetForeign
from ledger_client.replay.log import ReplayLog, open_log
from ledger_client.replay.options import ReplayOptions
from ledger_client.replay.pace import Pace
from ledger_client.replay.range import fix_range
from ledger_client.replay.report import Part, Progress, Report
from ledger_client.replay.source import CHUNK_SIZE, Chunk, Source, open_source
from ledger_client.replay.target import WHOLE, Target, sent_of, sums_of
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import BadTopic
from ledger_client.topics.jobs.job import open_job
from metadata.replays import PARTS_MAX, Engine, LaneMark, ReplayRecord, SourceTopic
from metadata.topics import TopicRecord
from native.checksum import Checksum

SAVE_S = 1.0
"""Between two records of how far it is."""
LAST_SAVE_S = 2.0
"""For the one at an interruption."""


class Aim(NamedTuple):
    """Where a replay goes: a text that is the same for the same target, and how to open it."""

    text: str
    open: Callable[[ReplayRecord, bool], AbstractAsyncContextManager[Target]]
    """for a record, which is resumed or not"""
    uid: int = -1
    partitions: int = 0
    one_to_one: bool = False
    check: Callable[[ReplayRecord], None] | None = None
    """raises if what a replay that is done has sent is not there any more; it blocks"""
    read_back: Callable[[ReplayRecord], Awaitable[Mapping[int, Checksum]]] | None = None
    """returns the checksum of what is there, by part; None: what was written is gone"""
    name_of: Callable[[int], str] = str
    """returns what people call a part"""
    engine: Engine = "process"
    work: Callable[[ReplayLog, ReplayRecord], Awaitable[Report]] | None = None
    """does what is left of a record by workers; None: this process does it, by *open*"""
    forget: Callable[[ReplayRecord], Awaitable[None]] | None = None
    """ends what workers keep beside the target of a replay that is done, or was begun anew"""


async def run_replay(
    client: TopicClient, topics: Sequence[TopicRecord], aim: Aim, options: ReplayOptions
) -> Report:
    """Replay to the end, or the rest of what was begun; return what was done.

    Of a replay that is done nothing is sent; it is verified if that is asked for.

    Raises:
        ReplayBusy, ReplayLost, ReplayDiffers: see replay/errors.py.
        Gap, RangeNotKept: messages of the range were removed.
        ChecksumDiffers: verified, the target does not have what was sent.
        LedgerError: as reading, and as the target.
    """
    name = options.name_of(topics, aim.text)
    limit_s = client.options.metadata_timeout_s
    async with open_log(client.store, name, topics[0].name, limit_s=limit_s) as log:
        before = await log.load()
        found = None if options.restart else before
        if found is None:
            record = await _begin(client, topics, aim, options, name)
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
        run = _Run(client, topics, log, record, options, resumed=found is not None)
        return await run.run(aim)


async def run_once(
    client: TopicClient, topics: Sequence[TopicRecord], aim: Aim, options: ReplayOptions
) -> Report:
    """Replay from the beginning to the end, keeping no record: the target cannot be resumed.

    Raises as run_replay().
    """
    record = await _begin(client, topics, aim, options, options.name_of(topics, aim.text))
    return await _Run(client, topics, None, record, options, resumed=False).run(aim)


async def _begin(
    client: TopicClient,
    topics: Sequence[TopicRecord],
    aim: Aim,
    options: ReplayOptions,
    name: str,
) -> ReplayRecord:
    fixed = await fix_range(client, topics, options.wanted)
    if 2 * len(fixed.end) + aim.partitions > PARTS_MAX:
        told = f"{len(fixed.end)} lanes are more than a replay can keep; name some partitions"
        raise BadTopic(told, topic=topics[0].name)
    now_ms = await client.topics.now_ms()
    return ReplayRecord(
        name=name,
        run=f"replay-{name}-{secrets.token_hex(8)}",
        sources=_sources(topics),
        order=options.order_of(topics),
        engine=aim.engine,
        asked=options.describe(),
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


async def _look_again(aim: Aim, record: ReplayRecord, options: ReplayOptions) -> Report:
    """Return the report of a replay that is done, if what it sent is there."""
    started = time.monotonic()
    await _forget(aim, record)  # a process that was killed may not have come to it
    if aim.check is not None:
        await trio.to_thread.run_sync(aim.check, record)
    if options.verify:
        await verify(aim, record)
    report = report_of(record, record, time.monotonic() - started, finished_before=True)
    return msgspec.structs.replace(report, verified=options.verify)


async def _forget(aim: Aim, record: ReplayRecord) -> None:
    if aim.forget is not None and record.engine == "workers":
        await aim.forget(record)


async def verify(aim: Aim, record: ReplayRecord) -> None:
    """Raise ChecksumDiffers if the target does not hold what was sent."""
    found = {} if aim.read_back is None else await aim.read_back(record)
    for part, sent in sorted(sums_of(record.sent).items(), reverse=True):  # WHOLE is the lowest
        if part in found and found[part] != sent:
            raise ChecksumDiffers(
                record.sources[0].name,
                part=record.target + ("" if part == WHOLE else f", {aim.name_of(part)}"),
                sent=sent,
                found=found[part],
            )


def _check_same(
    record: ReplayRecord, topics: Sequence[TopicRecord], aim: Aim, options: ReplayOptions
) -> None:
    now = (_sources(topics), options.order_of(topics), options.describe(), aim.text)
    if record.target_uid != aim.uid and record.target == aim.text:
        told = "its target was deleted and made again since the replay began; use --restart"
        raise TargetForeign(told, topic=topics[0].name)
    for was, wanted, what in zip(
        (record.sources, record.order, record.asked, record.target),
        now,
        ("the topics {}", "the order {}", "the range {}", "the target {}"),
        strict=True,
    ):
        if was != wanted:
            text = ", ".join(s.name for s in was) if isinstance(was, list) else str(was)
            reason = what.format(text)
            raise ReplayDiffers(topics[0].name, name=record.name, reason=reason)


def _check_engine(record: ReplayRecord, aim: Aim) -> None:
    """Raise ReplayDiffers: what workers began is not in the lanes' numbers, nor the reverse."""
    if record.engine != aim.engine:
        by = {"process": "--no-spark", "workers": "--spark"}[record.engine]
        told = f"{by}, and goes on so only"
        raise ReplayDiffers(record.sources[0].name, name=record.name, reason=told)


class _Run:
    """One process's part of a replay."""

    def __init__(
        self,
        client: TopicClient,
        topics: Sequence[TopicRecord],
        log: ReplayLog | None,
        record: ReplayRecord,
        options: ReplayOptions,
        *,
        resumed: bool,
    ) -> None:
        self._client = client
        self._topics = topics
        self._log = log
        self._record = record
        self._options = options
        self._resumed = resumed
        self._saved_at = trio.current_time()

    async def run(self, aim: Aim) -> Report:
        first, started = self._record, time.monotonic()
        async with AsyncExitStack() as stack:
            for index, topic in enumerate(self._topics):
                pins = [pin_of(mark) for mark in first.reached if mark.topic == index]
                await stack.enter_async_context(open_job(self._client, topic, "replay", pins=pins))
            opened = aim.open(first, self._resumed)
            target = await stack.enter_async_context(opened)
            known = target.reached()
            if known is not None:  # the target knows better
                self._note(target, known)
                first = self._record
            begin, end = self._record.reached, self._record.end
            async with open_source(
                self._client, self._topics, self._record.order, begin=begin, end=end
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

    async def _copy(self, source: Source, target: Target) -> None:
        """Copy all that is left; interrupted, keep how far it is."""
        pace = Pace(self._options.speed)
        try:
            while (chunk := await source.chunk(size=self._chunk_size)) is not None:
                if await self._put(chunk, source, target, pace):
                    self._note(target, source.reached())
                    if trio.current_time() >= self._saved_at + SAVE_S:
                        await self._save()
                self._tell(source, target)
        except trio.Cancelled:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_SAVE_S):
                await self._save()
            raise

    @property
    def _chunk_size(self) -> int:
        """Paced, each entry by itself: so little is sent again by the next run."""
        return 1 if self._options.speed else CHUNK_SIZE

    async def _put(self, chunk: Chunk, source: Source, target: Target, pace: Pace) -> bool:
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

    def _note(self, target: Target, reached: list[LaneMark]) -> None:
        self._record = msgspec.structs.replace(
            self._record,
            reached=reached,
            sent=sent_of(target.sent),
            bytes=target.bytes,
            updated_ms=self._client.clock.now_ms(),
        )

    def _tell(self, source: Source, target: Target) -> None:
        if self._options.on_progress is None:
            return
        pairs = zip(self._record.end, source.reached(), strict=True)
        left = sum(max(end.version - here.version, 0) for end, here in pairs)
        total = self._record.entries
        whole = target.sent.get(WHOLE, Checksum())
        kept = sums_of(self._record.sent).get(WHOLE, Checksum()).count
        told = Progress(whole.count, target.bytes, max(total - left, 0), total, kept)
        self._options.on_progress(told)


def report_of(
    record: ReplayRecord,
    first: ReplayRecord,
    seconds: float,
    *,
    repeated: int = 0,
    finished_before: bool = False,
) -> Report:
    """Return what was done of a replay, of which *first* was there before."""
    sums = sums_of(record.sent)
    whole = sums.pop(WHOLE, Checksum())
    return Report(
        name=record.name,
        target=record.target,
        messages=whole.count,
        bytes=record.bytes,
        checksum=whole.text,
        parts=[Part(part, each.count, each.text) for part, each in sorted(sums.items())],
        resumed=sums_of(first.sent).get(WHOLE, Checksum()).count,
        repeated=repeated,
        seconds=round(seconds, 3),
        finished_before=finished_before,
    )


def _sources(topics: Sequence[TopicRecord]) -> list[SourceTopic]:
    return [SourceTopic(topic.name, topic.uid) for topic in topics]


def pin_of(mark: LaneMark) -> tuple[int, int, int]:
    """Return what of a lane is to be kept: all from a mark on."""
    return mark.partition, mark.lane, max(mark.number, 0)

"""Mistakes with timestamps and ticks, each of which the simulation must find. As plants.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import msgspec
from plants import Plant
from replaced import replaced

from ledger_client.topics.lane_reports import LaneReports
from ledger_client.topics.producing.lane_progress import Progress
from ledger_client.topics.producing.open_lane import Lane
from ledger_client.topics.producing.partition_machine import PartitionMachine
from ledger_client.topics.producing.partition_writer import PartitionWriter
from ledger_client.topics.tick_follower import tick_rows
from ledger_client.topics.tick_log import TickLog
from metadata.time.calls import LaneIndex, LaneReport
from metadata.time.tick_rows import TickHold
from metadata.time.ticker import NO_TICK, Decision, LaneView, Reports, StoredTick, Ticker
from metadata.time.timekeeper import Office


@contextmanager
def ignore_a_producer() -> Iterator[None]:
    """Make ticks without regard to what one of the open lanes has under way."""
    decide = Ticker.decide

    def decide_without(
        ticker: Ticker,
        moment: int,
        lanes: Mapping[LaneIndex, LaneView],
        reports: Reports,
        holds: Iterable[TickHold] = (),
    ) -> Decision | None:
        ignored = min((lane for lane, view in lanes.items() if view.is_open), default=None)
        of = reports.of

        def report_of(_: Reports, lane: LaneIndex, epoch: int) -> LaneReport | None:
            found = of(lane, epoch)
            if found is None or lane != ignored:
                return found
            return msgspec.structs.replace(found, timestamp=moment)

        with replaced(Reports, "of", report_of):
            return decide(ticker, moment, lanes, reports, holds)

    with replaced(Ticker, "decide", decide_without):
        yield


@contextmanager
def keep_the_window() -> Iterator[None]:
    """Hand out timestamps below a window that is not stored."""

    async def store_nothing(office: Office, end_ms: int) -> None:
        office._oracle.stored(end_ms)

    with replaced(Office, "_save", store_nothing):
        yield


@contextmanager
def leave_old_ticks_open() -> Iterator[None]:
    """Go on above the last tick that is seen, and let the former leader append to its ledger."""

    async def begin(log: TickLog) -> StoredTick:
        rows = await tick_rows(log._context, log._uid)
        log._number = rows[-1][0] if rows else -1
        log._last = NO_TICK
        for _, row in reversed(rows):
            reader = await log._context.opener.open(row.ledger_id)
            last = reader.last_confirmed
            reader.unwatch()
            if last >= 0:
                log._last = await log._read_last(row.ledger_id, last)
                break
        return log._last

    with replaced(TickLog, "begin", begin):
        yield


@contextmanager
def let_changes_pass() -> Iterator[None]:
    """Make ticks whatever changes of the topic are under way."""
    decide = Ticker.decide

    def decide_without(
        ticker: Ticker,
        moment: int,
        lanes: Mapping[LaneIndex, LaneView],
        reports: Reports,
        _holds: Iterable[TickHold] = (),
    ) -> Decision | None:
        return decide(ticker, moment, lanes, reports)

    with replaced(Ticker, "decide", decide_without):
        yield


@contextmanager
def keep_a_range_over_a_claim() -> Iterator[None]:
    """Use the timestamps of batches that wait in a lane that is opened anew, too."""
    opened = PartitionMachine.lane_opened

    def opened_with_timestamps(
        machine: PartitionMachine, lane: int, last_event_time: int | None, last_number: int
    ) -> None:
        kept = [(batch, batch.first_timestamp) for batch in machine.waiting]
        opened(machine, lane, last_event_time, last_number)
        for batch, timestamp in kept:
            batch.first_timestamp = timestamp
        machine._go_on()

    with replaced(PartitionMachine, "lane_opened", opened_with_timestamps):
        yield


@contextmanager
def report_what_is_unknown() -> Iterator[None]:
    """Go on reporting a lane that was lost or left, as if it had only what was acknowledged."""
    begin = PartitionWriter._begin
    lanes: WeakKeyDictionary[PartitionWriter, Lane] = WeakKeyDictionary()

    def begin_and_remember(writer: PartitionWriter, lane: Lane) -> None:
        begin(writer, lane)
        lanes[writer] = lane

    def report(writer: PartitionWriter, fresh: int) -> LaneReport | None:
        lane = lanes.get(writer)
        timestamp = writer._progress.complete(writer.machine, fresh)
        if lane is None or timestamp is None:
            return None
        uid, version = writer._shared.uid, writer._progress.version
        return LaneReport(uid, writer.partition, lane.lane, lane.epoch, timestamp, version)

    with (
        replaced(PartitionWriter, "_begin", begin_and_remember),
        replaced(PartitionWriter, "report", report),
        replaced(Progress, "doubt", lambda *_: None),
        replaced(LaneReports, "discard", lambda *_: None),
    ):
        yield


TIME_PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        ignore_a_producer,
        keep_the_window,
        leave_old_ticks_open,
        let_changes_pass,
        keep_a_range_over_a_claim,
        report_what_is_unknown,
    )
}

"""Which tick is next: tried by random lanes, epochs, reports and takeovers against the truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given, settings, strategies as st

from metadata.time.calls import LaneIndex, LaneReport
from metadata.time.tick_rows import TickHold
from metadata.time.ticker import NO_TICK, LaneView, Reports, StoredTick, Ticker

UID = 7


class Truth(NamedTuple):
    """A tick that was made, and the last stored one then."""

    timestamp: int
    covers: dict[LaneIndex, int]
    stored: int


class Lane:
    """A lane with its writers: what each knows, and what is durable."""

    def __init__(self, index: LaneIndex) -> None:
        self.index = index
        self.epoch = 0
        self.is_open = False
        self.writing = -1
        """epoch of the writer that has the open ledger"""
        self.durable: list[int] = []
        """timestamps; their places are versions"""
        self.stamped: list[int] = []
        """timestamps of the writer that are not acknowledged"""
        self.is_doubtful = False

    def view(self) -> LaneView:
        return LaneView(self.epoch, self.is_open, 0 if self.is_open else len(self.durable))


class Change:
    """An alteration or deletion of the topic, and its client."""

    def __init__(self, below: int) -> None:
        self.hold = TickHold("shop/orders", below)
        self.timestamp = 0


class World:
    """The cluster in one thread: an oracle that counts, lanes, reports under way, one service."""

    def __init__(self, count: int) -> None:
        self.now = 0
        self.lanes = [Lane((-1, number)) for number in range(count)]
        self.under_way: list[LaneReport] = []
        self.reports = Reports()
        self.ticker = Ticker()
        self.moment = 0
        self.made: list[Truth] = []
        self.stored = NO_TICK
        self.changes: list[Change] = []
        """those that hold ticks back"""
        self.rest: tuple[dict[LaneIndex, LaneView], StoredTick] | None = None
        """the lanes in which nothing can come, and the last stored tick there"""

    def allot(self) -> int:
        self.now += 1
        return self.now

    # --- writers ---------------------------------------------------------------------------

    def claim(self, lane: Lane) -> None:
        lane.epoch += 1

    def open(self, lane: Lane) -> None:
        """The claimer recovers what the former writer left, and opens the lane."""
        self.close(lane, 1)
        lane.epoch += 1
        lane.writing, lane.is_open, lane.is_doubtful = lane.epoch, True, False

    def close(self, lane: Lane, kept: int) -> None:
        """Recovery finds the first *kept* of the entries that were not acknowledged."""
        if lane.is_open:
            lane.durable += lane.stamped[:kept]
        lane.stamped, lane.is_open = [], False

    def stamp(self, lane: Lane) -> None:
        if lane.is_open and not lane.is_doubtful:
            lane.stamped.append(self.allot())

    def acknowledge(self, lane: Lane) -> None:
        if lane.stamped and not lane.is_doubtful:
            lane.durable.append(lane.stamped.pop(0))

    def doubt(self, lane: Lane) -> None:
        lane.is_doubtful = bool(lane.stamped)

    def report(self, lane: Lane) -> None:
        if lane.is_open and not lane.is_doubtful:
            timestamp = min([self.allot(), *(t - 1 for t in lane.stamped)])
            report = LaneReport(UID, *lane.index, lane.writing, timestamp, len(lane.durable))
            self.under_way.append(report)

    # --- changes of the topic --------------------------------------------------------------

    def change(self, number: int) -> None:
        """Begin a change, or take the next step of one under way."""
        if len(self.changes) <= number:
            self.changes.append(Change(self.allot()))
        elif not self.changes[number].timestamp:
            self.changes[number].timestamp = self.allot()
        else:
            shown = self.changes.pop(number).timestamp
            assert all(tick.timestamp < shown for tick in self.made), "a tick was above a change"

    def kill_changer(self) -> None:
        """Its session ends, so its change fails."""
        if self.changes:
            self.changes.pop()

    # --- the service -----------------------------------------------------------------------

    def deliver(self, place: int) -> None:
        if self.under_way:
            report = self.under_way[place % len(self.under_way)]  # it may come again
            self.reports.note(report, 0.0)

    def take_moment(self) -> None:
        self.moment = self.allot()

    def tick(self, *, fails: bool = False) -> None:
        if not self.moment:
            return
        views = {lane.index: lane.view() for lane in self.lanes}
        holds = [change.hold for change in self.changes]
        if self.rest is not None and self.rest[0] == views and not holds:
            last = self.rest[1]
            self.made.append(Truth(self.moment, dict(last.covers), last.timestamp))
            self.ticker.newest, self.moment = self.moment, 0
            return
        decision = self.ticker.decide(self.moment, views, self.reports, holds)
        self.moment, self.rest = 0, None
        if decision is None:
            return
        if decision.is_rest:
            self.rest = views, self.stored
        assert decision.timestamp > self.ticker.newest
        if decision.is_stored:
            self.stored = StoredTick(decision.timestamp, decision.covers)
        if fails:
            self.take_over()  # the tick may be stored, and the service does not know
        else:
            self.ticker.made(decision)
        stored = self.stored.timestamp
        self.made.append(Truth(decision.timestamp, dict(decision.covers), stored))

    def take_over(self) -> None:
        self.ticker, self.reports, self.moment = Ticker(self.stored), Reports(), 0
        self.rest = None

    def check(self) -> None:
        """No tick that was ever made is a lie about what is durable now."""
        for tick in self.made:
            for lane in self.lanes:
                cover = tick.covers.get(lane.index, 0)
                assert cover <= len(lane.durable)
                for version, timestamp in enumerate(lane.durable):
                    assert timestamp > tick.timestamp or version < cover
                    assert not tick.stored < timestamp <= tick.timestamp


Step = Callable[[World, Lane, int], None]
STEPS: list[tuple[int, Step]] = [
    (1, lambda world, lane, _: world.claim(lane)),
    (4, lambda world, lane, _: world.open(lane)),
    (2, lambda world, lane, number: world.close(lane, number)),
    (20, lambda world, lane, _: world.stamp(lane)),
    (25, lambda world, lane, _: world.acknowledge(lane)),
    (1, lambda world, lane, _: world.doubt(lane)),
    (6, lambda world, _, number: world.change(number % 2)),
    (1, lambda world, _, __: world.kill_changer()),
    (20, lambda world, lane, _: world.report(lane)),
    (30, lambda world, _, number: world.deliver(-1 - number)),
    (20, lambda world, _, __: world.take_moment()),
    (20, lambda world, _, __: world.tick()),
    (1, lambda world, _, __: world.tick(fails=True)),
    (1, lambda world, _, __: world.take_over()),
]
WEIGHTS = [weight for weight, _ in STEPS]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_tick_lies_whatever_writers_reports_and_services_do(seed: int) -> None:
    """MV-20, MV-38, MV-45: in any order and delay; an idle tick has nothing since the stored one.

    No change of the topic shows with a timestamp that a tick had reached.
    """
    world, chance = World(3), random.Random(seed)
    for _, step in chance.choices(STEPS, WEIGHTS, k=400):
        step(world, chance.choice(world.lanes), chance.randrange(6))
    world.check()
    for lane in world.lanes:
        world.close(lane, 1)
    world.changes.clear()
    world.take_moment()
    world.tick()
    assert world.made, "with all lanes closed, nothing holds a tick back"
    world.check()


def view(epoch: int = 1, *, is_open: bool = True, end: int = 0) -> LaneView:
    return LaneView(epoch, is_open, end)


def report(lane: int, timestamp: int, version: int = 0, *, epoch: int = 1) -> LaneReport:
    return LaneReport(UID, 0, lane, epoch, timestamp, version)


def noted(*these: LaneReport) -> Reports:
    reports = Reports()
    for each in these:
        reports.note(each, 0.0)
    return reports


def test_a_tick_is_the_lowest_report_and_names_who_holds_it_back() -> None:
    """MV-19: the minimum of all writers' reports, never above the moment."""
    ticker = Ticker()
    lanes = {(0, 0): view(), (0, 1): view(), (0, 2): view(is_open=False, end=4)}
    tick = ticker.decide(90, lanes, noted(report(0, 50, 3), report(1, 40, 2)))
    assert tick is not None
    assert (tick.timestamp, tick.is_stored) == (40, True)
    assert tick.covers == {(0, 0): 3, (0, 1): 2, (0, 2): 4}
    assert ticker.holder == (0, 1)
    tick = ticker.decide(30, lanes, noted(report(0, 50, 3), report(1, 40, 2)))
    assert tick is not None
    assert tick.timestamp == 30
    assert ticker.holder is None


def test_a_lane_without_a_report_of_its_epoch_holds_ticks_back() -> None:
    """MV-36, MV-37: a report of the lane's former writer says nothing of the present one."""
    ticker = Ticker()
    lanes = {(0, 0): view(), (0, 1): view(epoch=2)}
    assert ticker.decide(90, lanes, noted(report(0, 50))) is None
    assert ticker.holder == (0, 1)
    assert ticker.decide(90, lanes, noted(report(0, 50), report(1, 80, epoch=1))) is None
    assert ticker.decide(90, lanes, noted(report(0, 50), report(1, 80, epoch=2))) is not None


def test_a_change_that_is_under_way_holds_ticks_below_it() -> None:
    """MV-38: what was complete before it is released, and no more."""
    ticker = Ticker()
    lanes, reports, hold = {(0, 0): view()}, noted(report(0, 80)), TickHold("shop/orders", 50)
    tick = ticker.decide(90, lanes, reports, [hold, TickHold("shop/orders", 70)])
    assert tick is not None
    assert tick.timestamp == 50
    assert ticker.holder == hold
    ticker.made(tick)
    assert ticker.decide(91, lanes, reports, [hold]) is None
    assert ticker.holder == hold
    tick = ticker.decide(92, lanes, reports)
    assert tick is not None
    assert tick.timestamp == 80


def test_ticks_are_stored_until_nothing_can_lie_between_them_and_idle_then() -> None:
    """MV-45: an idle topic stores no ticks, and its ticks go on."""
    ticker = Ticker()
    made = []
    for moment in (10, 20, 30, 40):
        tick = ticker.decide(moment, {(0, 0): view(is_open=False, end=1)}, noted())
        assert tick is not None
        ticker.made(tick)
        made.append((tick.timestamp, tick.is_stored))
    assert made == [(10, True), (20, True), (30, False), (40, False)]
    closed = {(0, 0): view(is_open=False, end=1)}
    tick = ticker.decide(50, closed, noted())
    assert tick is not None
    assert tick.is_rest
    tick = ticker.decide(50, {**closed, (0, 1): view()}, noted(report(1, 60)))
    assert tick is not None
    assert (tick.is_stored, tick.is_rest) == (False, False)
    assert (ticker.newest, ticker.stored.timestamp) == (40, 20)


def test_a_tick_above_what_a_lane_had_under_way_is_stored_once_it_has_it() -> None:
    """The first tick covers a message above itself, so a later one is stored for it."""
    ticker = Ticker()
    lanes = {(0, 0): view(), (0, 1): view()}
    tick = ticker.decide(50, lanes, noted(report(0, 50, 3), report(1, 20)))
    assert tick is not None
    assert (tick.timestamp, tick.covers) == (20, {(0, 0): 3})
    ticker.made(tick)
    for moment, is_stored in ((60, True), (70, False)):
        both = noted(report(0, moment, 3), report(1, moment))
        tick = ticker.decide(moment, lanes, both)
        assert tick is not None
        assert (tick.timestamp, tick.is_stored) == (moment, is_stored)
        ticker.made(tick)


def test_ticks_only_rise() -> None:
    """MV-43: also after a service took over that has older reports."""
    ticker = Ticker(StoredTick(100, {(0, 0): 5}))
    assert ticker.decide(100, {(0, 0): view(is_open=False, end=5)}, noted()) is None
    tick = ticker.decide(101, {(0, 0): view(is_open=False, end=5)}, noted())
    assert tick is not None
    assert tick.covers == {(0, 0): 5}


def test_reports_count_in_whatever_order_they_come() -> None:
    reports = noted(report(0, 50, 3), report(0, 40, 2), report(0, 60, 1, epoch=0))
    assert reports.of((0, 0), 1) == report(0, 50, 3)
    assert reports.of((0, 0), 0) is None
    reports.keep({})
    assert reports.of((0, 0), 1) is None


def test_reports_of_a_new_writer_count_from_the_first() -> None:
    """They may come before the lane's record is read anew, and be lower than the last one's."""
    reports = noted(report(0, 50, 3))
    reports.keep({(0, 0): view()})
    assert reports.note(report(0, 40, 5, epoch=2), 1.0)
    assert reports.of((0, 0), 1) == report(0, 50, 3)
    reports.keep({(0, 0): view()._replace(epoch=2)})
    assert reports.of((0, 0), 2) == report(0, 40, 5, epoch=2)
    assert reports.silent_s((0, 0), 3.0, 0.0) == 2.0
    assert not reports.note(report(0, 60, 6), 2.0)
    reports.keep({(0, 0): view()._replace(epoch=3)})
    assert reports.note(report(0, 30, 7, epoch=3), 4.0)
    assert reports.of((0, 0), 3) == report(0, 30, 7, epoch=3)


def test_a_report_of_an_epoch_that_no_writer_has_keeps_no_other_and_shows_no_life() -> None:
    reports = noted()
    reports.keep({(0, 0): view()})
    strange = report(0, 1 << 60, 3, epoch=1 << 60)
    for _ in range(2):
        assert reports.note(strange, 9.0)
        assert reports.note(report(0, 50, 3), 1.0)
        assert reports.of((0, 0), 1) == report(0, 50, 3)
        assert reports.silent_s((0, 0), 9.0, 0.0) == 8.0
        reports.keep({(0, 0): view()})
        assert reports.of((0, 0), 1 << 60) is None


def test_a_tick_covers_no_less_than_the_last_stored_one() -> None:
    """Readers take one that does for damaged."""
    ticker = Ticker(StoredTick(100, {(0, 0): 5, (0, 1): 3}))
    tick = ticker.decide(101, {(0, 0): view()}, noted(report(0, 120, 4)))
    assert tick is not None
    assert tick.covers == {(0, 0): 5, (0, 1): 3}

"""Did time keep its promises? Invariants 8 to 10, and one order for all, checked over a history.

8   Every message up to a tick lies before the place of its lane that the tick covers, and a reader
    that was at a tick has got all messages up to it. Stored ticks rise. No change of a topic shows
    after a tick that is as late as the change.
9   The timestamps of a lane rise with its places.
10  No timestamp is given twice. One that was asked for after anybody had another is greater,
    be it one of a message, of a tick, or taken from the oracle.
27  Readers by timestamp get all messages in the order of timestamps, each once, whatever processes
    they go on in, and no batch has messages of both sides of a stored tick.

All is held against what the audit found (TimeHeld); without that nothing is checked.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from event import Event
from history import History
from message_events import MessagesAcknowledged, MessagesRead, MessagesSent
from time_events import (
    HeldMessage,
    Lane,
    TickSeen,
    TimeAsked,
    TimedBegun,
    TimedEnded,
    TimedHappening,
    TimedLost,
    TimedRead,
    TimeHeld,
    TimeTaken,
    TopicChanged,
)

from ledger_client.message_id import MessageId

Broken = Iterator[tuple[int, str]]
"""the number of the invariant, and how it is broken"""


def check_time(history: History) -> Broken:
    """Yield each broken promise."""
    held = [event for event in history.events if isinstance(event, TimeHeld)]
    for event in held:
        truth = Truth(event)
        yield from _rising_lanes(truth)
        for invariant, told in [
            *_ticks(truth, history),
            *_readers(truth, history),
        ]:
            yield invariant, f"{truth.topic}: {told}"
    yield from _changes(history)
    if held:
        yield from _issued(history, [Truth(event) for event in held])


class Truth:
    """The messages of a topic as the audit found them."""

    def __init__(self, held: TimeHeld) -> None:
        self.topic = held.topic
        self.ticks = held.ticks
        self.messages = sorted(held.messages, key=lambda each: each.timestamp)
        self.order = [each.id for each in self.messages]
        self.timestamps = [each.timestamp for each in self.messages]
        self.of_id = {each.id: each for each in self.messages}
        self.lanes: dict[Lane, list[HeldMessage]] = defaultdict(list)
        """by timestamp"""
        for message in self.messages:
            self.lanes[message.index].append(message)
        self.ends = {
            lane: list(itertools.accumulate((each.version + 1 for each in messages), max))
            for lane, messages in self.lanes.items()
        }
        """for each message of a lane, the version after it and all with lower timestamps"""
        self.lane_times = {
            lane: [each.timestamp for each in messages] for lane, messages in self.lanes.items()
        }


# --- 9 ----------------------------------------------------------------------------------


def _rising_lanes(truth: Truth) -> Broken:
    for lane, messages in truth.lanes.items():
        in_order = sorted(messages, key=lambda each: (each.version, each.id))
        for before, after in itertools.pairwise(in_order):
            if before.timestamp >= after.timestamp:
                yield 9, f"lane {lane}: {before.timestamp}, then {after.timestamp} at {after.id}"


# --- 8 ----------------------------------------------------------------------------------


def _ticks(truth: Truth, history: History) -> Broken:
    if truth.ticks != sorted(set(truth.ticks)):
        yield 8, "the stored ticks do not rise"
    ticks = set(truth.ticks)
    first = min(ticks, default=0)  # ticks below all messages are trimmed
    for event in history.events:
        if not isinstance(event, TickSeen) or event.topic != truth.topic:
            continue
        yield from _lies(truth, event)
        if event.stored >= first and event.stored and event.stored not in ticks:
            yield 8, f"{event.who} saw the stored tick {event.stored}, which is not there"


def _lies(truth: Truth, tick: TickSeen) -> Broken:
    """Find messages up to *tick* that it does not cover."""
    covers = {(partition, lane): version for partition, lane, version in tick.covers}
    for lane, messages in truth.lanes.items():
        times = truth.lane_times[lane]
        count = bisect_right(times, tick.timestamp)
        end, cover = truth.ends[lane][count - 1] if count else 0, covers.get(lane, 0)
        if end > cover or count > bisect_right(times, tick.stored):
            last = messages[count - 1]
            yield (
                8,
                f"{tick.who} was given tick {tick.timestamp} (stored {tick.stored}), which covers "
                f"{cover} of lane {lane}; messages up to it end at {end}, such as {last.id} "
                f"with {last.timestamp}",
            )


def _changes(history: History) -> Broken:
    """Find changes of a topic that show after a tick as late as they are."""
    newest: dict[str, int] = {}
    for event in history.events:
        match event:
            case TickSeen():
                newest[event.topic] = max(newest.get(event.topic, 0), event.timestamp)
            case TimedRead():
                newest[event.topic] = max(newest.get(event.topic, 0), event.tick)
            case TopicChanged() if newest.get(event.topic, 0) >= event.timestamp:
                tick = newest[event.topic]
                yield 8, f"{event.topic} was {event.kind} at {event.timestamp}, after tick {tick}"
            case _:
                pass


# --- 27, and 8 of readers ----------------------------------------------------------------


class Reading:
    """One reader by timestamp, across its sessions."""

    def __init__(self, begun: TimedBegun, acknowledged: int) -> None:
        self.begun = begun
        self.acknowledged = acknowledged
        """how many messages were acknowledged when it began"""
        self.got: list[MessageId] = []
        self.batches: list[tuple[TimedRead, int]] = []
        """each with the number of messages up to its end"""
        self.is_ended = False


def _readers(truth: Truth, history: History) -> Broken:
    acknowledged: list[MessageId] = []
    readings: dict[str, Reading] = {}
    for event in history.events:
        if isinstance(event, MessagesAcknowledged) and event.topic == truth.topic:
            acknowledged += [each for each in event.ids if each.ledger_id >= 0]
        elif isinstance(event, TimedHappening) and event.topic == truth.topic:
            yield from _note(readings, event, len(acknowledged))
    for message_id in acknowledged:
        if message_id not in truth.of_id:
            yield 27, f"{message_id} was acknowledged, and is not there"
    for reading in readings.values():
        yield from _order_of(truth, reading)
        yield from _completeness_of(truth, reading, acknowledged)


def _note(readings: dict[str, Reading], event: TimedHappening, acknowledged: int) -> Broken:
    match event:
        case TimedBegun():
            readings[event.reader] = Reading(event, acknowledged)
        case TimedRead():
            reading = readings[event.reader]
            reading.got += event.ids
            reading.batches.append((event, len(reading.got)))
        case TimedLost():
            yield 8, f"{event.reader} was told: {event.reason}"
        case TimedEnded():
            readings[event.reader].is_ended = True


def _order_of(truth: Truth, reading: Reading) -> Broken:
    """A reader gets the messages from its start on, in their order."""
    begun = reading.begun
    first = bisect_left(truth.timestamps, begun.start)
    due = truth.order[first : first + len(reading.got)]
    if reading.got != due:
        at = next(
            (
                at
                for at, pair in enumerate(zip(reading.got, due, strict=False))
                if pair[0] != pair[1]
            ),
            len(due),
        )
        got = reading.got[at]
        known = truth.of_id.get(got)
        expected = due[at : at + 1]
        yield (
            27,
            f"{begun.reader}: message {at} is {got} ({known and known.timestamp}), "
            f"expected {expected} ({[truth.of_id[each].timestamp for each in expected]})",
        )
    for batch, _ in reading.batches:
        told = [truth.of_id[each].timestamp for each in batch.ids if each in truth.of_id]
        if told != batch.timestamps:
            yield 27, f"{begun.reader} was told other timestamps than there are"
        elif _crosses(truth.ticks, told):
            yield 27, f"{begun.reader}: a batch from {told[0]} to {told[-1]} crosses a stored tick"


def _crosses(ticks: Sequence[int], timestamps: Sequence[int]) -> bool:
    """True if a tick lies between the first and the last of *timestamps*."""
    if not timestamps:
        return False
    return bisect_left(ticks, timestamps[0]) != bisect_left(ticks, timestamps[-1])


def _completeness_of(truth: Truth, reading: Reading, acknowledged: Sequence[MessageId]) -> Broken:
    """A reader has got all up to its tick; at its end, all that was acknowledged before."""
    begun = reading.begun
    first = bisect_left(truth.timestamps, begun.start)
    for batch, count in reading.batches:
        due = bisect_right(truth.timestamps, batch.tick) - first
        if due > count:
            missing = truth.order[first + count]
            yield 8, f"{begun.reader} was at tick {batch.tick} without {missing}"
            return
    if reading.is_ended:
        got = set(reading.got)
        for message_id in acknowledged[: reading.acknowledged]:
            message = truth.of_id.get(message_id)
            if message and message.timestamp >= begun.start and message_id not in got:
                yield 27, f"{begun.reader} ended without {message_id}, acknowledged before"
                return


# --- 10 -----------------------------------------------------------------------------------


class Known:
    """What anybody had of the cluster's time, event by event."""

    def __init__(self, truths: Sequence[Truth]) -> None:
        self.newest = -1
        self.ranges: list[tuple[int, int, str]] = []
        """first, last and owner of all that was issued, but those of messages"""
        self.sent: dict[tuple[str, int], int] = {}
        """by topic and mark, the newest timestamp that was known when it was sent first"""
        self._asked: dict[str, int] = {}
        self._of_id = {truth.topic: truth.of_id for truth in truths}

    def note(self, event: Event) -> Broken:
        """Take the next event; yield what is wrong with it."""
        match event:
            case TimeAsked():
                self._asked[event.who] = self.newest
            case TimeTaken():
                last = event.first + event.count - 1
                floor = self._asked[event.who]
                if event.first <= floor:
                    yield 10, f"{event.who} was given {event.first}; {floor} was known before"
                self.ranges.append((event.first, last, event.who))
                self._learn([last])
            case MessagesSent():
                for message in event.messages:
                    self.sent.setdefault((event.topic, message.mark), self.newest)
            case MessagesAcknowledged() | MessagesRead():
                of_id = self._of_id.get(event.topic, {})
                found = [of_id[each].timestamp for each in event.ids if each in of_id]
                self._learn(found)
            case TimedRead():
                self._learn([*event.timestamps, event.tick])
            case TickSeen():
                self._learn([event.timestamp])
            case TopicChanged():
                self.ranges.append((event.timestamp, event.timestamp, event.kind))
                self._learn([event.timestamp])
            case _:
                pass

    def _learn(self, timestamps: Sequence[int]) -> None:
        self.newest = max([self.newest, *timestamps])


def _issued(history: History, truths: Sequence[Truth]) -> Broken:
    known = Known(truths)
    for event in history.events:
        yield from known.note(event)
    ranges = known.ranges
    for truth in truths:
        for message in truth.messages:
            floor = known.sent.get((truth.topic, message.mark), -1)
            if message.timestamp <= floor:
                yield (
                    10,
                    f"{message.id} has {message.timestamp}; {floor} was known when it was sent",
                )
            ranges.append((message.timestamp, message.timestamp, str(message.id)))
    ranges.sort()
    for before, after in itertools.pairwise(ranges):
        if after[0] <= before[1]:
            yield 10, f"{before[2]} has {before[:2]}, and {after[2]} has {after[:2]}"

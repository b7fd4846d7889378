"""Choose the ledgers of a partition to remove, with a reason for each that stays. No I/O.

Only closed ledgers are removed, the oldest of a lane first, and a lane's scan stops at the first
one that stays, so the rest of a lane has no hole. A pinned ledger stays whatever the limits are.
Lanes share their partition's quota: of their oldest ledgers, the one closed first is removed
first.

All times are the store's (metadata/clock.py): the time at which a ledger was closed, and now.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from ledger_client.topics.lanes.lane_state import IDLE_S
from ledger_client.topics.retention.holdings import HeldLedger, LaneHoldings, Pin
from ledger_client.topics.times import PublishTime, Time, Timestamp
from metadata.topics import LaneLedger, Retention

RESEND_S = float(IDLE_S)
"""A named producer is known this long after its last message. The last ledger of its lane records
its sequence numbers, so it stays as long."""
Reason = Literal[
    "open", "prepared", "pinned", "kept", "resend", "young", "in quota", "unlimited", "after",
    "behind", "old", "over quota", "before",
]  # fmt: skip


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """The decision whether one ledger is removed or kept, with the reason."""

    partition: int
    lane: int
    number: int
    ledger: LaneLedger
    version: int
    """version of the ledger's row"""
    goes: bool
    """True if it is removed now"""
    reason: Reason
    why: str
    """the reason, in words for people"""
    due_ms: int | None = None
    """Unix time of its removal in ms, if known; a quota or a pin may change it"""


Before = Time
"""The end of a purge, exclusive."""


Verdict = tuple[bool, Reason, str, int | None]
"""Whether it is removed, the reason, the same in words, and when it will be due."""
Judge = Callable[[HeldLedger, int], Verdict]
"""Decides on a closed ledger that may be removed, given the bytes of its partition."""


def plan_retention(
    lanes: Sequence[LaneHoldings], retention: Retention, *, now_ms: int, pins: Sequence[Pin] = ()
) -> list[Fate]:
    """Return the fate of every ledger of *lanes*, by partition, lane and number."""

    def judge(held: HeldLedger, size: int) -> Verdict:
        age_s = (now_ms - _closed_ms(held.row)) / 1000
        if 0 <= retention.age_s <= age_s:
            return True, "old", f"older than {spell(retention.age_s)}", now_ms
        if 0 <= retention.size < size:
            return True, "over quota", f"the partition has more than {retention.size} bytes", now_ms
        return _young(held.row, retention)

    return _plan(lanes, judge, now_ms=now_ms, pins=pins)


def plan_purge(
    lanes: Sequence[LaneHoldings], before: Before, *, now_ms: int, pins: Sequence[Pin] = ()
) -> list[Fate]:
    """Return the fate of every ledger in a purge of those wholly before *before*."""

    def judge(held: HeldLedger, _size: int) -> Verdict:
        if is_wholly_before(held.row, before):
            return True, "before", f"wholly before {_described(before)}", now_ms
        return False, "after", f"not wholly before {_described(before)}", None

    return _plan(lanes, judge, now_ms=now_ms, pins=pins)


def is_wholly_before(row: LaneLedger, before: Before) -> bool:
    """True if all messages of a closed ledger are before a time.

    A ledger whose messages all lack an event time or timestamp is never before one. If only some
    lack it, they do not count.
    """
    if isinstance(before, PublishTime):
        return _closed_ms(row) <= before.ms
    if row.messages == 0:
        return True
    if isinstance(before, Timestamp):
        return 0 < row.last_timestamp < before.value
    return row.last_event_time is not None and row.last_event_time < before.ns


def spell(seconds: float) -> str:
    """Format a duration: "90 s", "2 h", "7 d"."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s and seconds % length_s == 0:
            return f"{seconds / length_s:g} {unit}"
    return f"{seconds:g} s"


def _plan(
    lanes: Sequence[LaneHoldings], judge: Judge, *, now_ms: int, pins: Sequence[Pin]
) -> list[Fate]:
    ordered = sorted(lanes, key=lambda lane: (lane.partition, lane.lane))
    fates: list[Fate] = []
    pinned: dict[tuple[int, int], list[Pin]] = {}
    for pin in pins:
        pinned.setdefault((pin.partition, pin.lane), []).append(pin)
    for _, group in groupby(ordered, key=lambda lane: lane.partition):
        scans = [
            _Scan(lane, judge, now_ms=now_ms, pins=pinned.get((lane.partition, lane.lane), ()))
            for lane in group
        ]
        _run(scans)
        fates += [fate for scan in scans for fate in scan.fates]
    return fates


def _run(scans: Sequence[_Scan]) -> None:
    """Decide on the ledgers of a partition in the order in which they were closed."""
    size = sum(held.row.size for scan in scans for held in scan.lane.closed)
    heads = [(scan.next_ms, index) for index, scan in enumerate(scans) if not scan.over]
    heapq.heapify(heads)
    while heads:
        _, index = heapq.heappop(heads)
        size -= scans[index].step(size)
        if not scans[index].over:
            heapq.heappush(heads, (scans[index].next_ms, index))


class _Scan:
    """Decides on the ledgers of one lane, oldest first."""

    def __init__(
        self, lane: LaneHoldings, judge: Judge, *, now_ms: int, pins: Sequence[Pin]
    ) -> None:
        self.lane = lane
        self.fates: list[Fate] = []
        self._judge = judge
        self._now_ms = now_ms
        self._pins = pins
        self._first_kept: Fate | None = None

    @property
    def over(self) -> bool:
        """True once every ledger of the lane has its fate."""
        return len(self.fates) == len(self.lane.ledgers)

    @property
    def next_ms(self) -> int:
        """The time at which the next ledger was closed."""
        return _closed_ms(self.lane.ledgers[len(self.fates)].row)

    def step(self, size: int) -> int:
        """Decide on the next ledger; return the bytes that its removal frees."""
        held = self.lane.ledgers[len(self.fates)]
        verdict = next(self._held_back(held), None) or self._judge(held, size)
        goes, reason, why, due_ms = verdict
        kept = self._first_kept
        if goes and kept is not None:
            due_ms = kept.due_ms and max(kept.due_ms, due_ms or 0)
            goes, reason, why = False, "behind", f"behind ledger {kept.ledger.ledger_id}"
        fate = Fate(
            partition=self.lane.partition,
            lane=self.lane.lane,
            number=held.number,
            ledger=held.row,
            version=held.version,
            goes=goes,
            reason=reason,
            why=why,
            due_ms=due_ms,
        )
        self.fates.append(fate)
        self._first_kept = kept or (None if goes else fate)
        return held.row.size if goes else 0

    def _held_back(self, held: HeldLedger) -> Iterator[Verdict]:
        """Yield reasons that keep a ledger whatever the limits are."""
        if held.row.state == "open":
            yield False, "open", self._writer(), None
        elif held.row.state == "prepared":
            yield False, "prepared", "the next to be written", None
        for pin in self._pins:
            if pin.needs(held):
                yield False, "kept" if pin.is_group else "pinned", f"needed by {pin.holder}", None
        until_ms = held.row.named_ms + round(RESEND_S * 1000)
        if held.row.named_ms and self._now_ms < until_ms and held is self._last_written:
            why = f"records for {spell(RESEND_S)} what named producers sent"
            yield False, "resend", why, until_ms

    @property
    def _last_written(self) -> HeldLedger:
        """The lane's last written ledger, which its next writer reads."""
        return next(held for held in reversed(self.lane.ledgers) if held.row.state != "prepared")

    def _writer(self) -> str:
        owner = self.lane.owner
        if owner is None:
            return "not closed, and nobody writes it"
        return f"written by {owner.producer or 'a producer'} on {owner.host or 'a host'}"


def _described(before: Before) -> str:
    if isinstance(before, PublishTime):
        return f"{before.ms} ms"
    if isinstance(before, Timestamp):
        return f"timestamp {before.value}"
    return f"event time {before.ns} ns"


def _closed_ms(row: LaneLedger) -> int:
    return row.closed_ms or row.created_ms


def _young(row: LaneLedger, retention: Retention) -> Verdict:
    if retention.age_s >= 0:
        due_ms = _closed_ms(row) + round(retention.age_s * 1000)
        return False, "young", f"kept for {spell(retention.age_s)} after its close", due_ms
    if retention.size >= 0:
        return False, "in quota", f"the partition has at most {retention.size} bytes", None
    return False, "unlimited", "everything is kept", None

"""The messages of a read as ranges that can be sent to other processes.

A ledger range is some messages of one ledger of a lane. Ranges are planned once (range_plan.py),
split into as many groups as there are tasks, and read by the tasks (range_reader.py). Together
the tasks read exactly the plan, even if the topic grows meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_client.errors import Gap
from ledger_client.topics.positions import UNKNOWN, LanePlace, LaneRef, Place, Position
from metadata.topics import Removed, TopicRecord


class LedgerRange(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive messages of one ledger of a lane, as plain values."""

    topic: str
    uid: int
    topic_index: int
    """index of the topic among the plan's topics"""
    ordered: bool
    """event times never decrease in the lane"""
    partition: int
    lane: int
    number: int
    """number of the ledger in its lane; for a compacted ledger, of its first message's ledger"""
    ledger_id: int
    base_version: int
    """version of the ledger's first entry, -1 if unknown"""
    first_entry: int
    last_entry: int
    """inclusive"""
    skip: int = 0
    """leave out so many messages of the first entry"""
    stop: int = -1
    """read only so many messages of the last entry, counted from its first; -1 for all"""
    size: int = 0
    """payload bytes, estimated"""
    messages: int = -1
    """their number, estimated; -1 if unknown"""
    removed: tuple[Removed, ...] = ()
    """messages deleted from the ledger, to be skipped"""
    compacted: bool = False
    """the ledger is a compacted one"""
    timed: bool = False
    """the topic has timesync; set for compactions alone"""
    stamp: int = 0
    """timestamp of all its messages; 0 if each batch has its own"""

    @property
    def entries(self) -> int:
        """The number of entries, partial ones included."""
        return self.last_entry - self.first_entry + 1

    @property
    def lane_ref(self) -> LaneRef:
        """The lane, as cursors and batches name it."""
        return LaneRef(
            self.topic_index, self.partition, self.lane, self.topic, self.uid, self.ordered
        )

    def place(self, entry: int) -> Place:
        """Return the place before an entry."""
        version = self.base_version if self.base_version < 0 else self.base_version + entry
        return Place(self.number, entry, 0, self.ledger_id, version)

    @property
    def begin(self) -> Place:
        """The place before the first message."""
        return self.place(self.first_entry)._replace(skip=self.skip)

    def cut(self, entry: int) -> tuple[LedgerRange, LedgerRange]:
        """Split before an entry into two ranges; neither may be empty."""
        before = entry - self.first_entry
        size, messages = _estimate(self.size, before, self), _estimate(self.messages, before, self)
        left = msgspec.structs.replace(
            self, last_entry=entry - 1, stop=-1, size=size, messages=messages
        )
        right = msgspec.structs.replace(
            self,
            first_entry=entry,
            skip=0,
            size=self.size - size,
            messages=self.messages if messages < 0 else self.messages - messages,
        )
        return left, right


class RangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges of a read of some topics: from *begin* to before *end* in every lane."""

    topics: tuple[TopicRecord, ...]
    ranges: tuple[LedgerRange, ...]
    """lane by lane, in order"""
    begin: Position
    end: Position
    gaps: tuple[Gap, ...] = ()
    """the gaps that on_gap="skip" skips"""

    @property
    def size(self) -> int:
        """Payload bytes of all ranges, estimated."""
        return sum(each.size for each in self.ranges)


def split(
    ranges: Sequence[LedgerRange], size_target: int, *, groups_min: int = 1
) -> list[list[LedgerRange]]:
    """Return the ranges in groups of *size_target* bytes or so, and in *groups_min* at least.

    Large ranges are split between entries, small ones share a group. The groups laid end to end
    are the ranges in order. If there are fewer entries, there are fewer groups.
    """
    total = sum(_weight(each) for each in ranges)
    count = max(groups_min, -(-sum(each.size for each in ranges) // max(size_target, 1)), 1)
    groups: list[list[LedgerRange]] = [[] for _ in range(count)]
    group, passed = 0, 0
    for each in ranges:
        left: LedgerRange | None = each
        while left is not None:
            room = total * (group + 1) // count - passed
            head, left = _take(left, room) if group + 1 < count else (left, None)
            if head is not None:
                groups[group].append(head)
                passed += _weight(head)
            if left is not None:
                group += 1
    return [each for each in groups if each]


def _take(whole: LedgerRange, room: int) -> tuple[LedgerRange | None, LedgerRange | None]:
    """Split off the entries that fill *room* best."""
    count = round(whole.entries * room / _weight(whole))
    if count >= whole.entries:
        return whole, None
    return (None, whole) if count <= 0 else whole.cut(whole.first_entry + count)


def _weight(each: LedgerRange) -> int:
    """Return the size of a range, at least a byte per entry, so that none weighs nothing."""
    return max(each.size, each.entries)


def _estimate(amount: int, entries: int, whole: LedgerRange) -> int:
    return amount if amount == UNKNOWN else amount * entries // whole.entries


def limited_end(
    plan: RangePlan, *, messages_max: int | None = None, bytes_max: int | None = None
) -> Position:
    """Return the end of the plan's first part, of about so many messages and bytes.

    `None` is no limit. Each lane gets the same fraction of its entries, and at least one, so no
    lane waits for another. Entries are not split.
    """
    fraction = min(
        1.0,
        _fraction(messages_max, sum(max(each.messages, 0) for each in plan.ranges)),
        _fraction(bytes_max, plan.size),
    )
    if fraction >= 1.0:
        return plan.end
    lanes: dict[tuple[str, int, int], list[LedgerRange]] = {}
    for each in plan.ranges:
        lanes.setdefault((each.topic, each.partition, each.lane), []).append(each)
    return Position(
        _end(end, lanes.get((end.topic, end.partition, end.lane), []), fraction) for end in plan.end
    )


def _fraction(allowed: int | None, there: int) -> float:
    return 1.0 if allowed is None or there <= allowed else allowed / there


def _end(end: LanePlace, ranges: list[LedgerRange], fraction: float) -> LanePlace:
    """Return the place in a lane after *fraction* of its entries."""
    left = max(int(fraction * sum(each.entries for each in ranges)), 1)
    for each in ranges:
        if left < each.entries:
            return end._replace(place=each.place(each.first_entry + left))
        left -= each.entries
        if not left and each is not ranges[-1] and each.stop < 0:
            return end._replace(place=each.place(each.last_entry + 1))
    return end

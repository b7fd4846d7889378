"""Which member of a group reads which partitions: even, sticky, and the same on every leader.

Of each topic, members that want it get as many partitions as any other, or one more. These
additional ones are spread so that members who want the same topics differ by at most one in all
their topics together. Within these shares members keep what they hold; only the surplus moves
(TDengine's mndSubscribe.c counts for each topic alone, so there one member may get the additional
partition of every topic).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sortedcontainers import SortedSet


class Part(NamedTuple):
    """A partition of a topic; *topic* is its uid."""

    topic: int
    partition: int


Interests = Mapping[str, Collection[int]]
"""The topics that each member wants."""
Assignment = dict[str, set[Part]]


def assign(
    partitions: Mapping[int, Iterable[int]],
    interests: Interests,
    held: Mapping[str, Collection[Part]],
) -> Assignment:
    """Return the partitions of each member, near to what they hold.

    Partitions of a topic that nobody wants are left out. The result depends on the arguments
    alone, not on their order.
    """
    topics = {uid: sorted(numbers) for uid, numbers in sorted(partitions.items())}
    shares = _Shares(topics, interests, held)
    assigned: Assignment = {member: set() for member in interests}
    for uid, numbers in topics.items():
        _fill(uid, numbers, shares.of(uid), held, assigned)
    return assigned


def _fill(
    uid: int,
    numbers: list[int],
    shares: Mapping[str, int],
    held: Mapping[str, Collection[Part]],
    assigned: Assignment,
) -> None:
    """Give members of one topic what they hold of it, up to their share, then the rest."""
    left = SortedSet(numbers)
    room: dict[str, int] = {}
    for member, share in shares.items():
        kept = sorted(part.partition for part in held.get(member, ()) if part.topic == uid)
        kept = [number for number in kept if number in left][:share]
        left.difference_update(kept)
        assigned[member].update(Part(uid, number) for number in kept)
        room[member] = share - len(kept)
    for member, count in room.items():
        for _ in range(count):
            assigned[member].add(Part(uid, left.pop(0)))


class _Shares:
    """How many partitions of each topic each member gets."""

    def __init__(
        self,
        topics: Mapping[int, list[int]],
        interests: Interests,
        held: Mapping[str, Collection[Part]],
    ) -> None:
        self._interests = {member: set(wanted) for member, wanted in interests.items()}
        self._members: dict[int, list[str]] = {uid: [] for uid in topics}
        for member in sorted(interests):
            for uid in interests[member]:
                if uid in self._members:
                    self._members[uid].append(member)
        self._least: dict[int, int] = {}
        """the share of a topic's members that get no additional partition"""
        self._more: dict[str, set[int]] = {member: set() for member in interests}
        """the topics of which a member gets one more than the least"""
        self._totals = dict.fromkeys(interests, 0)
        self._holds = _counts(held)
        self._count(topics)
        self._by_total: SortedSet = SortedSet(
            (total, member) for member, total in self._totals.items()
        )
        self._even_out()

    def of(self, uid: int) -> dict[str, int]:
        """Return the share of each member that wants the topic."""
        least = self._least.get(uid, 0)
        return {member: least + (uid in self._more[member]) for member in self._members[uid]}

    def _count(self, topics: Mapping[int, list[int]]) -> None:
        additional: dict[int, int] = {}
        for uid, members in self._members.items():
            if members:
                self._least[uid], additional[uid] = divmod(len(topics[uid]), len(members))
            for member in members:
                self._totals[member] += self._least[uid]
        for uid, count in additional.items():
            by_preference = sorted(self._members[uid], key=lambda member: self._order(member, uid))
            for member in by_preference[:count]:
                self._more[member].add(uid)
                self._totals[member] += 1

    def _order(self, member: str, uid: int) -> tuple[bool, int, str]:
        """Sort members that hold more than the least first, then those with few partitions."""
        return (not self._has_more(member, uid), self._totals[member], member)

    def _has_more(self, member: str, uid: int) -> bool:
        return self._holds.get((member, uid), 0) > self._least[uid]

    def _even_out(self) -> None:
        """Move additional partitions from members with many to members with few.

        Each move brings two totals nearer to each other, so this ends.
        """
        while (pair := self._next_pair()) is not None:
            giver, taker, movable = pair
            movable.sort(key=lambda uid: self._cost(uid, giver, taker))
            moves = movable[: (self._totals[giver] - self._totals[taker]) // 2]
            self._more[giver].difference_update(moves)
            self._more[taker].update(moves)
            self._add(giver, -len(moves))
            self._add(taker, len(moves))

    def _next_pair(self) -> tuple[str, str, list[int]] | None:
        """Return a member with more partitions than another, and topics that even them out."""
        for most, giver in reversed(self._by_total):
            for least, taker in self._by_total:
                if most - least < 2:
                    break
                movable = [
                    uid
                    for uid in self._more[giver] - self._more[taker]
                    if uid in self._interests[taker]
                ]
                if movable:
                    return giver, taker, movable
        return None

    def _cost(self, uid: int, giver: str, taker: str) -> tuple[int, int]:
        """Sort first what moves no partition that somebody reads."""
        return self._has_more(giver, uid) - self._has_more(taker, uid), uid

    def _add(self, member: str, count: int) -> None:
        self._by_total.remove((self._totals[member], member))
        self._totals[member] += count
        self._by_total.add((self._totals[member], member))


def _counts(held: Mapping[str, Collection[Part]]) -> dict[tuple[str, int], int]:
    counts: dict[tuple[str, int], int] = {}
    for member, parts in held.items():
        for part in parts:
            counts[member, part.topic] = counts.get((member, part.topic), 0) + 1
    return counts

"""What was deleted out of a ledger, as ranges of its messages. Pure.

A message is named by its entry and its place in the batch. Readers pass over what was deleted
as if it had never been there; entries and ids of the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metadata.topics import Removed

Point = tuple[int, int]
"""An entry, and how many of its messages lie before."""


def merged(removed: Sequence[Removed], start: Point, stop: Point) -> list[Removed]:
    """Return the ranges when from *start* to before *stop* is deleted too."""
    ranges = sorted([*((r[0], r[1]) for r in map(_points, removed)), (start, stop)])
    found: list[tuple[Point, Point]] = []
    for first, last in ranges:
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        elif first < last:
            found.append((first, last))
    return [Removed(*first, *last) for first, last in found]


def kept_parts(
    removed: Sequence[Removed], entry: int, start: int, stop: int
) -> list[tuple[int, int]]:
    """Return what is left of the messages from *start* to before *stop* of an entry."""
    parts: list[tuple[int, int]] = []
    for first, last in map(_points, removed):
        if last <= (entry, start) or first >= (entry, stop):
            continue
        if first > (entry, start):
            parts.append((start, first[1]))
        start = last[1] if last[0] == entry else stop
        if start >= stop:
            return parts
    return [*parts, (start, stop)] if start < stop else parts


def kept_entries(removed: Sequence[Removed], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of entries from *first* to *last* that were not deleted as a whole."""
    for start, stop in map(_points, removed):
        hole = start[0] + (start[1] > 0), stop[0] - 1
        if hole[0] > hole[1] or hole[1] < first:
            continue
        if hole[0] > last:
            break
        if hole[0] > first:
            yield first, hole[0] - 1
        first = hole[1] + 1
    if first <= last:
        yield first, last


def past(removed: Sequence[Removed], point: Point) -> Point:
    """Return *point*, or the end of the range it was deleted with."""
    for start, stop in map(_points, removed):
        if start <= point < stop:
            return stop
    return point


def _points(one: Removed) -> tuple[Point, Point]:
    return (one.entry, one.skip), (one.stop_entry, one.stop_skip)

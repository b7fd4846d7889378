"""What lapsed, until it is told or stored."""

from __future__ import annotations

from ledger_client.groups.lapses import Lapses
from ledger_client.topics.positions import Place
from metadata.groups.assignment import Part

PART = Part(1, 0)
OTHER = Part(1, 1)


def place(entry: int) -> Place:
    return Place(0, entry, 0)


def test_what_was_stored_of_one_lane_after_the_other_does_not_come_again() -> None:
    lapses = Lapses()
    lapses.add({PART: {0: place(9), 1: place(5)}}, {PART})
    lapses.note_stored({PART: {0: place(9)}, OTHER: {0: place(3)}})
    assert lapses.untold == {PART}
    lapses.note_stored({PART: {1: place(4)}})
    assert lapses.among(lapses.untold) == {PART}
    lapses.note_stored({PART: {1: place(5)}})
    assert lapses.untold == lapses.among({PART}) == set()


def test_only_who_was_at_work_is_told() -> None:
    lapses = Lapses()
    lapses.add({PART: {0: place(9)}, OTHER: {0: place(9)}}, {PART})
    assert lapses.untold == {PART}
    assert lapses.among({PART, OTHER}) == {PART, OTHER}
    lapses.note_told({PART, OTHER}, {})
    assert lapses.untold == set()
    assert lapses.among({PART, OTHER}) == {PART, OTHER}

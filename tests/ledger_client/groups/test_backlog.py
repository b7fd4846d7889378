"""What members of a shared group hold of a lane, seen from the group's place."""

from __future__ import annotations

import pytest

from ledger_client.groups.backlog import Held, held_in
from ledger_client.groups.share import done_bits
from ledger_client.topics.positions import EARLIEST, Place
from metadata.groups.shares import ShareRecord


def share(number: int, entry: int, *left: str) -> ShareRecord:
    """Return a share with a word for each entry: "x" is a message left, "." one acknowledged."""
    every = "".join(left)
    return ShareRecord(
        topic=1,
        partition=0,
        lane=0,
        number=number,
        ledger_id=100 + number,
        entry=entry,
        version=10 * number + entry,
        counts=[len(each) for each in left],
        done=done_bits(len(every), [at for at, each in enumerate(every) if each == "x"]),
    )


def place(number: int, entry: int, skip: int = 0) -> Place:
    return Place(number, entry, skip, 100 + number, 10 * number + entry)


def test_what_members_hold_before_the_place_is_counted_from_the_first_message_left() -> None:
    held = held_in([share(2, 0, "x"), share(1, 4, "...", "", ".x.", "xx")], place(3, 0))
    assert held == Held(4, 4, place(1, 6))
    assert held_in([share(1, 4, "...")], place(3, 0)) == Held()
    assert held_in([], place(3, 0)) == Held()


@pytest.mark.parametrize(
    ("at", "taken"),
    [
        (EARLIEST, 0),
        (place(0, 9), 0),
        (place(1, 3), 0),
        (place(1, 4), 0),
        (place(1, 4, 2), 1),
        (place(1, 5), 2),
        (place(1, 6), 2),
        (place(1, 6, 1), 3),
        (place(1, 7), 4),
        (place(1, 99), 4),
        (place(2, 0), 4),
    ],
)
def test_what_a_slot_that_is_ahead_of_the_place_holds_counts_once(at: Place, taken: int) -> None:
    """The rest is counted among the messages from the place to the end of the lane."""
    held = held_in([share(1, 4, "x.x", "", "xx")], at)
    assert held == Held(4, taken, place(1, 4))

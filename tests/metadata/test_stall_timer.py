"""How long something stands still, seen by a process that may itself be stopped."""

from __future__ import annotations

from metadata.stall_timer import StallTimer


def test_time_without_a_step_adds_up_and_a_step_ends_it() -> None:
    still = StallTimer(1.0)
    assert still.look(10.0, works=True, steps=5) == 0.0
    assert still.look(11.0, works=True, steps=5) == 1.0
    assert still.look(12.5, works=True, steps=5) == 2.5
    assert still.look(13.0, works=True, steps=6) == 0.0
    assert still.look(14.0, works=True, steps=6) == 1.0


def test_who_has_nothing_to_do_does_not_stand_still() -> None:
    still = StallTimer(1.0)
    assert still.look(10.0, works=False, steps=5) == 0.0
    assert still.look(11.0, works=False, steps=5) == 0.0
    assert still.look(12.0, works=True, steps=5) == 0.0  # the work began just now
    assert still.look(13.0, works=True, steps=5) == 1.0
    assert still.look(14.0, works=False, steps=5) == 0.0


def test_a_look_that_comes_late_counts_for_two_intervals() -> None:
    still = StallTimer(1.0)
    still.look(10.0, works=True, steps=5)
    assert still.look(3610.0, works=True, steps=5) == 2.0
    assert still.look(3611.0, works=True, steps=5) == 3.0

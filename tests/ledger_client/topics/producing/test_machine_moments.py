"""Moments of the partition machine that its model seldom meets: each by itself."""

from __future__ import annotations

import pytest
from partition_model import TOPIC, Once, unknown

from ledger_client.errors import EventTimeBack
from ledger_client.topics.lanes.lane_state import SealedBatch
from ledger_client.topics.producing.batch import Batch
from ledger_client.topics.producing.partition_machine import PartitionMachine, Rules
from ledger_client.topics.producing.partition_states import Action

Accepted = tuple[Batch, int]


def opened(
    *, ordered: bool = False, named: bool = False, hurries: bool = False, count_max: int = 10
) -> PartitionMachine:
    """Return a machine whose lane is open and has the times up to 5 and the numbers up to 2."""
    rules = Rules(TOPIC, ordered, named, False, True, hurries, 60, count_max, Once)
    machine = PartitionMachine(0, rules)
    machine.want_lane()
    machine.lane_opened(0, 5 if ordered else None, 2 if named else -1)
    machine.actions.clear()
    return machine


def admit(machine: PartitionMachine, *, time: int | None = None, number: int | None) -> Accepted:
    return machine.admit(b"x", None, time, None, number, 1)


def test_a_batch_whose_lane_is_lost_in_the_moment_before_it_goes_lingers() -> None:
    machine = opened(hurries=True)
    batch, _ = admit(machine, number=None)
    assert machine.actions == [Action.APPEND]
    machine.actions.clear()
    machine.lane_lost(unknown(), machine.openings)
    machine.go_alone()
    assert machine.take() == []
    assert Action.LINGER in machine.actions
    machine.seal()
    machine.lane_left()
    machine.lane_opened(0, None, -1)
    assert machine.take() == [batch]


# --- messages are taken back ---------------------------------------------------------------


@pytest.mark.parametrize("count_max", [10, 2, 1], ids=["gathering", "both", "waiting"])
@pytest.mark.parametrize("numbers", [(3, 4), (7, 8), (3, 9)])
def test_the_last_messages_can_be_taken_back_one_after_the_other(
    count_max: int, numbers: tuple[int, int]
) -> None:
    """None of their numbers may pass for one that is kept."""
    machine = opened(named=True, count_max=count_max)
    accepted = [admit(machine, number=number) for number in numbers]
    assert not machine.withdraw(*accepted[0], 1), "a number above it would count as kept"
    for message in reversed(accepted):
        assert machine.withdraw(*message, 1)
    assert machine.next_number == 3
    for number in numbers:
        assert machine.find_duplicate(number) is None
        batch, place = admit(machine, number=number)
        assert batch.sequence + place == number


def test_behind_a_message_that_gathers_the_last_two_can_be_taken_back() -> None:
    machine = opened(named=True)
    kept, _ = admit(machine, number=3)
    accepted = [admit(machine, number=number) for number in (4, 5)]
    for message in reversed(accepted):
        assert machine.withdraw(*message, 1)
    assert machine.next_number == 4
    assert admit(machine, number=4) == (kept, 1)


def test_the_numbers_that_the_lane_was_given_stay() -> None:
    machine = opened(named=True)
    first = admit(machine, number=3)
    machine.seal()
    assert machine.take() == [first[0]]
    second = admit(machine, number=4)
    assert machine.withdraw(*second, 1)
    assert not machine.withdraw(*first, 1)
    assert machine.next_number == 4


def test_the_numbers_of_an_encoded_batch_stay() -> None:
    machine = opened(named=True)
    encoded = Batch(0, Once(), sequence=3, sealed=SealedBatch(b"", 2, 20))
    machine.put_encoded(encoded)
    assert machine.withdraw(*admit(machine, number=None), 1)
    assert machine.next_number == 5
    assert not machine.withdraw(encoded, 1, 1)


def test_a_time_that_was_taken_back_does_not_bind_later_messages() -> None:
    machine = opened(ordered=True)
    times = {time: admit(machine, time=time, number=None) for time in (10, 50, 100)}
    assert machine.withdraw(*times[50], 1)
    with pytest.raises(EventTimeBack):
        admit(machine, time=99, number=None)
    assert machine.withdraw(*times[100], 1)
    with pytest.raises(EventTimeBack):
        admit(machine, time=9, number=None)
    assert machine.withdraw(*times[10], 1)
    with pytest.raises(EventTimeBack):
        admit(machine, time=4, number=None)  # the lane has 5
    admit(machine, time=5, number=None)


def test_the_time_of_a_batch_that_the_lane_was_given_binds_later_messages() -> None:
    machine = opened(ordered=True)
    admit(machine, time=10, number=None)
    machine.seal()
    (taken,) = machine.take()
    late = admit(machine, time=100, number=None)
    machine.acknowledged([taken], [(0, 0)])
    assert machine.withdraw(*late, 1)
    assert machine.last_event_time == 10

"""What a lane's writer may report: never more than is acknowledged for good."""

from __future__ import annotations

import trio

from ledger_client.topics.producing.batch import Batch
from ledger_client.topics.producing.lane_progress import Progress
from ledger_client.topics.producing.partition_machine import (
    PartitionMachine,
    Rules,
)
from ledger_client.topics.producing.partition_states import LanePhase


def machine() -> PartitionMachine:
    rules = Rules("shop/orders", False, False, True, True, False, 1000, 10, trio.Event)
    made = PartitionMachine(0, rules)
    made.phase = LanePhase.OPEN
    return made


def batch(first: int) -> Batch:
    made = Batch(0, trio.Event())
    made.first_timestamp = first
    return made


def test_an_idle_lane_reports_a_fresh_timestamp() -> None:
    """MV-39: a producer without messages under way holds nothing back."""
    assert Progress().complete(machine(), 50) == 50


def test_a_lane_reports_less_than_what_is_not_acknowledged() -> None:
    """MV-39: whether it waits or the lane has it."""
    lane = machine()
    lane.waiting.append(batch(40))
    assert Progress().complete(lane, 50) == 39
    lane.handed.append(batch(30))
    assert Progress().complete(lane, 50) == 29


def test_batches_that_have_no_timestamps_yet_hold_nothing_back() -> None:
    lane = machine()
    lane.waiting.append(batch(0))
    assert Progress().complete(lane, 50) == 50


def test_a_question_for_timestamps_holds_the_report_at_what_was_known_before_it() -> None:
    """The answer may be anything above that."""
    lane, progress = machine(), Progress()
    progress.asked_from = 50
    assert progress.complete(lane, 60) == 50
    progress.asked_from = None
    lane.waiting.append(batch(55))
    assert progress.complete(lane, 70) == 54
    lane.waiting.clear()
    assert progress.complete(lane, 80) == 80


def test_a_batch_of_unknown_outcome_silences_the_lane_until_it_is_opened_anew() -> None:
    """MV-43: nobody knows whether the message is in the lane."""
    lane, progress = machine(), Progress()
    progress.begin(1, 5)
    progress.doubt(1)
    assert progress.complete(lane, 50) is None
    progress.doubt(0)
    progress.begin(2, 9)
    assert (progress.complete(lane, 60), progress.version) == (60, 9)
    progress.doubt(1)
    assert progress.complete(lane, 70) == 70, "an opening that is over is settled by recovery"

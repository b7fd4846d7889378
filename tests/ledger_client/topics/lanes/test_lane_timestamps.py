"""Timestamps of a lane rise; what would not is refused before it is sent."""

from __future__ import annotations

import pytest

from ledger_client.errors import MetadataBroken
from ledger_client.topics.lanes.lane_machine import LaneMachine
from ledger_client.topics.lanes.lane_state import Figures, LaneEnd, LaneState, SealedBatch
from ledger_client.topics.lanes.written_ledger import Append
from metadata.topics import TopicRecord

BEFORE = 100


def lane() -> LaneMachine:
    """Return a lane whose last message has the timestamp BEFORE."""
    state = LaneState(figures=Figures(messages=5, last_timestamp=BEFORE))
    return LaneMachine(
        TopicRecord(name="shop/orders", uid=1, timesync=True),
        partition=0,
        lane=0,
        epoch=2,
        last=LaneEnd(state, 5, None, None),
        limit_s=10,
    )


def batch(first: int, count: int) -> SealedBatch:
    return SealedBatch(payload=b"x", count=count, size=1, last_timestamp=first + count - 1)


@pytest.mark.parametrize(
    "batches",
    [
        [batch(BEFORE, 1)],
        [batch(BEFORE - 1, 5)],
        [batch(BEFORE + 1, 5), batch(BEFORE + 5, 1)],
        [batch(BEFORE + 9, 1), batch(BEFORE + 1, 1)],
    ],
    ids=["the last one", "overlaps it", "overlap each other", "fall"],
)
def test_timestamps_that_do_not_rise_are_refused_whole(batches: list[SealedBatch]) -> None:
    """MV-15: messages of one writer are increasing in a stream."""
    machine = lane()
    with pytest.raises(MetadataBroken, match="its time was set back"):
        machine.append(Append(batches), 0.0, 0)
    assert machine.unsettled == 0
    machine.append(Append([batch(BEFORE + 1, 3), batch(BEFORE + 4, 1)]), 0.0, 0)
    with pytest.raises(MetadataBroken):
        machine.append(Append([batch(BEFORE + 4, 1)]), 0.0, 0)
    machine.append(Append([batch(BEFORE + 5, 1)]), 0.0, 0)
    assert machine.unsettled == 2

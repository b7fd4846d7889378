"""The leader's cost of many groups: what must not grow, whatever the machine does."""

from __future__ import annotations

import pytest
from group_load import measure

MEMBERS = 10
PARTITIONS = 20


def test_reports_change_nothing_in_the_store_and_memory_goes_with_the_members() -> None:
    """Both of a leader that saw the members join and of one that read them."""
    few, many = measure(10, MEMBERS, PARTITIONS), measure(40, MEMBERS, PARTITIONS)
    assert few.changes_of_beats == many.changes_of_beats == 0
    assert many.memory_of_member == pytest.approx(few.memory_of_member, rel=0.3)
    assert many.memory_of_member < 4096
    assert min(many.beat_us, many.rest_ms, many.lead_ms) > 0

"""Real processes on a topic under SIGKILL, SIGSTOP and SIGCONT, held to the promises of topics.

Producers, named and not, share the lanes of a topic whose ledgers roll and are purged, while
they, the readers and the bookies are killed and paused at moments that a seed chooses. When
all is back, every ledger that is left is read, and the history of all processes goes through
the checker that the simulation uses.

QUIRE_STORM_S=300 makes the storm last five minutes, QUIRE_SEED=7 a different one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from checker import check
from fleet import Fleet
from message_events import MessagesAcknowledged, MessagesRead, RowRemoved
from never_twice import never_twice
from run_seed import run_seed
from topic_crew import Crew
from topic_storm import TopicStorm

SECONDS = float(os.environ.get("QUIRE_STORM_S", "7"))
SEED = 1 + run_seed()


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_topic_keeps_its_promises_in_a_storm(tmp_path: Path) -> None:
    """PS-29, PS-39, TB-02: kept once or as often as sent, in order, at the id that was told."""
    with Fleet(tmp_path, 4) as fleet, Crew(fleet, tmp_path, partitions=2) as crew:
        storm = TopicStorm(fleet, crew, seed=SEED, seconds=SECONDS)
        history = storm.run()
    told = [event for event in history.events if isinstance(event, MessagesAcknowledged)]
    read = sum(len(e.ids) for e in history.events if isinstance(e, MessagesRead))
    removed = sum(isinstance(event, RowRemoved) for event in history.events)
    hits = ", ".join(f"{what} {number}" for what, number in sorted(storm.counts.items()))
    sys.stdout.write(f"\nseed {SEED}, {SECONDS:g} s: {hits}, read {read}, removed {removed}\n")
    violations = check(history)
    with never_twice():
        assert violations[:10] == [], f"{len(violations)} in all; the history is in {tmp_path}"
    assert len({mark for event in told for mark in event.marks}) == storm.messages
    assert read
    assert removed

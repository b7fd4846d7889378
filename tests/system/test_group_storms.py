"""Real processes of a group under SIGKILL, SIGSTOP and SIGCONT, held to the promises of groups.

Consumers share a topic, while they, the bookie that coordinates them and the others are killed and
paused at moments that a seed chooses. The history of all processes goes through the checker that
the simulation uses.

QUIRE_STORM_S=600 makes the storm last ten minutes, QUIRE_SEED=7 a different one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from checker import check
from fleet import Fleet
from group_crew import GroupCrew
from group_events import Delivered, GroupHappening, LagSeen, MemberStored, ProgressStored
from group_storm import SHORT_S, STORM_S, GroupStorm, SharedStorm
from message_events import MessagesAcknowledged
from never_twice import never_twice
from run_seed import run_seed
from shared_checker import SharedFacts, counted

SECONDS = float(os.environ.get("QUIRE_STORM_S", str(SHORT_S)))
SEED = 1 + run_seed()


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_group_keeps_its_promises_in_a_storm(tmp_path: Path) -> None:
    """TD-14, TD-17, TD-40: everything at least once, committed by owners only, and no stand."""
    storm_s = min(SECONDS, STORM_S)
    with Fleet(tmp_path, 4) as fleet, GroupCrew(fleet, tmp_path, partitions=6, rest_s=3) as crew:
        storm = GroupStorm(fleet, crew, seed=SEED, seconds=SECONDS, storm_s=storm_s)
        history = storm.run()
    events = history.events
    told = {m for e in events if isinstance(e, MessagesAcknowledged) for m in e.marks}
    came = sum(len(event.ids) for event in events if isinstance(event, Delivered))
    counts = storm.counts
    for kind in (ProgressStored, MemberStored, LagSeen):
        counts[kind.__name__] = sum(isinstance(event, kind) for event in events)
    hits = ", ".join(f"{what} {number}" for what, number in sorted(counts.items()))
    sys.stdout.write(f"\nseed {SEED}, {SECONDS:g} s: {hits}, sent {len(told)}, came {came}\n")
    violations = check(history)
    with never_twice():
        assert violations[:10] == [], f"{len(violations)} in all; the history is in {tmp_path}"
    assert len(told) == storm.messages
    assert counts["ProgressStored"]
    assert counts["LagSeen"]


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.parametrize("mode", ["shared", pytest.param("key-shared", marks=pytest.mark.long)])
def test_a_shared_group_keeps_its_promises_in_a_storm(tmp_path: Path, mode: str) -> None:
    """Every message is acknowledged or buried, as often as it is delivered, and by one member."""
    with Fleet(tmp_path, 3) as fleet, GroupCrew(fleet, tmp_path, partitions=3, rest_s=2) as crew:
        storm = SharedStorm(fleet, crew, tmp_path, mode=mode, seed=SEED, seconds=SECONDS)
        history = storm.run()
    facts = SharedFacts([each for each in history.events if isinstance(each, GroupHappening)], {})
    counts = storm.counts + counted(facts)
    hits = ", ".join(f"{what} {number}" for what, number in sorted(counts.items()))
    sys.stdout.write(f"\n{mode}, seed {SEED}, {SECONDS:g} s, sent {storm.messages}: {hits}\n")
    violations = check(history)
    with never_twice():
        assert violations[:10] == [], f"{len(violations)} in all; the history is in {tmp_path}"
    assert counts["consumers killed"] + counts["consumers paused"]
    assert counts["redelivered"]
    assert facts.dead

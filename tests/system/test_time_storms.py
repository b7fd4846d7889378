"""Real processes and their clocks in a storm, held to the promises of timestamps.

Producers write a topic with timestamps, others read it in their order, and others take timestamps,
while they, the bookies and above all the leader are killed and stopped, and clocks are set by an
hour. When all is back, what everybody had goes through the checker that the simulation uses.

QUIRE_STORM_S=300 makes the storm last five minutes, QUIRE_SEED=7 a different one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from checker import check
from message_events import MessagesAcknowledged
from never_twice import never_twice
from run_seed import run_seed
from time_events import TickSeen, TimedEnded, TimedRead, TimeHeld, TimeTaken
from time_storm import TimeCrew, TimeFleet, TimeStorm
from wall_clocks import WallClocks

SECONDS = float(os.environ.get("QUIRE_STORM_S", "8"))
SEED = 1 + run_seed()


@pytest.mark.slow
@pytest.mark.real_processes
def test_time_keeps_its_promises_in_a_storm(tmp_path: Path) -> None:
    """MV-06, MV-07, MV-20, MV-23, MV-29, MV-36, MV-43: one order, whatever is killed or wrong."""
    clocks = WallClocks(tmp_path)
    with (
        TimeFleet(tmp_path, 3, clocks) as fleet,
        TimeCrew(fleet, tmp_path, clocks, partitions=2) as crew,
    ):
        storm = TimeStorm(fleet, crew, seed=SEED, seconds=SECONDS)
        history = storm.run()
    events = history.events
    told = {m for each in events if isinstance(each, MessagesAcknowledged) for m in each.marks}
    (held,) = (each for each in events if isinstance(each, TimeHeld))
    seen = sum(isinstance(each, TickSeen) for each in events)
    taken = sum(isinstance(each, TimeTaken) for each in events)
    hits = ", ".join(f"{what} {number}" for what, number in sorted(storm.counts.items()))
    sys.stdout.write(
        f"\nseed {SEED}, {SECONDS:g} s: {hits}; {len(held.messages)} messages, "
        f"{len(held.ticks)} ticks, {seen} seen, {taken} ranges taken\n"
    )
    violations = check(history)
    with never_twice():
        assert violations[:10] == [], f"{len(violations)} in all; the history is in {tmp_path}"
    assert len(told) == storm.messages
    for ended in (each for each in events if isinstance(each, TimedEnded)):
        got = [e for e in events if isinstance(e, TimedRead) and e.reader == ended.reader]
        with never_twice():
            assert sum(len(each.ids) for each in got) == len(held.messages), ended.reader
    assert seen
    assert taken

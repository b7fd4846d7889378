"""Real processes under SIGKILL, SIGSTOP and SIGCONT, held to the seven invariants.

Bookies and writers are killed and paused at moments that a seed chooses, while readers
read and recoverers take ledgers from writers that may well be alive. When all is back
and repaired, every copy of every ledger is read, and the history of all processes goes
through the checker that the simulation uses.

QUIRE_STORM_S=300 makes each storm last five minutes, QUIRE_SEED=7 a different one.
See the figures with `pytest -m slow -s tests/system/test_storms.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from checker import check
from fleet import Fleet
from history import Acknowledged, History, LedgerEvent
from never_twice import never_twice
from run_seed import run_seed
from storm import Storm

SECONDS = float(os.environ.get("QUIRE_STORM_S", "8"))
SEED = 1 + run_seed()

pytestmark = [pytest.mark.slow, pytest.mark.real_processes]


def storm(folder: Path, bookies: int, writers: Sequence[str], *, lose_disks: bool = False) -> None:
    with Fleet(folder, bookies) as fleet:
        weather = Storm(
            fleet, folder, seed=SEED, seconds=SECONDS, writers=writers, lose_disks=lose_disks
        )
        history = weather.run()
    acknowledged = sum(len(e.digests) for e in history.events if isinstance(e, Acknowledged))
    report(history, acknowledged, weather.counts)
    violations = check(history)
    with never_twice():
        assert violations[:20] == [], f"{len(violations)} in all; the history is in {folder}"
    assert acknowledged > 0


def report(history: History, acknowledged: int, counts: dict[str, int]) -> None:
    ledgers = len({event.ledger for event in history.events if isinstance(event, LedgerEvent)})
    told = [f"{what} {number}" for what, number in sorted(counts.items())]
    told += [f"entries acknowledged {acknowledged}", f"ledgers {ledgers}"]
    sys.stdout.write(f"\nseed {SEED}, {SECONDS:g} s: {', '.join(told)}\n")


@pytest.mark.long
def test_three_bookies_of_which_two_must_agree_keep_their_promises(tmp_path: Path) -> None:
    storm(tmp_path, 3, ["3/3/2", "3/3/2", "3/3/2"])


@pytest.mark.long
def test_striped_and_fully_acknowledged_ledgers_keep_their_promises(tmp_path: Path) -> None:
    storm(tmp_path, 5, ["3/2/2", "2/2/2", "5/3/2", "4/3/3"])


def test_what_a_bookie_forgot_is_not_taken_for_absent(tmp_path: Path) -> None:
    storm(tmp_path, 4, ["3/3/2", "2/2/2", "4/3/2"], lose_disks=True)

"""A cluster of real processes whose power is cut as a whole; QUIRE_SEED moves the moments."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from cluster_cut import SETTINGS, RecordedFleet, cuts, work
from fleet import Fleet
from power_cut import environment, read
from run_seed import VARIABLE, run_seed

BOOKIES = 3
CUTS = 4
SEED = 1 + run_seed()


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_power_cut_of_the_whole_cluster_takes_nothing_that_clients_were_promised(
    tmp_path: Path,
) -> None:
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    with RecordedFleet(root, BOOKIES, SETTINGS, environment(root, trace)) as fleet:
        work(fleet, tmp_path, SEED)
    records = read(trace)
    checked = 0
    for cut in cuts(records, SEED, CUTS):
        cut.lay(root)
        try:
            with Fleet(root, BOOKIES, SETTINGS, environment(root, tmp_path / "after")) as fleet:
                trio.run(cut.promised.check, fleet)
        except Exception as wrong:
            wrong.add_note(f"{cut.where}. {VARIABLE}={run_seed()}; the record is {trace}")
            raise
        checked += 1
    assert checked == CUTS

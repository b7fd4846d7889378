"""A disk that hangs stops nobody for long; one that is slow is left alone."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from history import Acknowledged, Listed
from plan import Plan, Work
from simulation import Outcome, Simulation, run_plan
from steps import DURATION_S, Step
from troubles import Troubles

NOTICED_S = 4.0
"""For so long a writer may stand still: bookies are given two seconds, then one is replaced."""


def written_while(*steps: Step, appends: int = 1000) -> Outcome:
    """Run a writer that needs all of its three bookies, of four."""
    work = Work(
        start_s=0.0,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=3,
        appends=appends,
        batch_max=1,
        payload_max=400,
        think_s_max=0.05,
        tasks=1,
        ending="leave",
    )
    plan = Plan(
        seed=1,
        bookies=["b1", "b2", "b3", "b4"],
        clients=["c1"],
        work=[work],
        steps=list(steps),
        delay_s_max=0.002,
        sync_s_max=0.001,
        split_share=0.0,
        troubles=Troubles(),
    )
    outcome = run_plan(plan, Simulation, only=None)
    assert not outcome.violations
    return outcome


def ensembles(outcome: Outcome) -> set[str]:
    """The bookies that were in use, all of one time together."""
    listed = (each for each in outcome.history.events if isinstance(each, Listed))
    return {" ".join(f.bookies) for each in listed for f in each.fragments}


@cache
def bookie_in_use() -> str:
    """One of those that the writer begins with, which are the same however much it appends."""
    return ensembles(written_while(appends=1)).pop().split()[0]


def written_while_befallen(kind: str, span_s: float, detail: str = "") -> Outcome:
    """Let *kind* befall the disk of a bookie that the writer uses."""
    name = bookie_in_use()
    outcome = written_while(Step(0, 2.0, kind, name, span_s, detail))
    assert any(name in each.split() for each in ensembles(outcome))
    return outcome


def longest_pause_s(outcome: Outcome) -> float:
    """The longest time between two acknowledgements while the writer had work."""
    told = [each.at for each in outcome.history.events if isinstance(each, Acknowledged)]
    told = [at for at in told if at < DURATION_S]
    return max(after - before for before, after in pairwise([0.0, *told, DURATION_S]))


def test_a_writer_goes_on_without_a_bookie_whose_disk_hangs() -> None:
    outcome = written_while_befallen("hang", 12.0)
    assert outcome.happened["disks that hang"]
    assert longest_pause_s(outcome) < NOTICED_S
    assert len(ensembles(outcome)) == 2


def test_a_bookie_whose_disk_is_slow_stays() -> None:
    outcome = written_while_befallen("slow disk", 12.0, "0.3")
    assert outcome.happened["slow disks"]
    assert len(ensembles(outcome)) == 1


def test_a_writer_goes_on_without_a_bookie_whose_flush_hangs_for_long() -> None:
    outcome = written_while_befallen("hang flush", 14.0)
    assert outcome.happened["flushes that hang"]
    assert longest_pause_s(outcome) < NOTICED_S
    assert len(ensembles(outcome)) == 2


def test_a_bookie_whose_flush_hangs_for_a_while_stays() -> None:
    outcome = written_while_befallen("hang flush", 6.0)
    assert outcome.happened["flushes that hang"]
    assert len(ensembles(outcome)) == 1

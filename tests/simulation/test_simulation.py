"""The harness looks at a cluster once nothing that it began is under way any more."""

from __future__ import annotations

import pytest
from history import Acknowledged, Created, Recovered
from plan import Plan, Work
from simulation import LAST_CREATION_S, Simulation, run_plan
from steps import DURATION_S
from troubles import Troubles

from ledger_client.ledgers.entries import Entries
from ledger_client.ledgers.reader import LedgerReader
from metadata.records import ledger_key

WORK = Work(
    start_s=DURATION_S - 0.5,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=2,
    appends=1,
    batch_max=1,
    payload_max=20,
    think_s_max=1.0,
    tasks=1,
    ending="leave",
)


def test_a_ledger_whose_creation_outlasts_the_faults_is_recovered_too() -> None:
    late_in_all = 0
    for seed in range(3):
        outcome = run_plan(plan_of(seed), Simulation, only=None)
        assert not outcome.violations
        events, known_s = outcome.history.events, DURATION_S + LAST_CREATION_S
        late = {e.ledger for e in events if isinstance(e, Created) and e.at > known_s}
        assert late <= {e.ledger for e in events if isinstance(e, Recovered)}
        late_in_all += len(late)
    assert late_in_all


def test_a_ledger_whose_record_is_gone_at_the_end_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle = Simulation._settle

    async def lose_a_record(self: Simulation) -> None:
        await settle(self)
        del self.metadata.values[ledger_key(self.ledgers[-1])]

    monkeypatch.setattr(Simulation, "_settle", lose_a_record)
    outcome = run_plan(plan_of(0), Simulation, only=None)
    assert 6 in {violation.invariant for violation in outcome.violations}


def test_every_ledger_is_read_whole_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read = LedgerReader.read

    async def leave_the_last_out(self: LedgerReader, first: int, last: int) -> Entries:
        return await read(self, first, last - 1)

    monkeypatch.setattr(LedgerReader, "read", leave_the_last_out)
    outcome = run_plan(plan_of(0), Simulation, only=None)
    short = {violation.ledger for violation in outcome.violations if violation.invariant == 1}
    written = {e.ledger for e in outcome.history.events if isinstance(e, Acknowledged)}
    assert written
    assert written <= short


def plan_of(seed: int) -> Plan:
    return Plan(
        seed=seed,
        bookies=["b1", "b2", "b3"],
        clients=["c1"],
        work=[WORK] * 8,
        steps=[],
        delay_s_max=1.9,  # a new ledger waits for connections to its bookies
        sync_s_max=0.001,
        split_share=0.0,
        troubles=Troubles(),
    )

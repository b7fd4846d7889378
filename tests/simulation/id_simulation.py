"""One seed of a world whose ledger ids others use, too, and which are issued again.

It is the simulation of ledgers (simulation.py). Beside the history, what foreign clients are
answered is judged at once, and so is what bookies have under an id at the moment it is issued.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio
from disks import Tail
from faults import Faults
from foreigners import Attempt, Foreigners
from history import Refused
from id_plan import IdPlan, make_id_plan, spread
from lost_table import Loss, lose_table
from simulation import Outcome, Simulation, run_plan
from steps import Step
from troubles import FOREIGN_REACHED, FOREIGN_REFUSED, FOREIGN_TAKEN, TABLE_LOST

from bookie.foreign import FREE_FROM
from metadata.records import LEDGERS, LedgerRecord, decode_ledger
from metadata.store import Versioned
from metadata.topics import last_number
from native.frame import Code

ON_ITS_WAY_S = 3.0
"""After so long a frame has arrived, or never will."""
_TAKEN = {Code.OK, Code.NO_ENTRY}
_TYPED = _TAKEN | {Code.NO_LEDGER, Code.UNAUTHORIZED, Code.UNKNOWN_STATE, Code.FENCED}
_TYPED |= {Code.IO_ERROR, Code.READ_ONLY, Code.TOO_MANY, Code.BAD_REQUEST}


class IdSimulation(Simulation):
    """The cluster of one plan, and foreign clients."""

    plan: IdPlan

    def __init__(self, plan: IdPlan, folder: Path) -> None:
        super().__init__(plan, folder)
        self._present: set[int] = set()
        self._ever: set[int] = set()
        self._sent: dict[int, float] = {}
        """when an id was last used with our key by a foreign client"""
        self._shared: set[int] = set()
        """ledgers that were begun while such a frame was on its way: nothing is promised of them"""

    def _faults(self) -> Faults:
        return IdFaults(self, self.trace)

    # --- foreign clients --------------------------------------------------------------------

    def foreigners(self, step: Step) -> Foreigners:
        """Return the foreign clients of a step."""
        return Foreigners(
            self.network,
            self.chance(f"foreigners {step.number}"),
            next_id=lambda: max(self._present, default=0) + 1,
            on_sent=self._note_sent,
            on_answer=self._judge,
        )

    def _note_sent(self, attempt: Attempt) -> None:
        if attempt.is_keyed and attempt.what != "read":
            self._sent[attempt.ledger] = trio.current_time()

    def _judge(self, attempt: Attempt, code: int) -> None:
        if code not in _TYPED:
            self._violate(1, attempt.ledger, f"a foreign {attempt.what} was answered with {code}")
        if attempt.ledger >= FREE_FROM:
            self.happened[FOREIGN_TAKEN] += attempt.what == "add" and code == Code.OK
        elif attempt.what != "read" and code in _TAKEN:
            # Who has its key may write to a ledger that is there, or was and is still stored.
            if not attempt.is_keyed or attempt.ledger not in self._ever:
                self._violate(1, attempt.ledger, f"a foreign {attempt.what} was taken: {code}")
        elif attempt.what != "read":
            self.happened[FOREIGN_REFUSED] += 1

    # --- ids --------------------------------------------------------------------------------

    def _note_record(self, key: str, found: Versioned | None) -> None:
        super()._note_record(key, found)
        if not key.startswith(LEDGERS):
            return
        if found is None:
            self._present.discard(last_number(key))
            return
        record = decode_ledger(key, found.value)
        if record.ledger_id not in self._present:
            self._present.add(record.ledger_id)
            self._ever.add(record.ledger_id)
            self._note_issued(record)

    def _note_issued(self, record: LedgerRecord) -> None:
        """Check that no bookie has anything under an id but a former ledger."""
        ledger = record.ledger_id
        if ledger in self._sent:
            if trio.current_time() < self._sent[ledger] + ON_ITS_WAY_S:
                self._shared.add(ledger)
                return
            self.happened[FOREIGN_REACHED] += 1
        for name, bookie in self.bookies.items():
            engine = bookie.disk.engine
            here = None if engine is None or engine.closed else engine.ledger(ledger)
            if (
                here is not None
                and not here.deleted
                and here.incarnation in {0, record.incarnation}
            ):
                how = f"with entries up to {here.last_entry}, fenced: {here.fenced}"
                self._violate(3, ledger, f"{name} had it before it was issued, {how}")

    def note_loss(self, bookie: str, loss: Loss) -> None:
        """Take note of a table that *bookie* lost, and of what was wrong after that."""
        self.happened[TABLE_LOST] += len(loss.unnamed.intersection(self.reused))
        for invariant, ledger, told in loss.broken:
            self._violate(invariant, ledger, f"{bookie}: {told}")

    def set_back(self, share: float) -> None:
        super().set_back(share)
        self._shared &= self._present

    def write_again(self) -> None:
        for number, work in enumerate(self.plan.work):
            client = self.plan.clients[number % len(self.plan.clients)]
            self.clients[client].start_writing(spread(work))

    # --- the end ----------------------------------------------------------------------------

    def _readable(self) -> list[LedgerRecord]:
        return [each for each in super()._readable() if each.ledger_id not in self._shared]

    def _look(self) -> None:
        super()._look()
        events = self.history.events
        for event in events:
            if isinstance(event, Refused) and event.reason == "WrongPassword":
                self._violate(1, event.ledger, f"{event.writer} is refused: {event.reason}")
        events[:] = [each for each in events if getattr(each, "ledger", 0) not in self._shared]
        self.violations[:] = [each for each in self.violations if each.ledger not in self._shared]
        # Everything else under an id of ours is something that a foreign client made.
        for name, bookie in self.bookies.items():
            engine = bookie.disk.engine
            for state in [] if engine is None or engine.closed else engine.ledgers():
                if state.ledger_id < FREE_FROM and state.ledger_id not in self._ever:
                    self._violate(1, state.ledger_id, f"{name} has it, and it was never issued")


class IdFaults(Faults):
    """Troubles of ids."""

    def __init__(self, simulation: IdSimulation, trace: list[str]) -> None:
        super().__init__(simulation, trace)
        self._ids = simulation
        self._does |= {"foreign": self._foreign, "lose table": self._lose_table}

    async def _foreign(self, step: Step) -> None:
        with trio.move_on_after(step.span_s):
            await self._ids.foreigners(step).meddle(step.target)

    async def _lose_table(self, step: Step) -> None:
        """A bookie stops and loses its ledger table, and goes on with what a rebuild makes of it.

        It loses no entry; in limbo, it says nothing of those that it lacks.
        """
        bookie = self._bookie(step)
        if self._spares(bookie):
            return
        bookie.kill(Tail.CLEAN, silently=True)
        await trio.sleep(step.span_s)
        loss = lose_table(bookie.config)
        if loss is not None:
            self._ids.note_loss(step.target, loss)
        bookie.start()


def simulate_ids(seed: int, *, only: Sequence[int] | None = None) -> Outcome:
    """Run the simulation of *seed*, with all its steps or with some *only*."""
    return run_plan(make_id_plan(seed), IdSimulation, only=only)

"""One seed: a cluster under faults, then healed, then looked at.

    plan ─► steps at their times ─► heal ─► recover every ledger ─► repair ─► audit ─► check

simulate() returns the history and every broken promise; nothing but the seed and the
choice of steps has an influence on it.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import holdings
import msgspec
import trio
import virtual
from bookie_host import BookieHost, simulated_daemons
from checker import Violation, check
from client_host import ClientHost
from cluster_metadata import ClusterMetadata, InMemory
from disks import Tail
from faults import Faults
from history import History, Listed
from metadata_ensemble import MetadataEnsemble
from metadata_file import MetadataFile
from metadata_view import Outages
from network import Network
from plan import Plan, make_plan
from steps import DURATION_S
from troubles import ENSEMBLE, HINTS_LOST, LAG, READ_ERRORS, SQLITE, Clock

from ledger_client import Client
from metadata.records import (
    BOOKIES,
    LEDGER_COUNTER,
    LEDGERS,
    UNDERREPLICATED,
    LedgerRecord,
    LedgerState,
    decode_bookie,
    decode_ledger,
    ledger_key,
    underreplicated_key,
)
from metadata.store import Versioned

HEALED_S = 180.0
"""After all faults are over, everything must be whole within so long."""
LAST_CREATION_S = 1.0
"""A ledger whose creator gave up or died is there after so long, or never."""
LAST_CREATION_BY_CALLS_S = 12.0
"""As LAST_CREATION_S, when a client asks bookies: they may still do what it asked."""
_AUDITOR = "auditor"
P = TypeVar("P", bound=Plan)
# Memory: a sync costs nothing there, and nothing outlives the machine anyway.
_FAST_DISKS = Path("/dev/shm")


class Outcome(msgspec.Struct):
    """The outcome of a simulation.

    *trace*: the steps, as they were taken. *happened*: how often each kind of trouble had
    an effect.
    """

    plan: Plan
    history: History
    violations: list[Violation]
    trace: list[str]
    virtual_s: float
    happened: Counter[str]


class Simulation:
    """The cluster of one plan."""

    duration_s = DURATION_S
    """from the beginning until all faults are over"""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.history = History(clock=trio.current_time)
        self.network = Network(
            self.chance("network"),
            delay_max_s=plan.delay_s_max,
            split_share=plan.split_share,
        )
        self.trace: list[str] = []
        self.happened: Counter[str] = Counter()
        hints = self.chance(HINTS_LOST) if HINTS_LOST in plan.troubles.kinds else None
        self.outages = Outages(self.chance("outages"), hints, self.happened)
        self.metadata = self._open_metadata(folder)
        self.metadata.on_change = self._note_record
        self.violations: list[Violation] = []
        self.ledgers: list[int] = []
        self.reused: list[int] = []
        """ledgers with such ids"""
        self.lost_ids: set[int] = set()
        """of ledgers that the metadata lost"""
        self.bookies = {
            name: BookieHost(
                name,
                folder / name,
                network=self.network,
                metadata=self.metadata,
                outages=self.outages,
                chance=self.chance(name),
                sync_s_max=plan.sync_s_max,
                troubles=plan.troubles,
                happened=self.happened,
                note=self.note,
            )
            for name in plan.bookies
        }
        self.clients = {name: self._client(name) for name in [*plan.clients, _AUDITOR]}
        self.auditor = self.clients[_AUDITOR]
        for host in self.hosts():
            clock = plan.troubles.clocks.get(host.machine.name, Clock())
            host.machine.clock_ms, host.machine.clock_drift = clock.off_ms, clock.drift

    def _open_metadata(self, folder: Path) -> ClusterMetadata:
        plan = self.plan
        if ENSEMBLE in plan.troubles.kinds:
            chance = self.chance("ensemble")
            lag = self.chance(LAG) if LAG in plan.troubles.kinds else None
            return MetadataEnsemble(plan.bookies, self.network, self.happened, chance, lag)
        if SQLITE not in plan.troubles.kinds:
            return InMemory()
        path = folder / "metadata.sqlite"
        return MetadataFile(path, plan.bookies, self.network, self.happened)

    def chance(self, what: str) -> random.Random:
        """Return a source of randomness for *what*, and for nothing else."""
        return random.Random(f"{what} {self.plan.seed}")

    def _client(self, name: str) -> ClientHost:
        return ClientHost(
            name,
            network=self.network,
            metadata=self.metadata,
            outages=self.outages,
            history=self.history,
            ledgers=self.ledgers,
            chance=self.chance(name),
            on_acknowledged=self._check_copies,
            on_read=self._check_read,
            may_lose=READ_ERRORS in self.plan.troubles.kinds and name != _AUDITOR,
            is_open=self._is_open,
            happened=self.happened,
        )

    async def run(self) -> Outcome:
        """Run to the end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.metadata.run)
            for bookie in self.bookies.values():
                nursery.start_soon(bookie.run)
            for client in self.clients.values():
                nursery.start_soon(client.run)
            await self._wait_serving()
            await self._begin_work()
            await self._faults().run(self.plan.steps)
            await trio.sleep_until(self.duration_s)
            await self._heal()
            await self._settle()
            self._look()
            await self._read_back()  # last: whatever a reader misses is repaired
            virtual_s = trio.current_time()
            await self._stop()
            nursery.cancel_scope.cancel()
        self.violations += check(self.history)
        self.happened["clocks"] += sum(host.machine.misled for host in self.hosts())
        plan, history = self.plan, self.history
        return Outcome(plan, history, self.violations, self.trace, virtual_s, self.happened)

    def hosts(self) -> list[BookieHost | ClientHost]:
        """Return all machines with what runs on them."""
        return [*self.bookies.values(), *self.clients.values()]

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"     {trio.current_time():7.3f} s  {text}")

    def _faults(self) -> Faults:
        return Faults(self, self.trace)

    async def _begin_work(self) -> None:
        for number, work in enumerate(self.plan.work):
            client = self.plan.clients[number % len(self.plan.clients)]
            self.clients[client].start_writing(work)

    def set_back(self, share: float) -> None:
        """Drop this fraction of the ledgers from metadata, those with the greatest ids.

        Nothing is promised of them any more, and their ids are given to others.
        """
        ids = sorted(record.ledger_id for record in self.records())
        lost = set(ids[len(ids) - round(len(ids) * share) :])
        if not lost:
            return
        self.lost_ids |= lost
        self.ledgers[:] = [each for each in self.ledgers if each not in lost]
        for bookie in self.bookies.values():
            for ledger in lost:
                bookie.promises.forget(ledger)
        names = [*map(ledger_key, lost), *map(underreplicated_key, lost)]
        keys = sorted(self.metadata.values.keys() & set(names))
        self.metadata.set_back(keys, LEDGER_COUNTER, min(lost))
        events = self.history.events
        events[:] = [each for each in events if getattr(each, "ledger", None) not in lost]

    def write_again(self) -> None:
        """Begin the work anew, whatever is left of it."""
        for number, work in enumerate(self.plan.work):
            client = self.plan.clients[number % len(self.plan.clients)]
            self.clients[client].start_writing(msgspec.structs.replace(work, start_s=0.0))

    # --- the end -----------------------------------------------------------------------

    async def _heal(self) -> None:
        self.network.heal()
        self.outages.away_from.clear()
        if isinstance(self.metadata, MetadataEnsemble):
            self.metadata.heal()
        for bookie in self.bookies.values():
            bookie.machine.thaw()
            bookie.disk.heal()
        for client in self.clients.values():
            client.machine.thaw()
            client.retired = True
        if not await self._wait_serving():
            self._violate(6, 0, f"not all bookies serve: {self._not_serving()}")

    async def _wait_serving(self) -> bool:
        async def serve_all() -> bool:
            return not self._not_serving()

        return await wait_until(serve_all, trio.current_time() + 60)

    def _not_serving(self) -> list[str]:
        return [name for name, bookie in self.bookies.items() if not bookie.serving]

    async def _settle(self) -> None:
        """Recover all ledgers, and wait until repair has nothing left to do."""
        over = trio.current_time() + HEALED_S
        if not await wait_until(self._is_created, over):
            self._violate(0, 0, f"ledgers are created without end by {self._creators()}")
        by_calls = not {SQLITE, ENSEMBLE}.isdisjoint(self.plan.troubles.kinds)
        await trio.sleep(LAST_CREATION_BY_CALLS_S if by_calls else LAST_CREATION_S)
        for ledger in self.ledgers:
            await self._do(partial(self.auditor.recover, ledger, attempts=20), over)
        for ledger in self._unclaimed():
            await self._do(partial(self.auditor.recover, ledger, attempts=20), over)
        for ledger in self.reused:
            await self._do(partial(self.auditor.read_whole, ledger), over)
        for name, bookie in self.bookies.items():
            if bookie.promises.void:
                await self._do(partial(self.auditor.scrub, name), over)
        if not await wait_until(self._is_whole, over):
            self._violate(5, 0, f"not repaired: {await self._ailing()}")

    async def _read_back(self) -> None:
        """Read every ledger that was closed, as any client would."""
        over = trio.current_time() + HEALED_S
        for record in self._readable():
            ledger, last = record.ledger_id, record.last_entry
            read = partial(self.auditor.read_whole, ledger, last=last, attempts=20)
            if not await self._do(read, over):
                self._violate(5, ledger, "cannot be read")

    def _readable(self) -> list[LedgerRecord]:
        """Return the ledgers that readers are to find whole in the end."""
        return [record for record in self.records() if record.state is LedgerState.CLOSED]

    async def _is_created(self) -> bool:
        return not self._creators()

    def _creators(self) -> list[str]:
        return [name for name, client in self.clients.items() if client.creating]

    def _unclaimed(self) -> list[int]:
        """Return ledgers that are there, and whose creators were not told that they are."""
        return sorted({record.ledger_id for record in self.records()} - set(self.ledgers))

    async def _do(self, work: Callable[[Client], Awaitable[bool]], over: float) -> bool:
        """Run *work* as the auditor, at most until the time *over*; True if it succeeded."""
        done, succeeded = trio.Event(), False

        async def do(client: Client) -> None:
            nonlocal succeeded
            succeeded = await work(client)
            done.set()

        self.auditor.do(do)
        with trio.move_on_at(over):
            await done.wait()
        return succeeded

    async def _is_whole(self) -> bool:
        closed = (record.state is LedgerState.CLOSED for record in self.records())
        return not await self._ailing() and all(closed)

    async def _ailing(self) -> list[str]:
        """Return the ledgers that want repair, and the bookies that are in limbo."""
        marks = [key for key in self.metadata.values if key.startswith(UNDERREPLICATED)]
        leases = await self.metadata.observer.leases(BOOKIES)
        bookies = [decode_bookie(lease.name, lease.value) for lease in leases]
        return marks + [bookie.bookie_id for bookie in bookies if bookie.limbo]

    def _look(self) -> None:
        """Record what every bookie holds, and what was promised otherwise."""
        self._look_at_records()
        for name, bookie in self.bookies.items():
            engine = bookie.disk.engine
            if engine is not None and bookie.serving:
                for ledger in self.ledgers:
                    self.history.add(holdings.replica(engine, name, ledger))
            for ledger, entry in bookie.promises.lost:
                self._violate(6, ledger, f"{name} acknowledged it and lost it", entry)
        self._note_failures()

    def _note_failures(self) -> None:
        for host in self.hosts():
            for failure in host.failures:
                name = host.machine.name
                self._violate(0, 0, f"{name} failed: {failure!r}")
        if isinstance(self.metadata, MetadataEnsemble):
            for told in self.metadata.reads.old:
                self._violate(0, 0, told)

    def _look_at_records(self) -> None:
        """Every ledger that was made, and not deleted, is there and closed."""
        for record in self.records():
            if record.state is not LedgerState.CLOSED:
                self._violate(3, record.ledger_id, "cannot be recovered")
        for ledger in self.ledgers:
            if ledger_key(ledger) not in self.metadata.values:
                self._violate(6, ledger, "its record is gone")

    def _violate(self, invariant: int, ledger: int, told: str, entry: int | None = None) -> None:
        self.violations.append(Violation(invariant, ledger, entry, told))

    def records(self) -> list[LedgerRecord]:
        """Return every ledger's metadata."""
        found = self.metadata.values.items()
        return [decode_ledger(key, value.value) for key, value in found if key.startswith(LEDGERS)]

    def _record(self, ledger: int) -> LedgerRecord:
        key = ledger_key(ledger)
        return decode_ledger(key, self.metadata.values[key].value)

    def _is_open(self, ledger: int) -> bool:
        return self._record(ledger).state is LedgerState.OPEN

    def _check_read(self, ledger: int, entries: range) -> None:
        """Check that entries are durable before a reader of an open ledger gets them."""
        if ledger_key(ledger) in self.metadata.values and self._is_open(ledger):
            self._check_copies(ledger, entries, may_be_mended=True)

    def _check_copies(self, ledger: int, entries: range, *, may_be_mended: bool = False) -> None:
        """Check that confirmed entries are on enough of the bookies that readers ask.

        Repair may have made copies, but not of the last fragment of an open ledger. When a writer
        is told, there are none.
        """
        record = self._record(ledger)
        for entry in entries:
            is_mended = may_be_mended and entry < record.fragments[-1].first_entry
            holders = [
                name
                for name in write_set(record, entry)
                if self.bookies[name].has(ledger, entry, is_mended=is_mended)
            ]
            if len(holders) < record.ack_quorum:
                self._violate(1, ledger, f"told, and only {holders} have it", entry)

    def _note_record(self, key: str, found: Versioned | None) -> None:
        if key.startswith(LEDGERS) and found is not None:
            record = decode_ledger(key, found.value)
            if record.ledger_id in self.lost_ids:
                self.lost_ids.remove(record.ledger_id)
                self.reused.append(record.ledger_id)
                self.happened["ids again"] += 1
            self.history.add(
                Listed(
                    ledger=record.ledger_id,
                    version=found.version,
                    state=record.state,
                    last_entry=record.last_entry,
                    fragments=record.fragments,
                )
            )

    async def _stop(self) -> None:
        for bookie in self.bookies.values():
            bookie.kill(Tail.CLEAN, silently=True)
        for client in self.clients.values():
            client.kill()
        await trio.sleep(0.1)


async def wait_until(holds: Callable[[], Awaitable[bool]], over: float) -> bool:
    """Look again and again; False when it does not hold by the time *over*."""
    while True:
        if await holds():
            return True
        if trio.current_time() >= over:
            return False
        await trio.sleep(0.2)


def write_set(record: LedgerRecord, entry: int) -> list[str]:
    """Return the bookies that are to hold *entry*."""
    fragment = max(
        (each for each in record.fragments if each.first_entry <= entry),
        key=lambda each: each.first_entry,
    )
    size = record.ensemble_size
    return [fragment.bookies[(entry + i) % size] for i in range(record.write_quorum)]


def simulate(seed: int, *, only: Sequence[int] | None = None) -> Outcome:
    """Run the simulation of *seed*, with all its steps or with some *only*."""
    return run_plan(make_plan(seed), Simulation, only=only)


def run_plan(
    plan: P, world: Callable[[P, Path], Simulation], *, only: Sequence[int] | None
) -> Outcome:
    """Run *plan* in the *world* that is made of it, with all its steps or with some *only*."""
    if only is not None:
        plan = plan.only(only)
    folder = Path(tempfile.mkdtemp(dir=_FAST_DISKS if _FAST_DISKS.is_dir() else None))

    async def main() -> Outcome:
        simulation = world(plan, folder)
        with closing(simulation.metadata), simulated_daemons(simulation.network):
            return await simulation.run()

    try:
        return virtual.run(plan.seed, main)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

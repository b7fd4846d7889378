"""The steps of a plan, done to a simulation at their times, and undone after their spans."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio
from disks import Tail
from lost_copies import LostCopies
from machines import Machine
from metadata_ensemble import MetadataEnsemble
from network import ANY, Route
from steps import Step
from strangers import Strangers

from metadata.records import Draining, draining_key, encode_record

if TYPE_CHECKING:
    from bookie_host import BookieHost
    from simulation import Simulation


RESTART_S = 0.5
PATIENCE_S = 5.0
LOSS_SHARE = 0.95
DELAY_S_MAX = 1.5


class Faults:
    """Does steps. *trace* gets a line for each."""

    def __init__(self, simulation: Simulation, trace: list[str]) -> None:
        self._simulation = simulation
        self._trace = trace
        self._lost = LostCopies()
        self._does = {
            "crash": self._crash,
            "crash at flush": self._crash_at_flush,
            "power cut": self._power_cut,
            "freeze": self._freeze,
            "freeze client": self._freeze,
            "cut": self._cut,
            "slow": self._slow,
            "lossy": self._lossy,
            "break": self._break,
            "break late": self._break,
            "repeat": self._repeat,
            "sync error": self._sync_error,
            "full": self._full,
            "clock": self._clock,
            "store away": self._store_away,
            "damage": self._damage,
            "wipe": self._wipe,
            "drain": self._drain,
            "recover": self._recover,
            "read": self._read,
            "level": self._level,
            "strangers": self._strangers,
            "restore": self._restore,
            "slow disk": self._slow_disk,
            "hang": self._hang,
            "hang flush": self._hang_flush,
            "unreadable": self._unreadable,
            "session expires": self._session_expires,
            "answers lost": self._answers_lost,
            "ensemble away": self._ensemble_away,
        }

    async def run(self, steps: Sequence[Step]) -> None:
        """Do all *steps*; returns when each span is over."""
        async with trio.open_nursery() as nursery:
            for step in steps:
                await trio.sleep_until(step.at_s)
                self._trace.append(str(step))
                nursery.start_soon(self._does[step.kind], step)

    def _bookie(self, step: Step) -> BookieHost:
        return self._simulation.bookies[step.target]

    def _machine(self, step: Step) -> Machine:
        simulation = self._simulation
        host = simulation.bookies.get(step.target) or simulation.clients[step.target]
        return host.machine

    async def _crash(self, step: Step) -> None:
        tail, *silently = step.detail.split(", ")
        bookie = self._bookie(step)
        bookie.kill(Tail(tail), silently=bool(silently))
        await trio.sleep(step.span_s)
        bookie.start()

    async def _crash_at_flush(self, step: Step) -> None:
        """The span says how long after the next flush."""
        bookie = self._bookie(step)
        with trio.move_on_after(PATIENCE_S):
            await bookie.disk.flushed.wait()
        await trio.sleep(step.span_s)
        bookie.kill(Tail(step.detail), silently=False)
        await trio.sleep(RESTART_S)
        bookie.start()

    async def _power_cut(self, step: Step) -> None:
        bookies = self._simulation.bookies.values()
        for bookie in bookies:
            bookie.kill(Tail(step.detail), silently=True)
        await trio.sleep(step.span_s)
        for bookie in bookies:
            bookie.start()

    async def _freeze(self, step: Step) -> None:
        machine = self._machine(step)
        machine.freeze()
        await trio.sleep(step.span_s)
        machine.thaw()

    async def _cut(self, step: Step) -> None:
        network = self._simulation.network
        other, *one_way = step.detail.split(", ")
        routes = [(step.target, other), (other, step.target)][: 1 if one_way else 2]
        for route in routes:
            network.cut(*route)
        await trio.sleep(step.span_s)
        for route in routes:
            network.mend(*route)

    async def _slow(self, step: Step) -> None:
        await self._on_routes(step, self._simulation.network.slow, DELAY_S_MAX)

    async def _lossy(self, step: Step) -> None:
        await self._on_routes(step, self._simulation.network.lose, LOSS_SHARE)

    async def _on_routes(
        self, step: Step, change: Callable[[Route, float], None], much: float
    ) -> None:
        """*detail* says the other end of a route from the target, or nothing: both ways, any."""
        name = step.target
        routes = [(name, step.detail)] if step.detail else [(name, ANY), (ANY, name)]
        for route in routes:
            change(route, much)
        await trio.sleep(step.span_s)
        for route in routes:
            change(route, 0.0)

    async def _break(self, step: Step) -> None:
        late_s = step.span_s or None
        self._simulation.network.break_off(self._bookie(step).machine, late_s=late_s)

    async def _repeat(self, step: Step) -> None:
        self._simulation.network.repeat(self._bookie(step).machine)

    async def _sync_error(self, step: Step) -> None:
        """The next write of this kind fails, so that the bookie ends, and starts again."""
        disk = self._bookie(step).disk
        disk.next_fault = step.detail
        await trio.sleep(step.span_s)
        disk.next_fault = ""

    async def _slow_disk(self, step: Step) -> None:
        disk = self._bookie(step).disk
        disk.sync_s_min = float(step.detail)
        await trio.sleep(step.span_s)
        disk.sync_s_min = 0.0

    async def _hang(self, step: Step) -> None:
        """Syncs take as long as the span, whoever waits for them."""
        disk = self._bookie(step).disk
        disk.hanging += 1
        await trio.sleep(step.span_s)
        disk.hanging -= 1
        disk.go_on()

    async def _hang_flush(self, step: Step) -> None:
        disk = self._bookie(step).disk
        disk.flush_hanging += 1
        await trio.sleep(step.span_s)
        disk.flush_hanging -= 1
        disk.go_on()

    async def _unreadable(self, step: Step) -> None:
        disk = self._bookie(step).disk
        disk.unreadable_share = float(step.detail)
        await trio.sleep(step.span_s)
        disk.unreadable_share = 0.0

    async def _full(self, step: Step) -> None:
        disk = self._bookie(step).disk
        disk.full = True
        await trio.sleep(step.span_s)
        disk.full = False

    async def _clock(self, step: Step) -> None:
        self._machine(step).clock_ms += int(step.detail)

    async def _store_away(self, step: Step) -> None:
        simulation = self._simulation
        away_from = simulation.outages.away_from
        named = (
            [*simulation.bookies, *simulation.clients] if step.target == "all" else [step.target]
        )
        away_from.update(named)
        await trio.sleep(step.span_s)
        away_from.difference_update(named)

    @property
    def _ensemble(self) -> MetadataEnsemble:
        assert isinstance(self._simulation.metadata, MetadataEnsemble)
        return self._simulation.metadata

    async def _session_expires(self, step: Step) -> None:
        self._ensemble.expire(step.target)

    async def _answers_lost(self, step: Step) -> None:
        self._ensemble.losing.add(step.target)
        await trio.sleep(step.span_s)
        self._ensemble.losing.discard(step.target)

    async def _ensemble_away(self, step: Step) -> None:
        """The whole ensemble is away, or one bookie's connection."""
        ensemble = self._ensemble
        if step.target == "all":
            ensemble.go_away()
            await trio.sleep(step.span_s)
            ensemble.come_back()
        else:
            ensemble.away_from.add(step.target)
            ensemble.cut(step.target)
            await trio.sleep(step.span_s)
            ensemble.away_from.discard(step.target)

    async def _damage(self, step: Step) -> None:
        """Power fails, and when it is back a byte that was safe has changed."""
        bookie = self._bookie(step)
        if self._spares(bookie):
            return
        bookie.kill(Tail.CLEAN, silently=True)
        bookie.promises.void = True
        await trio.sleep(step.span_s)
        told = bookie.disk.damage(misdirected=step.detail == "misdirected")
        self._simulation.note(f"damaged on {step.target}: {told}")
        bookie.start()

    async def _wipe(self, step: Step) -> None:
        """All disks of a bookie are lost, and it goes on with empty ones."""
        bookie = self._bookie(step)
        if self._spares(bookie):
            return
        bookie.kill(Tail.CLEAN, silently=True)
        bookie.promises.void = True
        await trio.sleep(step.span_s)
        bookie.disk.wipe()
        await bookie.succeed()
        bookie.start()

    def _spares(self, bookie: BookieHost) -> bool:
        """True if a bookie must keep its copies; otherwise note their loss."""
        name = bookie.machine.name
        needed = self._lost.lose(name, self._simulation.records())
        if needed is not None:
            self._simulation.note(f"{name} is spared: it may have the last copy of {needed}")
        return needed is not None

    async def _restore(self, step: Step) -> None:
        """Everything is stopped, the metadata are set back to a backup, and all begins again."""
        simulation = self._simulation
        for bookie in simulation.bookies.values():
            bookie.kill(Tail.CLEAN, silently=False)
        for client in simulation.clients.values():
            client.kill()
        simulation.network.forget_all()
        simulation.set_back(float(step.detail))
        await trio.sleep(step.span_s)
        for bookie in simulation.bookies.values():
            bookie.start()
        simulation.write_again()

    async def _drain(self, step: Step) -> None:
        """A bookie is to be decommissioned, and after a while that is taken back."""
        metadata, key = self._simulation.metadata, draining_key(step.target)
        mark = Draining(step.target, time.time_ns() // 1_000_000)
        metadata.change(key, encode_record(mark))
        await trio.sleep(step.span_s)
        await metadata.observer.delete(key)

    async def _recover(self, step: Step) -> None:
        client = self._simulation.clients[step.target]
        client.do(client.recover_any)

    async def _read(self, step: Step) -> None:
        client = self._simulation.clients[step.target]
        client.do(client.read)

    async def _strangers(self, step: Step) -> None:
        simulation = self._simulation
        strangers = Strangers(simulation.network, simulation.chance(f"strangers {step.number}"))
        with trio.move_on_after(step.span_s):
            await strangers.besiege(step.target, int(step.detail), simulation.ledgers)
        simulation.happened["limits"] += 1

    async def _level(self, step: Step) -> None:
        client = self._simulation.clients[step.target]
        client.do(client.level)

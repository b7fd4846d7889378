"""A machine with a bookie on it: the real daemon, started, killed, and started again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import trio
from cluster_metadata import ClusterMetadata
from disks import Disk, RingingConnection, SimulatedEngine, Tail, config_of
from machines import MACHINE, Machine
from metadata_view import MetadataView, Outages
from network import Door, Network
from page_cache import syncs_noted
from promises import Overheard, Promises, held
from replaced import replaced
from troubles import Troubles

import bookie.daemon
import bookie.storage
import metadata.transactions
import native.engine
from bookie.cookie_file import CookieRefused
from bookie.disk import DiskGuard
from bookie.errors import BookieError
from bookie.storage import Storage
from bookie.succession import succeed
from ledger_client import Options
from ledger_client.background import Background
from ledger_client.cluster.housekeeping import HousekeepingOptions
from ledger_client.cluster.repair.host import RepairHost, RepairOptions
from ledger_client.cluster.roles import run_roles
from ledger_client.topics.context import TopicContext
from metadata.errors import MetadataError

T = TypeVar("T")
RESTART_S = 0.5
HOUSEKEEPING = HousekeepingOptions(interval_s=4.0, poll_s=1.0)
OPTIONS = Options(append_timeout_s=15.0, close_timeout_s=10.0)


class BookieHost:
    """A machine, its disk, and the process of a bookie.

    Attributes:
        config: its settings.
        promises: what the bookie acknowledged and must therefore hold.
        failures: how processes ended that nobody had killed and no disk had failed.
        serving: whether the bookie serves now.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        network: Network,
        metadata: ClusterMetadata,
        outages: Outages,
        chance: random.Random,
        sync_s_max: float,
        troubles: Troubles,
        happened: Counter[str],
        note: Callable[[str], None],
    ) -> None:
        self.machine = Machine(name, chance)
        self.disk = Disk(
            folder,
            chance,
            sync_s_max=sync_s_max,
            seals="large entries" not in troubles.kinds,
            forgets="lost pages" in troubles.kinds,
            happened=happened,
        )
        self.machine.owner = self
        self.promises = Promises(name)
        self.failures: list[BaseException] = []
        self.serving = False
        self._note = note
        self._network = network
        self._metadata = metadata
        self._view = MetadataView(metadata.observer, self.machine, outages)
        self.config = config_of(name, self.disk, chance, narrow="limits" in troubles.kinds)
        self._power = trio.Event()
        self._power.set()
        self._holds = 0
        self._scope = trio.CancelScope()
        self._tail = Tail.CLEAN

    async def run(self) -> None:
        """Keep the process running, as a supervisor does, while there is power."""
        while True:
            await self._power.wait()
            self._network.forget(self.machine)
            await self._live()
            await trio.sleep(RESTART_S)

    def kill(self, tail: Tail, *, silently: bool) -> None:
        """End the process at once, leaving *tail*; it stays down until as many start()."""
        self._holds += 1
        if self._power.is_set():
            self._power = trio.Event()
        if self.machine.alive:
            self._tail = tail
            self._die(silently=silently)
            self._scope.cancel()

    def has(self, ledger: int, entry: int, *, is_mended: bool) -> bool:
        """True if the bookie acknowledged the entry, or has or may have a copy made by repair."""
        if self.promises.cover(ledger, entry) or not is_mended:
            return self.promises.cover(ledger, entry)
        engine = self.disk.engine
        return engine is None or engine.closed or entry in held(engine, ledger)

    async def succeed(self) -> None:
        """Give the bookie's name to its empty folders, as `bookie replace` does."""
        while True:
            try:
                await succeed(self.config, self._metadata.observer)
            except CookieRefused as refused:
                if refused.fault != "serving":
                    raise
                await trio.sleep(RESTART_S)  # its registration outlives it
            else:
                return

    def start(self) -> None:
        """Undo one kill(); without any left the process runs again."""
        self._holds -= 1
        if self._holds == 0:
            self._power.set()

    def _die(self, *, silently: bool) -> None:
        engine = self.disk.engine
        if engine is not None and not engine.closed:
            self.promises.remember(engine)
        self.serving = False
        self.machine.alive = False
        self.machine.thaw()
        self._network.leave(self.machine, silently=silently)

    async def _live(self) -> None:
        self.machine.alive = True
        self._tail = Tail.CLEAN
        self._scope = trio.CancelScope()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._process)
        except BaseExceptionGroup as group:
            failures, others = group.split(Exception)
            if failures is not None and self.machine.alive:
                self._tell(failures)
            if others is not None:
                raise others from None
        finally:
            if self.machine.alive:
                self._die(silently=False)
            self.disk.cut_power(self._tail)

    def _tell(self, failures: ExceptionGroup[Exception]) -> None:
        """The process ended by itself, as it may when its disk or its store fails."""
        self._note(f"{self.machine.name} ends: {_first(failures)!r}")
        unexpected = failures.split((OSError, BookieError, MetadataError))[1]
        if unexpected is not None:
            self.failures.append(unexpected)

    async def _process(self) -> None:
        MACHINE.set(self.machine)
        async with self._metadata.at_bookie() as self._view.store:
            await self._serve()

    async def _serve(self) -> None:
        async with Background() as nursery:
            nursery.start_soon(self.disk.drive)
            await nursery.start(
                partial(
                    bookie.daemon.run_bookie,
                    self.config,
                    self._view,
                    roles=self._play_roles,
                )
            )
            self.serving = True
            if self.disk.engine is not None:
                self.promises.check(self.disk.engine)
            await trio.sleep_forever()

    async def _play_roles(self, host: RepairHost) -> None:
        try:
            async with Background() as nursery:
                context = TopicContext(
                    self._view,
                    nursery,
                    options=OPTIONS,
                    open_stream=self._network.open_stream,
                    chance=self.machine.chance,
                )
                await run_roles(
                    context, self._view, host, self._repair_options(), housekeeping=HOUSEKEEPING
                )
        except Exception as failure:
            if self.machine.alive:
                self.failures.append(failure)
            raise

    def _repair_options(self) -> RepairOptions:
        return RepairOptions(
            lost_after_s=self.config.lost_after_s,
            open_grace_s=self.config.open_grace_s,
            audit_interval_s=10.0,
            poll_s=0.5,
            retry_s=1.0,
            retry_max_s=4.0,
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    failure = group.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure


@contextmanager
def simulated_daemons(network: Network) -> Iterator[None]:
    """Run daemons on *network* and simulated disks within the block."""

    async def listen(_host: str, _port: int) -> list[Door]:
        machine = MACHINE.get()
        assert machine is not None
        assert isinstance(machine.owner, BookieHost)
        promises = machine.owner.promises
        return [network.listen(machine, lambda: Overheard(promises).hear)]

    with ExitStack() as stack:
        for owner, name, value in (
            (Storage, "_in_thread", _in_thread),
            (bookie.daemon, "listen", listen),
            (bookie.daemon, "DiskGuard", _guard),
            (bookie.storage, "Engine", SimulatedEngine),
            (native.engine, "Connection", RingingConnection),
            (metadata.transactions, "time", SimpleNamespace(monotonic=trio.current_time)),
        ):
            stack.enter_context(replaced(owner, name, value))
        stack.enter_context(syncs_noted())
        yield


async def _in_thread(storage: Storage, work: Callable[[], T]) -> T:
    """Do *work* of a bookie's storage, behind a disk whose flushes may hang."""
    machine = MACHINE.get()
    assert machine is not None
    assert isinstance(machine.owner, BookieHost)
    if getattr(work, "__self__", None) is storage:  # else it closes the engine
        await machine.owner.disk.hang_flush(storage.engine)
    return await trio.to_thread.run_sync(work)


def _guard(*args: object, **options: object) -> DiskGuard:
    machine = MACHINE.get()
    assert machine is not None
    assert isinstance(machine.owner, BookieHost)
    return DiskGuard(*args, measure=machine.owner.disk.usage, **options)  # type: ignore[arg-type]

"""A cluster on one machine: one metadata store and several bookies, each a process.

    standalone ── starts, watches ──► python -m bookie run --bookie-id bookie-1 ...
        ▲                                stdin:   a pipe; its end stops the bookie
        └── ready line, log lines ◄───── stdout, stderr: pipes

The pipe on standard input makes bookies end with this process even if it is killed, because the
kernel closes our end. Each bookie leads a session of its own, so that Ctrl-C in a terminal
reaches this process only, and bookies are stopped in order.

The names bookie-1, bookie-2, ... and their folders stay the same over restarts. Ports may change,
because clients read them from the bookies' registrations.
"""

from __future__ import annotations

import random
import re
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import trio

from bookie.durable import make_folder
from bookie.errors import BookieError
from bookie.member import Member, Running
from bookie.scrape_targets import write_targets
from bookie.security import FOLDER as SECURITY
from metadata.urls import open_store

METADATA_NAME = "metadata.db"
RESTART_DELAY_S = 1.0
RESTART_DELAY_MAX_S = 30.0
# A bookie stops within its own stop_timeout_s; this long after it we kill it.
KILL_MARGIN_S = 5.0
_FREE_PORTS = range(16384, 32768)  # Linux gives connections 32768 and up
_MEMBER = re.compile(r"bookie-([1-9][0-9]{0,3})")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a cluster on one machine.

    Attributes:
        folder: folder of the whole cluster.
        bookies: number of bookies.
        host: address to listen on.
        port: port of the first bookie; the others use the ports after it. 0: any free ones.
        metrics_port: the same for metrics; 0: none, -1: any free ones.
        metadata: URL of the metadata store; "": a SQLite file in the folder.
        racks: spread the bookies over so many racks, r1, r2 and so on; 0: they state none.
        options: arguments for every bookie's command line.
        restart: restart a bookie that ended by itself.
        stop_timeout_s: time for all bookies to stop before they are killed.
    """

    folder: Path
    bookies: int
    host: str = "127.0.0.1"
    port: int = 3181
    metrics_port: int = 0
    metadata: str = ""
    racks: int = 0
    options: Sequence[str] = ()
    restart: bool = True
    stop_timeout_s: float = 30.0

    @property
    def metadata_url(self) -> str:
        """URL of the cluster's metadata store."""
        return self.metadata or f"sqlite://{self.folder.absolute() / METADATA_NAME}"


def count_members(folder: Path) -> int:
    """Return the number of bookies that a former run left in *folder*."""
    if not folder.is_dir():
        return 0
    names = (_MEMBER.fullmatch(path.name) for path in folder.iterdir() if path.is_dir())
    return max((int(match[1]) for match in names if match), default=0)


class LocalCluster:
    """The bookies of one folder. ``run`` keeps them until it is cancelled.

    Args:
        plan: the settings of the cluster.
        log: called with log lines of the bookies, and with their starts and ends.
    """

    def __init__(self, plan: Plan, log: Callable[[str], None]) -> None:
        self._plan = plan
        self._log = log
        self._members: list[Member] = []
        self._stopping = trio.Event()
        self._serving = trio.Event()
        self._failure: BookieError | None = None

    async def run(
        self, *, task_status: trio.TaskStatus[list[Running]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start all bookies, announce when all serve, and restart them until cancelled.

        At the end all bookies were stopped in order, or killed if they did not stop in time.

        Raises:
            BookieError: one did not start, so none runs; or all ended by themselves.
            MetadataError, OSError: nothing was started.
        """
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        is_new = count_members(self._plan.folder) == 0
        # Created here once, so that the bookies do not try at the same time.
        async with open_store(self._plan.metadata_url, create=is_new):
            pass
        self._members = [
            self._member(number, port) for number, port in enumerate(_ports(self._plan), 1)
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled)
            nursery.start_soon(self._start_when_serving, task_status)
            with trio.CancelScope(shield=True):
                await self._keep_all()
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    def _member(self, number: int, port: int) -> Member:
        plan = self._plan
        metrics = plan.metrics_port + number - 1 if plan.metrics_port > 0 else plan.metrics_port
        options = ["--host", plan.host, "--port", str(port), "--metrics-port", str(metrics)]
        options += ["--metadata", plan.metadata_url, *plan.options]
        if plan.racks:
            options += ["--rack", f"r{(number - 1) % plan.racks + 1}"]
        bookie_id = f"bookie-{number}"
        folder = plan.folder.absolute() / bookie_id
        _share_security(plan.folder.absolute(), folder)
        return Member(bookie_id, folder, options, self._log)

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._stopping.set()

    async def _start_when_serving(self, task_status: trio.TaskStatus[list[Running]]) -> None:
        await self._serving.wait()
        task_status.started([m.running for m in self._members if m.running is not None])

    async def _keep_all(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_all)
            async with trio.open_nursery() as members:
                for member in self._members:
                    members.start_soon(self._keep, member)
            if not self._stopping.is_set():
                self._fail(BookieError("no bookie is left"))
            nursery.cancel_scope.cancel()

    async def _keep(self, member: Member) -> None:
        """Run *member* until the cluster stops; start it again as the plan says."""
        delay_s = RESTART_DELAY_S
        while True:
            before = member.running
            ended = await member.run(self._stopping, partial(self._note_ready, member))
            if self._stopping.is_set():
                return
            if member.running is None:
                cause = member.last_words or ended
                self._fail(BookieError(f"{member.bookie_id} did not start: {cause}"))
                return
            if not self._plan.restart:
                self._log(f"{member.bookie_id} {ended}; the others go on")
                return
            served = member.running is not before
            delay_s = RESTART_DELAY_S if served else min(2 * delay_s, RESTART_DELAY_MAX_S)
            self._log(f"{member.bookie_id} {ended}; starting it again in {delay_s:g} s")
            with trio.move_on_after(delay_s):
                await self._stopping.wait()
                return

    def _note_ready(self, member: Member) -> None:
        if self._plan.metrics_port:
            self._write_targets()
        if self._serving.is_set() and member.running is not None:
            self._log(f"{member.bookie_id} serves again, process {member.running.process_id}")
        if all(member.running is not None for member in self._members):
            self._serving.set()

    def _write_targets(self) -> None:
        running = (each.running for each in self._members)
        try:
            write_targets(self._plan.folder, [each for each in running if each is not None])
        except OSError as failure:  # the bookies handle a full disk themselves
            self._log(f"the targets for Prometheus are not written: {failure}")

    def _fail(self, failure: BookieError) -> None:
        self._failure = self._failure or failure
        self._stopping.set()

    async def _stop_all(self) -> None:
        await self._stopping.wait()
        for member in self._members:
            member.signal(signal.SIGTERM)
        await trio.sleep(self._plan.stop_timeout_s + KILL_MARGIN_S)
        self._log("not all bookies stopped in time; the rest is killed")
        for member in self._members:
            member.signal(signal.SIGKILL)


def _share_security(cluster: Path, member: Path) -> None:
    """Give a bookie the security settings of the cluster's folder."""
    shared, link = cluster / SECURITY, member / SECURITY
    if shared.is_dir() and not link.exists():
        make_folder(member)
        link.symlink_to(shared)


def _ports(plan: Plan) -> list[int]:
    """Return the port of each bookie.

    Free ports are chosen here, not by the bookies, so that a restarted bookie keeps its
    address.
    """
    if plan.port + plan.bookies - 1 > 65535:
        raise BookieError(f"there are no {plan.bookies} ports from {plan.port} on")
    if plan.port:
        return list(range(plan.port, plan.port + plan.bookies))
    return _free_ports(plan)


def _free_ports(plan: Plan) -> list[int]:
    """Return free ports, below those that the system assigns to connections.

    Any client's connection may take one of the latter while a bookie is down.
    """
    family = socket.AF_INET6 if ":" in plan.host else socket.AF_INET
    found: list[int] = []
    for port in random.sample(_FREE_PORTS, len(_FREE_PORTS)):
        with socket.socket(family) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((plan.host, port))
            found.append(port)
        if len(found) == plan.bookies:
            return found
    raise BookieError(f"there are no {plan.bookies} free ports on {plan.host}")

"""ZooKeepers for tests: real processes on free ports of this host, each with its own folder."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from daemons import free_ports

START_S = 180.0
"""A ZooKeeper that finds no others asks ever more seldom, up to once a minute."""
TICK_MS = 500
JARS = "/usr/share/java/*"
_GENERATION = re.compile(rb"generation +total \d+K, used (\d+)K")
LOG4J = "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n" + (
    "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
    "log4j.appender.out.layout.ConversionPattern=%d %p %c %m%n\n"
)


def is_installed() -> bool:
    """Return True if there are Java and Debian's package "zookeeper"."""
    return shutil.which("java") is not None and Path("/usr/share/java/zookeeper.jar").exists()


class Ensemble:
    """*count* ZooKeepers under *folder*; with one, it is a standalone server.

    They wait *patience_s* for one another, then elect anew, which ends all connections: as a busy
    machine may bring about if that is short. *settings* are further lines of zoo.cfg, *options*
    are those of Java.
    """

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        patience_s: float = 30,
        settings: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._settings, self._options = settings, options
        first = free_ports(3 * count)
        self.ports = range(first, first + 3 * count)
        self.client_ports = self.ports[:count]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._paused: set[int] = set()
        for number in range(count):
            self._configure(number, count, patience_s)

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.client_ports)

    def url(self, chroot: str) -> str:
        return f"zk://{self.hosts}{chroot}"

    def start(self, *numbers: int) -> None:
        """Start some, or all; wait() returns once they serve."""
        for number in numbers or range(len(self.client_ports)):
            if number not in self._processes:
                self._processes[number] = self._launch(number)

    def wait(self, seconds: float = START_S) -> None:
        """Return when every one that was started serves. Blocks."""
        until = time.monotonic() + seconds
        waiting = set(self._processes)
        while waiting:
            waiting = {number for number in waiting if not self.serves(number)}
            assert time.monotonic() < until, self.log(min(waiting))
            if waiting:
                time.sleep(0.05)

    def serves(self, number: int) -> bool:
        """Return True if this one has a quorum and takes clients."""
        return "Mode: " in self.command(number, b"srvr")

    def leader(self) -> int:
        """Return the number of the one that leads."""
        return next(
            number
            for number in self._processes
            if "Mode: leader" in self.command(number, b"srvr")
            or "Mode: standalone" in self.command(number, b"srvr")
        )

    def command(self, number: int, word: bytes) -> str:
        """Return the answer to one of ZooKeeper's words of four letters, "" for none."""
        try:
            with socket.create_connection(("127.0.0.1", self.client_ports[number]), 1) as peer:
                peer.settimeout(1)
                peer.sendall(word)
                answer = b""
                while part := peer.recv(4096):
                    answer += part
        except OSError:
            return ""
        return answer.decode()

    def kill(self, *numbers: int) -> None:
        """End some, or all, as a crash does."""
        for number in numbers or tuple(self._processes):
            process = self._processes.pop(number)
            self._paused.discard(number)
            process.kill()
            process.wait()

    def renew(self) -> None:
        """Start again what was paused or stopped; return when all serve. Blocks.

        One that was only resumed serves until it notices that its leader gave it up. Then it
        closes all connections, those of a later test too. One that lost its quorum asks the others
        ever more seldom, so it comes back half a minute later than one that starts.
        """
        useless = self._paused | {each for each in self._processes if not self.serves(each)}
        if useless:
            self.kill(*useless)
        self.start()
        self.wait()

    def pause(self, number: int) -> None:
        self._paused.add(number)
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def heap_size(self, number: int) -> int:
        """Return the bytes that are in use in Java's memory after a collection."""
        pid = str(self._processes[number].pid)
        subprocess.run(["jcmd", pid, "GC.run"], check=True, capture_output=True)
        told = subprocess.run(["jcmd", pid, "GC.heap_info"], check=True, capture_output=True)
        return 1024 * sum(int(size) for size in _GENERATION.findall(told.stdout))

    def snapshot_size(self, number: int) -> int:
        """Return the bytes of its newest snapshot: it makes one when it starts."""
        found = (self._folder / f"{number}" / "data" / "version-2").glob("snapshot.*")
        return max(found, key=lambda path: path.stat().st_mtime).stat().st_size

    def log(self, number: int) -> str:
        return (self._folder / f"{number}" / "log").read_text(errors="replace")[-4000:]

    def _launch(self, number: int) -> subprocess.Popen[bytes]:
        folder = self._folder / f"{number}"
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
                    *("-Xshare:auto", f"-Dlog4j.configuration=file:{folder}/log4j.properties"),
                    *self._options,
                    *("-cp", JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
                    str(folder / "zoo.cfg"),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "LC_ALL": "C"},
            )

    def _configure(self, number: int, count: int, patience_s: float) -> None:
        folder = self._folder / f"{number}"
        (folder / "data").mkdir(parents=True)
        lines = [
            f"tickTime={TICK_MS}",
            "initLimit=60",
            f"syncLimit={round(patience_s * 1000 / TICK_MS)}",
            f"dataDir={folder}/data",
            f"clientPort={self.client_ports[number]}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=0",
            "preAllocSize=4096",
            "minSessionTimeout=1000",
            *self._settings,
        ]
        if count > 1:
            (folder / "data" / "myid").write_text(f"{number + 1}\n")
            for peer in range(count):
                quorum, election = self.ports[count + 2 * peer : count + 2 * peer + 2]
                lines.append(f"server.{peer + 1}=127.0.0.1:{quorum}:{election}")
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        (folder / "log4j.properties").write_text(LOG4J)


@pytest.fixture(scope="session")
def one_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Start a single ZooKeeper, for tests that need no quorum."""
    yield from _running(tmp_path_factory.mktemp("zookeeper"), 1)


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Start three ZooKeepers that are patient with one another."""
    yield from _running(tmp_path_factory.mktemp("ensemble"), 3)


@pytest.fixture(scope="session")
def shaken_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Start three that soon give one another up. A test that stops some starts them again."""
    yield from _running(tmp_path_factory.mktemp("shaken"), 3, patience_s=5)


def _running(folder: Path, count: int, patience_s: float = 30) -> Iterator[Ensemble]:
    if not is_installed():
        pytest.fail("Java and Debian's package zookeeper are missing")
    ensemble = Ensemble(folder, count, patience_s=patience_s)
    ensemble.start()
    try:
        ensemble.wait()
        yield ensemble
    finally:
        ensemble.kill()


_chroots = itertools.count(1)


def new_path() -> str:
    """Return a path in ZooKeeper that no test has used."""
    return f"/test-{os.getpid()}-{next(_chroots)}"

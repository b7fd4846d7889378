"""A cluster with a host for each of its parts: ZooKeepers, bookies and clients."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from daemons import Daemon
from fleet import SETTINGS
from hosts import Network

from bookie.commands.run import BookieStarted

PORT = 3181
KEEPER_PORT = 2181
JARS = "/usr/share/java/*"


class HostCluster:
    """*count* bookies b0, b1 and so on, with clients on hosts c0 and c1.

    Attributes:
        network: the hosts.
        metadata: the URL of the metadata itself.
        cluster: the URL that names all bookies.
        bookies: names of the bookies' hosts, which are their ids too.
        keepers: names of the hosts of the metadata store, () if all hosts share a file.
    """

    clients = ("c0", "c1")

    def __init__(
        self, folder: Path, count: int, *, keepers: int = 0, settings: Sequence[str] = SETTINGS
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._daemons: dict[str, Daemon] = {}
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._open = ExitStack()
        self.bookies = [f"b{number}" for number in range(count)]
        self.keepers = tuple(f"z{number}" for number in range(keepers))
        self.network = Network(*self.bookies, *self.clients, *self.keepers)
        self.metadata = f"sqlite://{folder}/metadata.db"
        if keepers:
            hosts = (f"{self.network.address(name)}:{KEEPER_PORT}" for name in self.keepers)
            self.metadata = f"zk://{','.join(hosts)}/quire"
        self.cluster = "bookie://" + ",".join(map(self.address, self.bookies))

    def __enter__(self) -> HostCluster:
        with ExitStack() as opened:
            opened.enter_context(self.network)
            for name in self.keepers:
                self._start_keeper(name)
            for name in self.bookies:
                self.start(name)
            for daemon in self._daemons.values():
                daemon.ready(BookieStarted)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons.values():
            daemon.__exit__()
        for keeper in self._keepers.values():
            keeper.kill()
            keeper.wait()
        self._open.close()

    def address(self, name: str) -> str:
        """Return the address of a bookie."""
        return f"{self.network.address(name)}:{PORT}"

    def start(self, name: str) -> None:
        """Start a bookie on its host."""
        words = ["run", "--json", "--bookie-id", name, "--host", self.network.address(name)]
        words += ["--data", str(self._folder / name), "--metadata", self.metadata]
        words += [f"--set={setting}" for setting in self._settings]
        log = self._folder / f"{name}.log"
        self._daemons[name] = Daemon(*words, log=log, prefix=self.network[name].prefix)

    def _start_keeper(self, name: str) -> None:
        """Start a ZooKeeper on its host; bookies wait for it."""
        folder = self._folder / name
        folder.mkdir()
        (folder / "myid").write_text(f"{self.keepers.index(name) + 1}\n")
        lines = [f"dataDir={folder}", f"clientPort={KEEPER_PORT}", "tickTime=500", "initLimit=20"]
        lines += ["syncLimit=10", "admin.enableServer=false", "preAllocSize=4096"]
        for number, peer in enumerate(self.keepers):
            lines.append(f"server.{number + 1}={self.network.address(peer)}:2888:3888")
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", JARS]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(folder / "zoo.cfg")]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._keepers[name] = self.network[name].popen(*command, stdout=log, stderr=log)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """Return the process of a bookie."""
        return self._daemons[name].process

    def check_alive(self) -> None:
        """Assert that no bookie and no ZooKeeper has ended."""
        for name, keeper in self._keepers.items():
            assert keeper.poll() is None, f"{name} ended"
        for name, daemon in self._daemons.items():
            assert daemon.process.poll() is None, f"{name} ended:\n{daemon.log[-4000:]}"

"""Processes that write, read and recover ledgers on hosts of their own; see storm_worker.py."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

from host_cluster import HostCluster
from never_twice import check_end
from run_seed import run_seed

FINISH_S = 90.0
WORKER = Path(__file__).with_name("storm_worker.py")
WORKERS = (("write", "3/3/2"), ("write", "4/3/3"), ("read",), ("recover",))


class LedgerCrew:
    """Such workers on the clients' hosts, each with a history in *folder*."""

    def __init__(self, cluster: HostCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._workers: dict[Path, subprocess.Popen[bytes]] = {}
        """by the file that takes what each says"""
        self.writers: dict[str, Path] = {}
        """their histories"""

    def __enter__(self) -> LedgerCrew:
        hosts = cycle(self._cluster.clients)
        for number, (role, *words) in enumerate(WORKERS):
            path = self._folder / f"{role}-{number}.jsonl"
            command = [*self._cluster.network[next(hosts)].prefix, sys.executable, str(WORKER)]
            command += [role, self._cluster.cluster, str(path), str(number + run_seed()), *words]
            with path.with_suffix(".log").open("wb") as log:
                worker = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stderr=log, start_new_session=True
                )
            self._workers[path.with_suffix(".log")] = worker
            if role == "write":
                self.writers[path.stem] = path
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            assert worker.stdin is not None
            worker.kill()
            worker.wait()
            worker.stdin.close()

    def wait_until_all_write(self, limit_s: float) -> None:
        """Return when each writer has begun a ledger."""
        deadline = time.monotonic() + limit_s
        while not all(path.exists() and path.stat().st_size for path in self.writers.values()):
            assert time.monotonic() < deadline, "a writer does not begin"
            time.sleep(0.1)

    def finish(self) -> None:
        """Ask all workers to finish, and check that none of them failed."""
        for worker in self._workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
        for log, worker in self._workers.items():
            worker.wait(FINISH_S)
            said = log.read_text(errors="replace")
            check_end(worker.returncode, said)
            assert worker.returncode == 0, said[-2000:]

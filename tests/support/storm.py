"""A storm: processes that write, read and recover, while bookies and writers are hit.

    seed ─► what is hit, when, how long ─► SIGKILL, SIGSTOP, SIGCONT, start again
    then: all bookies up ─► workers finish ─► audit ─► one merged history

It goes on until something was acknowledged, on a slow machine for longer than it should.
Whatever is hit comes back. A storm that was run with the same seed does the same to its
processes, as nearly as processes can be told when to do what.
"""

from __future__ import annotations

import heapq
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import trio
from audit import audit
from daemon_server import start_worker
from fleet import Fleet
from history import History
from never_twice import check_end

START_S = 60.0
FINISH_S = 60.0
LONGER_S = 60.0
POLL_S = 0.2
STRIKES_PER_S = 2.0
WORKER = Path(__file__).with_name("storm_worker.py")
Action = Callable[[], None]


def pass_time(
    due: list[tuple[float, int, Action]], seconds: float, happened: Callable[[], bool]
) -> None:
    """Do what falls *due* for so long; longer, up to LONGER_S, until it *happened*."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end or (now < end + LONGER_S and not happened()):
        if due[0][0] <= now:
            heapq.heappop(due)[2]()
        else:
            time.sleep(min(due[0][0] - now, POLL_S))


def has_told(folder: Path, names: str, event: str) -> bool:
    """Whether one of the workers with such *names* told an *event* of this kind."""
    words = f'"{event}"'.encode()
    return any(words in path.read_bytes() for path in folder.glob(f"{names}.jsonl"))


class Storm:
    """Hits the *fleet*'s bookies and its own workers for *seconds*.

    *writers* is one quorum E/QW/QA for each writing process. With *lose_disks* one bookie
    loses everything it stored, once. The files of all workers are in *folder*. Afterwards
    *counts* tells how often what was done.
    """

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        *,
        seed: int,
        seconds: float,
        writers: Sequence[str],
        lose_disks: bool = False,
    ) -> None:
        self._fleet = fleet
        self._folder = folder
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._writers = writers
        self._lose_disks = lose_disks
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._runs = count()
        self._due: list[tuple[float, int, Action]] = []
        self._hit: set[object] = set()
        self.counts: Counter[str] = Counter()

    def run(self) -> History:
        """Storm, heal, audit, and return what everybody saw."""
        try:
            self._start_workers()
            self._wait_for_writers()
            self._storm()
            self._calm()
            self._finish()
        finally:
            for worker in self._workers.values():
                _kill_process(worker)
        trio.run(audit, self._fleet.metadata, self._folder / "audit.jsonl")
        return History.merged(sorted(self._folder.glob("*.jsonl")))

    # --- the workers --------------------------------------------------------------------

    def _start_workers(self) -> None:
        self._start_worker("lister", "list", self._fleet.metadata)
        for number in range(2):
            self._start_worker(f"reader-{number}", "read", self._fleet.cluster)
            self._start_worker(f"recoverer-{number}", "recover", self._fleet.cluster)
        for number in range(len(self._writers)):
            self._start_writer(number)

    def _start_writer(self, number: int) -> None:
        url = (self._fleet.metadata, self._fleet.cluster)[number % 2]
        self._start_worker(f"writer-{number}", "write", url, self._writers[number])

    def _wait_for_writers(self) -> None:
        """Return once each writes, or all of the storm could pass while they start."""
        until = time.monotonic() + START_S
        for number in range(len(self._writers)):
            while not self._has_written(f"writer-{number}"):
                said = (self._folder / f"writer-{number}.log").read_text()[-2000:]
                assert time.monotonic() < until, f"writer-{number} does not write: {said}"
                time.sleep(0.05)

    def _has_written(self, name: str) -> bool:
        told = self._folder.glob(f"{name}-*.jsonl")
        return any(b'"Acknowledged"' in path.read_bytes() for path in told)

    def _start_worker(self, name: str, role: str, url: str, *words: str) -> None:
        path = self._folder / f"{name}-{next(self._runs)}.jsonl"
        told = [role, url, str(path), str(self._chance.randrange(1 << 30)), *words]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._workers[name] = start_worker(str(WORKER), told, log)

    def _finish(self) -> None:
        """Ask the workers to finish, and check that none of them failed."""
        for worker in self._workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
        for name, worker in self._workers.items():
            log = self._folder / f"{name}.log"
            check_end(worker.wait(FINISH_S), log.read_text(errors="replace"))
            assert worker.returncode == 0, log.read_text(errors="replace")[-2000:]

    # --- the weather --------------------------------------------------------------------

    def _storm(self) -> None:
        self._later(1.0, self._strike)
        if self._lose_disks:
            self._later(self._seconds / 3, self._lose_disks_of_one)
        pass_time(
            self._due, self._seconds, lambda: has_told(self._folder, "writer-*", "Acknowledged")
        )

    def _later(self, seconds: float, action: Action) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._runs), action))

    def _strike(self) -> None:
        self._later(self._chance.expovariate(STRIKES_PER_S), self._strike)
        strikes = [self._kill_bookie] * 4 + [self._pause_bookie] * 3
        strikes += [self._kill_writer] * 3 + [self._pause_writer] * 3 + [self._kill_all_bookies]
        self._chance.choice(strikes)()

    def _kill_bookie(self) -> None:
        self._kill(self._chance.choice(self._fleet.numbers))

    def _kill_all_bookies(self) -> None:
        for number in self._fleet.numbers:
            self._kill(number)

    def _kill(self, number: int) -> None:
        if number not in self._hit:
            self._fleet.kill(number)
            self._come_back("bookies killed", number, lambda: self._fleet.start(number))

    def _lose_disks_of_one(self) -> None:
        """Kill a bookie that is up, and let it come back with empty folders."""
        up = [number for number in self._fleet.numbers if number not in self._hit]
        if not up:
            self._later(1.0, self._lose_disks_of_one)
            return
        number = self._chance.choice(up)
        self._fleet.kill(number)
        self._fleet.empty(number)
        self._come_back("disks lost", number, lambda: self._fleet.start(number))

    def _pause_bookie(self) -> None:
        number = self._chance.choice(self._fleet.numbers)
        if number not in self._hit:
            self._fleet.pause(number)
            self._come_back("bookies paused", number, lambda: self._fleet.resume(number))

    def _kill_writer(self) -> None:
        number = self._chance.randrange(len(self._writers))
        writer = self._workers[f"writer-{number}"]
        if writer not in self._hit:
            _kill_process(writer)
            self._start_writer(number)
            self.counts["writers killed"] += 1

    def _pause_writer(self) -> None:
        """Long enough for others to recover its ledger behind its back."""
        writer = self._workers[f"writer-{self._chance.randrange(len(self._writers))}"]
        if writer not in self._hit:
            writer.send_signal(signal.SIGSTOP)
            self._come_back("writers paused", writer, lambda: writer.send_signal(signal.SIGCONT))

    def _come_back(self, what: str, who: object, back: Action) -> None:
        """Undo a hit after a while: often soon, sometimes when others have taken over."""
        self.counts[what] += 1
        self._hit.add(who)
        self._later(self._chance.choice((0.1, 0.5, 2.0, 6.0)), lambda: self._return(who, back))

    def _return(self, who: object, back: Action) -> None:
        self._hit.discard(who)
        back()

    def _calm(self) -> None:
        """Bring everything back; a bookie that nobody killed must have stayed."""
        for _, _, action in self._due:
            if action not in (self._strike, self._lose_disks_of_one):
                action()
        for number in self._fleet.numbers:
            assert self._fleet.runs(number), self._fleet.log(number)[-4000:]
            self._fleet.wait_until_served(number)


def _kill_process(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.kill()
    process.wait()
    process.stdin.close()

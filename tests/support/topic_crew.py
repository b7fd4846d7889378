"""Processes that write and read one topic of a fleet, and what they all saw in the end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol, Self

import trio
from daemon_server import start_worker
from history import History, HistoryFile
from message_events import TopicMade
from message_witness import Audience
from never_twice import check_end
from storm import has_told
from topic_audit import tell_ledgers, tell_rows

import ledger_client
from ledger_client import Client
from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.retention.holdings import read_holdings
from metadata.topics import RollPolicy

TOPIC = "shop/orders"
WORKER = Path(__file__).with_name("topic_worker.py")
FINISH_S = 90.0
ROLL = RollPolicy(size=300_000, entries=60)


class Cluster(Protocol):
    """What a crew needs of a cluster: the URLs of its metadata and of its bookies."""

    @property
    def metadata(self) -> str: ...

    @property
    def cluster(self) -> str: ...


def here(_name: str) -> Sequence[str]:
    """Let workers run where this process runs."""
    return ()


class Crew:
    """Workers on one topic, each with a history in *folder*."""

    def __init__(
        self,
        fleet: Cluster,
        folder: Path,
        *,
        partitions: int = 0,
        prefix: Callable[[str], Sequence[str]] = here,
    ) -> None:
        """*prefix* returns words that start the command of a worker."""
        self._prefix = prefix
        self._fleet = fleet
        self._folder = folder
        self._runs = count()
        self._workers: dict[str, tuple[subprocess.Popen[bytes], list[str]]] = {}
        self.paths: dict[str, Path] = {}
        """the history of each worker that runs"""
        trio.run(self._make, partitions)

    async def _make(self, partitions: int) -> None:
        async with ledger_client.connect(self._fleet.metadata) as client:
            await client.topics.create(TOPIC, partitions, replication=2, ack_quorum=2, roll=ROLL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._workers:
            self.kill(name)

    def start(self, role: str, name: str, *words: str) -> None:
        """Start a worker: see topic_worker.py."""
        path = self._folder / f"{name}-{next(self._runs):03d}.jsonl"
        program, told = str(self.script(role)), [role, self._fleet.cluster, str(path), TOPIC, name]
        with (self._folder / f"{name}.log").open("ab") as log:
            worker = start_worker(program, [*told, *words], log, prefix=self._prefix(name))
        self._workers[name] = worker, [role, *words]
        self.paths[name] = path

    def has_told(self, names: str, event: str) -> bool:
        """Whether one of the workers with such *names* told an *event* of this kind."""
        return has_told(self._folder, names, event)

    def script(self, _role: str) -> Path:
        """Return the program that plays a role."""
        return WORKER

    def log(self, name: str) -> str:
        """Everything that a worker wrote to its standard error."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a worker with SIGKILL."""
        worker, _ = self._workers[name]
        worker.kill()
        worker.wait()
        assert worker.stdin is not None
        worker.stdin.close()

    def drop(self, name: str) -> None:
        """Kill a worker for good."""
        self.kill(name)
        del self._workers[name]

    def restart(self, name: str) -> None:
        """Kill a worker, and start it again."""
        self.kill(name)
        role, *words = self._workers[name][1]
        self.start(role, name, *words)

    def pause(self, name: str) -> None:
        """Stop a worker as a whole, with SIGSTOP."""
        self._workers[name][0].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Resume a paused worker; harmless if it runs or has ended."""
        self._workers[name][0].send_signal(signal.SIGCONT)

    def stop(self, name: str) -> None:
        """Ask a worker that would run for ever to finish."""
        worker, _ = self._workers.pop(name)
        assert worker.stdin is not None
        worker.stdin.close()
        self._wait(name, worker)

    def finish(self) -> History:
        """Wait until all is sent and read; return what all saw, and what there is."""
        for name, (worker, command) in self._workers.items():
            if command[0] == "produce":
                self._wait(name, worker)
        history = HistoryFile(self._folder / "audit.jsonl")
        trio.run(self._audit, history)
        for name, (worker, _) in self._workers.items():
            assert worker.stdin is not None
            worker.stdin.close()
            self._wait(name, worker)
        return History.merged(sorted(self._folder.glob("*.jsonl")))

    def _wait(self, name: str, worker: subprocess.Popen[bytes]) -> None:
        """Wait until a worker ended well."""
        check_end(worker.wait(FINISH_S), self.log(name))
        assert worker.returncode == 0, self.log(name)

    async def _audit(self, history: HistoryFile) -> None:
        history.add(TopicMade(topic=TOPIC))
        async with ledger_client.connect(self._fleet.metadata) as client:
            uid = (await client.topics.info(TOPIC)).uid
            await close_lanes(client)
            await tell_rows(history, TOPIC, uid, client._context.store, {})
            await tell_ledgers(history, TOPIC, uid, client)
            for reverse in (False, True):
                audience = Audience(history, TOPIC, f"audit, in reverse: {reverse}")
                audience.begun(reverse=reverse)
                async with client.reader(TOPIC, reverse=reverse) as reader:
                    await (audience.read_batches if reverse else audience.read)(reader)


async def close_lanes(client: Client) -> None:
    """Close what killed producers left open, once their leases are over.

    Until then readers may not see the last messages that these producers were told of.
    """
    topic = await client.topics.info(TOPIC)
    with trio.fail_after(FINISH_S):
        for lane in await read_holdings(client._context.store, topic):
            is_open = any(held.row.state == "open" for held in lane.ledgers)
            while is_open:
                try:
                    await close_lane(client._context.ledgers, topic, lane.partition, lane.lane)
                except LedgerError:
                    await trio.sleep(0.2)
                else:
                    is_open = False

"""What metadata costs in ZooKeeper: ``python tests/bench/zookeeper_plane.py``.

Three ZooKeepers on this host, and one process that uses them. It takes about two minutes, and
prints, each beside kazoo alone in the same run:

- changes a second of keys of 100 bytes, from 16 and from 256 tasks
- a pass through the records of 20 000 ledgers, as a new leader makes one: processor time and
  seconds for each, and the same in SQLite

The machine should be idle.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import trio
from kazoo.client import KazooClient

sys.path.append(str(Path(__file__).parents[1] / "support"))

from ensemble import Ensemble

from metadata.listings import ledger_records
from metadata.records import Fragment, LedgerRecord, LedgerState, encode_record, ledger_key
from metadata.store import ABSENT, MetadataStore, Put
from metadata.urls import open_store

CHANGES_S = 8.0
LEDGERS = 20_000
AT_ONCE = 200
READ_AHEAD = 500
"""Reads under way at a time, as the driver has for one call."""
VALUE = bytes(100)
_LEDGER = re.compile(r"/L\d+$")
"""The end of the path of a ledger's record, as BookKeeper has it."""


def say(what: str, figure: float, unit: str) -> None:
    sys.stdout.write(f"{what:<54} {figure:>9.2f} {unit}\n")
    sys.stdout.flush()


class Pass:
    """Measures a pass."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), time.process_time()

    def tell(self, what: str, found: int) -> None:
        assert found == LEDGERS
        each_s = (time.perf_counter() - self._began) / found
        say(f"{what}, a ledger: processor", 1e6 * (time.process_time() - self._used) / found, "µs")
        say(f"{what}, a ledger: time", 1e6 * each_s, "µs")


# --- quire's driver -------------------------------------------------------------------------


async def changes(store: MetadataStore, tasks: int) -> None:
    done, until = 0, time.perf_counter() + CHANGES_S

    async def change(task: int) -> None:
        nonlocal done
        for number in count():
            if time.perf_counter() >= until:
                return
            await store.put(f"bench/{task:04}/{number % 50:02}", VALUE)
            done += 1

    async with trio.open_nursery() as nursery:
        for task in range(tasks):
            nursery.start_soon(change, task)
    say(f"changes from {tasks} tasks", done / CHANGES_S, "/s")


def record(ledger_id: int) -> LedgerRecord:
    return LedgerRecord(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        state=LedgerState.CLOSED,
        fragments=[Fragment(0, ["bookie-1", "bookie-2", "bookie-3"])],
        last_entry=9999,
        length=10_000_000,
        incarnation=7,
    )


async def go_through(store: MetadataStore, what: str) -> None:
    for first in range(0, LEDGERS, AT_ONCE):
        ids = range(first, first + AT_ONCE)
        puts = [Put(ledger_key(each), encode_record(record(each)), ABSENT) for each in ids]
        await store.transact(puts)
    passed = Pass()
    found = 0
    async for _ in ledger_records(store):
        found += 1
    passed.tell(f"a pass, {what}", found)


async def measure(url: str, sqlite: str) -> None:
    async with open_store(url, create=True) as store:
        for tasks in (16, 256):
            await changes(store, tasks)
        await go_through(store, "ZooKeeper")
    async with open_store(sqlite) as store:
        await go_through(store, "SQLite")


# --- kazoo alone ----------------------------------------------------------------------------


def changes_alone(client: KazooClient, at_once: int) -> None:
    """Set nodes, *at_once* calls under way."""
    paths = [f"/alone/{number:02}" for number in range(50)]
    for path in paths:
        client.ensure_path(path)
    under_way = deque(client.set_async(paths[number % 50], VALUE) for number in range(at_once))
    done, until = 0, time.perf_counter() + CHANGES_S
    while time.perf_counter() < until:
        under_way.popleft().get()
        done += 1
        under_way.append(client.set_async(paths[done % 50], VALUE))
    for call in under_way:
        call.get()
    say(f"changes, kazoo alone, {at_once} at once", done / CHANGES_S, "/s")


def leaves(client: KazooClient, folder: str) -> Iterator[str]:
    """Yield the nodes below *folder* that have no children."""
    children = client.get_children(folder)
    for child in children:
        yield from leaves(client, f"{folder}/{child}")
    if not children:
        yield folder


def pass_alone(client: KazooClient, folder: str) -> None:
    """Read the nodes of ledgers, of which the paths are known."""
    paths = [path for path in leaves(client, folder) if _LEDGER.search(path)]
    passed = Pass()
    found = 0
    for first in range(0, len(paths), READ_AHEAD):
        for call in [client.get_async(path) for path in paths[first : first + READ_AHEAD]]:
            call.get()
            found += 1
    passed.tell("a pass, kazoo alone", found)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ensemble = Ensemble(folder)
        ensemble.start()
        ensemble.wait()
        try:
            trio.run(measure, ensemble.url("/bench"), f"sqlite://{folder}/metadata.db")
            client = KazooClient(ensemble.hosts)
            client.start()
            for at_once in (16, 256):
                changes_alone(client, at_once)
            pass_alone(client, "/bench")
            client.stop()
        finally:
            ensemble.kill()


if __name__ == "__main__":
    main()

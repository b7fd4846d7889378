"""Seeded histories: random delays, crashes and slow bookies under several writers.

Whatever happens, every acknowledged entry is read back at its id, byte for byte,
no entry appears that was not sent, and none appears twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from run_seed import drawn
from trio.testing import MockClock

from ledger_client import Client, LedgerWriter, Options
from ledger_client.errors import OutcomeUnknown, WriterFailed
from metadata.records import LedgerState
from native.frame import Request

SEEDS = [*drawn(range(4)), *(pytest.param(n, marks=pytest.mark.slow) for n in drawn(range(4, 7)))]
QUORUMS = [(3, 3, 2), (3, 3, 3), (4, 3, 2), (5, 3, 1), (3, 2, 2), (2, 2, 1)]


class History:
    """What was asked for and what was answered."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}


@pytest.mark.parametrize("seed", SEEDS)
async def test_acknowledged_entries_survive_whatever_bookies_do(
    autojump_clock: MockClock, seed: int
) -> None:
    chance = random.Random(seed)
    options = Options(
        bytes_in_flight_max=chance.choice([5_000, 1 << 20]),
        append_timeout_s=5,
        slow_bookie_s=0.5,
        request_timeout_s=2,
        close_timeout_s=8,
    )
    async with memory_cluster(5, seed=seed) as cluster, cluster.client(options) as client:
        for bookie in cluster.bookies.values():
            bookie.delay_s = delays(chance)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, cluster, chance)
            history = History()
            ledger_id = await write(client, chance, history)
            nursery.cancel_scope.cancel()
        await check(cluster, client, ledger_id, history)


async def write(client: Client, chance: random.Random, history: History) -> int:
    """Let several tasks append until they are done or the writer failed."""
    async with (
        client.ledgers.create(*chance.choice(QUORUMS)) as ledger,
        trio.open_nursery() as nursery,
    ):
        for number in range(4):
            nursery.start_soon(append_all, ledger, number, chance, history)
    return ledger.id


async def append_all(
    ledger: LedgerWriter, number: int, chance: random.Random, history: History
) -> None:
    for turn in range(25):
        count = chance.choice([1, 1, 3, 50])
        payloads = [b"%d-%d-%d" % (number, turn, i) for i in range(count)]
        history.sent.update(payloads)
        try:
            with trio.move_on_after(chance.choice([0.01, 100, 100, 100])):
                ids = await ledger.append_many(payloads)
                history.acknowledged.update(zip(ids, payloads, strict=True))
        except (OutcomeUnknown, WriterFailed):
            return
        await trio.sleep(chance.random() * 0.1)


async def disturb(cluster: MemoryCluster, chance: random.Random) -> None:
    """Crash or stall a bookie now and then, never more than one at a time."""
    while True:
        await trio.sleep(chance.random() * 3)
        name = chance.choice(sorted(cluster.bookies))
        if chance.random() < 0.5:
            cluster.kill(name)
            await trio.sleep(chance.random())
            cluster.revive(name)
        else:
            cluster.stalled[name] = trio.Event()
            await trio.sleep(chance.random() * 2)
            cluster.stalled.pop(name).set()


async def check(cluster: MemoryCluster, client: Client, ledger_id: int, history: History) -> None:
    for event in cluster.stalled.values():
        event.set()
    cluster.stalled.clear()
    cluster.down.clear()
    record = cluster.record(ledger_id)
    assert record.state is LedgerState.CLOSED
    async with client.ledgers.open(ledger_id) as reader:
        payloads = [entry.payload for entry in await reader.read(0, reader.last_confirmed)]
    assert record.length == sum(map(len, payloads))
    assert len(set(payloads)) == len(payloads)
    assert set(payloads) <= history.sent
    for entry_id, payload in history.acknowledged.items():
        assert payloads[entry_id] == payload


def delays(chance: random.Random) -> Callable[[Request], float]:
    scale = chance.choice([0.0, 0.001, 0.05])
    return lambda _request: chance.random() * scale

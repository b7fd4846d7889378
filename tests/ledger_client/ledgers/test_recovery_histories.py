"""Seeded histories: a writer that is recovered under its hands, by several at once.

Bookies come and go and are slow, recoveries are killed and begun again. In the end
every acknowledged entry is in the ledger at its id, nothing is in it that was not
sent, all recoveries agree, and after the first of them nothing was acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from run_seed import drawn
from trio.testing import MockClock

from ledger_client import LedgerWriter, Options
from ledger_client.errors import LedgerError, OutcomeUnknown, Retryable, WriterFailed
from metadata.records import LedgerState
from native.frame import Opcode, Request

QUORUMS = [(3, 3, 2), (3, 3, 2), (3, 3, 3), (3, 3, 1), (4, 3, 2), (5, 3, 2), (3, 2, 2), (2, 2, 1)]
OPTIONS = Options(request_timeout_s=3, read_timeout_s=3, append_timeout_s=8, close_timeout_s=8)
LEDGER_ID = 1


class Story:
    """What the writer and the recoveries were told."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.sent: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}
        self.ends: set[tuple[int, int]] = set()
        self.late: list[bytes] = []
        """acknowledged although the append began after a recovery was complete"""

    async def write(self, cluster: MemoryCluster, chance: random.Random) -> None:
        """Append from several tasks until the writer is told that it is over."""
        async with cluster.client(OPTIONS) as client:
            with suppress(LedgerError):
                quorums = chance.choice(QUORUMS)
                async with client.ledgers.create(*quorums) as ledger, trio.open_nursery() as tasks:
                    self.begun.set()
                    for number in range(3):
                        tasks.start_soon(self._append_all, ledger, number, chance)

    async def _append_all(self, ledger: LedgerWriter, number: int, chance: random.Random) -> None:
        for turn in range(200):
            payloads = [b"%d-%d-%d" % (number, turn, i) for i in range(chance.choice([1, 3, 40]))]
            is_late = bool(self.ends)
            self.sent.update(payloads)
            try:
                ids = await ledger.append_many(payloads)
            except (OutcomeUnknown, WriterFailed):
                return
            self.acknowledged.update(zip(ids, payloads, strict=True))
            self.late += payloads if is_late else []
            await trio.sleep(chance.random() * 0.05)

    async def recover(self, cluster: MemoryCluster, chance: random.Random) -> None:
        """Recover until it is done, killed now and then."""
        while True:
            async with cluster.client(OPTIONS) as client:
                with suppress(Retryable), trio.move_on_after(chance.choice([0.05, 0.2, 60, 60])):
                    info = await client.ledgers.recover(LEDGER_ID)
                    self.ends.add((info.last_entry, info.length))
                    return
            await trio.sleep(chance.random() * 0.2)

    async def check(self, cluster: MemoryCluster) -> None:
        assert self.late == []
        assert len(self.ends) == 1
        assert cluster.record(LEDGER_ID).state is LedgerState.CLOSED
        async with cluster.client() as client, client.ledgers.open(LEDGER_ID) as reader:
            kept = [entry.payload for entry in await reader.read(0, reader.last_confirmed)]
        assert self.ends == {(len(kept) - 1, sum(map(len, kept)))}
        assert len(set(kept)) == len(kept)
        assert set(kept) <= self.sent
        assert {i: kept[i] for i in self.acknowledged if i < len(kept)} == self.acknowledged


async def tell(seed: int) -> None:
    """Let one history happen, and check it."""
    chance = random.Random(seed)
    async with memory_cluster(6, seed=seed) as cluster:
        for bookie in cluster.bookies.values():
            bookie.delay_s = delays(chance)
        story = Story()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as actors:
                actors.start_soon(story.write, cluster, chance)
                await story.begun.wait()
                nursery.start_soon(disturb, cluster, chance)
                await trio.sleep(0.2 + chance.random())
                for _ in range(chance.choice([1, 2, 3])):
                    actors.start_soon(story.recover, cluster, chance)
            nursery.cancel_scope.cancel()
        calm(cluster)
        await story.check(cluster)


async def disturb(cluster: MemoryCluster, chance: random.Random) -> None:
    """Now and then a bookie is away, stalled, silent or in limbo."""
    while True:
        await trio.sleep(chance.random() * 0.3)
        name = chance.choice(sorted(cluster.bookies))
        trouble = chance.choice(["away", "stalled", "silent", "limbo"])
        if trouble == "away":
            cluster.kill(name)
        elif trouble == "stalled":
            cluster.stalled.setdefault(name, trio.Event())
        else:
            cluster.bookies[name].answering = trouble != "silent"
            cluster.bookies[name].limbo = trouble == "limbo"
        await trio.sleep(chance.random() * 2)
        if chance.random() < 0.7:  # else the next trouble comes on top
            calm(cluster)


def calm(cluster: MemoryCluster) -> None:
    """Everybody is well again."""
    cluster.down.clear()
    for event in cluster.stalled.values():
        event.set()
    cluster.stalled.clear()
    for bookie in cluster.bookies.values():
        bookie.answering, bookie.limbo = True, False


def delays(chance: random.Random) -> Callable[[Request], float]:
    """Short delays as a rule, and sometimes one that outlasts every patience."""
    scale = chance.choice([0.0, 0.001, 0.02, 0.2])
    late = chance.choice([0.0, 0.02, 0.1])

    def delay_s(request: Request) -> float:
        if request.opcode == Opcode.CALL:
            return 0.0  # or a connection would take too long to be made
        return chance.random() * (5.0 if chance.random() < late else scale)

    return delay_s


@pytest.mark.parametrize("seed", drawn(range(8)))
async def test_no_acknowledged_entry_is_lost_to_recovery(
    autojump_clock: MockClock, seed: int
) -> None:
    """BK-07, BK-08, TB-43: for whatever happens meanwhile."""
    await tell(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", drawn(range(8, 20)))
async def test_no_acknowledged_entry_is_lost_to_recovery_in_many_histories(
    autojump_clock: MockClock, seed: int
) -> None:
    await tell(seed)

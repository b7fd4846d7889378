"""Recovery against a writer that is not gone, and against other recoveries."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
from leftovers import LEDGER_ID, leave, length
from memory_cluster import MemoryCluster, memory_cluster
from msgspec import structs
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client import Client, LedgerWriter, Options
from ledger_client.errors import LedgerClosed, LedgerError, LedgerFenced, OutcomeUnknown
from ledger_client.ledgers import inquiry
from ledger_client.ledgers.catalogue import LedgerInfo
from metadata.records import (
    Fragment,
    LedgerRecord,
    LedgerState,
    encode_record,
    ledger_key,
)
from native.frame import Flag, Opcode, Request

PATIENT = Options(bookie_timeout_s=60.0)


async def test_the_writer_of_a_recovered_ledger_is_never_acknowledged_again(
    autojump_clock: MockClock,
) -> None:
    """BK-07: a fenced add has an unknown outcome, as one that was never answered."""
    async with memory_cluster(4) as cluster, cluster.client() as ours, cluster.client() as theirs:
        with pytest.raises(LedgerFenced):
            async with ours.ledgers.create(3, 3, 2) as ledger:
                await ledger.append_many([b"one", b"two"])
                info = await theirs.ledgers.recover(ledger.id)
                assert (info.state, info.last_entry, info.length) == (LedgerState.CLOSED, 1, 6)
                with pytest.raises(OutcomeUnknown) as unknown:
                    await ledger.append(b"three")
                assert isinstance(unknown.value.__cause__, LedgerFenced)
                await ledger.append(b"four")
        assert cluster.record(ledger.id).last_entry == 1


async def test_a_writer_with_nothing_to_write_learns_of_it_when_it_closes(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        async with ours.ledgers.create(3, 3, 2) as ledger:
            await ledger.append_many([b"one", b"two"])
            await theirs.ledgers.recover(ledger.id)
        assert cluster.record(ledger.id).last_entry == 1  # both found the same end


async def test_a_client_can_recover_what_it_writes_itself(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with pytest.raises((LedgerFenced, LedgerClosed)):
            async with client.ledgers.create(3, 3, 2) as ledger:
                await ledger.append(b"one")
                async with client.ledgers.open(ledger.id) as reader:
                    assert (reader.closed, reader.last_confirmed) == (True, 0)
                with pytest.raises(OutcomeUnknown):
                    await ledger.append(b"two")
                await ledger.append(b"three")


@pytest.mark.parametrize("flags", [inquiry.RECOVERY_READ_FLAGS, Flag.PRIORITY])
async def test_a_bookie_that_missed_the_fence_is_fenced_by_the_reads_that_follow(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, flags: Flag
) -> None:
    """TB-43: b1 took an entry and cannot be read; b3 gets it after it denied it.

    The writer has two acknowledgements then, and the ledger ends before the entry:
    unless b3 was fenced by the question. Without that, the entry is lost.
    """
    monkeypatch.setattr(inquiry, "RECOVERY_READ_FLAGS", flags)
    async with (
        memory_cluster(3) as cluster,
        cluster.client(PATIENT) as ours,
        cluster.client() as theirs,
        trio.open_nursery() as nursery,
        ours.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"one")
        await trio.sleep(1)
        cluster.bookies["b1"].delay_s = slow(Opcode.BATCH_READ, 300)
        cluster.bookies["b2"].delay_s = slow(Opcode.ADD, 300)
        cluster.bookies["b3"].delay_s = lambda request: {
            Opcode.ADD: 2.0,
            Opcode.READ: 300.0,
        }.get(Opcode(request.opcode), 0.0)
        acknowledged: list[int] = []
        nursery.start_soon(append, ledger, b"two", acknowledged)
        await wait_all_tasks_blocked()
        info = await theirs.ledgers.recover(ledger.id)
        assert info.last_entry == 0
        await trio.sleep(5)
        assert acknowledged == ([] if flags & Flag.FENCE else [1])
        nursery.cancel_scope.cancel()


def slow(opcode: Opcode, delay_s: float) -> Callable[[Request], float]:
    return lambda request: delay_s if request.opcode == opcode else 0.0


async def append(ledger: LedgerWriter, payload: bytes, acknowledged: list[int]) -> None:
    with suppress(OutcomeUnknown, LedgerFenced):
        acknowledged.append(await ledger.append(payload))


async def test_the_last_two_ledgers_of_a_log_are_taken_over(autojump_clock: MockClock) -> None:
    """BK-09: the owner may have opened the next ledger and not closed the one before."""
    async with memory_cluster(4) as cluster, cluster.client() as ours, cluster.client() as theirs:
        async with trio.open_nursery() as nursery:
            first = await nursery.start(own, ours)
            second = await nursery.start(own, ours)
            await first.append_many([b"a", b"b"])
            await second.append(b"c")
            ends = [(await theirs.ledgers.recover(i.id)).last_entry for i in (first, second)]
            assert ends == [1, 0]
            for ledger in (second, first):
                with pytest.raises(OutcomeUnknown):
                    await ledger.append(b"late")
            nursery.cancel_scope.cancel()
        async with theirs.ledgers.create(3, 3, 2) as third:
            await third.append(b"d")
        kept: list[bytes] = []
        for ledger_id in (first.id, second.id, third.id):
            async with theirs.ledgers.open(ledger_id) as reader:
                kept += [entry.payload async for entry in reader.follow(0)]
        assert kept == [b"a", b"b", b"c", b"d"]


async def own(client: Client, *, task_status: trio.TaskStatus[LedgerWriter]) -> None:
    async with client.ledgers.create(3, 3, 2) as ledger:
        task_status.started(ledger)
        await trio.sleep_forever()


# --- several at once -----------------------------------------------------------------------


def jitter(chance: random.Random, scale: float) -> Callable[[Request], float]:
    return lambda _request: chance.random() * scale


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rivals", [2, 3])
async def test_recoveries_at_the_same_time_come_to_the_same_end(
    autojump_clock: MockClock, seed: int, rivals: int
) -> None:
    """BK-08: several recoverers converge, although each may have seen another end."""
    chance = random.Random(seed)
    async with memory_cluster(5, seed=seed) as cluster:
        on = {f"b{n}": range(10 + chance.randrange(10)) for n in (1, 2, 3)}
        leave(cluster, on, confirmed=chance.randrange(-1, 10))
        for bookie in cluster.bookies.values():
            bookie.delay_s = jitter(chance, chance.choice([0.01, 0.5]))
        results: list[LedgerInfo] = []

        async def recover(delay_s: float) -> None:
            async with cluster.client() as client:
                await trio.sleep(delay_s)
                results.append(await client.ledgers.recover(LEDGER_ID))

        async with trio.open_nursery() as nursery:
            for _ in range(rivals):
                nursery.start_soon(recover, chance.random() * 0.1)
        record = cluster.record(LEDGER_ID)
        assert record.state is LedgerState.CLOSED
        assert {info.last_entry for info in results} == {record.last_entry}
        assert record.length == length(record.last_entry)
        assert 9 <= record.last_entry <= max(ids.stop for ids in on.values()) - 1


async def test_recoveries_in_one_client_share_the_work(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(10)})
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client.ledgers.recover, LEDGER_ID)
        adds = [r for r in cluster.bookies["b1"].requests if r.opcode == Opcode.ADD]
        assert len(adds) == 10


class Rival:
    """Changes the record right before the compare-and-set that would close the ledger."""

    def __init__(
        self, cluster: MemoryCluster, change: Callable[[LedgerRecord], LedgerRecord]
    ) -> None:
        self._cluster = cluster
        self._change = change
        self._puts = 0
        cluster.store.before_put = self.slip_in

    def slip_in(self, key: str) -> None:
        if key != ledger_key(LEDGER_ID):
            return
        self._puts += 1
        if self._puts == 2:  # the first one says that the ledger is in recovery
            changed = self._change(self._cluster.record(LEDGER_ID))
            self._cluster.store.change(key, encode_record(changed))


async def test_who_loses_the_last_change_takes_the_result_of_the_winner(
    autojump_clock: MockClock,
) -> None:
    """BK-08: entry 9 was never acknowledged; a rival found it absent, and was faster."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(10), "b2": range(9), "b3": range(9)})
        Rival(
            cluster,
            lambda record: structs.replace(
                record, state=LedgerState.CLOSED, last_entry=8, length=length(8)
            ),
        )
        info = await client.ledgers.recover(LEDGER_ID)
        assert (info.last_entry, info.length) == (8, length(8))
        assert cluster.record(LEDGER_ID).last_entry == 8


async def test_a_repair_of_an_older_fragment_meanwhile_is_not_undone(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        last = Fragment(5, ["b1", "b2", "b3"])
        leave(
            cluster,
            dict.fromkeys(("b1", "b2", "b3"), range(10)),
            fragments=[Fragment(0, ["b1", "b2", "b4"]), last],
        )
        repaired = [Fragment(0, ["b1", "b2", "b3"]), last]
        Rival(cluster, lambda record: structs.replace(record, fragments=repaired))
        await client.ledgers.recover(LEDGER_ID)
        record = cluster.record(LEDGER_ID)
        assert (record.state, record.last_entry) == (LedgerState.CLOSED, 9)
        assert record.fragments == repaired


class Killer(trio.abc.Instrument):
    """Cancels a scope before the given step of the task that runs in it."""

    def __init__(self, step: int) -> None:
        self.scope = trio.CancelScope()
        self._task = trio.lowlevel.current_task()
        self._left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self.scope.cancel()


async def recover_and_die(client: Client, step: int) -> bool:
    """Recover, killed at the given step; return whether it was."""
    killer = Killer(step)
    trio.lowlevel.add_instrument(killer)
    try:
        with killer.scope:
            await client.ledgers.recover(LEDGER_ID)
    finally:
        trio.lowlevel.remove_instrument(killer)
    return killer.scope.cancelled_caught


async def test_a_recovery_killed_anywhere_is_finished_by_another(
    autojump_clock: MockClock,
) -> None:
    """TB-43: killed before each of its steps, and taken up by a second client."""
    killed, step = True, 0
    while killed:
        step += 1
        async with memory_cluster(4, seed=step) as cluster:
            leave(cluster, {"b1": range(30), "b2": range(25), "b3": ()}, confirmed=9)
            cluster.bookies["b2"].delay_s = jitter(cluster.chance, 0.01)
            async with cluster.client() as first:
                killed = await recover_and_die(first, step)
            async with cluster.client() as second:
                info = await second.ledgers.recover(LEDGER_ID)
            assert (info.last_entry, info.length) == (29, length(29))
    assert step > 10


# --- a writer that is still busy -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("event", ["close", "ensemble change"])
async def test_a_busy_writer_and_a_recovery_agree_on_what_is_in_the_ledger(
    autojump_clock: MockClock, seed: int, event: str
) -> None:
    """BK-06, BK-07: the writer closes, or loses a bookie, while another client recovers."""
    chance = random.Random(seed)
    async with memory_cluster(5, seed=seed) as cluster, cluster.client() as theirs:
        for bookie in cluster.bookies.values():
            bookie.delay_s = jitter(chance, 0.02)
        writer = Busy(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            await trio.sleep(0.3)
            if event == "close":
                writer.stop.set()
            else:
                cluster.kill(cluster.record(1).fragments[-1].bookies[chance.randrange(3)])
            await trio.sleep(chance.random() * 0.1)
            info = await theirs.ledgers.recover(1)
            writer.stop.set()
        kept = [b"%d" % number for number in range(info.last_entry + 1)]
        assert info.state is LedgerState.CLOSED
        assert writer.acknowledged <= len(kept)
        async with theirs.ledgers.open(1) as reader:
            assert [entry.payload async for entry in reader.follow(0)] == kept


class Busy:
    """A writer of numbered entries, until it fails or is stopped."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.acknowledged = 0
        self.stop = trio.Event()
        self._cluster = cluster

    async def run(self) -> None:
        with suppress(LedgerError):
            async with self._cluster.client() as client, client.ledgers.create(3, 3, 2) as ledger:
                while not self.stop.is_set():
                    await ledger.append(b"%d" % self.acknowledged)
                    self.acknowledged += 1

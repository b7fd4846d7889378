"""The store agrees with a dict, whatever happens to it, and with many threads."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from run_seed import drawn
from stores import MIB, StoreRig, entries, framed

from native.errors import Full

SEEDS = [*drawn(range(5)), *(pytest.param(n, marks=pytest.mark.slow) for n in drawn(range(5, 40)))]

# --- threads ------------------------------------------------------------------------------


def reader(rig: StoreRig, stop: threading.Event, errors: list[object], seed: int) -> None:
    chance = random.Random(seed)
    while not stop.is_set():
        ledger_id = chance.randrange(4)
        entry_id = chance.randrange(rig.store.last(ledger_id) + 1)
        if rig.read(ledger_id, entry_id) != entries(ledger_id, [entry_id])[entry_id]:
            errors.append((ledger_id, entry_id))
        count, data = rig.store.read_run(ledger_id, entry_id, count_max=100)
        expected = entries(ledger_id, range(entry_id, entry_id + count))
        if data != framed(expected.values()):
            errors.append((ledger_id, entry_id, count))


def test_readers_see_every_entry_while_logs_are_flushed_compacted_and_deleted(
    tmp_path: Path,
) -> None:
    rig = StoreRig(tmp_path / "ledgers", log_size_max=100_000)
    rig.flush({i: entries(i, range(100)) for i in range(4)})
    stop = threading.Event()
    errors: list[object] = []
    threads = [threading.Thread(target=reader, args=(rig, stop, errors, i)) for i in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(1, 25):
            rig.flush({i: entries(i, range(turn * 100, turn * 100 + 100)) for i in range(4)})
            closed = [log.log_id for log in rig.store.logs() if not log.open]
            if closed:
                rig.store.compact(closed[turn % len(closed)])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert rig.damage() == []
    rig.check()
    rig.close()


# --- agreement with a dict ----------------------------------------------------------------


class Chance:
    """Random operations on a store and its model."""

    def __init__(self, rig: StoreRig, seed: int) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        self.deleted: set[int] = set()
        self.tag = 0

    def ids(self) -> list[int]:
        start = self.random.choice([0, self.random.randrange(300), 10**9])
        step = self.random.choice([1, 1, 1, 2, 3, 8, 9, 50])
        count = self.random.choice([1, 2, 6, 20, 60])
        ids = range(start, start + step * count, step)
        return [i for i in ids if self.random.random() < self.random.choice([1, 1, 0.8])] or [start]

    def flush(self) -> None:
        self.tag += 1
        ledgers = self.random.sample(range(12), self.random.randrange(1, 5))
        self.rig.flush(
            {
                i: entries(i, self.ids(), self.random.randrange(1, 300), str(self.tag))
                for i in ledgers
                if i not in self.deleted
            },
            salt=self.random.randrange(1 << 32),
        )

    def delete(self) -> None:
        if self.rig.model and self.random.random() < 0.3:
            victim = self.random.choice(sorted(self.rig.model))
            del self.rig.model[victim]
            self.deleted.add(victim)  # an id is never used again
            self.rig.store.delete_ledger(victim)

    def compact(self) -> None:
        closed = [log for log in self.rig.store.logs() if not log.open]
        for log in self.random.sample(closed, min(2, len(closed))):
            self.rig.store.compact(log.log_id)

    def sweep(self) -> None:
        for log in self.rig.store.logs():
            if log.live == 0 and not log.open:
                self.rig.store.delete_log(log.log_id)
            else:
                with pytest.raises(Full):
                    self.rig.store.delete_log(log.log_id)

    def reopen(self) -> None:
        self.rig.reopen()
        for row in self.rig.store.ledgers():
            if row.ledger_id not in self.rig.model:
                self.rig.store.delete_ledger(row.ledger_id)

    def rebuild(self) -> None:
        self.rig.store.close()
        indexes = sorted(self.rig.folder.glob("*.index"))
        if indexes:
            self.random.choice(indexes).unlink()
        self.reopen()
        assert len(self.rig.damage()) == bool(indexes)

    def step(self) -> None:
        action = self.random.choices(
            [self.flush, self.delete, self.compact, self.sweep, self.reopen, self.rebuild,
             self.rig.roll],
            [10, 2, 3, 1, 2, 1, 2],
        )[0]  # fmt: skip
        action()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_agrees_with_a_dict(tmp_path: Path, seed: int) -> None:
    rig = StoreRig(
        tmp_path / "ledgers",
        log_size_max=random.Random(seed).choice([20_000, 100_000, 10**7]),
        index_cache_size=random.Random(seed).choice([0, 5000, MIB]),
    )
    chance = Chance(rig, seed)
    for _ in range(30):
        chance.step()
        rig.check()
        assert rig.damage() == []
    rig.close()

"""Crashes at every write and sync, and between any two steps of a checkpoint.

A script of adds, repeated adds, fences, explicit LACs, checkpoints, deletions, returns of
deleted ledgers and compactions runs until a fault stops it, or until the folders are copied
as a crash would leave them. A bookie that starts on what is left must hold all that was
acknowledged, and nothing that was not sent.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import MIB, Bookie
from wire import KEY, add, add_responses, stored_entry, write_lac

from native.faults import clear_fault, plan_fault
from native.mark import Mark

SITES = [
    f"{file}_{call}" for file in ("journal", "log", "index", "table") for call in ("write", "sync")
]
RECOVERY = 2
WRITE_LAC = 65


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    yield
    clear_fault()


class Promises:
    """What was sent to a bookie, and what it acknowledged."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int], bytes] = {}
        self.entries: set[tuple[int, int]] = set()
        self.fenced: set[int] = set()
        self.asked_to_fence: set[int] = set()
        self.lacs: dict[int, int] = {}
        self.deleted: set[int] = set()

    def copy(self) -> Promises:
        other = Promises()
        other.sent = dict(self.sent)
        other.entries = set(self.entries)
        other.fenced = set(self.fenced)
        other.asked_to_fence = set(self.asked_to_fence)
        other.lacs = dict(self.lacs)
        other.deleted = set(self.deleted)
        return other

    def hear(self, data: bytes) -> None:
        """Take responses in."""
        for response in add_responses(data):
            if response.opcode == WRITE_LAC:
                assert response.code == 0
                self.lacs[response.ledger_id] = max(
                    response.last, self.lacs.get(response.ledger_id, -1)
                )
            elif response.code == 0:
                self.entries.add((response.ledger_id, response.last))

    def forget(self, ledger_id: int) -> None:
        """Its entries may go now; the next checkpoint makes that last."""
        self.entries = {place for place in self.entries if place[0] != ledger_id}
        self.fenced.discard(ledger_id)
        self.deleted.add(ledger_id)

    def check(self, bookie: Bookie) -> None:
        """Assert that *bookie* keeps what was promised and holds nothing else."""
        for ledger_id, entry_id in self.sent:
            code, entry = bookie.read(ledger_id, entry_id)
            if (ledger_id, entry_id) in self.entries or code == 0:
                assert entry == self.sent[ledger_id, entry_id], (ledger_id, entry_id, code)
            else:
                assert code in (1, 2), (ledger_id, entry_id, code)
        for state in bookie.engine.ledgers():
            assert (state.ledger_id, state.last_entry + 1) not in self.entries
            assert state.last_entry == -1 or (state.ledger_id, state.last_entry) in self.sent
            assert state.key == KEY
            assert state.fenced <= (state.ledger_id in self.asked_to_fence | self.deleted)
        for ledger_id in self.fenced:
            fenced = bookie.engine.ledger(ledger_id)
            assert fenced is not None
            assert fenced.fenced, ledger_id
        for ledger_id, lac in self.lacs.items():
            told = bookie.engine.ledger(ledger_id)
            assert told is not None
            assert told.explicit_lac >= lac


class Script:
    """A bookie's work, a step at a time; the same for a seed."""

    def __init__(self, bookie: Bookie, seed: int, on_step: Callable[[], None]) -> None:
        self.bookie = bookie
        self.promises = Promises()
        self._random = random.Random(seed)
        self._on_step = on_step

    def run(self, rounds: int) -> None:
        """Raises OSError at the fault."""
        for turn in range(rounds):
            self._feed(turn)
            if turn % 3 == 1:
                self._fence(turn)
            self._commit()
            if turn % 2 == 1:
                self._checkpoint()
            if turn % 4 == 3:
                self._collect(turn - 1)

    def _feed(self, turn: int) -> None:
        frames = b""
        for ledger_id in (turn + 1, 100 + turn % 4):
            first = self._random.randrange(3) + 3 * turn
            for entry_id in range(first, first + 4):
                payload = bytes([turn % 256, entry_id % 256]) * self._random.choice((5, 900, 9000))
                sent = self.promises.sent
                sent.setdefault((ledger_id, entry_id), stored_entry(ledger_id, entry_id, payload))
                frames += add(ledger_id, entry_id, sent[ledger_id, entry_id][32:], flags=RECOVERY)
            frames += write_lac(200 + turn % 3, turn, turn)
        self.bookie.send(frames)
        self._on_step()

    def _fence(self, turn: int) -> None:
        ledger_id = self._random.choice((turn, turn + 1, 300 + turn))
        self.promises.asked_to_fence.add(ledger_id)
        ticket = self.bookie.engine.fence(ledger_id, KEY)
        self._commit()
        assert self.bookie.engine.synced() >= ticket
        self.promises.fenced.add(ledger_id)

    def _commit(self) -> None:
        while self.bookie.engine.commit():
            self._on_step()
        self.promises.hear(self.bookie.connection.take())
        self._on_step()

    def _collect(self, ledger_id: int) -> None:
        """Delete a ledger and compact, as bookie/garbage.py does."""
        store = self.bookie.engine.store
        self.promises.forget(ledger_id)
        self.bookie.engine.delete_ledger(ledger_id, 1000)
        self._on_step()
        if self._random.random() < 0.5:
            self._bring_back(ledger_id)
        self._checkpoint()  # with nothing in memory, and perhaps a journal file not begun
        if self.bookie.mark is not None:
            rolled = store.roll(self.bookie.mark)
            self._on_step()
            self.bookie.mark = rolled
            self._on_step()
            self.bookie.engine.trim(rolled, 0)
        for log in store.logs():
            self._on_step()
            store.compact(log.log_id)
        self._bring_back(ledger_id)

    def _bring_back(self, ledger_id: int) -> None:
        """Add some entries of a deleted ledger again, as repair does; it is fenced then."""
        places = sorted(place for place in self.promises.sent if place[0] == ledger_id)
        for place in places[:: self._random.choice((1, 2))]:
            entry = self.promises.sent[place]
            self.bookie.send(add(*place, entry[32:], flags=RECOVERY))
        self._on_step()
        self._commit()
        if any(place in self.promises.entries for place in places):
            self.promises.fenced.add(ledger_id)

    def _checkpoint(self) -> None:
        """A checkpoint as bookie/storage.py takes it, with a look between its steps."""
        self.bookie.engine.seal()
        self._on_step()
        mark = self.bookie.engine.flush()
        self._on_step()
        if mark is not None:
            self.bookie.mark = mark
            self._on_step()
            self.bookie.engine.trim(mark, 0)
            self._on_step()


def small(folder: Path, mark: Mark | None = None) -> Bookie:
    """A bookie that rolls journal and log often."""
    return Bookie(folder, journal_size_max=16384, log_size_max=40_000, mark=mark)


def again(bookie: Bookie, promises: Promises) -> None:
    """Start on what a crash left, twice, then with everything flushed."""
    bookie.crash()
    assert bookie.recovery.damages == 0
    promises.check(bookie)
    bookie.crash()
    promises.check(bookie)
    bookie.checkpoint()
    promises.check(bookie)
    bookie.crash()
    assert bookie.recovery.replayed_records == 0
    promises.check(bookie)
    assert bookie.engine.store.take_damage() == []


def is_stopped(folder: Path, site: str, nth: int) -> bool:
    """Whether the script meets the fault; what it leaves is sound either way."""
    bookie = small(folder)
    script = Script(bookie, nth, lambda: None)
    plan_fault(site, nth, errno.EIO, 1000)
    try:
        script.run(6)
        stopped = False
    except OSError as error:
        assert error.errno == errno.EIO
        stopped = True
    clear_fault()
    # What was synced before the fault may have been heard of since.
    script.promises.hear(bookie.connection.take())
    again(bookie, script.promises)
    bookie.close()
    shutil.rmtree(folder)
    return stopped


@pytest.mark.parametrize("site", SITES)
def test_a_fault_at_any_call_loses_nothing_that_was_acknowledged(tmp_path: Path, site: str) -> None:
    nth = 1
    while is_stopped(tmp_path / "bookie", site, nth):
        nth += 1
    assert nth > 3


@pytest.mark.parametrize("site", SITES)
def test_a_fault_at_any_call_of_a_start_leaves_it_to_the_next_one(
    tmp_path: Path, site: str
) -> None:
    """The journal is larger than the memtable by now, so the start flushes too."""
    bookie = Bookie(tmp_path)
    for entry_id in range(21):
        bookie.add(entry_id % 2, entry_id, bytes([entry_id]) * MIB)
    bookie.engine.fence(1, KEY)
    bookie.engine.commit()
    bookie.connection.close()
    bookie.engine.close()
    bookie.memtable_size = 10 * MIB
    nth, started = 1, False
    while not started:
        plan_fault(site, nth, errno.EIO, 1000)
        try:
            bookie.engine, bookie.recovery = bookie._open()
            started = True
        except OSError as error:
            assert error.errno == errno.EIO
            nth += 1
        clear_fault()
    bookie.connection = bookie.engine.connect(1)
    assert nth > 1
    assert bookie.recovery.damages == 0
    for _ in range(2):
        for entry_id in range(21):
            assert bookie.payload(entry_id % 2, entry_id)[:1] == bytes([entry_id])
        state = bookie.engine.ledger(1)
        assert state is not None
        assert state.fenced
        bookie.checkpoint()
        bookie.crash()
    assert bookie.engine.store.take_damage() == []
    bookie.close()


def test_a_crash_between_any_two_steps_loses_nothing(tmp_path: Path) -> None:
    crashes: list[tuple[Path, Mark | None, Promises]] = []

    def copy() -> None:
        to = tmp_path / f"crash{len(crashes)}"
        shutil.copytree(tmp_path / "live", to)
        crashes.append((to, bookie.mark, script.promises.copy()))

    bookie = small(tmp_path / "live")
    script = Script(bookie, 1, copy)
    script.run(8)
    bookie.close()
    assert len(crashes) > 50
    for folder, mark, promises in crashes:
        crashed = small(folder, mark)
        promises.check(crashed)
        again(crashed, promises)
        crashed.close()

"""Ids used again in any order with flushes, crashes, compaction and rebuilt indexes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import Bookie
from wire import add, add_responses

from native import frame
from native.errors import Full
from native.frame import Code, Flag

LEDGERS = (1, 2, 3)
STEPS = 60
LOG_SIZE = 64 << 10


class Ledger:
    """What a bookie must know of one."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.entries: dict[int, bytes] = {}
        self.deleted = False

    @property
    def last(self) -> int:
        return max(self.entries, default=-1)


class Model:
    """A bookie, what it must know, and steps at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._bookie = Bookie(folder, log_size_max=LOG_SIZE)
        self._chance = random.Random(seed)
        self._ledgers: dict[int, Ledger] = {}

    def run(self) -> None:
        steps: list[Callable[[int], None]] = [
            self._add,
            self._add,
            self._renew,
            self._delete,
            self._repeat,
            lambda _: self._bookie.checkpoint(),
            lambda _: self._bookie.crash(),
            lambda _: self._bookie.drop_dead_logs(),
            self._compact,
            self._reindex,
        ]
        for _ in range(STEPS):
            self._chance.choice(steps)(self._chance.choice(LEDGERS))
            for ledger_id, ledger in self._ledgers.items():
                self._check(ledger_id, ledger)
        self._bookie.close()

    def _codes(self, *frames: bytes) -> list[int]:
        self._bookie.send(b"".join(frames))
        while self._bookie.engine.commit():
            pass
        return [each.code for each in add_responses(self._bookie.connection.take())]

    def _add(self, ledger_id: int) -> None:
        fresh = Ledger(self._chance.getrandbits(63) or 1)
        ledger = self._ledgers.setdefault(ledger_id, fresh)
        if ledger.deleted:
            return
        first = ledger.last + 1 + self._chance.choice((0, 0, 2))
        added = {
            first + i: self._chance.randbytes(self._chance.choice((1, 10, 3000)))
            for i in range(self._chance.randrange(1, 5))
        }
        frames = [add(ledger_id, entry_id, payload) for entry_id, payload in added.items()]
        said = frame.incarnation(ledger_id, ledger.incarnation)
        assert self._codes(said, *frames) == [0] * len(frames)
        ledger.entries |= added

    def _renew(self, ledger_id: int) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return
        fresh = Ledger(self._chance.getrandbits(63) or 1)
        try:
            renewed = self._bookie.engine.renew_ledger(
                ledger_id, ledger.incarnation, fresh.incarnation
            )
        except Full:
            return
        assert renewed
        self._codes()
        self._ledgers[ledger_id] = fresh

    def _delete(self, ledger_id: int) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None and not ledger.deleted:
            self._bookie.engine.delete_ledger(ledger_id, 1000, ledger.incarnation)
            self._codes()
            ledger.deleted, ledger.entries = True, {}

    def _repeat(self, ledger_id: int) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or not ledger.entries:
            return
        entry_id = self._chance.choice(list(ledger.entries))
        payload = ledger.entries[entry_id]
        codes = self._codes(
            frame.incarnation(ledger_id, ledger.incarnation),
            add(ledger_id, entry_id, payload + b"!", flags=Flag.RECOVERY),
            add(ledger_id, entry_id, payload, flags=Flag.RECOVERY),
        )
        assert codes == [Code.BAD_REQUEST, Code.OK]

    def _compact(self, _: int) -> None:
        self._bookie.checkpoint()
        self._bookie.roll()
        for log in self._bookie.engine.store.logs():
            if self._chance.random() < 0.6:
                self._bookie.engine.store.compact(log.log_id)

    def _reindex(self, _: int) -> None:
        for path in sorted(self._bookie.ledger_folder.glob("*.index")):
            if self._chance.random() < 0.6:
                path.unlink()
        self._bookie.crash()

    def _check(self, ledger_id: int, ledger: Ledger) -> None:
        state = self._bookie.engine.ledger(ledger_id)
        assert state is not None
        assert (state.incarnation, state.deleted) == (ledger.incarnation, ledger.deleted)
        assert state.deleted or state.last_entry == ledger.last
        assert state.deleted or not state.fenced
        for entry_id in range(ledger.last + 6):
            code, entry = self._bookie.read(ledger_id, entry_id)
            found = entry[32:] if code == Code.OK else None
            assert found == ledger.entries.get(entry_id), (ledger_id, entry_id, code)


@pytest.mark.parametrize("seed", range(6))
def test_any_history_shows_the_ledgers_of_today_alone(tmp_path: Path, seed: int) -> None:
    Model(tmp_path, seed).run()

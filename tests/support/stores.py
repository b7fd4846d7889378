"""Stores over a temporary folder, with the mark and a model of what they hold."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from wire import stored_entry

from native.errors import Absent, Corrupt
from native.mark import Mark
from native.store import Damage, Store

MIB = 1 << 20
NO_MARK = Mark(0, 0, 0, 0, 0, 0, 0, 0)


def entries(ledger_id: int, ids: Iterable[int], size: int = 30, tag: str = "") -> dict[int, bytes]:
    """Stored entries with payloads of about *size* bytes that tell who they are."""
    return {
        i: stored_entry(ledger_id, i, f"{ledger_id}:{i}:{tag}:".encode().ljust(size, b"."))
        for i in ids
    }


def framed(bodies: Iterable[bytes]) -> bytes:
    """Return the bodies as a run: each behind its size."""
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


class StoreRig:
    """A store, where it stood at its last checkpoint, and what it should hold."""

    def __init__(
        self, folder: Path, *, log_size_max: int = 256 * MIB, index_cache_size: int = MIB
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.log_size_max = log_size_max
        self.index_cache_size = index_cache_size
        self.mark = NO_MARK
        self.model: dict[int, dict[int, bytes]] = {}
        self.store = self._open(None)

    def _open(self, mark: Mark | None) -> Store:
        return Store.open(self.folder, mark, self.log_size_max, self.index_cache_size)

    def flush(self, ledgers: Mapping[int, Mapping[int, bytes]], *, salt: int = 0) -> None:
        self.mark = self.store.flush(ledgers, self.mark, salt=salt)
        self.store.marked(self.mark)
        for ledger_id, more in ledgers.items():
            self.model.setdefault(ledger_id, {}).update(more)

    def roll(self) -> None:
        self.mark = self.store.roll(self.mark)
        self.store.marked(self.mark)

    def reopen(self, mark: Mark | None = None) -> None:
        self.store.close()
        self.store = self._open(mark or self.mark)

    def save(self, to: Path) -> None:
        """Copy the folder, as a crash at this moment would leave it."""
        shutil.copytree(self.folder, to)

    def restore(self, saved: Path, mark: Mark) -> None:
        """Put the files of *saved* in place, and leave the store closed."""
        self.store.close()
        shutil.rmtree(self.folder)
        shutil.copytree(saved, self.folder)
        self.mark = mark

    def close(self) -> None:
        self.store.close()

    def path(self, name: str) -> Path:
        return self.folder / name

    def read(self, ledger_id: int, entry_id: int) -> bytes | type[Exception]:
        """Return the entry, or the type of what was raised instead."""
        try:
            return self.store.read(ledger_id, entry_id)
        except (Absent, Corrupt) as error:
            return type(error)

    def check(self) -> None:
        """Assert that the store holds exactly the model."""
        for ledger_id, held in self.model.items():
            assert {i: self.read(ledger_id, i) for i in held} == held
            assert self.store.last(ledger_id) == max(held)
            for run in runs(held):
                assert self.read_run(ledger_id, run[0]) == framed(held[i] for i in run)
                if run[-1] + 1 not in held:
                    assert self.read(ledger_id, run[-1] + 1) is Absent
        listed = self.store.ledgers(count=len(self.model) + 1)
        assert [row.ledger_id for row in listed] == sorted(self.model)

    def check_damaged(self) -> int:
        """Assert that every entry is right or Corrupt; return how many are Corrupt."""
        corrupt = 0
        for ledger_id, held in self.model.items():
            for entry_id, body in held.items():
                got = self.read(ledger_id, entry_id)
                assert got == body or got is Corrupt, (ledger_id, entry_id, got)
                corrupt += got is Corrupt
            self.check_damaged_runs(ledger_id, held)
        return corrupt

    def check_damaged_runs(self, ledger_id: int, held: Mapping[int, bytes]) -> None:
        for run in runs(held):
            at = 0
            while at < len(run):
                try:
                    count, data = self.store.read_run(ledger_id, run[at])
                except Corrupt:
                    at += 1
                    continue
                assert data == framed(held[i] for i in run[at : at + count])
                assert count > 0
                at += count

    def read_run(self, ledger_id: int, start: int, size_max: int = 1 << 17) -> bytes:
        """Read from *start* to the next gap, in as many calls as it takes."""
        data = b""
        while True:
            try:
                count, more = self.store.read_run(ledger_id, start, size_max=size_max)
            except Absent:
                return data
            if count == 0:
                size_max *= 2
            data += more
            start += count

    def damage(self) -> list[Damage]:
        return self.store.take_damage()


def runs(held: Mapping[int, bytes]) -> list[list[int]]:
    """Return the ids of *held* in runs without a gap."""
    found: list[list[int]] = []
    for i in sorted(held):
        if found and found[-1][-1] == i - 1:
            found[-1].append(i)
        else:
            found.append([i])
    return found

"""Starting again: what the journal holds beyond the mark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import MIB, Bookie


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    bookie.close()


@pytest.mark.parametrize("size", [0, 4095, 4096])
def test_the_journal_file_of_the_mark_was_cut_short(bookie: Bookie, size: int) -> None:
    """It was whole up to the mark once, so this is not a file that was being begun."""
    bookie.add(1, 0, b"flushed")
    bookie.checkpoint()
    bookie.add(1, 1, b"in the journal only")
    bookie.connection.close()
    bookie.engine.close()
    (path,) = bookie.journal_folder.glob("*.journal")
    path.write_bytes(path.read_bytes()[:size])
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert bookie.recovery.limbo
    assert path in [damage.path for damage in bookie.engine.store.take_damage()]
    assert bookie.payload(1, 0) == b"flushed"


@pytest.mark.parametrize("memtable_size", [20 * MIB, 64 * MIB])
def test_entries_larger_than_a_piece_of_the_file_are_replayed(
    tmp_path: Path, memtable_size: int
) -> None:
    """Entries of all sizes that are taken come back after a crash."""
    sizes = [MIB - 100, MIB, 2 * MIB + 1, 1, 3 * MIB, 5 * MIB - 80, 100, 4 * MIB, 5 * MIB - 81]
    payloads = [bytes([i]) * size for i, size in enumerate(sizes)]
    bookie = Bookie(tmp_path, memtable_size=64 * MIB, journal_size_max=200 * MIB)
    for i, payload in enumerate(payloads):
        bookie.add(1, i, payload)
    bookie.memtable_size = memtable_size
    bookie.crash()
    assert bookie.recovery.damages == 0
    assert all(bookie.payload(1, i) == payload for i, payload in enumerate(payloads))
    bookie.close()

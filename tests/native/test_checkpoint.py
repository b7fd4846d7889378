"""Checkpoints: from the memtable to logs, index and table, and the mark that follows."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import Bookie
from wire import KEY, add

from native.faults import clear_fault, plan_fault


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    clear_fault()
    bookie.close()


@pytest.mark.parametrize("site", ["log_write", "index_sync", "table_write", "table_sync"])
def test_after_a_failed_flush_no_other_moves_the_mark(bookie: Bookie, site: str) -> None:
    """What the failed one had taken from memory, a later one would not write."""
    bookie.add(1, 0, b"one")
    bookie.engine.fence(1, KEY)
    bookie.engine.commit()
    assert bookie.engine.seal()
    plan_fault(site, 1, errno.EIO)
    for _ in range(2):
        with pytest.raises(OSError, match="flushing the memtable") as failure:
            bookie.engine.flush()
        assert failure.value.errno == errno.EIO
    bookie.crash()
    bookie.checkpoint()
    bookie.crash()
    assert bookie.payload(1, 0) == b"one"
    state = bookie.engine.ledger(1)
    assert state is not None
    assert state.fenced
    bookie.send(add(1, 1, b"late"))
    bookie.engine.commit()
    assert bookie.read(1, 1)[0] == 2

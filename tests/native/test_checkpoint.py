"""Checkpoints: from the memtable to logs, index and table, and the mark that follows."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from engines import MIB, Bookie
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


def test_a_flush_without_memory_loses_nothing(tmp_path: Path) -> None:
    """Some of its logs may be visible, and compacted; what they lack is still in the memtable."""
    visible: set[int] = set()
    for nth in range(1, 60):
        bookie = Bookie(tmp_path / str(nth), log_size_max=MIB // 4)
        for ledger_id in range(1, 30):
            for entry_id in range(4):
                bookie.add(ledger_id, entry_id, payload(ledger_id, entry_id))
        assert bookie.engine.seal()
        plan_fault("array", nth)
        try:
            with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
                bookie.flush_sealed()
        finally:
            clear_fault()
        logs = bookie.engine.store.logs()
        visible.add(len(logs))
        check_all(bookie)
        for log in logs:
            with suppress(OSError):  # it is open still
                bookie.engine.store.compact(log.log_id)
        check_all(bookie)
        bookie.crash()
        check_all(bookie)
        bookie.close()
    assert len(visible) > 3


def payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d." % (ledger_id, entry_id) * 4000


def check_all(bookie: Bookie) -> None:
    for ledger_id in range(1, 30):
        assert bookie.engine.runs(ledger_id) == [(0, 3)]
        for entry_id in range(4):
            assert bookie.payload(ledger_id, entry_id) == payload(ledger_id, entry_id)

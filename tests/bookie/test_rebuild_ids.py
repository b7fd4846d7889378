"""Rebuilds of bookies with ledgers whose ids were used before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import rig
import v2
from engines import Bookie

from bookie.mark import read_mark, write_mark
from bookie.rebuild import rebuild
from native.frame import Flag, incarnation

LEDGER = 3
FLUSHED = 5
ENTRIES = 8
YEAR_MS = 365 * 86_400_000


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bookie:
    """With a ledger that was deleted; its journals are all kept."""
    monkeypatch.setattr(Bookie, "flush_sealed", keep_journals)
    filled = Bookie(tmp_path)
    add(filled, range(3), b"old")
    filled.checkpoint()
    filled.engine.delete_ledger(LEDGER, YEAR_MS)
    filled.engine.commit()
    return filled


def keep_journals(bookie: Bookie) -> None:
    mark = bookie.engine.flush()
    if mark is not None:
        bookie.mark = mark
        bookie.engine.trim(mark, 10)


def add(bookie: Bookie, entries: Iterable[int], prefix: bytes, flags: int = 0) -> None:
    bookie.send(b"".join(v2.add(LEDGER, i, prefix + b"%d" % i, flags=flags) for i in entries))
    bookie.engine.commit()


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("how", ["recovered", "renewed"])
def test_a_ledger_whose_id_was_deleted_before_has_all_its_entries_after_a_rebuild(
    filled: Bookie, how: str, is_flushed: bool
) -> None:
    """The journal tells of the deletion, too; the ledger table of the last mark may not."""
    flags = Flag.RECOVERY if how == "recovered" else 0
    if is_flushed:
        filled.checkpoint()
    if how == "renewed":
        assert filled.engine.renew_ledger(LEDGER, 0, 78)
        filled.engine.commit()
        filled.send(incarnation(LEDGER, 78))
    add(filled, range(FLUSHED), b"new", flags)
    filled.checkpoint()
    add(filled, range(FLUSHED, ENTRIES), b"new", flags)
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    folder = filled.ledger_folder.parent
    assert not rebuild(rig.settings(folder), lambda _step: None).limbo
    found = Bookie(folder, mark=read_mark(filled.ledger_folder))
    for entry_id in range(ENTRIES):
        assert found.read(LEDGER, entry_id)[1].endswith(b"new%d" % entry_id)
    found.close()

"""First blocks of files that the disk cannot read: what the operator hears, and a rebuild."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import rig
import v2
from engines import Bookie

from bookie.config import BookieConfig
from bookie.errors import BookieError
from bookie.mark import write_mark
from bookie.storage import Storage
from native.faults import clear_fault, plan_fault

LEDGER = 3
FLUSHED = 20
ENTRIES = 40


@pytest.fixture(autouse=True)
def faultless() -> Iterator[None]:
    yield
    clear_fault()


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    """Of a bookie with entries in a log, and later ones in the journal only."""
    filled = Bookie(tmp_path)
    for first, end in ((0, FLUSHED), (FLUSHED, ENTRIES)):
        filled.send(b"".join(v2.add(LEDGER, i, payload(i)) for i in range(first, end)))
        filled.engine.commit()
        if first == 0:
            filled.checkpoint()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    return rig.settings(tmp_path)


def payload(entry_id: int) -> bytes:
    return b"payload %d" % entry_id * 20


UNREADABLE = {
    "journal_read": "journal/*.journal",
    "log_read": "ledgers/*.log",
    "index_read": "ledgers/*.index",
}


@pytest.mark.parametrize("site", UNREADABLE)
async def test_a_start_names_the_file_that_cannot_be_read_and_what_to_do(
    tmp_path: Path, config: BookieConfig, site: str
) -> None:
    (path,) = tmp_path.glob(UNREADABLE[site])
    plan_fault(site, 1)
    with pytest.raises(BookieError, match=r"ddrescue.*`bookie rebuild-index`") as refused:
        await Storage.open(config, threaded=False)
    assert str(refused.value).startswith(f"{path}: the disk cannot read it")
    clear_fault()
    storage = await Storage.open(config, threaded=False)
    assert not storage.limbo.is_on
    assert storage.engine.store.read(LEDGER, 0) == v2.entry(LEDGER, 0, payload(0))
    await storage.stop()

"""Pages of a journal and of indexes, as a running bookie gives them."""

from __future__ import annotations

from pathlib import Path

import command as commands
import pytest

from bookie import inspecting
from bookie.errors import CallRefused
from bookie.inspecting import Inspector
from bookie.inspection.journal import MISSING_MAX, list_journals, read_records
from bookie.inspection.log import list_logs, read_index
from metadata.inspections import (
    ExtentOnBookie,
    Indexes,
    IndexExtents,
    JournalRecords,
    RecordOnBookie,
)
from native.journal import GROUP, Record
from native.store import Extent


@pytest.fixture
def data(tmp_path: Path) -> Path:
    commands.fill(tmp_path)
    return tmp_path


@pytest.fixture
def inspector(data: Path) -> Inspector:
    return Inspector(data / "journal", data / "ledgers")


def records_of(data: Path) -> list[RecordOnBookie]:
    (journal,) = list_journals(data / "journal")
    return [
        RecordOnBookie(each.offset, each.ledger_id, each.entry_id, len(each.body))
        for each in read_records(journal, groups=True)
        if isinstance(each, Record)
    ]


def paged(inspector: Inspector, file_id: int, **asked: object) -> tuple[list[RecordOnBookie], int]:
    found: list[RecordOnBookie] = []
    group = skip = pages = 0
    while True:
        page = inspector.journal_records(JournalRecords(file_id, group, skip, **asked))  # type: ignore[arg-type]
        pages += 1
        assert page.damages == []
        found += page.records
        group, skip = page.group, page.skip
        if page.end is not None:
            return found, pages


@pytest.mark.parametrize("count", [1, 2, 7, 4000])
def test_pages_of_any_size_give_every_record_once(
    inspector: Inspector, data: Path, count: int
) -> None:
    (row,) = inspector.journals().files
    expected = records_of(data)
    found, pages = paged(inspector, row.id, groups=True, count=count)
    assert found == expected
    assert pages >= len(expected) // count
    entries = [each for each in expected if each.entry_id != GROUP]
    assert paged(inspector, row.id, count=count)[0] == entries
    assert paged(inspector, row.id, ledger_id=999, count=count)[0] == []


def test_a_page_ends_when_enough_was_read_whatever_is_wanted(
    inspector: Inspector, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie does not read a whole file for one answer."""
    monkeypatch.setattr(inspecting, "SCAN_SIZE", 1)
    (row,) = inspector.journals().files
    found, pages = paged(inspector, row.id, groups=True)
    assert found == records_of(data)
    groups = [each for each in found if each.entry_id == GROUP]
    assert pages >= len(groups) > 1
    page = inspector.journal_records(JournalRecords(row.id, ledger_id=999))
    assert (page.records, page.end, page.group > 0) == ([], None, True)


def test_a_journal_file_that_is_needed_no_more_is_said_to_be_gone(
    inspector: Inspector, data: Path
) -> None:
    (row,) = inspector.journals().files
    (path,) = data.glob("journal/*.journal")
    path.unlink()
    with pytest.raises(CallRefused, match=f"journal file {row.id:016x} is not here"):
        inspector.journal_records(JournalRecords(row.id))
    assert inspector.journals().files == []


def test_a_damaged_record_is_named_with_its_offset(inspector: Inspector, data: Path) -> None:
    (path,) = data.glob("journal/*.journal")
    victim = next(each for each in records_of(data) if each.entry_id == 3)
    content = bytearray(path.read_bytes())
    content[victim.offset + 20] ^= 1
    path.write_bytes(content)
    (row,) = inspector.journals().files
    page = inspector.journal_records(JournalRecords(row.id))
    assert page.damages == [victim.offset]
    assert page.end is not None


@pytest.mark.parametrize("count", [1, 3])
def test_extents_come_in_pages_each_once(inspector: Inspector, data: Path, count: int) -> None:
    (log,) = list_logs(data / "ledgers")
    expected = [each for each in read_index(log) if isinstance(each, Extent)]
    found: list[ExtentOnBookie] = []
    after, is_last = -1, False
    while not is_last:
        page = inspector.extents(IndexExtents(log.file.id, after, count=count))
        found += page.extents
        after, is_last = page.after, page.is_last
    assert [each.offset for each in found] == [each.offset for each in expected]
    assert [each.entries for each in found] == [each.entries for each in expected]


def test_indexes_are_summed_up_and_a_log_that_goes_is_no_damage(
    inspector: Inspector, data: Path
) -> None:
    (row,) = inspector.indexes(Indexes()).indexes
    assert (row.entries > 0, row.damages) == (True, [])
    assert inspector.indexes(Indexes(row.log_id)).indexes == []
    (log,) = list_logs(data / "ledgers")
    log.index_path.unlink()
    (damaged,) = inspector.indexes(Indexes()).indexes
    assert damaged.damages == [0]
    log.file.path.unlink()
    assert list(read_index(log)) == []  # it was listed before it went
    assert inspector.indexes(Indexes()).indexes == []
    with pytest.raises(CallRefused, match="entry log 00000001 is not here"):
        inspector.extents(IndexExtents(log.file.id))


def test_a_stray_journal_of_any_id_costs_no_memory(inspector: Inspector, data: Path) -> None:
    (journal,) = list_journals(data / "journal")
    (data / "journal" / "7fffffffffffffff.journal").write_bytes(b"")
    found = inspector.journals()
    assert [each.id for each in found.files] == [journal.file.id, (1 << 63) - 1]
    assert found.missing == [journal.file.id + 1 + i for i in range(MISSING_MAX)]

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from bookie.disk_usage import BLOCK_SIZE, measure
from metadata.calls import FilesOnDisk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a bookie, with a file of each kind and another bookie's below."""
    for path, size in {
        "ledgers/00000001.log": 10_000,
        "ledgers/00000001.index": 64,
        "ledgers/00000002.dead": 5000,
        "ledgers/0000000000000001.table": 30,
        "ledgers/mark": 4096,
        "journal/0000000000000001.journal": 9000,
        "metadata.db": 4096,
        "metadata.db-wal": 100,
        "elsewhere/data": 100_000,
    }.items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * size)
    return tmp_path


def folders(folder: Path) -> list[Path]:
    return [folder, folder / "journal", folder / "ledgers"]


def files(folder: Path) -> dict[str, FilesOnDisk]:
    return {files.kind: files for files in measure(folders(folder))}


def blocks(paths: Iterator[Path]) -> int:
    return sum(path.stat().st_blocks * BLOCK_SIZE for path in paths)


def test_files_are_told_by_kind_and_folders_below_are_not_looked_at(folder: Path) -> None:
    found = files(folder)
    assert {kind: (each.count, each.size) for kind, each in found.items() if kind != "folder"} == {
        "log": (1, 10_000),
        "index": (1, 64),
        "deleted": (1, 5000),
        "table": (1, 30),
        "journal": (1, 9000),
        "metadata": (2, 4196),
        "other": (1, 4096),
    }
    assert found["folder"].count == 3


def test_the_sum_is_the_blocks_that_all_files_take(folder: Path) -> None:
    all_files = (path for root in folders(folder) for path in root.iterdir() if path.is_file())
    sizes = blocks(all_files) + blocks(iter(folders(folder)))
    assert sum(each.allocated for each in measure(folders(folder))) == sizes


def test_room_that_was_preallocated_counts_and_a_hole_does_not(tmp_path: Path) -> None:
    with (tmp_path / "1.journal").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    with (tmp_path / "1.log").open("wb") as file:
        file.truncate(1 << 20)
    found = {files.kind: files for files in measure([tmp_path])}
    assert found["journal"].allocated >= 1 << 20
    assert (found["log"].size, found["log"].allocated) == (1 << 20, 0)


def test_a_folder_that_is_named_twice_counts_once(folder: Path) -> None:
    assert measure([*folders(folder), folder]) == measure(folders(folder))


def test_a_file_that_goes_meanwhile_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def scan_early(path: Path) -> nullcontext[list[os.DirEntry[str]]]:
        found = list(scan(path))
        (folder / "ledgers" / "00000002.dead").unlink(missing_ok=True)
        return nullcontext(found)

    monkeypatch.setattr(os, "scandir", scan_early)
    assert "deleted" not in files(folder)

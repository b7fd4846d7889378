"""A bookie whose power is cut: of what was not synced anything may be lost, in any order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cut_check import check_cuts, live
from power_cut import Kind, Record, read
from run_seed import run_seed

from bookie.mark import read_mark

UNCOUNTED = (Kind.READ, Kind.NOTE)
LONG = pytest.mark.long


@pytest.mark.slow
# 1 is what mutants are killed by; QUIRE_SEED moves the other, which the search tries.
@pytest.mark.parametrize("seed", [1, pytest.param(2 + run_seed(), id="moved", marks=LONG)])
def test_a_power_cut_takes_nothing_that_was_promised(tmp_path: Path, seed: int) -> None:
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    live(root, trace, seed)
    assert check_cuts(trace, seed=seed, share=0.08) > 100


def test_what_is_left_of_a_log_that_is_removed_says_so_at_each_step(tmp_path: Path) -> None:
    """An index without a log, and a log without its index, mean damage; a dead log means none."""
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    live(root, trace, 1)
    folder = (root / "ledgers").stat().st_ino
    steps: list[str] = []
    for record in read(trace):
        if record.kind is Kind.SYNC and record.inode == folder:
            steps.append("sync")
        elif record.kind in (Kind.RENAME, Kind.UNLINK):
            steps.append(record.names[-1].removeprefix("ledgers/"))
    dead = [at for at, name in enumerate(steps) if name.endswith(".dead")]
    removed = dict.fromkeys(steps[at] for at in dead)
    assert len(removed) > 3
    for name in removed:
        first, last = (at for at in dead if steps[at] == name)
        index = steps.index(name.replace(".dead", ".index"), first)
        assert "sync" in steps[first:index]
        assert "sync" in steps[index:last]


def is_group(record: Record, name: str) -> bool:
    return record.kind is Kind.WRITE and name.endswith(".journal") and record.offset > 0


def is_mark(record: Record, _: str) -> bool:
    return record.kind is Kind.RENAME and record.names[1].endswith("lastMark")


def is_closing(record: Record, name: str) -> bool:
    return record.kind is Kind.WRITE and name.endswith(".log") and record.size == 4096


def places(records: list[Record], wanted: Callable[[Record, str], bool]) -> list[int]:
    """How many records a process makes up to each one that is wanted."""
    names: dict[int, str] = {}
    found: list[int] = []
    count = 0
    for record in records:
        count += record.kind not in UNCOUNTED
        if record.kind is Kind.CREATE:
            names[record.inode] = record.names[0]
        if wanted(record, names.get(record.inode, "")):
            found.append(count)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "share"),
    [
        pytest.param(is_mark, 0.02, id="is_mark", marks=pytest.mark.long),
        pytest.param(is_group, 0.05, id="is_group", marks=pytest.mark.long),
        pytest.param(is_closing, 0.05, id="is_closing", marks=pytest.mark.long),
    ],
)
def test_what_a_start_finds_unsynced_is_lost_by_no_later_power_cut(
    tmp_path: Path, wanted: Callable[[Record, str], bool], share: float
) -> None:
    """A process is killed between a write and its sync; the next one trusts what it reads."""
    root, trace = tmp_path / "whole", tmp_path / "whole.trace"
    root.mkdir()
    live(root, trace, 3)
    found = places(read(trace), wanted)
    assert len(found) > 3
    for kill in found[len(found) // 2 :: len(found) // 4 or 1]:
        root, trace = tmp_path / f"root{kill}", tmp_path / f"trace{kill}"
        root.mkdir()
        live(root, trace, 3, kill=kill)
        before = len(read(trace))
        live(root, trace, 4)
        assert check_cuts(trace, seed=kill, share=share, first=before) > 5


def is_open_mark(record: Record, name: str) -> bool:
    """A mark that names an open log is about to be put in place."""
    return name.endswith("lastMark.new") and b"\nlog_id 0\n" not in record.data


def test_a_start_takes_from_the_disk_what_no_mark_vouches_for(tmp_path: Path) -> None:
    """After a failed sync the page cache shows what never reached the disk, as if it had."""
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    live(root, trace, 5)
    kill = places(read(trace), is_open_mark)[4] + 5  # after its sync, rename and sync
    shutil.rmtree(root)
    root.mkdir()
    trace.unlink()
    live(root, trace, 5, kill=kill)
    mark = read_mark(root / "ledgers")
    assert mark is not None
    assert mark.log_id
    trusted = [root / "ledgers" / "lastMark", *(root / "ledgers").glob("*.table")]
    trusted += (root / "ledgers").glob(f"{mark.log_id:08x}.*")
    trusted.append(max((root / "journal").glob("*.journal")))
    assert len(trusted) == 5
    inodes = {path.stat().st_ino: path.name for path in trusted}
    live(root, tmp_path / "again", 6)
    done: dict[str, list[Kind]] = {name: [] for name in inodes.values()}
    for record in read(tmp_path / "again"):
        if record.inode in inodes:
            done[inodes[record.inode]].append(record.kind)
    for name, kinds in done.items():
        assert kinds[:3] == [Kind.SYNC, Kind.DROP, Kind.READ], name

"""A power cut takes what was not synced, in any order, and nothing else."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from engines import Bookie
from page_cache import CACHES, PAGE, PageCache, syncs_noted

from native.faults import syncs_heard

OLD, NEW = b"o" * PAGE, b"n" * PAGE
CUTS = range(40)


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def left(folder: Path, cut: int, *, synced: bool = False) -> dict[str, bytes]:
    """Return the files after a power cut, two of which are new, changed or renamed."""
    folder.mkdir()
    (folder / "pages").write_bytes(OLD * 3)
    (folder / "from").write_bytes(b"from")
    (folder / "over").write_bytes(b"over")
    cache = PageCache(folder)
    CACHES.append(cache)
    with syncs_noted():
        (folder / "inside").mkdir()
        (folder / "inside" / "made").write_bytes(b"made")
        (folder / "pages").write_bytes(NEW * 3)
        (folder / "from").rename(folder / "over")
        if synced:
            for path in (folder / "pages", folder / "inside" / "made", folder / "inside", folder):
                sync(path)
        cache.lose(random.Random(cut))
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_nothing_is_lost_that_was_synced(tmp_path: Path) -> None:
    whole = {"pages": NEW * 3, "inside/made": b"made", "over": b"from"}
    assert all(left(tmp_path / str(cut), cut, synced=True) == whole for cut in CUTS)


def test_pages_are_lost_in_any_order(tmp_path: Path) -> None:
    found = {left(tmp_path / str(cut), cut)["pages"] for cut in CUTS}
    assert {NEW + OLD * 2, OLD + NEW * 2, OLD * 3, NEW * 3} <= found


def test_a_rename_is_done_or_not(tmp_path: Path) -> None:
    found = [left(tmp_path / str(cut), cut) for cut in CUTS]
    names = {(each.get("from"), each.get("over")) for each in found}
    assert names == {(b"from", b"over"), (None, b"from")}


def test_a_file_is_lost_with_its_folder_or_its_content_alone(tmp_path: Path) -> None:
    made = {left(tmp_path / str(cut), cut).get("inside/made") for cut in CUTS}
    assert made == {None, b"", bytes(4), b"made"}


def test_a_removed_file_comes_back_as_it_was_synced(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    path.write_bytes(OLD)
    cache = PageCache(tmp_path)
    path.unlink()
    assert cache.lose(random.Random(1)) == 1
    assert path.read_bytes() == OLD


def test_the_core_tells_of_its_syncs(tmp_path: Path) -> None:
    heard: set[str] = set()
    with syncs_heard(lambda fd: heard.add(Path(f"/proc/self/fd/{fd}").readlink().suffix)):
        bookie = Bookie(tmp_path)
        bookie.add(1, 0, b"hello")
        bookie.close()
    assert {"", ".journal"} <= heard


def test_what_goes_wrong_while_a_sync_is_noted_is_raised(tmp_path: Path) -> None:
    def fail(_fd: int) -> None:
        raise KeyError("page")

    with pytest.raises(KeyError, match="page"), syncs_heard(fail):
        Bookie(tmp_path).close()

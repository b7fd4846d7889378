from __future__ import annotations

import io
from pathlib import Path

import pytest
import rig
from command import Command

from bookie.cookie_file import read_cookie
from bookie.lock import hold_folders
from metadata.outcome import Exit


def test_format_makes_a_bookie(command: Command, tmp_path: Path) -> None:
    told = command("format", "--data", tmp_path, "--bookie-id", "b7", "--json")
    assert told.code == Exit.DONE
    assert told.json[0]["bookie_id"] == "b7"
    assert read_cookie(tmp_path / "journal").complete


def test_format_leaves_a_bookie_that_is_there_alone(command: Command, tmp_path: Path) -> None:
    command("format", "--data", tmp_path)
    told = command("format", "--data", tmp_path)
    assert told.code == Exit.FAILED
    assert "--force" in told.err


def test_format_by_force_deletes_entries_and_keeps_the_name(command: Command, data: Path) -> None:
    command("format", "--data", data / "x", "--bookie-id", "b7")
    for folder in ("journal", "ledgers"):
        (data / "x" / folder / "cookie.json").rename(data / folder / "cookie.json")
    (data / "ledgers" / "00000001.torn").touch()  # a page of this index was damaged
    (data / "ledgers" / "00000001.rebuilt").touch()  # and its successor was not finished
    (data / "ledgers" / f"{1:016x}.table.unread").touch()  # a start could not read this table
    before = read_cookie(data / "journal")
    told = command("format", "--data", data, "--force", "--yes", "--json")
    assert told.code == Exit.DONE, told.err
    wiped = told.json[0]["wiped"]
    assert isinstance(wiped, dict)
    assert wiped["files"] > 3
    after = read_cookie(data / "journal")
    assert after.bookie_id == before.bookie_id == "b7"
    assert after.cookie_id != before.cookie_id
    names = {path.name for path in (data / "ledgers").iterdir()}
    assert names == {"lock", "cookie.json"}


def test_format_by_force_spares_files_that_are_not_a_bookies(command: Command, data: Path) -> None:
    (data / "ledgers/thesis.odt").write_text("three years")
    before = sorted(data.rglob("*"))
    told = command("format", "--data", data, "--force", "--yes")
    assert told.code == Exit.FAILED
    assert "thesis.odt" in told.err
    left = [path for path in sorted(data.rglob("*")) if "metadata" not in path.name]
    assert [path for path in left if path.name != "lock"] == before


def test_format_asks_before_it_deletes(
    command: Command, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    told = command("format", "--data", data, "--force")
    assert told.code == Exit.INTERRUPTED
    assert "Delete them?" in told.err
    assert any((data / "ledgers").glob("*.log"))


def test_format_waits_for_nobody(command: Command, tmp_path: Path) -> None:
    with hold_folders(rig.settings(tmp_path)):
        told = command("format", "--data", tmp_path, "--force", "--yes")
    assert told.code == Exit.FAILED
    assert "in use by another process" in told.err


def test_format_accepts_a_move(command: Command, tmp_path: Path) -> None:
    command("format", "--data", tmp_path / "here", "--bookie-id", "b7")
    (tmp_path / "here").rename(tmp_path / "there")
    told = command("format", "--data", tmp_path / "there", "--moved")
    assert told.code == Exit.DONE, told.err
    assert read_cookie(tmp_path / "there/journal").journal_folder == f"{tmp_path}/there/journal"

from __future__ import annotations

import os
from pathlib import Path

import rig
from command import Command, damage

from bookie.lock import hold_folders
from metadata.outcome import Exit


def test_rebuild_index_says_what_it_did(command: Command, data: Path) -> None:
    (data / "ledgers/lastMark").unlink()
    told = command("rebuild-index", "--data", data)
    assert told.code == Exit.DONE, told.err
    assert "indexed 20 entries in 1 entry log" in told.out
    assert "fenced 1 ledger" in told.out
    assert command("inspect", "mark", "--data", data).code == Exit.DONE


def test_rebuild_index_fails_after_damage_and_is_done_all_the_same(
    command: Command, data: Path
) -> None:
    (path,) = data.glob("ledgers/*.log")
    damage(path, 4)
    told = command("rebuild-index", "--data", data, "--json")
    assert told.code == Exit.FAILED
    assert told.json[0]["limbo"] is True
    assert command("inspect", "mark", "--data", data).code == Exit.DONE


def test_rebuild_index_refuses_while_the_bookie_runs(command: Command, data: Path) -> None:
    with hold_folders(rig.settings(data)):
        told = command("rebuild-index", "--data", data)
    assert told.code == Exit.FAILED
    assert "in use by another process" in told.err


def test_rebuild_index_refuses_to_make_files_that_its_bookie_cannot_open(
    command: Command, data: Path
) -> None:
    assert os.geteuid() == 0, "this test makes files of another user: run it as root"
    cookie = data / "ledgers" / "cookie.json"
    cookie.touch()
    os.chown(cookie, 65534, 65534)
    for name in ("rebuild-index", "format", "replace"):
        told = command(name, "--data", data)
        assert told.code == Exit.FAILED
        assert "sudo -u '#65534'" in told.err


def test_rebuild_index_refuses_a_folder_that_is_no_bookies(
    command: Command, tmp_path: Path
) -> None:
    assert command("rebuild-index", "--data", tmp_path / "none").code == Exit.FAILED

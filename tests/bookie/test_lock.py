from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import rig

from bookie.errors import BookieError
from bookie.lock import hold_folders


def test_folders_are_made_when_neither_is_there(tmp_path: Path) -> None:
    with hold_folders(rig.settings(tmp_path)):
        assert (tmp_path / "journal").is_dir()
        assert (tmp_path / "ledgers").is_dir()


def test_a_missing_folder_stays_missing_when_the_other_is_there(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with hold_folders(rig.settings(tmp_path)):
        assert not (tmp_path / "ledgers").exists()


@pytest.mark.parametrize("shared", ["journal", "ledgers"])
def test_a_folder_is_held_once(tmp_path: Path, shared: str) -> None:
    config = rig.settings(tmp_path / "one")
    folders = {"journal_folder": config.journal_folder, "ledger_folder": config.ledger_folder}
    kept = {key: value for key, value in folders.items() if value.endswith(shared)}
    other = rig.settings(tmp_path / "two", **kept)
    with (
        hold_folders(config),
        pytest.raises(BookieError, match=shared),
        hold_folders(other),
    ):
        pass


def test_a_folder_is_free_again_after_its_holder_was_killed(tmp_path: Path) -> None:
    config = rig.settings(tmp_path)
    with hold_folders(config):
        pass
    script = (
        "import fcntl, os, sys\n"
        "file = open(sys.argv[1], 'a+')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "journal/lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BookieError), hold_folders(config):
            pass
        holder.kill()
        holder.wait()
        with hold_folders(config):
            pass

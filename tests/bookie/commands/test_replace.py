from __future__ import annotations

import shutil
from pathlib import Path

from command import Command

from metadata.outcome import Exit


def test_a_lost_bookie_is_ready_to_be_started_and_refilled(
    command: Command, tmp_path: Path
) -> None:
    command("format", "--data", tmp_path, "--bookie-id", "b7")
    refused = command("replace", "--data", tmp_path)
    assert refused.code == Exit.FAILED
    assert "holds bookie b7 already" in refused.err
    for folder in ("journal", "ledgers"):
        shutil.rmtree(tmp_path / folder)
    told = command("replace", "--data", tmp_path, "--json")
    assert told.code == Exit.DONE, told.err
    assert told.json[0]["bookie_id"] == "b7"
    assert (tmp_path / "ledgers/limbo").exists()


def test_a_bookie_that_nobody_knows_is_not_replaced(command: Command, tmp_path: Path) -> None:
    told = command("replace", "--data", tmp_path, "--bookie-id", "b9")
    assert told.code == Exit.FAILED
    assert "no bookie b9 is known there" in told.err

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from command import Command

from bookie.config import load_config
from metadata.outcome import Exit


def test_config_prints_a_file_that_can_be_used(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(command("config").out)
    assert tomllib.loads(path.read_text())["port"] == 3181
    told = command("config", "--effective", "--config", path, "--data", tmp_path, "--set", "port=7")
    assert told.code == Exit.DONE
    shown = msgspec.json.decode(told.out)
    expected = load_config(path, {"data_folder": str(tmp_path), "port": 7})
    assert shown == msgspec.structs.asdict(expected)

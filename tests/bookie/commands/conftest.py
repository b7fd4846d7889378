from __future__ import annotations

from pathlib import Path

import command as commands
import pytest


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> commands.Command:
    return commands.Command(capsys)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a bookie with entries in a log, and later ones in the journal."""
    commands.fill(tmp_path)
    return tmp_path

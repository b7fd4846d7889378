"""Commands whose standard streams were closed by whoever started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("package", ["bookie", "ledger_client"])
def test_a_command_without_standard_output_ends_as_usual(package: str, tmp_path: Path) -> None:
    script = 'exec "$0" -m "$1" --help <&- >&- 2>"$2"'
    words = ["sh", "-c", script, sys.executable, package, str(tmp_path / "errors")]
    assert subprocess.run(words, check=False).returncode == 0
    assert (tmp_path / "errors").read_bytes() == b""

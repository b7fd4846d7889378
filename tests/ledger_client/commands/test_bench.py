from __future__ import annotations

import pytest

from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude


def test_the_summary_names_all_that_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line that fits a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    conclude(quire, ["--help"])
    (line,) = (each for each in capsys.readouterr().out.splitlines() if " bench " in each)
    for word in ("disk", "ledgers", "topics", "replay", "compaction", "Spark."):
        assert word in line

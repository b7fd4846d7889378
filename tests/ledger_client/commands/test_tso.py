"""``quire tso`` without a cluster: what it prints, and what it refuses."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner, Result

from ledger_client.__main__ import quire
from ledger_client.commands.tso.timestamps import TimestampShown
from metadata.time.timestamps import compose


def invoke(*words: str) -> Result:
    return CliRunner().invoke(quire, ["tso", *words])


def test_a_timestamp_is_taken_apart() -> None:
    """MV-24."""
    timestamp = compose(1_700_000_000_123, 5)
    done = invoke("parse", str(timestamp))
    assert done.output == f"{timestamp}  2023-11-14T22:13:20.123Z  logical 5\n"
    done = invoke("parse", str(timestamp), "--json")
    shown = msgspec.json.decode(done.output, type=TimestampShown)
    assert shown == TimestampShown(timestamp, "2023-11-14T22:13:20.123Z", 1_700_000_000_123, 5)


@pytest.mark.parametrize("text", ["-1", str(1 << 64), "x"])
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    assert invoke("parse", "--", text).exit_code == 2


@pytest.mark.parametrize("count", ["0", str((1 << 18) + 1)])
def test_a_count_out_of_bounds_is_refused(count: str) -> None:
    assert invoke("get", "--count", count).exit_code == 2


@pytest.mark.parametrize("moment", ["4300-01-01", "1969-01-01", "soon"])
def test_a_time_that_no_timestamp_can_have_is_refused(moment: str) -> None:
    done = invoke("reset", "--to", moment, "--yes")
    assert done.exit_code == 2
    assert "--to" in done.output


def test_a_reset_asks_first() -> None:
    """MV-32."""
    done = CliRunner().invoke(quire, ["tso", "reset", "--to", "2026-11-23T12:00Z"], input="n\n")
    assert done.exit_code == 1
    assert "It cannot be moved back." in done.output

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from leases import grant

from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude
from metadata.outcome import Exit
from metadata.records import BookieRecord, bookie_lease, encode_record
from metadata.urls import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Metadata with a bookie that is said to serve."""
    url = f"sqlite://{tmp_path}/metadata.db"

    async def fill() -> None:
        async with open_store(url) as store:
            record = encode_record(BookieRecord("b1", "127.0.0.1:9", 10, 10))
            await grant(store, bookie_lease("b1"), "b1", ttl_s=600, value=record)

    trio.run(fill)
    return url


@pytest.mark.parametrize("missing", ["PySpark", "Java"])
@pytest.mark.parametrize(
    ("words", "way_around"),
    [
        (["scrub"], "--no-spark"),
        (["replay", "s/t", "--spark", "--to-parquet", "files"], "leave out --spark and --master"),
    ],
)
def test_where_spark_cannot_run_the_way_around_is_named(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    way_around: str,
    missing: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if missing == "PySpark":
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert conclude(quire, ["topic", "create", "s/t", "--cluster", url]) == Exit.DONE
    assert conclude(quire, [*words, "--cluster", url]) == Exit.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert missing in line
    assert line.endswith(f"; or run it without Spark: {way_around}")

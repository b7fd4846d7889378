"""What `quire topic alter` changes, and what it leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import trio

from ledger_client.__main__ import quire
from ledger_client.client import connect
from ledger_client.commands.outcome import conclude
from ledger_client.commands.topic import settings
from ledger_client.commands.topic.settings import GivenSettings
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.events import Kind
from metadata.outcome import Exit
from metadata.topics import TOPIC_COUNTER, RollPolicy, Schema, TopicRecord
from metadata.urls import open_store

AVRO = '{"type": "record", "name": "Order", "fields": []}'


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Metadata without bookies, with a topic that has a schema and a property."""
    url = f"sqlite://{tmp_path}/metadata.db"
    wanted = TopicRecord(
        name="s/t", uid=0, properties={"team": "till"}, schema=Schema(kind="avro", definition=AVRO)
    )

    async def fill() -> None:
        async with open_store(url) as store:
            assert await store.next_id(TOPIC_COUNTER)
            await TopicCatalogue(store, timeout_s=5).create(wanted)

    trio.run(fill)
    return url


def alter(url: str, *words: str) -> int:
    return conclude(quire, ["topic", "alter", "s/t", *words, "--cluster", url])


async def info(url: str) -> TopicRecord:
    async with connect(url) as client:
        return await client.topics.info("s/t")


def test_two_who_alter_different_settings_at_once_both_change_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's change comes after the second has read the topic."""
    change = TopicCatalogue._change

    async def change_late(
        catalogue: TopicCatalogue, record: TopicRecord, version: int, kind: Kind
    ) -> bool:
        monkeypatch.setattr(TopicCatalogue, "_change", change)
        first = GivenSettings(roll_size=5000, retention_age=60.0, properties=("a=1",))
        await settings._alter(url, "s/t", first)
        return await change(catalogue, record, version, kind)

    monkeypatch.setattr(TopicCatalogue, "_change", change_late)
    second = ["--roll-age", "1h", "--retention-size", "7000", "--property", "b=2"]
    assert alter(url, *second) == 0
    now = trio.run(info, url)
    assert now.roll == RollPolicy(size=5000, age_s=3600.0)
    assert msgspec.structs.astuple(now.retention) == (60.0, 7000)
    assert now.properties == {"team": "till", "a": "1", "b": "2"}
    assert now.schema == Schema(kind="avro", definition=AVRO)


def test_a_schema_that_is_not_altered_needs_no_package(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ledger_client.topics.values.avro", None)  # it needs fastavro
    assert alter(url, "--roll-size", "5000") == 0
    assert alter(url, "--schema", "bytes") == 0
    assert alter(url, "--schema", "avro") == Exit.FAILED
    assert "pip install" in capsys.readouterr().err

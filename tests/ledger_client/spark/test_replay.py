"""What a replay into Parquet asks Spark for; no Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BinaryType

from ledger_client.jobs.arrow_columns import NAMES
from ledger_client.spark import source
from ledger_client.spark.replay import _Job
from ledger_client.spark.schema import columns_of
from ledger_client.topics.positions import Position
from metadata.topics import Schema, TopicRecord

TEXT = TopicRecord(name="a/b", uid=7, schema=Schema(kind="string"))


class Session:
    """Takes a read and a write as a session does, and creates the source of the read."""

    def __init__(self) -> None:
        self.read = self.write = self.dataSource = self
        self.given: dict[str, str] = {}
        self._known: dict[str, type[DataSource]] = {}

    def register(self, kind: type[DataSource]) -> None:
        self._known[kind.name()] = kind

    def format(self, name: str) -> Self:
        self._kind = self._known[name]
        return self

    def option(self, name: str, value: str) -> Self:
        self.given[name] = value
        return self

    def load(self) -> Self:
        self.source = self._kind(dict(self.given))
        return self

    def mode(self, name: str) -> Self:
        assert name == "append"
        return self

    def parquet(self, path: str) -> None:
        self.path = path


def test_a_replay_into_parquet_copies_values_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a replay without Spark does; as text, those that are not UTF-8 would be null."""
    monkeypatch.setattr(source, "topics_of", lambda _: [TEXT])
    session: Any = Session()
    _Job("bookie://b:1", ["a/b"], tmp_path, Position(), Position(), ())._write(session)
    assert session.path == tmp_path.as_uri()
    schema = session.source.schema()
    assert schema.names == list(NAMES)
    assert schema["value"].dataType == BinaryType()
    assert schema == columns_of([TopicRecord(name="a/b", uid=7)], None).schema

"""Columns of topics by their schemas; without Spark."""

from __future__ import annotations

import pytest

from ledger_client.spark.errors import BadOption, SparkError
from ledger_client.spark.schema import columns_of
from metadata.topics import Schema, TopicRecord

EMPTY = [
    '{"type": "object"}',
    '{"type": ["object", "null"], "additionalProperties": true}',
    '{"type": "object", "properties": {}}',
    '{"type": "struct", "fields": []}',
]


def topic(definition: str = "", kind: str = "json") -> TopicRecord:
    return TopicRecord(name="s/t", uid=1, schema=Schema(kind=kind, definition=definition))  # type: ignore[arg-type]


@pytest.mark.parametrize("definition", EMPTY)
def test_a_schema_that_names_no_fields_adds_no_columns(definition: str) -> None:
    found = columns_of([topic(definition)], None)
    assert found == columns_of([topic(kind="bytes")], None)
    assert columns_of([topic(definition)], ["key", "value"]).schema.names == ["key", "value"]


@pytest.mark.parametrize("definition", EMPTY)
def test_a_column_that_is_not_there_is_told_whatever_the_schema_names(definition: str) -> None:
    with pytest.raises(BadOption, match="there is no column 'kye'; there are topic, partition"):
        columns_of([topic(definition)], ["kye"])


@pytest.mark.parametrize(
    "definition",
    [
        '{"type": "array", "items": {"type": "object"}}',
        '{"type": "object", "properties": {"a": {"type": "object"}}}',
        '{"type": "object", "properties": []}',
        "{}",
    ],
)
def test_what_no_columns_can_be_made_of_is_told(definition: str) -> None:
    with pytest.raises(SparkError, match=r"topic s/t: its schema cannot be read: .*columns=key"):
        columns_of([topic(definition)], None)

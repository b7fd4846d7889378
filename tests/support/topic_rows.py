"""Rows of topics as Spark gives them, and as a reader does, to be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Unpack

from ledger_client import blocking
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.options import ReadSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    *("topic", "partition", "lane", "ledger", "entry", "batch_index", "message_id", "version"),
    *("timestamp", "publish_time", "event_time", "key", "value", "headers", "producer"),
)


class Row(NamedTuple):
    """A message, every column of it."""

    topic: str
    partition: int
    lane: int
    ledger: int
    entry: int
    batch_index: int
    message_id: str
    version: int
    timestamp: int | None
    publish_time: int
    event_time: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    producer: str | None

    @property
    def place(self) -> tuple[str, int, int, int, int]:
        return self.topic, self.partition, self.lane, self.version, self.batch_index


def frame_of(spark: SparkSession, url: str, topic: str, **options: str) -> DataFrame:
    """The frame of a topic."""
    given = {"cluster": url, "topic": topic, **options}
    return spark.read.format("quire").options(**given).load()


def rows_of(frame: DataFrame) -> list[Row]:
    """The rows of a frame with all columns, in order of their places."""
    from pyspark.sql import functions

    millis = functions.unix_millis("publish_time").alias("publish_time")
    named = [millis if name == "publish_time" else name for name in COLUMNS]
    return sorted((_row(tuple(row)) for row in frame.select(*named).collect()), key=_place)


def read_rows(url: str, topic: str, **settings: Unpack[ReadSettings]) -> list[Row]:
    """Return the messages that a reader gets as rows, in order of their places."""
    with blocking.connect(url) as client, client.reader(topic, **settings) as reader:
        return sorted((_of_message(message) for message in reader), key=_place)


def digest(frame: DataFrame) -> str:
    """A checksum of all rows, whatever their order."""
    return digest_of(rows_of(frame))


def digest_of(rows: Iterable[Row]) -> str:
    found = hashlib.sha256()
    for row in rows:
        found.update(repr(row).encode())
    return found.hexdigest()


def _place(row: Row) -> tuple[str, int, int, int, int]:
    return row.place


def _row(fields: tuple[object, ...]) -> Row:
    row = Row(*fields)  # type: ignore[arg-type]  # Spark's rows have no types
    headers = tuple((name, bytes(value)) for name, value in row.headers or ())
    key = None if row.key is None else bytes(row.key)
    return row._replace(key=key, value=_bytes(row.value), headers=headers)


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]  # a bytearray


def _of_message(message: Message) -> Row:
    ledger, entry, partition, index = message.id
    return Row(
        topic=message.topic,
        partition=partition,
        lane=message.lane,
        ledger=ledger,
        entry=entry,
        batch_index=index,
        message_id=str(message.id),
        version=message.version,
        timestamp=message.timestamp or None,
        publish_time=message.publish_time,
        event_time=message.event_time,
        key=message.key,
        value=message.value,
        headers=tuple(message.headers.items()),
        producer=message.producer or None,
    )

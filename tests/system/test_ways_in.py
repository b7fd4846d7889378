"""The same rows by every way in: files by the command, Python, Arrow, Spark. TD-10."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from never_twice import never_twice
from processes import cluster, quire

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from native.batch import BatchKind, read_header

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 2500
KEYS = [b"k%d" % (row % 7) for row in range(COUNT)]
VALUES = ['"value", no. %d; ä' % row for row in range(COUNT)]  # noqa: UP031 - as bytes are made
TIMES = [1_714_564_800_000_000_000 + row for row in range(COUNT)]
HEAD_SIZE = 64
"""Bytes of a batch before its columns, which have no epoch and no time of making."""
pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster"), 1) as running:
        yield running


def produce(url: str, topic: str, data: bytes, *words: str) -> None:
    """From a file, which is read at once."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = ("produce", topic, file.name, "--create", *words)
        done = quire(*command, environment={"QUIRE_CLUSTER": url})
    assert done.returncode == 0, done.stderr


FIELDS = ("--key", "key", "--value", "value", "--event-time", "at")


def by_csv(url: str, topic: str) -> None:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["at", "value", "key"])
    rows.writerows(zip(TIMES, VALUES, (key.decode() for key in KEYS), strict=True))
    produce(url, topic, text.getvalue().encode(), "--format", "csv", *FIELDS)


def by_json(url: str, topic: str) -> None:
    rows = zip(KEYS, VALUES, TIMES, strict=True)
    lines = [json.dumps({"key": k.decode(), "value": v, "at": at}) + "\n" for k, v, at in rows]
    produce(url, topic, "".join(lines).encode(), "--format", "json", *FIELDS)


def by_python(url: str, topic: str) -> None:
    with blocking.connect(url) as client:
        client.topics.create(topic)
        with client.producer(topic) as producer:
            for key, value, at in zip(KEYS, VALUES, TIMES, strict=True):
                producer.send_nowait(value.encode(), key=key, event_time=at)
            producer.flush()


def by_lists(url: str, topic: str) -> None:
    with blocking.connect(url) as client:
        client.topics.create(topic)
        with client.producer(topic) as producer:
            values = [value.encode() for value in VALUES]
            producer.send_many(values, keys=KEYS, event_times=TIMES)


def by_arrow(url: str, topic: str) -> None:
    with blocking.connect(url) as client:
        client.topics.create(topic)
        with client.producer(topic) as producer:
            times = pa.array(TIMES, pa.timestamp("ns"))
            producer.send_many(pa.array(VALUES), keys=pa.array(KEYS), event_times=times)


WAYS: dict[str, Callable[[str, str], None]] = {
    "csv": by_csv,
    "json": by_json,
    "python": by_python,
    "lists": by_lists,
    "arrow": by_arrow,
}
Rows = list[tuple[bytes | None, bytes | None, int | None]]


def rows_of(client: BlockingClient, topic: str) -> Rows:
    with client.reader(topic) as reader:
        return [(m.key, m.value, m.event_time) for m in reader]


def bodies_of(client: BlockingClient, topic: str) -> bytes:
    """The columns of all batches as they are stored, but for when they were made and by whom."""
    found = b""
    for info in client.ledgers.list():
        if info.custom.get("topic") != topic:
            continue
        with client.ledgers.open(info.ledger_id, recover=False) as reader:
            for entry in reader.read(0, reader.last_confirmed):
                if read_header(entry.payload).kind == BatchKind.MESSAGES:
                    found += entry.payload[HEAD_SIZE:]
    return found


def expected() -> Rows:
    values = [value.encode() for value in VALUES]
    return [*zip(KEYS, values, TIMES, strict=True)]


@pytest.fixture(scope="module")
def filled(url: str) -> str:
    for name, way in WAYS.items():
        way(url, f"ways/{name}")
    return url


@pytest.mark.parametrize("way", WAYS)
def test_each_way_gives_the_same_rows_in_order(filled: str, way: str) -> None:
    with blocking.connect(filled) as client:
        assert rows_of(client, f"ways/{way}") == expected()


def test_ways_that_send_many_at_once_store_the_same_bytes(filled: str) -> None:
    """They all end in the same batches."""
    with blocking.connect(filled) as client:
        stored = {
            way: bodies_of(client, f"ways/{way}") for way in ("csv", "json", "lists", "arrow")
        }
    assert len(set(stored.values())) == 1, {way: len(body) for way, body in stored.items()}
    assert stored["csv"]


def test_lines_are_values(url: str) -> None:
    produce(url, "ways/lines", "".join(value + "\n" for value in VALUES).encode())
    with blocking.connect(url) as client:
        found = rows_of(client, "ways/lines")
    assert found == [(None, value.encode(), None) for value in VALUES]


@pytest.mark.slow
@pytest.mark.real_processes
def test_spark_writes_the_same_rows(filled: str, spark: SparkSession) -> None:
    """Side by side, so a key's messages are in order and the others in any."""
    with blocking.connect(filled) as client:
        client.topics.create("ways/spark")
        rows: Sequence[Any] = [*zip(map(bytearray, KEYS), VALUES, TIMES, strict=True)]
        frame = spark.createDataFrame(rows, "key BINARY, value STRING, event_time LONG")
        write = frame.write.format("quire").mode("append")
        write.option("cluster", filled).option("topic", "ways/spark").save()
        with never_twice():
            assert sorted(rows_of(client, "ways/spark")) == sorted(expected())

"""Topics as data frames, against a real cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from never_twice import never_twice
from topic_rows import COLUMNS, digest, frame_of, read_rows, rows_of

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import (
    LedgerError,
    MetadataUnavailable,
    SparkError,
)
from ledger_client.message_id import MessageId
from ledger_client.spark.failures import unwrapped
from ledger_client.topics.times import EventTime, PublishTime
from ledger_client.topics.values import definitions
from ledger_client.topics.values.kinds import ProtobufDefinition
from metadata.topics import RollPolicy, Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]

KINDS = "s/kinds"
TIMES = "s/times"
COUNT = 3000
OBJECT = """{"type": "object", "properties": {
    "id": {"type": "integer"}, "key": {"type": ["string", "null"]},
    "at": {"type": "string", "format": "date-time"},
    "inner": {"type": "object", "properties": {"tags": {"type": "array",
        "items": {"type": "string"}}, "price": {"type": "number"}}}}}"""

AVRO = """{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"},
    {"name": "key", "type": {"type": "array", "items": "bytes"}}]}"""


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        fill_kinds(connected)
        fill_times(connected)
        yield connected


def fill_kinds(client: BlockingClient) -> None:
    """Every kind of message, in two partitions, several lanes and many ledgers."""
    chance = random.Random(3)
    client.topics.create(KINDS, partitions=2, roll=RollPolicy(entries=20), compression="zstd")
    with client.producer(KINDS, producer_name="p") as one, client.producer(KINDS) as other:
        for turn in range(60):
            count = chance.choice([1, 2, 30])
            one.send_many(
                [chance.choice([None, b"", b"v%d" % turn]) for _ in range(count)],
                keys=[
                    chance.choice([None, b"", b"k%d" % chance.randrange(9)]) for _ in range(count)
                ],
                event_times=[chance.choice([None, -turn, turn * 10**9]) for _ in range(count)],
            )
            other.send(b"w%d" % turn, headers={"a": b"%d" % turn, "b": b""} if turn % 3 else None)
    with client.producer(KINDS, batching=False) as single:
        single.send(b"alone")


def fill_times(client: BlockingClient) -> None:
    client.topics.create(TIMES, order="event-time", roll=RollPolicy(size=20_000))
    with client.producer(TIMES, batch_messages=50) as producer:
        producer.send_many(
            [b"%d" % i for i in range(COUNT)], event_times=[10 * i for i in range(COUNT)]
        )


@never_twice()
def test_rows_are_what_a_reader_reads(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """TD-10: the same messages by another way, and every column of them."""
    expected = read_rows(url, KINDS)
    assert len(expected) > 600
    assert rows_of(frame_of(spark, url, KINDS)) == expected
    for rows_per_batch, size in (("1", "4000"), ("50000", "100000")):
        options = {"rowsPerBatch": rows_per_batch, "bytesPerPartition": size}
        assert rows_of(frame_of(spark, url, KINDS, **options)) == expected
    assert {row.lane for row in expected} >= {0, 1}
    assert {row.batch_index for row in expected} >= {-1, 0, 9}
    some = frame_of(spark, url, KINDS, partitions="1", lanes="0")
    assert rows_of(some) == read_rows(url, KINDS, partitions=[1], lanes=[0])


@never_twice()
def test_bounds_mean_what_they_mean_to_a_reader(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """TB-63, TD-10."""
    rows = read_rows(url, TIMES)
    first, last = MessageId.parse(rows[700].message_id), MessageId.parse(rows[2100].message_id)
    ids = {"startingIds": str(first), "endingIds": str(last)}
    frame = frame_of(spark, url, TIMES, **ids, endingInclusive="false")
    assert rows_of(frame) == read_rows(url, TIMES, start=first, end=last, end_inclusive=False)
    assert rows_of(frame) == rows[700:2100]
    times = {"startingEventTime": "12345", "endingEventTime": "1970-01-01T00:00:00.000020"}
    expected = read_rows(url, TIMES, start=EventTime(12345), end=EventTime(20000))
    assert rows_of(frame_of(spark, url, TIMES, **times)) == expected == rows[1235:2001]
    versions = {"startingVersion": str(rows[100].version), "endingVersion": str(rows[100].version)}
    found = rows_of(frame_of(spark, url, TIMES, **versions))
    assert found == [row for row in rows if row.version == rows[100].version]
    published = {"startingTime": str(rows[0].publish_time), "endingTime": "2100-01-01"}
    end = PublishTime(4_102_444_800_000)
    expected = read_rows(url, TIMES, start=PublishTime(rows[0].publish_time), end=end)
    assert rows_of(frame_of(spark, url, TIMES, **published)) == expected


@never_twice()
def test_a_cut_gives_the_same_rows_whatever_is_written_later(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """D-02."""
    topic, other = "s/cut-orders", "s/cut-returns"
    for name in (topic, other):
        client.topics.create(name, 2, timesync=True)

    def send() -> None:
        with client.producer(topic) as orders, client.producer(other) as returns:
            for producer in (orders, returns):
                producer.send_many(
                    [b"%d" % n for n in range(50)], keys=[b"%d" % n for n in range(50)]
                )

    send()
    client.cuts.create("noon", [topic, other])
    both = {"topics": other, "endingCut": "noon"}
    first = rows_of(frame_of(spark, url, topic, **both))
    frame = frame_of(spark, url, topic, **both)
    send()
    assert rows_of(frame) == rows_of(frame_of(spark, url, topic, **both)) == first
    assert len(first) == 100
    assert first == read_rows(url, topic, ending_cut="noon") + read_rows(
        url, other, ending_cut="noon"
    )
    rest = rows_of(frame_of(spark, url, topic, startingCut="noon"))
    assert rest == read_rows(url, topic, starting_cut="noon")
    assert len(rest) == 50
    with pytest.raises(LedgerError, match="none of this name"), unwrapped():
        frame_of(spark, url, topic, endingCut="night").count()


@never_twice()
def test_a_frame_scanned_several_times_in_a_query_is_right_each_time(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """Filters of one scan must not reach another: union, self-join, cached, used again."""
    frame = frame_of(spark, url, TIMES)
    low, high = frame.where("event_time < 160"), frame.where("event_time >= 29840")
    assert low.union(high).count() == 32
    joined = frame.alias("a").join(frame.alias("b"), "entry").where("a.event_time < b.event_time")
    counts = [row["count"] for row in frame.groupBy("entry").count().collect()]
    assert joined.count() == sum(n * (n - 1) // 2 for n in counts)
    mixed = low.alias("a").join(frame.where("event_time < 320").alias("b"), "entry")
    assert mixed.count() == 16 * 32
    cached = frame.cache()
    try:
        assert cached.where("event_time < 160").count() == 16
        assert cached.where("event_time >= 160").count() == COUNT - 16
        assert cached.union(frame).distinct().count() == COUNT
    finally:
        cached.unpersist()
    assert low.count() == 16
    assert frame.count() == COUNT


@never_twice()
def test_only_columns_that_are_wanted_are_there_in_their_order(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    whole = rows_of(frame_of(spark, url, KINDS))
    for name in ("value", "message_id", "topic", "headers", "event_time", "batch_index"):
        frame = frame_of(spark, url, KINDS, columns=name)
        assert frame.columns == [name]
        assert frame.count() == len(whole)
    pair = frame_of(spark, url, KINDS, columns="message_id, version")
    assert pair.columns == ["message_id", "version"]
    assert sorted(map(tuple, pair.collect())) == sorted((r.message_id, r.version) for r in whole)
    both = frame_of(spark, url, f"{KINDS},{TIMES}", columns="topic")
    assert both.count() == len(whole) + COUNT


@never_twice()
def test_a_read_ends_with_what_was_there_when_it_was_planned(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("s/growing")
    with client.producer("s/growing") as producer:
        producer.send_many([b"a"] * 10)
        # Tasks run one after the other, and the second finds more in the topic.
        frame = frame_of(spark, url, "s/growing").cache()
        assert frame.count() == 10
        producer.send_many([b"b"] * 10)
        assert frame.count() == 10
        assert frame_of(spark, url, "s/growing").count() == 20
        frame.unpersist()


@never_twice()
def test_a_topic_without_messages_has_no_rows(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("s/empty")
    frame = frame_of(spark, url, "s/empty")
    assert frame.count() == 0
    assert tuple(frame.columns) == tuple(
        "publish_time" if name == "publish_time" else name for name in COLUMNS
    )


@never_twice()
def test_values_of_a_schema_are_columns(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """Text as text, fields as columns, the same names kept apart."""
    client.topics.create("s/text", schema=Schema(kind="string"))
    client.topics.create("s/json", schema=Schema(kind="json", definition=OBJECT))
    with client.producer("s/text") as producer:
        producer.send_many(["ü".encode(), b"\xff", None])
    sound = b'{"id": 1, "key": "k",\n "at": "2024-05-01T12:00:00Z", "more": [1],'
    sound += b' "inner": {"tags": ["a", "b"], "price": 2.5}}'
    with client.producer("s/json") as producer:
        producer.send_many([sound, b"{}", None, b"none", b'{"id": 2}} {"id": 3'], keys=[b"x"] * 5)
    text = frame_of(spark, url, "s/text").orderBy("entry", "batch_index")
    assert [row.value for row in text.collect()] == ["ü", None, None]
    found = frame_of(spark, url, "s/json").orderBy("entry", "batch_index").collect()
    assert [row.id for row in found] == [1, None, None, None, None]
    assert (found[0].value_key, found[0].at.isoformat()) == ("k", "2024-05-01T12:00:00")
    assert (found[0].inner.tags, found[0].inner.price) == (["a", "b"], 2.5)
    assert [bytes(row.key) for row in found] == [b"x"] * 5
    assert bytes(found[3].value) == b"none"
    only = frame_of(spark, url, "s/json", columns="id,message_id")
    assert only.where("id = 1").count() == 1
    with pytest.raises(SparkError, match="b'none' is not what its schema says"), unwrapped():
        frame_of(spark, url, "s/json", mode="failfast").collect()
    with pytest.raises(SparkError, match="is not UTF-8"), unwrapped():
        frame_of(spark, url, "s/text", mode="failfast").collect()


@never_twice()
def test_values_of_avro_and_protobuf_are_columns(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """Decoded in Spark's workers; what is not as the schema says is null, or an error."""
    client.topics.create("s/avro", schema=Schema(kind="avro", definition=AVRO))
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    definition = ProtobufDefinition.of(files.SerializeToString(), "google.protobuf.Timestamp")
    client.topics.create(
        "s/protobuf", schema=Schema(kind="protobuf", definition=definition.encode())
    )
    with client.producer("s/avro") as producer:
        producer.send_many([b"\x02\x02\x0612\xff\x00", b"\x02", None])
    with client.producer("s/protobuf") as producer:
        producer.send_many([timestamp_pb2.Timestamp(seconds=5).SerializeToString(), b"\xff"])
    found = frame_of(spark, url, "s/avro").orderBy("entry", "batch_index").collect()
    assert [(row.id, row.value_key) for row in found] == [
        (1, [b"12\xff"]), (None, None), (None, None)
    ]  # fmt: skip
    stamps = frame_of(spark, url, "s/protobuf", columns="seconds,nanos,batch_index")
    rows = stamps.orderBy("batch_index").collect()
    assert [(row.seconds, row.nanos) for row in rows] == [(5, 0), (None, None)]
    with pytest.raises(SparkError, match=r"is not what its schema says"), unwrapped():
        frame_of(spark, url, "s/avro", mode="failfast").collect()


@never_twice()
def test_a_schema_as_spark_writes_it_is_taken(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    definition = spark.createDataFrame([], "id INT, name STRING, price DECIMAL(9, 2)").schema.json()
    client.topics.create("s/sparks", schema=Schema(kind="json", definition=definition))
    with client.producer("s/sparks") as producer:
        producer.send(b'{"id": 7, "name": "n", "price": 1.25}')
    row = frame_of(spark, url, "s/sparks", columns="id,name,price").collect()[0]
    assert (row.id, row.name, str(row.price)) == (7, "n", "1.25")


@pytest.mark.parametrize(
    "definition",
    [
        '{"type": "string"}',
        "id INT",
        '{"type": "object", "properties": {"a": {"type": "object"}}}',
    ],
)
def test_a_schema_that_is_none_says_how_to_read_nevertheless(
    spark: SparkSession,
    client: BlockingClient,
    url: str,
    definition: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic has such a schema if it was created before schemas were checked."""
    name = f"s/bad{len(definition)}"
    monkeypatch.setattr(definitions, "check_schema", lambda *_: None)
    client.topics.create(name, schema=Schema(kind="json", definition=definition))
    words = r"its schema cannot be read: .*columns=key,value"
    with pytest.raises(LedgerError, match=words) as told, unwrapped():
        frame_of(spark, url, name)
    assert "\n" not in str(told.value)
    assert frame_of(spark, url, name, columns="key,value").count() == 0


def test_what_cannot_be_read_is_told_in_a_line(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    def told(topic: str, **options: str) -> str:
        with pytest.raises((LedgerError,)) as found, unwrapped():
            frame_of(spark, options.pop("cluster", url), topic, **options).count()
        assert "\n" not in str(found.value)
        return f"{type(found.value).__name__}: {found.value}"

    assert told("s/none") == (
        "SparkError: topic s/none: no such topic; `quire topic list` shows all, "
        "`quire topic create s/none` makes it"
    )
    away = told(KINDS, cluster="bookie://127.0.0.1:1")
    assert away.startswith(f"{MetadataUnavailable.__name__}: metadata: bookie://127.0.0.1:1: ")
    assert "option 'startingIds': 'x' is not a message id" in told(KINDS, startingIds="x")
    assert "is a place in one lane" in told(KINDS, startingIds="1:1:0:0")
    assert "no ledger 999999999999 there" in told(TIMES, startingIds="999999999999:0:-1:0")
    assert "there is no column 'kye'" in told(KINDS, columns="kye")
    assert "there is no partition 5" in told(KINDS, partitions="5")
    assert SparkError.__name__ in told(KINDS, mode="no")


def test_bounds_outside_what_is_retained_are_an_error_unless_loss_is_allowed(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """failOnDataLoss; what was removed is named, or passed over."""
    client.topics.create("s/old", roll=RollPolicy(entries=3))
    with client.producer("s/old", batching=False) as producer:
        for index in range(10):
            producer.send(b"%d" % index)
        check_what_was_removed(spark, client, url)


@never_twice()
def check_what_was_removed(spark: SparkSession, client: BlockingClient, url: str) -> None:
    rows = read_rows(url, "s/old")
    start = {"startingIds": rows[0].message_id}
    planned = frame_of(spark, url, "s/old")
    client.topics.purge("s/old")
    left = read_rows(url, "s/old")
    assert 0 < len(left) < len(rows)
    with pytest.raises(SparkError, match=r"was removed.*the first that is left is"), unwrapped():
        frame_of(spark, url, "s/old", **start).count()
    skipping = frame_of(spark, url, "s/old", **start, failOnDataLoss="false")
    assert rows_of(skipping) == left
    assert rows_of(planned) == left
    with pytest.raises(SparkError, match="was removed"), unwrapped():
        frame_of(spark, url, "s/old", startingVersion="0").count()


@never_twice()
def test_the_same_bounds_give_the_same_rows_each_time(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """TD-08."""
    once = digest(frame_of(spark, url, KINDS))
    assert {digest(frame_of(spark, url, KINDS, minPartitions=n)) for n in ("1", "3", "9")} == {once}

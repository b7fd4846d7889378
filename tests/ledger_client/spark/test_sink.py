"""Frames written to topics by a real Spark, into a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from never_twice import never_twice

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import LedgerError, SparkError
from ledger_client.jobs.staging.job import read_staged
from ledger_client.spark.failures import unwrapped
from ledger_client.topics.context import ask
from metadata.jobs import JOBS, STAGED
from metadata.topics import Schema, topic_prefix
from native.route import murmur3

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        yield connected


def write(frame: DataFrame, url: str, topic: str, **options: str) -> None:
    writer = frame.write.format("quire").options(cluster=url, topic=topic, **options)
    with unwrapped():
        writer.mode("append").save()


def read(spark: SparkSession, url: str, topic: str) -> DataFrame:
    return spark.read.format("quire").options(cluster=url, topic=topic).load()


def values(client: BlockingClient, topic: str) -> list[bytes | None]:
    with client.reader(topic) as reader:
        return [message.value for message in reader]


def left_over(client: BlockingClient, url: str, topic: str) -> tuple[int, int]:
    """How many staged ledgers and living jobs a topic has."""
    uid = client.topics.info(topic).uid
    staged = ask(url, lambda each: read_staged(each.store, topic_prefix(STAGED, uid)))
    jobs = ask(url, lambda each: each.store.leases(topic_prefix(JOBS, uid)))
    return len(staged), len(jobs)


@never_twice()
def test_what_was_written_is_what_is_read(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """TD-10: a frame, as messages, as a frame again; each value where its key belongs."""
    client.topics.create("w/all", partitions=3, compression="lz4")
    frame = spark.range(0, 5000, numPartitions=3).selectExpr(
        "if(id % 7 = 0, null, cast(concat('v', id) as binary)) as value",
        "if(id % 5 = 0, null, cast(concat('k', id % 100) as binary)) as key",
        "if(id % 3 = 0, null, id * 1000 - 7) as event_time",
        "if(id % 2 = 0, null, array(named_struct('key', 'h', 'value', cast(string(id) as binary)),"
        " named_struct('key', 'e', 'value', cast('' as binary)))) as headers",
    )
    write(frame, url, "w/all")
    back = read(spark, url, "w/all")
    # A message without headers has none, whether they were null or empty.
    headers = "if(size(headers) > 0, headers, null) as headers"
    names = ["value", "key", "event_time", headers]
    assert back.count() == 5000
    assert frame.selectExpr(*names).exceptAll(back.selectExpr(*names)).count() == 0
    assert back.select("message_id").distinct().count() == 5000
    for row in back.select("key", "partition").distinct().collect():
        if row.key is not None:
            assert row.partition == (murmur3(bytes(row.key)) & 0x7FFFFFFF) % 3
    with client.reader("w/all") as reader:
        keys = [message.key for message in reader]
    assert len(keys) == 5000
    assert left_over(client, url, "w/all") == (0, 0)


@never_twice()
def test_a_frame_that_was_read_goes_to_another_topic_as_it_is(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    for name in ("w/from", "w/to"):
        client.topics.create(name, partitions=4)
    with client.producer("w/from", batch_messages=7) as producer:
        producer.send_many([b"%d" % i for i in range(100)], headers=[{"a": b"b"}] * 100)
    write(read(spark, url, "w/from"), url, "w/to")
    names = ["partition", "value", "key", "event_time", "headers"]
    from_rows = read(spark, url, "w/from").select(*names)
    assert from_rows.exceptAll(read(spark, url, "w/to").select(*names)).count() == 0
    assert read(spark, url, "w/to").count() == 100


@never_twice()
def test_rows_keep_their_order_from_task_to_task(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("w/order")
    write(spark.range(0, 1000, numPartitions=4).selectExpr("string(id) as value"), url, "w/order")
    assert values(client, "w/order") == [b"%d" % i for i in range(1000)]
    with client.reader("w/order") as reader:
        ids = [message.id for message in reader]
    assert ids == sorted(ids)


@never_twice()
def test_rows_become_json_and_are_columns_again(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    frame = spark.range(0, 50, numPartitions=2).selectExpr(
        "id", "concat('n', id) as name", "array(id, id + 1) as pair", "string(id % 3) as key"
    )
    definition = frame.drop("key").schema.json()
    client.topics.create("w/json", partitions=2, schema=Schema(kind="json", definition=definition))
    write(frame, url, "w/json", valueFormat="json")
    first = next(value for value in values(client, "w/json") if value is not None)
    assert sorted(json.loads(first)) == ["id", "name", "pair"]
    back = read(spark, url, "w/json").selectExpr("id", "name", "pair", "string(key) as key")
    assert frame.exceptAll(back).count() == back.exceptAll(frame).count() == 0


@never_twice()
def test_a_topic_ordered_by_time_takes_a_frame_ordered_by_time(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("w/times", partitions=2, order="event-time")
    frame = spark.range(0, 3000, numPartitions=3).selectExpr(
        "string(id) as value", "string(id % 11) as key", "timestamp_micros(3000 - id) as event_time"
    )
    with pytest.raises(SparkError, match=r'orderBy\("event_time"\)'):
        write(frame, url, "w/times")
    assert values(client, "w/times") == []
    write(frame.orderBy("event_time"), url, "w/times")
    with client.reader("w/times", order="event-time") as reader:
        found = [message.event_time for message in reader]
    assert found == [1000 * time for time in range(1, 3001)]
    with pytest.raises(LedgerError, match="is lower than the last accepted"):
        write(frame.orderBy("event_time").limit(10), url, "w/times")
    assert len(values(client, "w/times")) == 3000
    assert left_over(client, url, "w/times") == (0, 0)


@never_twice()
def test_a_task_that_fails_leaves_nothing_of_the_frame(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """The others have staged theirs by then; nothing of it is ever seen, and it is given up."""
    client.topics.create("w/fails", partitions=2)
    frame = spark.range(0, 4000, numPartitions=4).selectExpr(
        "string(id) as value",
        "map('filler', cast(repeat('x', 1000) as binary)) as headers",
        "if(id = 3500, raise_error('row 3500 is bad'), 1) as event_time",
    )
    with pytest.raises(SparkError, match="row 3500 is bad"):
        write(frame, url, "w/fails")
    assert values(client, "w/fails") == []
    assert left_over(client, url, "w/fails") == (0, 0)


@never_twice()
def test_a_partition_that_there_is_not_fails_the_frame(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("w/explicit", partitions=2)
    frame = spark.range(0, 100, numPartitions=2)
    write(frame.selectExpr("string(id) as value", "id % 2 as partition"), url, "w/explicit")
    counts = read(spark, url, "w/explicit").groupBy("partition").count().collect()
    assert sorted((row.partition, row["count"]) for row in counts) == [(0, 50), (1, 50)]
    wrong = frame.selectExpr("string(id) as value", "id % 3 as partition")
    with pytest.raises(SparkError, match="w/explicit has no partition 2, but 0 to 1"):
        write(wrong, url, "w/explicit")
    assert len(values(client, "w/explicit")) == 100


def test_what_cannot_be_written_is_told_in_one_line(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("w/told")
    frame = spark.range(1).selectExpr("string(id) as value")
    with pytest.raises(SparkError, match="no such topic"):
        write(frame, url, "w/nothing")
    with pytest.raises(SparkError, match="id would be lost"):
        write(frame.selectExpr("value", "1 as id"), url, "w/told")
    with pytest.raises(SparkError, match="topics can be appended to alone"), unwrapped():
        options = {"cluster": url, "topic": "w/told"}
        frame.write.format("quire").options(**options).mode("overwrite").save()
    with (
        client.producer("w/told", access="exclusive"),
        pytest.raises(SparkError, match="is written by a producer"),
    ):
        write(frame, url, "w/told")
    with pytest.raises(SparkError, match="is valueFormat meant"):
        write(frame, url, "w/told", valuFormat="json")
    with pytest.raises(LedgerError, match="metadata"):
        write(frame, "bookie://127.0.0.1:9", "w/told")
    assert values(client, "w/told") == []


def test_an_empty_frame_changes_nothing(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("w/empty", partitions=2)
    frame = spark.range(0).selectExpr("string(id) as value")
    write(frame, url, "w/empty")
    assert client.topics.explain("w/empty").lanes == []
    assert left_over(client, url, "w/empty") == (0, 0)


@never_twice()
def test_jobs_one_after_the_other_write_the_same_lanes(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("w/lanes", partitions=2)
    frame = spark.range(0, 100, numPartitions=2).selectExpr(
        "string(id) as value", "string(id) as key"
    )
    for _ in range(3):
        write(frame, url, "w/lanes")
    with client.producer("w/lanes") as producer:
        producer.send(b"x", key=b"1")
    lanes = client.topics.explain("w/lanes").lanes
    assert [(lane.partition, lane.lane) for lane in lanes] == [(0, 0), (1, 0)]
    assert len(values(client, "w/lanes")) == 301
    names = ("base_version", "entries")
    for lane in lanes:
        spans = [tuple(getattr(fate.ledger, name) for name in names) for fate in lane.ledgers]
        ends = [base + entries for base, entries in spans]
        assert [base for base, _ in spans[1:]] == ends[:-1]


@never_twice()
def test_tasks_whose_rows_all_have_gone_stage_nothing(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    client.topics.create("w/few")
    few = spark.range(0, 100, numPartitions=8).where("id = 57").selectExpr("string(id) as value")
    write(few, url, "w/few")
    (lane,) = client.topics.explain("w/few").lanes
    assert [fate.ledger.messages for fate in lane.ledgers] == [1]


@never_twice()
def test_what_is_written_to_a_topic_with_timesync_has_one_timestamp(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """MV-13, MV-40: ordered readers, and reads as of a moment, have it as a whole."""
    client.topics.create("w/timed", partitions=2, timesync=True)
    with client.producer("w/timed") as producer:
        producer.send(b"first")
    write(spark.range(1000).selectExpr("cast(id as string) as value"), url, "w/timed")
    with client.producer("w/timed") as producer:
        producer.send(b"last")
    with client.reader("w/timed", order="timestamp") as reader:
        found = list(reader)
    assert (found[0].value, found[-1].value, len(found)) == (b"first", b"last", 1002)
    assert len({message.timestamp for message in found[1:-1]}) == 1
    stamp = found[1].timestamp
    for as_of, count in ((stamp - 1, 1), (stamp, 1001)):
        options = {"cluster": url, "topic": "w/timed", "asOf": str(as_of)}
        frame = spark.read.format("quire").options(**options).load()
        assert frame.count() == count
        assert frame.filter(f"timestamp <= {as_of}").count() == count

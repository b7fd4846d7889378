"""Streaming queries over topics, against a real cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from never_twice import never_twice
from run_seed import VARIABLE
from topic_rows import read_rows

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import LedgerError
from ledger_client.spark.failures import unwrapped
from metadata.topics import RollPolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]

DEADLINE_S = 90
KILLED_AFTER_S = (0.5, 2.0) if VARIABLE in os.environ else (0.5,)
"""After the first commit, somewhere in a micro-batch; each of these costs a JVM."""
STOPPED_BESIDE = 500
KILLED_BESIDE = 1500
"""Messages that wait each time, in micro-batches of 50."""
# A query of its own process, to be killed: it takes little at once, for as long as it lives.
KILLED = """
import sys
from ledger_client.spark import open_session
url, topic, folder = sys.argv[1:]
with open_session("local[2]", conf={"spark.driver.memory": "512m"}) as session:
    frame = session.readStream.format("quire").option("cluster", url).option("topic", topic)
    frame = frame.option("maxMessagesPerTrigger", "50").load().select("message_id")
    query = frame.writeStream.format("parquet").option("path", folder + "/out")
    query = query.option("checkpointLocation", folder + "/checkpoint").start()
    print("runs", flush=True)
    query.awaitTermination()
"""


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        yield connected


class Stream:
    """A query from a topic into Parquet files."""

    def __init__(self, spark: SparkSession, url: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._given = {"cluster": url, "topic": topic}
        self._folder = folder

    def begin(self, options: dict[str, str], *, now: bool = True) -> StreamingQuery:
        frame = self._spark.readStream.format("quire").options(**self._given, **options).load()
        writer = frame.select("message_id").writeStream.format("parquet")
        writer = writer.option("path", str(self._folder / "out"))
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run(self, **options: str) -> list[Any]:
        """Return the progress of each micro-batch."""
        query = self.begin(options)
        assert query.awaitTermination(DEADLINE_S)
        return list(query.recentProgress)

    def ids(self) -> list[str]:
        """What it wrote."""
        frame = self._spark.read.schema("message_id STRING").parquet(str(self._folder / "out"))
        return sorted(row.message_id for row in frame.collect())


def ids_of(url: str, topic: str) -> list[str]:
    return sorted(row.message_id for row in read_rows(url, topic))


@never_twice()
def check(stream: Stream, expected: list[str]) -> None:
    """Each of these messages was written once, and no other."""
    assert stream.ids() == expected


def test_what_is_there_now_is_read_in_parts_and_once(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """Trigger.AvailableNow, admission control, and the next run goes on behind the last."""
    topic = "st/parts"
    client.topics.create(topic, partitions=2, roll=RollPolicy(entries=6))
    stream = Stream(spark, url, topic, tmp_path)
    with client.producer(topic, router="round-robin", batch_messages=10) as producer:
        producer.send_many([b"x"] * 400)
        rows = [p["numInputRows"] for p in stream.run(maxMessagesPerTrigger="100")]
        assert sum(rows) == 400
        assert len(rows) >= 4
        assert max(rows) <= 120
        check(stream, ids_of(url, topic))
        assert sum(p["numInputRows"] for p in stream.run()) == 0
        client.topics.alter(topic, partitions=3)
        with client.producer(topic, partition=2) as new:
            new.send_many([b"y"] * 7)
        producer.send_many([b"z"] * 30)
        progress = stream.run(maxBytesPerTrigger="1000")
        assert sum(p["numInputRows"] for p in progress) == 37
        check(stream, ids_of(url, topic))
        assert progress[-1]["sources"][0]["endOffset"].count(":") > 3


def test_lanes_that_begin_while_it_runs_are_read(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    topic = "st/lanes"
    client.topics.create(topic)
    stream = Stream(spark, url, topic, tmp_path)
    query = stream.begin({}, now=False)
    try:
        with client.producer(topic) as one:
            one.send_many([b"1"] * 5)
            query.processAllAvailable()
            with client.producer(topic) as other:
                other.send_many([b"2"] * 6)
            one.send_many([b"3"] * 4)
        deadline = time.monotonic() + DEADLINE_S
        while len(stream.ids()) < 15:
            assert time.monotonic() < deadline
            query.processAllAvailable()
    finally:
        query.stop()
    check(stream, ids_of(url, topic))


def test_a_query_begins_where_it_is_told(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    topic = "st/begin"
    client.topics.create(topic)
    with client.producer(topic) as producer:
        producer.send_many([b"old"] * 5)
        stream = Stream(spark, url, topic, tmp_path)
        assert sum(p["numInputRows"] for p in stream.run(startingIds="latest")) == 0
        producer.send_many([b"new"] * 3)
        assert sum(p["numInputRows"] for p in stream.run()) == 3
        behind = Stream(spark, url, topic, tmp_path / "behind")
        fourth = sorted(read_rows(url, topic))[3].message_id
        behind.run(startingIds=fourth, startingInclusive="false")
        check(behind, sorted(row.message_id for row in sorted(read_rows(url, topic))[4:]))
    with pytest.raises(LedgerError, match="a streaming query has no end"), unwrapped():
        Stream(spark, url, topic, tmp_path / "end").run(endingIds="latest")


def test_messages_that_were_removed_end_it_unless_loss_is_allowed(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """FailOnDataLoss."""
    topic = "st/lost"
    client.topics.create(topic, roll=RollPolicy(entries=4))
    stream = Stream(spark, url, topic, tmp_path)
    with client.producer(topic, batching=False) as producer:
        producer.send(b"0")
        stream.run()
        for index in range(1, 12):
            producer.send(b"%d" % index)
        client.topics.purge(topic)
        producer.send(b"left")
        with pytest.raises(LedgerError, match="was removed") as told, unwrapped():
            stream.run()
        assert "\n" not in str(told.value)
        stream.run(failOnDataLoss="false")
        left = ids_of(url, topic)
    assert 0 < len(left) < 12
    with never_twice():
        assert set(stream.ids()) >= set(left)
        assert len(stream.ids()) <= 1 + len(left)


def lag_of(client: BlockingClient, group: str) -> int:
    return sum(lane.lag for lane in client.groups.lag(group))


def test_the_group_of_a_query_shows_what_spark_has_committed(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """Also after the last micro-batch; a query without a checkpoint begins where the group is."""
    topic = "st/group"
    client.topics.create(topic, partitions=2)
    with client.producer(topic, router="round-robin", batch_messages=10) as producer:
        producer.send_many([b"x"] * 200)
        stream = Stream(spark, url, topic, tmp_path / "first")
        assert len(stream.run(group="st-group", maxMessagesPerTrigger="50")) > 1
        assert lag_of(client, "st-group") == 0
        assert [g.state for g in client.groups.list() if g.group == "st-group"] == ["empty"]
        producer.send_many([b"y"] * 30)
        assert lag_of(client, "st-group") == 30
        anew = Stream(spark, url, topic, tmp_path / "second")
        read = sum(p["numInputRows"] for p in anew.run(group="st-group"))
        with never_twice():
            assert read == 30
        assert lag_of(client, "st-group") == 0
        again = Stream(spark, url, topic, tmp_path / "third")
        rows = [p["numInputRows"] for p in again.run(group="st-group", startingIds="earliest")]
        with never_twice():
            assert sum(rows) == 230
        assert lag_of(client, "st-group") == 0
    batch = spark.read.format("quire").options(cluster=url, topic=topic, group="st-group")
    with pytest.raises(LedgerError, match="only a streaming query"), unwrapped():
        batch.load().count()


def test_a_batch_that_failed_is_not_committed_to_the_group(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """The group never is before the query's checkpoint."""
    topic = "st/failed"
    client.topics.create(topic)
    with client.producer(topic, batch_messages=10) as producer:
        producer.send_many([b"x"] * 100)
    given = {"cluster": url, "topic": topic, "group": "st-failed", "maxMessagesPerTrigger": "40"}
    frame = spark.readStream.format("quire").options(**given).load()

    def run(sink: Callable[[DataFrame, int], None]) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    written: list[int] = []

    def fail_later(batch: DataFrame, number: int) -> None:
        if number == 1:
            raise ValueError("the sink is away")
        written.append(batch.count())

    with pytest.raises(LedgerError, match="the sink is away"), unwrapped():
        run(fail_later).awaitTermination(DEADLINE_S)
    with never_twice():
        assert [lane.lag for lane in client.groups.lag("st-failed")] == [100 - sum(written)]
    assert 0 < sum(written) < 100
    assert run(lambda _batch, _number: None).awaitTermination(DEADLINE_S)
    assert [lane.lag for lane in client.groups.lag("st-failed")] == [0]


def test_a_query_goes_on_while_its_group_has_members(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """They alone commit."""
    topic = "st/members"
    client.topics.create(topic)
    with client.producer(topic) as producer:
        producer.send_many([b"x"] * 20)
    stream = Stream(spark, url, topic, tmp_path)
    with client.consumer(topic, group="st-members", start="earliest") as consumer:
        assert len(consumer.poll(wait_s=DEADLINE_S, messages_max=5)) == 5
        consumer.commit()
        before = client.groups.committed("st-members")
        rows = [p["numInputRows"] for p in stream.run(group="st-members", startingIds="earliest")]
        with never_twice():
            assert sum(rows) == 20
            assert client.groups.committed("st-members") == before


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_topic_made_anew_is_not_taken_for_the_old_one(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path, is_empty: bool
) -> None:
    """Also where it has no lane yet, of which an offset could say whose it is."""
    topic = f"st/again{is_empty}"
    stream = Stream(spark, url, topic, tmp_path)
    for is_old in (True, False):
        client.topics.create(topic)
        if is_old or not is_empty:
            with client.producer(topic) as producer:
                producer.send(b"x")
        if is_old:
            stream.run()
            client.topics.delete(topic)
    with pytest.raises(LedgerError, match="of another topic of this name"), unwrapped():
        stream.run()


def test_a_query_that_is_stopped_midway_goes_on_where_it_was_and_writes_nothing_twice(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """Exactly once, from the checkpoint: what the micro-batch has written counts for nothing."""
    topic = "st/stopped"
    client.topics.create(topic, partitions=2, roll=RollPolicy(entries=20))
    with client.producer(topic, router="round-robin", batch_messages=5) as producer:
        producer.send_many([b"x"] * STOPPED_BESIDE)
        stream = Stream(spark, url, topic, tmp_path)
        query = stream.begin({"maxMessagesPerTrigger": "50"}, now=False)
        deadline = time.monotonic() + DEADLINE_S
        offsets, commits = (tmp_path / "checkpoint" / name for name in ("offsets", "commits"))
        while not _last(offsets) > _last(commits) >= 0:
            assert query.isActive
            assert time.monotonic() < deadline
        query.stop()
        assert _last(commits) < STOPPED_BESIDE // 50 - 1
        producer.send_many([b"x"] * 20)
    stream.run()
    check(stream, ids_of(url, topic))
    with never_twice():
        assert len(stream.ids()) == STOPPED_BESIDE + 20


def _last(folder: Path) -> int:
    """Return the number of the last micro-batch that a folder of a checkpoint has, or -1."""
    return max((int(each.name) for each in folder.glob("[0-9]*")), default=-1)


@pytest.mark.long
def test_a_query_that_is_killed_goes_on_where_it_was_and_writes_nothing_twice(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """Exactly once, from the checkpoint, also when SIGKILL came in a micro-batch."""
    topic = "st/killed"
    client.topics.create(topic, partitions=2, roll=RollPolicy(entries=20))
    with client.producer(topic, router="round-robin", batch_messages=5) as producer:
        for wait_s in KILLED_AFTER_S:
            producer.send_many([b"x"] * KILLED_BESIDE)
            with subprocess.Popen(
                [sys.executable, "-c", KILLED, url, topic, str(tmp_path)],
                stdout=subprocess.PIPE,
                start_new_session=True,
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"runs\n"
                _wait_for(tmp_path / "checkpoint" / "commits", process)
                time.sleep(wait_s)  # somewhere in a micro-batch
                process.send_signal(signal.SIGKILL)
        producer.send_many([b"x"] * 20)
    stream = Stream(spark, url, topic, tmp_path)
    stream.run()
    check(stream, ids_of(url, topic))
    with never_twice():
        assert len(stream.ids()) == len(KILLED_AFTER_S) * KILLED_BESIDE + 20


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists() or not list(path.iterdir()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)

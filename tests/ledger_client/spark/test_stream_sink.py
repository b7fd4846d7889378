"""Streaming queries that write topics: each row once, whatever is done again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from never_twice import never_twice

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import LedgerError
from ledger_client.spark.failures import unwrapped
from ledger_client.topics.context import ask
from metadata.jobs import SINKS, decode_sink
from metadata.topics import topic_prefix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        yield connected


def run(
    spark: SparkSession, url: str, names: tuple[str, str], checkpoint: Path, **options: str
) -> None:
    """Write what is in one topic, and was not written before, to the other; then end."""
    given, taken = names
    read = spark.readStream.format("quire").options(cluster=url, topic=given)
    frame = read.option("columns", "value,key").option("maxMessagesPerTrigger", "40").load()
    writing = frame.writeStream.format("quire").options(cluster=url, topic=taken, **options)
    query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        with unwrapped():
            assert query.awaitTermination(120)
    finally:
        query.stop()


def values(client: BlockingClient, topic: str) -> list[str]:
    with client.reader(topic) as reader:
        return sorted((message.value or b"").decode() for message in reader)


@never_twice()
def check(client: BlockingClient, topic: str, expected: list[str]) -> None:
    """Each of these rows is there once, and no other."""
    assert values(client, topic) == expected


def send(client: BlockingClient, topic: str, numbers: range) -> list[str]:
    with client.producer(topic, batch_messages=10) as producer:
        producer.send_many([b"%03d" % number for number in numbers])
    return [f"{number:03d}" for number in numbers]


def progress(client: BlockingClient, url: str, topic: str) -> list[int]:
    """The last batch of each query that writes the topic."""
    prefix = topic_prefix(SINKS, client.topics.info(topic).uid)
    rows = ask(url, lambda each: each.store.list(prefix))
    return [decode_sink(key, found.value).batch_id for key, found in rows]


def test_a_query_that_is_started_again_goes_on_and_repeats_nothing(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """Also when it was killed after a batch had been shown, and before Spark had noted it."""
    for name in ("t/given", "t/taken"):
        client.topics.create(name, partitions=2)
    names, checkpoint = ("t/given", "t/taken"), tmp_path / "checkpoint"
    expected = send(client, "t/given", range(100))
    run(spark, url, names, checkpoint)
    check(client, "t/taken", expected)
    (last,) = progress(client, url, "t/taken")
    assert last >= 1  # it took several batches

    expected += send(client, "t/given", range(100, 130))
    run(spark, url, names, checkpoint)
    check(client, "t/taken", expected)

    # The batch is planned, written and shown; that it is done, the checkpoint does not know.
    before = progress(client, url, "t/taken")
    for noted in (checkpoint / "commits").glob(f"*{before[0]}*"):
        noted.unlink()
    run(spark, url, names, checkpoint)
    check(client, "t/taken", expected)

    expected += send(client, "t/given", range(130, 140))
    run(spark, url, names, checkpoint)
    check(client, "t/taken", expected)
    assert progress(client, url, "t/taken")[0] > before[0]
    assert len(client.topics.explain("t/taken").lanes) <= 2


def test_a_checkpoint_that_was_set_back_loses_nothing_without_a_word(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    """A copy has the query's id and its batch numbers; another name of the sink starts over."""
    for name in ("t/forth", "t/back"):
        client.topics.create(name)
    names, checkpoint, kept = ("t/forth", "t/back"), tmp_path / "checkpoint", tmp_path / "kept"
    expected = send(client, "t/forth", range(20))
    run(spark, url, names, checkpoint)
    shutil.copytree(checkpoint, kept)
    first = send(client, "t/forth", range(20, 30))
    run(spark, url, names, checkpoint)
    second = send(client, "t/forth", range(30, 35))
    with pytest.raises(LedgerError, match=r"checkpoint was set back.* option sinkName"):
        run(spark, url, names, kept)
    check(client, "t/back", expected + first)
    run(spark, url, names, kept, sinkName="again")
    check(client, "t/back", sorted(expected + first + first + second))


def test_two_queries_write_one_topic_beside_each_other(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    for name in ("t/one", "t/other", "t/both"):
        client.topics.create(name)
    expected = send(client, "t/one", range(20)) + send(client, "t/other", range(20, 30))
    run(spark, url, ("t/one", "t/both"), tmp_path / "one")
    run(spark, url, ("t/other", "t/both"), tmp_path / "other")
    check(client, "t/both", expected)
    assert len(progress(client, url, "t/both")) == 2


def test_a_query_whose_rows_cannot_be_written_fails_and_shows_nothing(
    spark: SparkSession, client: BlockingClient, url: str, tmp_path: Path
) -> None:
    client.topics.create("t/bad", order="event-time")
    client.topics.create("t/source")
    send(client, "t/source", range(10))
    with pytest.raises(Exception, match="every message needs one"):
        run(spark, url, ("t/source", "t/bad"), tmp_path)
    check(client, "t/bad", [])

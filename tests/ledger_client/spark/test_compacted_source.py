"""The option compacted, against a real cluster: what Spark reads is what a reader reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from never_twice import never_twice
from topic_rows import digest, frame_of, read_rows, rows_of

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import LedgerError
from ledger_client.spark.failures import unwrapped
from metadata.topics import RollPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("spark")]

NAME = "c/latest"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[BlockingClient]:
    with blocking.connect(url) as connected:
        chance = random.Random(5)
        connected.topics.create(NAME, partitions=2, roll=RollPolicy(entries=15), compression="zstd")
        with connected.producer(NAME, producer_name="p") as one, connected.producer(NAME) as other:
            for turn in range(90):
                count = chance.choice([1, 2, 20])
                one.send_many(
                    [chance.choice([None, b"v%d" % turn, b"w" * 50]) for _ in range(count)],
                    keys=[b"k%d" % chance.randrange(60) for _ in range(count)],
                    event_times=[chance.choice([None, turn]) for _ in range(count)],
                )
                other.send(b"x%d" % turn, key=b"o%d" % (turn % 7), headers={"h": b"%d" % turn})
        connected.topics.compact(NAME)
        with connected.producer(NAME) as later:
            later.send_many([b"later"] * 5, keys=[b"k1"] * 5)
        yield connected


@never_twice()
def test_rows_are_what_a_compacted_reader_reads(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    """PS-37: row for row and column for column, in tasks of any size, each time."""
    expected = read_rows(url, NAME, compacted=True)
    assert 20 < len(expected) < len(read_rows(url, NAME)) / 2
    frame = frame_of(spark, url, NAME, compacted="true")
    assert rows_of(frame) == expected
    small = frame_of(spark, url, NAME, compacted="true", bytesPerPartition="500")
    assert rows_of(small) == expected
    assert digest(small) == digest(frame)
    assert small.where("key = cast('k1' as binary)").count() == sum(
        r.key == b"k1" for r in expected
    )


@never_twice()
def test_bounds_are_original_places(spark: SparkSession, client: BlockingClient, url: str) -> None:
    """PS-38: times and versions mean what they mean to a raw read."""
    expected = read_rows(url, NAME, compacted=True)
    version = sorted(row.version for row in expected)[len(expected) // 2]
    rows = rows_of(frame_of(spark, url, NAME, compacted="true", startingVersion=str(version)))
    assert rows == [row for row in expected if row.version >= version]


def test_a_stream_of_what_is_compacted_is_refused(
    spark: SparkSession, client: BlockingClient, url: str
) -> None:
    options = {"cluster": url, "topic": NAME, "compacted": "true"}
    frame = spark.readStream.format("quire").options(**options).load()
    with pytest.raises(LedgerError, match="reads every message"), unwrapped():
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()

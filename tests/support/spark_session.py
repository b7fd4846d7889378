"""One Spark session for all tests of a process; a fixture, to be used by its name.

Sessions of tests are short: a JVM that compiles fast takes a third less of a processor than
one that compiles well, and a seventh less again where it does not verify Spark's classes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ledger_client.spark import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For the JVMs of executors, too, in ``spark.executor.extraJavaOptions``."""
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)  # drivers of all processes below
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", SHORT_LIVED)
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.python.worker.reuse": "true",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and the data source ``quire``. Mark tests xdist_group("spark")."""
    with open_session("local[2]", app="tests", conf=SETTINGS) as session:
        yield session


@pytest.fixture
def own_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs that this process starts use its session: a JVM of their own takes ten seconds."""

    @contextmanager
    def lent(
        _master: str, *, app: str, conf: Mapping[str, str] | None = None
    ) -> Iterator[SparkSession]:
        wanted = conf or {}
        before = {name: spark.conf.get(name, None) for name in wanted}
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield spark
        for name, was in before.items():
            spark.conf.unset(name) if was is None else spark.conf.set(name, was)

    for job in ("replay", "scrub"):
        monkeypatch.setattr(f"ledger_client.spark.{job}.start_spark", lent)

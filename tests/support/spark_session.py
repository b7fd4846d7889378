"""One Spark session for all tests of a process; a fixture, to be used by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ledger_client.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

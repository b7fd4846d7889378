"""Topics in Spark: the data source ``quire``, and sessions that have it.

    from ledger_client import spark as quire_spark

    quire_spark.register(session)
    session.read.format("quire").options(cluster=..., topic="shop/orders").load()

Importing this imports no PySpark; using it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Make the format ``quire`` known to a session; registering it again changes nothing."""
    from ledger_client.spark.source import QuireSource  # PySpark only for who uses it

    session.dataSource.register(QuireSource)

"""Topics in Spark: the data source ``quire``, and sessions that have it.

    from ledger_client import spark as quire_spark

    quire_spark.register(session)
    session.read.format("quire").options(cluster=..., topic="shop/orders").load()

Importing this module imports no PySpark; calling it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Register the format ``quire`` with a session; repeating it changes nothing."""
    from ledger_client.spark.source import QuireSource  # imports PySpark

    session.dataSource.register(QuireSource)


@contextmanager
def open_session(
    master: str = "local[*]", *, app: str = "quire", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark with the format ``quire`` for the block. Arguments as for start_spark()."""
    from ledger_client.spark.session import start_spark

    with start_spark(master, app=app, conf=conf or {}) as session:
        register(session)
        yield session

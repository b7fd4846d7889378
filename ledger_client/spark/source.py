"""The data source ``quire``: topics as data frames."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class QuireSource(DataSource):
    """``spark.read.format("quire")`` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        """Return what the format is called."""
        return "quire"

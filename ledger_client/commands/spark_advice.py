"""What to do on a machine where Spark cannot run, where a command can do without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger_client.commands.errors import first_of
from ledger_client.spark.errors import JavaMissing, JavaTooOld, SparkMissing


@contextmanager
def advising(way_around: str = "do it without Spark: --no-spark") -> Iterator[None]:
    """Add *way_around* to an error of the block that says that Spark or Java is missing."""
    try:
        yield
    except* (SparkMissing, JavaMissing, JavaTooOld) as missing:
        first_of(missing).add_note(f"or {way_around}")
        raise

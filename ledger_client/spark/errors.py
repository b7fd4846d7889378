"""What can go wrong around Spark, and what to do next.

SparkError            is a LedgerError; each message is one line
├── SparkMissing      PySpark is not installed, or is too old
├── JavaMissing       there is no Java that runs
├── JavaTooOld        there is one, and Spark cannot run on it
├── SparkFailed       Spark did not start, or a job of it failed for a reason of its own
├── BadOption         an option of the source or sink cannot be
├── BadColumns        a frame's columns cannot be written as messages
├── BadRow            a row cannot be written as a message
└── UnreadableValue   a value is not what the topic's schema says
"""

from __future__ import annotations

from ledger_client.errors import LedgerError


class SparkError(LedgerError):
    """Root of what is raised around Spark."""


class SparkMissing(SparkError):
    """PySpark is not installed, or is too old."""


class JavaMissing(SparkError):
    """There is no Java that runs."""


class JavaTooOld(SparkError):
    """There is a Java, and Spark cannot run on it."""


class SparkFailed(SparkError):
    """Spark did not start, or a job failed for a reason that is Spark's own."""


class BadOption(SparkError):
    """An option of the source or sink cannot be; the message names it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"option {name!r}: {reason}")
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadOption], tuple[str, str]]:
        return BadOption, (self.name, self.reason)


class BadColumns(SparkError):
    """The columns of a frame cannot be written as messages; nothing was written."""


class BadRow(SparkError):
    """A row cannot be written as a message; nothing of the frame is shown."""


class UnreadableValue(SparkError):
    """A value is not what the topic's schema says it is."""

"""Counting messages and their checksum, as batches of columns come by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledger_client.commands.demo.report import Row
from native.batch import Binary, Columns
from native.checksum import Checksum


class Sum:
    """How many messages there were, their bytes, and the checksum of keys and values."""

    def __init__(self) -> None:
        self.checksum = Checksum()
        self.bytes = 0

    @property
    def messages(self) -> int:
        """How many were added."""
        return self.checksum.count

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add messages given one by one."""
        columns = Columns(count=len(values), values=Binary.of(values), keys=Binary.of(keys))
        self._add(columns, sum(map(len, values)))

    def add_batch(self, batch: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        """Add the messages of a RecordBatch with columns key and value."""
        import pyarrow.compute as pc  # loads when it is needed

        from ledger_client.topics.arrow import columns_of

        values = batch.column("value")
        columns = columns_of(values, keys=batch.column("key"))
        self._add(columns, pc.sum(pc.binary_length(values)).as_py() or 0)

    def row(self, what: str, like: Sum, seconds: float | None = None) -> Row:
        """Return this as a line of the table, which agrees if it is the same as *like*."""
        return Row(
            what=what,
            messages=self.messages,
            bytes=self.bytes,
            checksum=self.checksum.total_text,
            agrees=(self.messages, self.bytes, self.checksum.total)
            == (like.messages, like.bytes, like.checksum.total),
            seconds=seconds,
        )

    def _add(self, columns: Columns, size: int) -> None:
        self.checksum = self.checksum.add(columns)
        self.bytes += size

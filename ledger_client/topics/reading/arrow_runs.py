"""Runs of messages as pyarrow RecordBatches, small ones joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger_client.errors import LedgerError
from ledger_client.topics.reading.merging import Run
from ledger_client.topics.reading.runs import Runs

if TYPE_CHECKING:
    import pyarrow as pa


class RecordBatches:
    """An async iterator of RecordBatches with *rows_min* rows, as long as they are here."""

    def __init__(self, runs: Runs, *, rows_min: int, rows_max: int) -> None:
        self._runs = runs
        self._rows_max = max(rows_max, 1)
        self._rows_min = min(rows_min, self._rows_max)
        self._failure: LedgerError | None = None

    def __aiter__(self) -> RecordBatches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        run = await self._runs.wait()
        if run is None:
            raise StopAsyncIteration
        parts = [self._cut(run, self._rows_max)]
        rows = parts[0].num_rows
        while rows < self._rows_min:
            try:
                more = self._runs.take()
            except LedgerError as failure:  # it comes after what is here
                self._failure = failure
                break
            if more is None:
                break
            parts.append(self._cut(more, self._rows_max - rows))
            rows += parts[-1].num_rows
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _cut(self, run: Run, rows_max: int) -> pa.RecordBatch:
        """Return as much of a run as fits, and give the rest back."""
        batch, left = run.record_batch(), run.rows - rows_max
        if left <= 0:
            return batch
        self._runs.give_back(run, left)
        return batch.slice(0, rows_max)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.concat_batches(parts)

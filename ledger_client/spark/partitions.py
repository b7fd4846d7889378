"""The tasks of a read: which spans each of them gets.

Tasks have *bytesPerPartition* bytes or so, but one for each core where there is enough to do:
a Python task costs some 30 ms before its first row, as much as reading 8 MiB takes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from ledger_client.spark.options import SourceOptions
from ledger_client.topics.reading.spans import Span, split

SIZE_MIN = 8 << 20


class SpanPartition(InputPartition):
    """What one task reads."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__(None)
        self.spans = tuple(spans)


def partitions_of(spans: Sequence[Span], options: SourceOptions) -> list[SpanPartition]:
    """Return the tasks that read these spans; one without spans if there are none."""
    size = sum(span.size for span in spans)
    least = options.partitions_min
    if least is None:
        least = max(min(os.cpu_count() or 1, size // SIZE_MIN), 1)
    groups = split(spans, options.bytes_per_partition, groups_min=least)
    return [SpanPartition(group) for group in groups] or [SpanPartition(())]

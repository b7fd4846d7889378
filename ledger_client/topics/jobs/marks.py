"""Rows that say what a job has shown: put by the very transaction that shows it.

A stream's batch is written again after a restart from the checkpoint, when Spark had not noted
yet that it was done. Then it is in the topic already, and is left out. That is right only for
the last batch, by a later run of the same query, with as many messages. A batch below it, or
another one of the same number, comes of a checkpoint that was set back or copied: what is in it
is not in the topic, and leaving it out would lose it. So that is an error.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from ledger_client.topics.errors import SinkBatchDiffers
from metadata.jobs import SinkProgress, decode_sink, encode_job_row, sink_key
from metadata.store import ABSENT, Put, Versioned
from metadata.topics import TopicRecord


class Mark(Protocol):
    """What a job shows, as a row beside the topic tells it."""

    def key(self, topic: TopicRecord) -> str:
        """Return the key of the row."""

    def put(self, topic: TopicRecord, found: Versioned | None) -> Put | None:
        """Return what follows the row that was found; None: this was shown before.

        Raises LedgerError: this cannot follow it.
        """


class SinkBatch(NamedTuple):
    """A batch of a stream: shown once, however often it is written."""

    query: str
    """of whose batches the numbers are; the same after a restart from the checkpoint"""
    batch_id: int
    run: str = ""
    """of the query: another one after each restart; "": not known"""
    checkpoint: str = ""
    """where the query keeps how far it is; "": not known"""
    messages: int = -1
    """in it; -1: not known"""

    def key(self, topic: TopicRecord) -> str:
        """Return the key of the row."""
        return sink_key(topic.uid, self.query)

    def put(self, topic: TopicRecord, found: Versioned | None) -> Put | None:
        """See Mark. Raises SinkBatchDiffers: leaving it out would lose it."""
        key = self.key(topic)
        if found is not None:
            last = decode_sink(key, found.value)
            if last.batch_id == self.batch_id and self._repeats(last):
                return None
            if last.batch_id >= self.batch_id:
                raise SinkBatchDiffers(
                    topic.name, query=self.query, batch_id=self.batch_id, last=_told(last)
                )
        row = SinkProgress(
            batch_id=self.batch_id,
            at_ms=time.time_ns() // 1_000_000,
            run=self.run,
            checkpoint=self.checkpoint,
            messages=self.messages,
        )
        return Put(key, encode_job_row(row), ABSENT if found is None else found.version)

    def _repeats(self, last: SinkProgress) -> bool:
        """Whether it is the batch of this number that is there."""
        if self.run and self.run == last.run:  # of which Spark makes each batch once
            return True
        is_moved = "" != self.checkpoint != last.checkpoint != ""
        differs = -1 != self.messages != last.messages != -1
        return not (is_moved or differs)


def _told(last: SinkProgress) -> str:
    told = f"batch {last.batch_id}"
    told += f" with {last.messages} messages" if last.messages >= 0 else ""
    return told + (f" from checkpoint {last.checkpoint}" if last.checkpoint else "")

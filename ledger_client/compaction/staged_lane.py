"""Survivors of one lane written to staged ledgers, as compacted entries.

    rows of portions ──► Gather ──► entry of ENTRY_SIZE ──bounded──► ledger ──► next ledger

Entries hold survivors of many original ones. A ledger ends behind the entry that fills it.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from ledger_client.client import Client
from ledger_client.compaction.portions import Portion
from ledger_client.errors import LedgerError
from ledger_client.topics.jobs.staging import JobStage, open_staged
from ledger_client.writer import LedgerWriter
from metadata.compaction import CompactedLedger, Origin as Place
from native.batch import Compression
from native.compacted import Origin, Origins, encode
from native.gather import Gather

ENTRY_SIZE = 1 << 20
ENTRY_COUNT = 32_768
"""Each may have an origin of its own, of 68 bytes, and that with the messages fits an entry."""
NAMES_SIZE = 256 << 10
"""Bytes of the names of producers, after which an entry ends."""
APPEND_COUNT = 4
"""Entries that are appended together."""


class StagedLane:
    """Takes the survivors of a lane, in order. Made by stage_lane().

    Attributes:
        ledgers: those that are sealed.
    """

    def __init__(
        self, client: Client, stage: JobStage, *, partition: int, lane: int, size: int
    ) -> None:
        self.ledgers: list[CompactedLedger] = []
        self._client = client
        self._stage = stage
        self._place = partition, lane
        self._size_max = size
        self._compression: Compression = stage.topic.compression
        self._gather = Gather()
        self._origins: list[Origin] = []
        self._indexes = array("i")
        self._names: set[str] = set()
        self._names_size = 0
        self._ready: list[bytes] = []
        self._writer: LedgerWriter | None = None
        self._figures = _Figures()

    async def add(self, portion: Portion, rows: array[int]) -> None:
        """Write messages of a portion, by rising row.

        Raises:
            JobLost: the job's lease is over.
            LedgerError: as open_staged() and LedgerWriter.append_many().
        """
        start = 0
        while start < len(rows):
            some = rows[: start + ENTRY_COUNT - len(self._indexes)]
            end = self._gather.add(portion.columns, some, start, size_max=ENTRY_SIZE)
            if end > start:
                taken = rows[start:end]
                self._note(portion.origins(taken))
                self._indexes.extend(portion.indexes(taken))
            if end < len(rows) or self._is_full():
                await self._flush()
            start = end

    async def finish(self) -> None:
        """Write what is left and seal the last ledger. Raises as add()."""
        await self._flush()
        await self._append()
        await self._seal()

    async def abandon(self) -> None:
        """Write no more; what is written stays staged until the job gives it up."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(LedgerError):  # it is given up in any case
                await writer.abort()

    def _is_full(self) -> bool:
        return len(self._indexes) >= ENTRY_COUNT or self._names_size >= NAMES_SIZE

    def _note(self, origins: list[Origin]) -> None:
        for name in {origin.producer for origin in origins} - self._names:
            self._names.add(name)
            self._names_size += len(name.encode())
        last = self._origins[-1] if self._origins else None
        first = origins[0]
        if last is not None and (last.number, last.entry_id) == (first.number, first.entry_id):
            self._origins[-1] = last._replace(kept=last.kept + first.kept)
            origins = origins[1:]
        self._origins += origins

    async def _flush(self) -> None:
        """Make an entry of what was gathered."""
        if not self._indexes:
            return
        payload = encode(
            Origins.of(self._origins),
            self._indexes,
            self._gather.columns(),
            compression=self._compression,
        )
        self._gather.clear()
        self._ready.append(payload)
        self._figures.count(self._origins, len(self._indexes), len(payload))
        self._origins, self._indexes = [], array("i")
        self._names, self._names_size = set(), 0
        if len(self._ready) >= APPEND_COUNT or self._figures.size >= self._size_max:
            await self._append()
        if self._figures.size >= self._size_max:
            await self._seal()

    async def _append(self) -> None:
        if not self._ready:
            return
        if self._writer is None:
            partition, lane = self._place
            self._writer = await open_staged(
                self._client, self._stage, partition=partition, lane=lane
            )
        payloads, self._ready = self._ready, []
        await self._writer.append_many(payloads)

    async def _seal(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        await writer.close()
        self.ledgers.append(self._figures.ledger(*self._place, writer.id))
        self._figures = _Figures()


class _Figures:
    """What a ledger of survivors holds."""

    def __init__(self) -> None:
        self.size = 0
        self._entries = self._messages = 0
        self._ends: list[Origin] = []

    def count(self, origins: list[Origin], messages: int, size: int) -> None:
        """Count an entry."""
        self.size += size
        self._entries += 1
        self._messages += messages
        self._ends = [*self._ends[:1], origins[0], origins[-1]]

    def ledger(self, partition: int, lane: int, ledger_id: int) -> CompactedLedger:
        """Return the ledger that holds it."""
        return CompactedLedger(
            partition=partition,
            lane=lane,
            ledger_id=ledger_id,
            first=_place(self._ends[0]),
            last=_place(self._ends[-1]),
            entries=self._entries,
            messages=self._messages,
            size=self.size,
        )


@asynccontextmanager
async def stage_lane(
    client: Client, stage: JobStage, *, partition: int, lane: int, size: int
) -> AsyncGenerator[StagedLane]:
    """Lend a StagedLane to the block; its last ledger is sealed at the end.

    Args:
        client: whose bookies and metadata.
        stage: the job's.
        partition: of the topic.
        lane: of the partition.
        size: payload bytes with which a ledger ends.

    Raises:
        JobLost, LedgerError: as StagedLane.add().
    """
    staged = StagedLane(client, stage, partition=partition, lane=lane, size=size)
    try:
        yield staged
        await staged.finish()
    finally:
        await staged.abandon()


def _place(origin: Origin) -> Place:
    return Place(origin.number, origin.ledger_id, origin.entry_id, max(origin.version, 0))

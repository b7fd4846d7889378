"""A replay into a folder of Parquet files, complete ones only.

    messages ──► row groups ──► .part-00003.parquet.tmp ──sync, rename──► part-00003.parquet
                                                                 └──► the manifest names it

What was not complete when a run was killed is written again by the next, which goes on
behind the last file that the manifest names. The columns are those that Spark reads.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from ledger_client.replay.errors import TargetForeign
from ledger_client.replay.manifest import (
    File,
    Manifest,
    file_name,
    load_manifest,
    remove_files,
    save_manifest,
    sync_folder,
)
from ledger_client.replay.source import Chunk
from ledger_client.replay.target import WHOLE, Reached, sent_of, sums_of
from ledger_client.topics.reading.merging import Run
from metadata.replays import LaneMark, ReplayRecord
from native.checksum import Checksum

FILE_SIZE = 256 << 20
"""Bytes of values and keys of a file, about; it ends with a chunk."""
GROUP_ROWS = 128 * 1024
GROUP_SIZE = 32 << 20
COMPRESSION = "zstd"


class ParquetTarget:
    """Writes files; see Target. Made by open_parquet_target()."""

    def __init__(self, folder: Path, manifest: Manifest, *, file_size: int, resumed: bool) -> None:
        self.sent = sums_of([manifest.whole])
        for number, file in enumerate(manifest.files):
            self.sent[number] = Checksum(file.rows, file.total, file.chain)
        self.bytes = manifest.bytes
        self.repeated = 0
        self._folder = folder
        self._manifest = manifest
        self._file_size = file_size
        self._resumed = resumed
        self._writer: Any = None
        self._group: list[Any] = []
        self._group_size = self._size = 0
        self._sum = Checksum()

    def reached(self) -> list[LaneMark] | None:
        """Return where the next file begins."""
        return self._manifest.reached if self._resumed else None

    def batch_of(self, chunk: Chunk) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the messages with the columns that Spark reads."""
        import pyarrow as pa

        batches = [_batch_of(run) for run in chunk.runs]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    async def put(self, batch: Any, reached: Reached | None) -> bool:  # noqa: ANN401
        """Write, and end the file if it is large enough. Raises OSError."""
        from ledger_client.replay.columns import Given

        given = Given(batch)
        columns, size = given.columns, given.size
        self._sum = self._sum.add(columns)
        self.sent[WHOLE] = self.sent.get(WHOLE, Checksum()).add(columns)
        self.sent[len(self._manifest.files)] = self._sum
        self.bytes += size
        self._size += size
        self._group.append(batch)
        self._group_size += size
        rows = sum(each.num_rows for each in self._group)
        if rows >= GROUP_ROWS or self._group_size >= GROUP_SIZE:
            await trio.to_thread.run_sync(self._write_group)
        if reached is None or self._size < self._file_size:
            return False
        await self._end(reached, complete=False)
        return True

    async def finish(self, reached: Reached) -> None:
        """End the last file. Raises OSError."""
        await self._end(reached, complete=True)

    def _write_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._group:
            return
        table = pa.Table.from_batches(self._group)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._temporary, table.schema, compression=COMPRESSION, version="2.6"
            )
        self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self._group, self._group_size = [], 0

    async def _end(self, reached: Reached, *, complete: bool) -> None:
        """Complete the file, if there is one, and name it in the manifest."""
        end = partial(self._end_file, reached(), complete)
        await trio.to_thread.run_sync(end)

    def _end_file(self, reached: list[LaneMark], complete: bool) -> None:
        self._write_group()
        files = list(self._manifest.files)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            files.append(self._publish(file_name(len(files))))
        (whole,) = sent_of({WHOLE: self.sent.get(WHOLE, Checksum())})
        self._manifest = msgspec.structs.replace(
            self._manifest,
            files=files,
            whole=whole,
            bytes=self.bytes,
            reached=reached,
            complete=complete,
        )
        save_manifest(self._folder, self._manifest)
        self._size, self._sum = 0, Checksum()

    def _publish(self, name: str) -> File:
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        self._temporary.rename(self._folder / name)
        sync_folder(self._folder)
        return File(name, self._sum.count, size, self._sum.total, self._sum.chain)

    def close(self) -> None:
        """Let go of a file that is not complete."""
        if self._writer is not None:
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

    @property
    def _temporary(self) -> Path:
        return self._folder / f".{file_name(len(self._manifest.files))}.tmp"


@asynccontextmanager
async def open_parquet_target(
    folder: Path, record: ReplayRecord, *, resumed: bool, restart: bool, file_size: int = FILE_SIZE
) -> AsyncIterator[ParquetTarget]:
    """Write files into *folder* for the block, behind those that the run has there.

    *restart*: those of a run before go.

    Raises:
        TargetForeign: there are other files, or files of the run are gone.
        OSError: the folder cannot be written.
    """
    prepare = partial(_prepare, folder, record, resumed=resumed, restart=restart)
    with _held(folder, record.sources[0].name):
        manifest = await trio.to_thread.run_sync(prepare)
        has_files = manifest is not None
        manifest = manifest or Manifest(
            replay=record.name, run=record.run, whole=_nothing(), reached=record.reached
        )
        target = ParquetTarget(folder, manifest, file_size=file_size, resumed=has_files)
        try:
            yield target
        finally:
            target.close()


def check_complete(folder: Path, record: ReplayRecord) -> None:
    """Return if all that a replay which is done wrote is in the folder.

    Raises:
        TargetForeign: files are gone, or the folder is another replay's.
        OSError: the folder cannot be read.
    """
    _own_manifest(folder, record)


async def read_back(folder: Path, record: ReplayRecord) -> Mapping[int, Checksum]:
    """Return the checksum of all that a replay wrote, and of each file.

    Raises:
        TargetForeign: as check_complete(), or a file is not Parquet any more.
        OSError: a file cannot be read.
    """
    return await trio.to_thread.run_sync(_read_files, folder, record)


def _read_files(folder: Path, record: ReplayRecord) -> dict[int, Checksum]:
    whole, found = Checksum(), {}
    for number, file in enumerate(_own_manifest(folder, record).files):
        found[number] = _sum_of(folder / file.name, record.sources[0].name)
        whole = whole.join(found[number])
    return {**found, WHOLE: whole}


def _sum_of(path: Path, topic: str) -> Checksum:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ledger_client.replay.columns import Given

    found = Checksum()
    try:
        with pq.ParquetFile(path) as opened:
            for batch in opened.iter_batches(GROUP_ROWS):
                found = found.add(Given(batch).columns)
    except (pa.ArrowException, OSError, ValueError, KeyError) as wrong:
        if isinstance(wrong, OSError) and wrong.errno is not None:  # else it is Arrow's, of a page
            raise
        told = next(iter(str(wrong).splitlines()), type(wrong).__name__)
        raise TargetForeign(f"{path} is damaged: {told}; use --restart", topic=topic) from wrong
    return found


def _own_manifest(folder: Path, record: ReplayRecord) -> Manifest:
    """Return the manifest of this very replay, if its files are there. Raises TargetForeign."""
    topic = record.sources[0].name
    manifest = load_manifest(folder, topic)
    if manifest is None or manifest.run != record.run:
        raise TargetForeign(f"{folder} lacks the files of this replay; --restart", topic=topic)
    _check_files(folder, manifest, topic)
    return manifest


@contextmanager
def _held(folder: Path, topic: str) -> Iterator[None]:
    """Let no other replay write into the folder for the block; a kill ends that, too.

    Raises TargetForeign: one does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks of folders cannot tell
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                told = f"another replay writes into {folder}"
                raise TargetForeign(told, topic=topic) from None
        yield
    finally:
        os.close(descriptor)


def _prepare(
    folder: Path, record: ReplayRecord, *, resumed: bool, restart: bool
) -> Manifest | None:
    """Return the run's manifest; leave nothing in the folder that it does not name."""
    topic = record.sources[0].name
    manifest = load_manifest(folder, topic)
    if manifest is not None and manifest.run != record.run:
        if not restart:
            told = f"{folder} holds replay {manifest.replay}; choose another folder, or --restart"
            raise TargetForeign(told, topic=topic)
        remove_files(folder, manifest, topic)
        manifest = None
    if manifest is None and resumed and record.sent:
        raise TargetForeign(f"{folder} lacks the files of this replay; --restart", topic=topic)
    if manifest is not None:
        _check_files(folder, manifest, topic)
    known = [] if manifest is None else [file.name for file in manifest.files]
    _drop_unnamed(folder, known, record, resumed=resumed)
    return manifest


def _check_files(folder: Path, manifest: Manifest, topic: str) -> None:
    for file in manifest.files:
        path = folder / file.name
        if not path.exists() or path.stat().st_size != file.size:
            told = f"{path} is not as this replay left it; use --restart"
            raise TargetForeign(told, topic=topic)


def _drop_unnamed(
    folder: Path, known: Sequence[str], record: ReplayRecord, *, resumed: bool
) -> None:
    """Remove the file that a killed run had renamed and not named, and what was hidden."""
    following = file_name(len(known))
    for path in sorted(folder.glob("*.parquet")):
        if path.name in known:
            continue
        if not resumed or path.name != following:
            told = f"{folder} holds {path.name}, which is not of this replay"
            raise TargetForeign(told, topic=record.sources[0].name)
        path.unlink()
    for path in folder.glob(".part-*.parquet.tmp"):
        path.unlink()


def _batch_of(run: Run) -> Any:  # noqa: ANN401 - pyarrow has no types
    import pyarrow as pa

    from ledger_client.spark.columns import NAMES, columns_of

    batch = pa.RecordBatch.from_arrays(columns_of(run.slices, NAMES), NAMES)
    return batch if run.order is None else batch.take(pa.array(run.order, pa.int32()))


def _nothing() -> Any:  # noqa: ANN401 - a Sent
    (nothing,) = sent_of({WHOLE: Checksum()})
    return nothing

"""A replay into a folder of Parquet files, complete ones only.

    messages ──► row groups ──► .part-00003.parquet.tmp ──sync, rename──► part-00003.parquet
                                                                 └──► the manifest lists it

A file is complete when the manifest lists it: it was written under a hidden name, synced and
renamed, and then the manifest was replaced as a whole. Readers of Parquet skip names that begin
with "_" or ".". A file that was incomplete when a run was killed is written again by the next
run, which continues after the last listed file. The columns are those of Spark's data source.

A manifest is not trusted, since --restart removes the files that it lists: file *n* has one
possible name, file_name(n), and only a regular file counts as one.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from ledger_client.errors import ReplayConflict
from ledger_client.jobs.replay.log import WHOLE, sent_of, sums_of
from ledger_client.jobs.replay.source import ReplayChunk
from ledger_client.jobs.replay.target import Reached, ReplayBatch
from ledger_client.topics.messages import MergedBatch
from metadata.replays import LaneMark, ReplayRecord, SentChecksum
from native.checksum import Checksum

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

NAME = "_manifest.json"
TEMPORARY = ".manifest.json.tmp"


class File(msgspec.Struct, frozen=True):
    """A complete file, with *total* and *chain* as the checksum of its messages."""

    name: str
    rows: int
    size: int
    total: int
    chain: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one run in the order of the replay, and the marks reached after them."""

    replay: str
    run: str
    files: list[File] = []
    whole: SentChecksum
    bytes: int = 0
    reached: list[LaneMark]
    complete: bool = False


def file_name(number: int) -> str:
    """Return the name of a replay's file by its number, from 0."""
    return f"part-{number:05d}.parquet"


def load_manifest(folder: Path, topic: str) -> Manifest | None:
    """Return the manifest of a folder, or `None` if there is none.

    Raises ReplayConflict if it is damaged, or lists files that no replay makes.
    """
    path = folder / NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ReplayConflict(f"{path} is no manifest of a replay: {wrong}", topic=topic) from wrong
    for number, file in enumerate(manifest.files):
        if file.name != file_name(number):
            reason = f"{path} names {file.name!a}, and a replay's file {number} is"
            raise ReplayConflict(
                f"{reason} {file_name(number)}; choose another folder", topic=topic
            )
    return manifest


def remove_files(folder: Path, manifest: Manifest, topic: str) -> None:
    """Remove a run's files, the next one that it may have renamed, and its manifest.

    Raises:
        ReplayConflict: one of them is not a regular file, such as a link. Nothing is removed.
        OSError: the folder cannot be changed.
    """
    following = file_name(len(manifest.files))
    paths = [folder / name for name in [*(file.name for file in manifest.files), following, NAME]]
    for path in paths:
        if not _is_plain(path):
            reason = f"{path} is no regular file, and no replay made it; choose another folder"
            raise ReplayConflict(reason, topic=topic)
    for path in paths:
        path.unlink(missing_ok=True)


def _is_plain(path: Path) -> bool:
    """Whether *path* is a regular file or does not exist."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest and sync it. Raises OSError."""
    temporary = folder / TEMPORARY
    temporary.unlink(missing_ok=True)  # a link there would redirect the write
    with temporary.open("xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / NAME)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames in it are durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FILE_SIZE = 256 << 20
"""Approximate bytes of values and keys of a file, which ends with a chunk."""
GROUP_ROWS = 128 * 1024
GROUP_SIZE = 32 << 20
COMPRESSION = "zstd"


class ParquetTarget:
    """Writes files; see ReplayTarget. Made by open_parquet_target()."""

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
        self._writer: pq.ParquetWriter | None = None
        self._group: list[pa.RecordBatch] = []
        self._group_size = self._size = 0
        self._sum = Checksum()

    def reached(self) -> list[LaneMark] | None:
        """Return the marks at which the next file begins, if the manifest has any."""
        return self._manifest.reached if self._resumed else None

    def batch_of(self, chunk: ReplayChunk) -> ReplayBatch:
        """Return the messages with the columns of Spark's data source."""
        import pyarrow as pa

        batches = [_batch_of(run) for run in chunk.runs]
        return ReplayBatch(batches[0] if len(batches) == 1 else pa.concat_batches(batches))

    async def put(self, batch: ReplayBatch, reached: Reached | None) -> bool:
        """Write a batch, and complete the file if it is large enough. Raises OSError."""
        from ledger_client.jobs.replay.columns import CopiedColumns

        given = CopiedColumns(batch.batch)
        columns, size = given.columns, given.size
        self._sum = self._sum.add(columns)
        self.sent[WHOLE] = self.sent.get(WHOLE, Checksum()).add(columns)
        self.sent[len(self._manifest.files)] = self._sum
        self.bytes += size
        self._size += size
        self._group.append(batch.batch)
        self._group_size += size
        rows = sum(each.num_rows for each in self._group)
        if rows >= GROUP_ROWS or self._group_size >= GROUP_SIZE:
            await trio.to_thread.run_sync(self._write_group)
        if reached is None or self._size < self._file_size:
            return False
        await self._end(reached, complete=False)
        return True

    async def finish(self, reached: Reached) -> None:
        """Complete the last file. Raises OSError."""
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
        """Complete the file, if any, and list it in the manifest."""
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
        """Close and delete an incomplete file."""
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
    """Write files into *folder* for the block, after those that the run has there.

    *restart* removes the files of an earlier run.

    Raises:
        ReplayConflict: the folder has other files, or lacks files of the run.
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
    """Check that the folder has all files of a finished replay.

    Raises:
        ReplayConflict: files are gone, or the folder is another replay's.
        OSError: the folder cannot be read.
    """
    _own_manifest(folder, record)


async def read_back_files(folder: Path, record: ReplayRecord) -> Mapping[int, Checksum]:
    """Return the checksum of all messages in the files of a replay, and of each file.

    Raises:
        ReplayConflict: as check_complete(), or a file is not valid Parquet.
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

    from ledger_client.jobs.replay.columns import CopiedColumns

    found = Checksum()
    try:
        with pq.ParquetFile(path) as opened:
            for batch in opened.iter_batches(GROUP_ROWS):
                found = found.add(CopiedColumns(batch).columns)
    except (pa.ArrowException, OSError, ValueError, KeyError) as wrong:
        if isinstance(wrong, OSError) and wrong.errno is not None:  # else it is Arrow's, of a page
            raise
        reason = next(iter(str(wrong).splitlines()), type(wrong).__name__)
        raise ReplayConflict(f"{path} is damaged: {reason}; use --restart", topic=topic) from wrong
    return found


def _own_manifest(folder: Path, record: ReplayRecord) -> Manifest:
    """Return this replay's manifest, checking its files. Raises ReplayConflict."""
    topic = record.sources[0].name
    manifest = load_manifest(folder, topic)
    if manifest is None or manifest.run != record.run:
        raise ReplayConflict(f"{folder} lacks the files of this replay; --restart", topic=topic)
    _check_files(folder, manifest, topic)
    return manifest


@contextmanager
def _held(folder: Path, topic: str) -> Iterator[None]:
    """Lock the folder against other replays for the block; a kill releases the lock.

    Raises ReplayConflict if another replay holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # the file system may not lock folders
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                reason = f"another replay writes into {folder}"
                raise ReplayConflict(reason, topic=topic) from None
        yield
    finally:
        os.close(descriptor)


def _prepare(
    folder: Path, record: ReplayRecord, *, resumed: bool, restart: bool
) -> Manifest | None:
    """Return the run's manifest, and remove files that it does not list."""
    topic = record.sources[0].name
    manifest = load_manifest(folder, topic)
    if manifest is not None and manifest.run != record.run:
        if not restart:
            reason = f"{folder} holds replay {manifest.replay}; choose another folder, or --restart"
            raise ReplayConflict(reason, topic=topic)
        remove_files(folder, manifest, topic)
        manifest = None
    if manifest is None and resumed and record.sent:
        raise ReplayConflict(f"{folder} lacks the files of this replay; --restart", topic=topic)
    if manifest is not None:
        _check_files(folder, manifest, topic)
    known = [] if manifest is None else [file.name for file in manifest.files]
    _drop_unnamed(folder, known, record, resumed=resumed)
    return manifest


def _check_files(folder: Path, manifest: Manifest, topic: str) -> None:
    for file in manifest.files:
        path = folder / file.name
        if not path.exists() or path.stat().st_size != file.size:
            reason = f"{path} is not as this replay left it; use --restart"
            raise ReplayConflict(reason, topic=topic)


def _drop_unnamed(
    folder: Path, known: Sequence[str], record: ReplayRecord, *, resumed: bool
) -> None:
    """Remove hidden files, and a file that a killed run had renamed and not yet listed."""
    following = file_name(len(known))
    for path in sorted(folder.glob("*.parquet")):
        if path.name in known:
            continue
        if not resumed or path.name != following:
            reason = f"{folder} holds {path.name}, which is not of this replay"
            raise ReplayConflict(reason, topic=record.sources[0].name)
        path.unlink()
    for path in folder.glob(".part-*.parquet.tmp"):
        path.unlink()


def _batch_of(run: MergedBatch) -> pa.RecordBatch:
    import pyarrow as pa

    from ledger_client.jobs.arrow_columns import NAMES, columns_of

    batch = pa.RecordBatch.from_arrays(columns_of(run.ranges, NAMES), NAMES)
    return batch if run.order is None else batch.take(pa.array(run.order, pa.int32()))


def _nothing() -> SentChecksum:
    (nothing,) = sent_of({WHOLE: Checksum()})
    return nothing

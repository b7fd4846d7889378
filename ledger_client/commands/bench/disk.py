"""``quire bench disk``: the speed of the bare disk, the floor for all other figures.

The access pattern is a journal's: aligned writes past the page cache into a file that is
already allocated and zero-filled, with one fdatasync after each group. Then the file is read
once, in order, from the disk. No store that acknowledges after a sync can be faster on the
same disk.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from ledger_client.commands import options
from ledger_client.commands.bench import load_options
from ledger_client.commands.bench.load import Percentiles, Samples
from ledger_client.commands.options import SizeParam
from ledger_client.commands.outcome import finish

BLOCK_SIZE = 4096
GROUP_SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
READ_SIZE = 4 << 20
SYNCS = 1000
SPARED_SIZE = 64 << 20
"""Bytes to leave free on the disk."""
Check = Callable[[], object]
"""Raises to end the measurement."""


class GroupFloor(msgspec.Struct, frozen=True):
    """Groups of *group_size* bytes, each written and synced."""

    group_size: int
    mb_per_s: float
    latency: Percentiles


class Floor(msgspec.Struct, frozen=True):
    """The speed of the disk under a folder; MB are 10^6 bytes."""

    sync: GroupFloor
    """syncs of single blocks: no acknowledgement can be faster"""
    groups: list[GroupFloor]
    read_mb_per_s: float
    direct: bool
    folder: str
    in_memory: bool
    """the folder is on no disk"""

    @property
    def write_mb_per_s(self) -> float:
        """The bandwidth of the fastest group size."""
        return max(group.mb_per_s for group in self.groups)


async def floor_of(folder: Path, size: int) -> Floor:
    """Measure the floor in a thread, which ends soon after a cancellation; see measure_floor()."""
    measure = partial(measure_floor, check=trio.from_thread.check_cancelled)
    return await trio.to_thread.run_sync(measure, folder, size)


def measure_floor(folder: Path, size: int, *, check: Check = lambda: None) -> Floor:
    """Write and read *size* bytes in a temporary file in *folder*. Blocks.

    *check* is called before each access to the disk. The file is gone also if that raises.

    Raises:
        OSError: no access, or too little free space, which is checked first.
    """
    size = max(size, GROUP_SIZES[-1]) // GROUP_SIZES[-1] * GROUP_SIZES[-1]
    free = shutil.disk_usage(folder).free
    if free < size + SPARED_SIZE:
        words = f"{size:,} bytes to write, but {free:,} free; write fewer, or use another folder"
        raise OSError(errno.ENOSPC, words, str(folder))
    with tempfile.TemporaryDirectory(dir=folder, prefix="quire-floor-") as scratch:
        buffer = mmap.mmap(-1, GROUP_SIZES[-1])  # page-aligned, as O_DIRECT needs it
        buffer.write(os.urandom(GROUP_SIZES[-1]))
        return _measure(Path(scratch) / "floor", memoryview(buffer), size, check)


def _measure(path: Path, buffer: memoryview, size: int, check: Check) -> Floor:
    descriptor, direct = _open_direct(path)
    write = partial(_write_groups, descriptor, check=check)
    try:
        _fill_with_zeros(path, size, check)
        sync = write(buffer[:BLOCK_SIZE], min(SYNCS * BLOCK_SIZE, size))
        groups = [write(buffer[:group], size) for group in GROUP_SIZES]
        read_mb_per_s = _read(descriptor, buffer[:READ_SIZE], size, check)
    finally:
        os.close(descriptor)
    folder = path.parent.parent
    return Floor(sync, groups, read_mb_per_s, direct, str(folder), _is_in_memory(folder))


def _open_direct(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o600), False  # tmpfs and the like lack O_DIRECT


def _is_in_memory(folder: Path) -> bool:
    """Return True for a tmpfs, which takes O_DIRECT since Linux 6.6."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 1] in ("tmpfs", "ramfs", "devtmpfs")
    return False


def _fill_with_zeros(path: Path, size: int, check: Check) -> None:
    zeros = bytes(GROUP_SIZES[-1])
    with path.open("r+b") as file:
        for _ in range(size // len(zeros)):
            check()
            file.write(zeros)
            file.flush()
            os.fsync(file.fileno())  # a single one at the end could take minutes


def _write_groups(descriptor: int, group: memoryview, size: int, *, check: Check) -> GroupFloor:
    samples = Samples()
    started = before = time.perf_counter()
    for offset in range(0, size, len(group)):
        check()
        os.pwrite(descriptor, group, offset)
        os.fdatasync(descriptor)
        after = time.perf_counter()
        samples.add(after - before)
        before = after
    return GroupFloor(len(group), _mb_per_s(size, before - started), samples.percentiles())


def _read(descriptor: int, buffer: memoryview, size: int, check: Check) -> float:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.perf_counter()
    for offset in range(0, size, len(buffer)):
        check()
        os.preadv(descriptor, [buffer], offset)
    return _mb_per_s(size, time.perf_counter() - started)


def _mb_per_s(size: int, seconds: float) -> float:
    return round(size / 1e6 / seconds, 1)


# --- The command ------------------------------------------------------------------------


@click.command()
@load_options.folder
@click.option(
    "--bytes",
    "size",
    type=SizeParam(),
    default="1GiB",
    show_default=True,
    help="Bytes to write and read.",
)
@options.as_json
def disk(folder: Path | None, size: int, as_json: bool) -> None:
    """Measure the bare disk with the access pattern of a journal.

    Aligned writes past the page cache into a zero-filled file, one fdatasync per group; then
    one sequential read.
    """
    below = folder or Path(tempfile.gettempdir())
    floor = trio.run(finish, partial(floor_of, below, size))
    click.echo(msgspec.json.encode(floor).decode() if as_json else describe(floor))


def describe(floor: Floor) -> str:
    """Format the measurements as a table."""
    rows = [f"{'write + fdatasync of':<22}{'MB/s':>10}{'p50 ms':>10}{'p99 ms':>10}{'p99.9 ms':>10}"]
    for group in [floor.sync, *floor.groups]:
        at = group.latency
        rows.append(
            f"{group.group_size >> 10:>18} KiB{group.mb_per_s:>10.1f}"
            f"{at.p50_ms:>10.3f}{at.p99_ms:>10.3f}{at.p999_ms:>10.3f}"
        )
    rows.append(f"{'read in order, cold':<22}{floor.read_mb_per_s:>10.1f}")
    if floor.in_memory:
        rows.append(f"{floor.folder} is memory and no disk (tmpfs): choose another --folder")
    elif not floor.direct:
        rows.append("this file system lacks O_DIRECT, so the figures include the page cache")
    return "\n".join(rows)


def foreign_disk(floor: Floor) -> str:
    """Say whose disk was measured, beside figures of a cluster that stays."""
    return f"the disk is that of {floor.folder} on this host, whatever disks the bookies have"

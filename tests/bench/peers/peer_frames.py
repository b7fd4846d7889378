"""The loads of load.c, BookKeeper's v2 frames from one connection, against one bookie."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
from peer_systems import CannotCompare, Running, usage

from bookie.foreign import FREE_FROM

SOURCE = Path(__file__).resolve().parent / "load.c"
LOAD_S = 900.0


class Load(msgspec.Struct, frozen=True):
    """*count* entries of *size* payload bytes with *window* requests under way, as *verb*."""

    name: str
    verb: str
    count: int
    size: int
    window: int
    ledger: int
    """one reads what another one of the same ledger wrote"""


class Figure(msgspec.Struct, frozen=True):
    """What one load gave. Times are those of a request, in microseconds."""

    load: str
    entries: int
    bytes: int
    seconds: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """of the server, for one entry"""
    written: float
    """bytes to the disk for one of payload, until the load's end"""
    refused: int
    """adds that were sent again, since the bookie said that there were too many"""

    @property
    def per_s(self) -> float:
        """Return entries a second."""
        return self.entries / self.seconds


class _Told(msgspec.Struct, frozen=True):
    entries: int
    bytes: int
    seconds: float
    p50_us: int
    p99_us: int
    refused: int


LOADS = (
    Load("warm up", "add", 200_000, 1024, 1000, 1),
    Load("warm up: reads", "read", 100_000, 1024, 1000, 1),
    Load("add 100 B", "add", 3_000_000, 100, 10_000, 2),
    Load("add 1 KiB", "add", 600_000, 1024, 10_000, 3),
    Load("READ 1 KiB, entry by entry", "read", 300_000, 1024, 1000, 3),
    Load("BATCH_READ 1 KiB", "batch", 600_000, 1024, 16, 3),
    Load("add 64 KiB", "add", 12_000, 65_536, 500, 4),
    Load("one synchronous add, 100 B", "add", 2_000, 100, 1, 5),
)
WARM_UP = "warm up"


def build(folder: Path) -> Path:
    """Compile load.c. Raises CannotCompare."""
    program = folder / "load"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        raise CannotCompare(f"load.c does not compile:\n{said.stderr}")
    return program


def run_all(program: Path, bookie: Running, *, part: float) -> Iterator[Figure]:
    """Yield a figure for each load of *part* of its entries. Raises CannotCompare. Blocks."""
    for load in LOADS:
        figure = _run(program, bookie, load, max(1, round(load.count * part)))
        if not load.name.startswith(WARM_UP):
            yield figure


def _run(program: Path, bookie: Running, load: Load, count: int) -> Figure:
    host, _, port = bookie.address.partition(":")
    numbers = (FREE_FROM + load.ledger, count, load.size, load.window)
    before = usage(bookie.process_ids)
    said = subprocess.run(
        [str(program), host, port, load.verb, *map(str, numbers)],
        capture_output=True,
        timeout=LOAD_S,
        check=False,
    )
    if said.returncode:
        raise CannotCompare(f"{bookie.system}, {load.name}: {said.stderr.decode().strip()}")
    after = usage(bookie.process_ids)
    told = msgspec.json.decode(said.stdout, type=_Told)
    return Figure(
        load=load.name,
        entries=told.entries,
        bytes=told.bytes,
        seconds=told.seconds,
        p50_us=told.p50_us,
        p99_us=told.p99_us,
        cpu_us=1e6 * (after.cpu_s - before.cpu_s) / told.entries,
        written=(after.written - before.written) / told.bytes if load.verb == "add" else 0.0,
        refused=told.refused,
    )

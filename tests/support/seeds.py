"""Sound inputs for the fuzz harnesses, each behind its byte of modes (see fuzz.h)."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from batches import columns_of, model, plain
from engines import Bookie
from fuzzing import KEPT
from stores import StoreRig, entries
from wire import KEY, add, be, framed, header, write_lac

from native.batch import BatchKind, Compression, encode, encode_control
from native.compacted import Origin, Origins, encode as encode_compacted

REPAIR, OPEN = 1, 2
COMPRESSIONS: list[Compression] = ["none", "zstd", "lz4"]
MODES = [bytes([0]), bytes([REPAIR]), bytes([REPAIR | OPEN])]
PIECES = [b"\x00", b"\x01", b"\xff"]
"""A stream has 1 + 4 times this many bytes."""

REQUESTS = [
    add(1, 0, b"hello"),
    add(1, 1, b"x" * 300),
    add(2, 0, b"", flags=6),
    framed(header(2) + be(1) + be(0)),
    framed(header(2) + be(1) + be(-1)),
    framed(header(2, 1) + be(1) + be(-1) + KEY),
    framed(header(3) + b"\x0a\x01x\x12\x00"),
    framed(header(7) + be(1) + be(0) + be(9) + be(10, 4) + be(4096)),
    framed(header(64) + be(1) + be(0) + be(9) + be(10, 4) + be(4096, 4) + be(-1) + be(50, 4)),
    write_lac(1, 3, 0),
    framed(header(67) + be(4) + b"\x80"),
    framed(header(69) + be(3) + be(5)) + add(3, 0, b"former"),
    framed(header(69) + be(3) + be(6)) + add(3, 0, b"later"),
    framed(header(2, 0, 3) + be(1) + be(0)),
]


def _entry(ledger_id: int, entry_id: int) -> bytes:
    entry = entries(ledger_id, [entry_id])[entry_id]
    return be(len(entry), 4) + entry


RESPONSES = [
    framed(header(1) + be(0, 4) + be(1) + be(0)),
    framed(header(1) + be(104, 4) + be(1) + be(0)),
    framed(header(2) + be(0, 4) + be(1) + be(-1) + _entry(1, 0)[4:]),
    framed(header(7) + be(0, 4) + be(1) + be(0) + be(9) + _entry(1, 0) + _entry(1, 1)),
    framed(header(64) + be(0, 4) + be(1) + be(0) + be(9) + be(1) + be(0, 4) + _entry(1, 0)),
    framed(header(65) + be(0, 4) + be(1) + be(3)),
    framed(header(67) + be(0, 4) + be(4) + b"\x80"),
]


def streams() -> Iterator[bytes]:
    """Requests and responses, alone and all together, in pieces of several sizes."""
    for piece in PIECES:
        for frame in [*REQUESTS, *RESPONSES]:
            yield piece + frame
        yield piece + b"".join(REQUESTS[:-1])
        yield piece + b"".join(RESPONSES)


def _file_of(folder: Path, pattern: str) -> bytes:
    return max(folder.glob(pattern)).read_bytes()


def _bookie(folder: Path) -> Bookie:
    """A bookie with every kind of record in its table and in its newest journal."""
    bookie = Bookie(folder)
    for ledger_id in (1, 2, 7):
        for entry_id in range(3):
            bookie.add(ledger_id, entry_id, b"x" * 40 * entry_id)
    bookie.send(write_lac(2, 1, 2))
    bookie.engine.fence(7, KEY)
    bookie.engine.delete_ledger(1, 1000)
    bookie.engine.fence(8, KEY, 5)
    bookie.engine.renew_ledger(8, 5, 6)
    while bookie.engine.commit():
        pass
    return bookie


def journals(folder: Path) -> Iterator[bytes]:
    """A journal file of a few groups, without the zeros behind them."""
    bookie = _bookie(folder)
    data = _file_of(bookie.journal_folder, "*.journal").rstrip(b"\0")
    bookie.close()
    data += bytes(-len(data) % 4096)
    for mode in MODES:
        yield mode + data
        yield mode + data[: len(data) // 2]


def tables(folder: Path) -> Iterator[bytes]:
    """A ledger table after a flush."""
    bookie = _bookie(folder)
    bookie.checkpoint()
    data = _file_of(bookie.ledger_folder, "*.table")
    bookie.close()
    for mode in MODES:
        yield mode + data


def _store_files(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """A log and its index: open, closed, with dense and sparse extents."""
    rig = StoreRig(folder)
    rig.flush({1: entries(1, range(5)), 2: entries(2, [0, 400, 90_000])})
    rig.flush({1: entries(1, range(5, 9)), 3: entries(3, [7])})
    yield _file_of(folder, "*.log"), _file_of(folder, "*.index")
    rig.roll()
    yield _file_of(folder, "*.log"), _file_of(folder, "*.index")
    rig.close()


def entry_logs(folder: Path) -> Iterator[bytes]:
    """Entry logs, open and closed."""
    for log, _ in _store_files(folder):
        for mode in MODES[:2]:
            yield mode + log


def stores(folder: Path) -> Iterator[bytes]:
    """Entry logs with their indexes, and one without."""
    for log, index in _store_files(folder):
        for mode in MODES:
            yield mode + len(log).to_bytes(4, "little") + log + index
        yield MODES[2] + len(log).to_bytes(4, "little") + log


def payloads() -> Iterator[bytes]:
    """Batches, plain and compressed, and columns with nothing but sound offsets in them."""
    for count in (1, 2, 30):
        for compression in COMPRESSIONS:
            yield b"\0" + encode(columns_of(plain(count)), 0, count, compression=compression)
        yield b"\0" + model(plain(count)[:1] * count)
    yield b"\0" + encode_control(BatchKind.LANE_STATE, b"state")
    for count in (1, 3, 9):
        offsets = b"".join(i.to_bytes(4, "little") for i in range(count + 1))
        words = b"".join(i.to_bytes(8, "little") for i in range(count))
        sizes = bytes([OPEN, count, count])
        columns = [offsets, offsets, words, words, b"\x55\x55"[: (count + 7) // 8]]
        yield b"".join([sizes, *columns, offsets, offsets, offsets, offsets[:-4], b"abcdefghi"])


def compacted_entries() -> Iterator[bytes]:
    """Compacted entries, plain and compressed, and columns with sound offsets for a table."""
    for count in (1, 5, 30):
        origins = Origins.of(
            [Origin(i // 3, 5 + i // 3, i, i, i, -1, i, f"p{i % 2}") for i in range(count)]
        )
        indexes = array("i", [i % 3 - 1 for i in range(count)])
        for compression in COMPRESSIONS:
            entry = encode_compacted(
                origins, indexes, columns_of(plain(count)), compression=compression
            )
            yield b"\0" + entry
    for count in (1, 3, 9):
        offsets = b"".join(i.to_bytes(4, "little") for i in range(count + 1))
        orders = b"".join(i.to_bytes(8, "little") for i in range(count))
        validity = b"\x55\x55"[: (count + 7) // 8]
        yield b"".join([bytes([OPEN, count]), offsets, offsets, validity, orders, b"abababcde"])


SEEDS: dict[str, Callable[[Path], Iterator[bytes]]] = {
    "frames": lambda _: streams(),
    "connection": lambda _: streams(),
    "journal": journals,
    "table": tables,
    "entry_log": entry_logs,
    "store": stores,
    "batch": lambda _: payloads(),
    "compacted": lambda _: compacted_entries(),
}
"""By harness: a function of an empty folder."""


def write_seeds(harness: str, corpus: Path, scratch: Path) -> None:
    """Fill the folder *corpus* with the seeds of *harness*, using *scratch* meanwhile.

    Inputs that were kept once (tests/native/fuzz/kept/HARNESS) are among them.
    """
    scratch.mkdir()
    for i, seed in enumerate(SEEDS[harness](scratch)):
        (corpus / f"seed-{i:03}").write_bytes(seed)
    shutil.rmtree(scratch)
    folder = KEPT / harness
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        shutil.copyfile(path, corpus / f"kept-{path.name}")

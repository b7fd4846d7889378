"""The largest entry: what is stored fits every answer, and what fits none is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import wire
from engines import Bookie

from native.digest import Digest, DigestKind, crc32c
from native.engine import Request
from native.errors import Corrupt
from native.frame import ENTRY_SIZE_MAX as DOCUMENTED_SIZE_MAX, Code, Opcode
from native.link import Writer, readd

FRAME_SIZE_MAX = 5 << 20
ENTRY_SIZE_MAX = FRAME_SIZE_MAX - 48
BLOCK = 4096
ANSWER_SIZE_MAX = FRAME_SIZE_MAX + 4


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    bookie.close()


def answers(bookie: Bookie, ledger_id: int = 1, size_max: int = ANSWER_SIZE_MAX) -> list[bytes]:
    """Entry 0 as each opcode gives it."""
    requests = [
        Request(Opcode.READ, ledger_id=ledger_id),
        Request(Opcode.BATCH_READ, ledger_id=ledger_id, size_max=4 << 20),
        Request(Opcode.READ_WAIT, ledger_id=ledger_id, count_max=1, size_max=1 << 20),
    ]
    frames = [
        bookie.engine.answer(request, use_disk=True, size_max=size_max) for request in requests
    ]
    return [frame for frame in frames if frame is not None]


def codes(frames: list[bytes]) -> list[int]:
    return [int.from_bytes(frame[8:12], "big") for frame in frames]


def test_the_documented_size_is_the_widest_frame_less_the_widest_head() -> None:
    assert DOCUMENTED_SIZE_MAX == ENTRY_SIZE_MAX == 5242832


@pytest.mark.parametrize("flushed", [False, True])
def test_the_largest_entry_fits_every_answer(bookie: Bookie, flushed: bool) -> None:
    entry = wire.stored_entry(1, 0, b"x" * (ENTRY_SIZE_MAX - 32))
    bookie.add(1, 0, entry[32:])
    bookie.send(wire.write_lac(1, 7, 0))
    bookie.engine.commit()
    if flushed:
        bookie.checkpoint()
    # With less room than the entry needs, too: the room asked for is enough then.
    for size_max in (ANSWER_SIZE_MAX, 1 << 20):
        frames = answers(bookie, size_max=size_max)
        assert codes(frames) == [0, 0, 0]
        assert all(frame.endswith(entry) for frame in frames)
        assert max(len(frame) for frame in frames) == ANSWER_SIZE_MAX


@pytest.mark.parametrize("flags", [0, 2])
def test_an_entry_that_fits_no_answer_is_refused_and_the_connection_goes_on(
    bookie: Bookie, flags: int
) -> None:
    payload = b"x" * (ENTRY_SIZE_MAX + 1 - 32)
    bookie.send(wire.add(1, 0, payload, flags=flags) + wire.add(1, 1, b"small"))
    bookie.engine.commit()
    refused, taken = wire.add_responses(bookie.connection.take())
    assert (refused.code, refused.last, taken.code, taken.last) == (Code.BAD_REQUEST, 0, 0, 1)
    assert bookie.read(1, 0)[0] == Code.NO_ENTRY


def test_a_client_builds_no_larger_frame() -> None:
    digest = Digest(DigestKind.CRC32C)
    assert digest.payload_size_max == ENTRY_SIZE_MAX - 32 - 4
    writer = Writer(1, 1, 1, 1, digest)
    with pytest.raises(ValueError, match=str(digest.payload_size_max)):
        writer.add([bytes(digest.payload_size_max + 1)])
    with pytest.raises(Corrupt):
        readd(wire.KEY, 0, wire.be(ENTRY_SIZE_MAX + 1, 4) + bytes(ENTRY_SIZE_MAX + 1))


def write_journal(path: Path, entry: bytes) -> None:
    """Let the journal hold *entry*, whatever its size, as journal.h and record.h lay it out."""

    def record(body: bytes) -> bytes:
        size = len(body).to_bytes(4, "little")
        return size + (crc32c(size + body) ^ salt).to_bytes(4, "little") + body

    file_id = bytes.fromhex(path.name.partition(".")[0])[::-1]
    salt = crc32c(file_id, int.from_bytes(b"QUIR", "big"))
    records = record(wire.be(1) + wire.be(-0x1000) + wire.KEY) + record(entry)
    group = wire.be(-1) + wire.be(-0x10000) + file_id + BLOCK.to_bytes(8, "little") + bytes(8)
    data = record(group + (56 + len(records)).to_bytes(8, "little")) + records
    with path.open("r+b") as file:
        file.seek(BLOCK)
        file.write(data.ljust(-len(data) // BLOCK * -BLOCK, b"\0"))


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (ENTRY_SIZE_MAX, [0, 0, 0]),
        (ENTRY_SIZE_MAX + 1, [0, 0, Code.BAD_REQUEST]),
        (FRAME_SIZE_MAX - 36, [0, 0, Code.BAD_REQUEST]),
        (FRAME_SIZE_MAX - 35, [0, Code.BAD_REQUEST, Code.BAD_REQUEST]),
        (FRAME_SIZE_MAX - 24, [0, Code.BAD_REQUEST, Code.BAD_REQUEST]),
        (FRAME_SIZE_MAX - 23, [Code.BAD_REQUEST] * 3),
        (FRAME_SIZE_MAX, [Code.BAD_REQUEST] * 3),
    ],
)
def test_an_entry_of_an_older_version_that_fits_no_answer_is_answered_typed(
    bookie: Bookie, size: int, expected: list[int], flushed: bool
) -> None:
    bookie.add(1, 0, b"replaced")
    bookie.connection.close()
    bookie.engine.close()
    (path,) = bookie.journal_folder.glob("*.journal")
    write_journal(path, wire.stored_entry(1, 0, b"x" * (size - 32)))
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert (bookie.recovery.damages, bookie.recovery.limbo) == (0, False)
    bookie.send(wire.write_lac(1, 7, 0))
    bookie.engine.commit()
    if flushed:
        bookie.checkpoint()
    for size_max in (ANSWER_SIZE_MAX, 1 << 20):
        frames = answers(bookie, size_max=size_max)
        assert codes(frames) == expected
        assert all(len(frame) <= ANSWER_SIZE_MAX for frame in frames)

"""Entry logs: documented bytes, scans past damage, truncation, flipped bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import MIB, StoreRig, entries
from wire import be, crc32c

from native.errors import Absent, Corrupt
from native.faults import clear_fault, plan_fault
from native.store import MAP, Damage, LogRecord, read_head, scan_log

BLOCK = 4096
LOG = "00000001.log"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StoreRig]:
    rig = StoreRig(tmp_path / "ledgers")
    yield rig
    rig.close()


def le(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def record(body: bytes) -> bytes:
    size = le(len(body), 4)
    return size + le(crc32c(size + body), 4) + body


def header(log_id: int, map_offset: int, end: int) -> bytes:
    fields = b"QUIRELOG" + le(1, 4) + le(log_id, 4) + le(log_id, 4) + bytes(4)
    fields += le(map_offset, 8) + le(end, 8)
    return (fields + le(crc32c(fields), 4)).ljust(BLOCK, b"\0")


def padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // BLOCK) * BLOCK, b"\0")


def test_an_open_log_holds_the_documented_bytes(rig: StoreRig) -> None:
    held = {3: entries(3, [0, 1]), 9: entries(9, [7])}
    rig.flush(held, salt=0x5A5A5A5A)
    records = b"".join(record(body) for ledger in held.values() for body in ledger.values())
    assert rig.path(LOG).read_bytes() == header(1, 0, 0) + padded(records)
    assert rig.mark.log_end == 2 * BLOCK


def test_an_open_log_with_id_3_starts_as_the_header_says(rig: StoreRig) -> None:
    for _ in range(3):
        rig.flush({1: entries(1, [0])})
        rig.roll()
    rig.reopen()
    data = rig.path("00000003.log").read_bytes()
    assert data[:24].hex(" ", 4) == "51554952 454c4f47 01000000 03000000 03000000 00000000"


def test_a_closed_log_ends_with_its_map(rig: StoreRig) -> None:
    first, second = {1: entries(1, [0, 1]), 2: entries(2, [0])}, {1: entries(1, [2])}
    rig.flush(first)
    rig.flush(second)
    rig.roll()
    data = rig.path(LOG).read_bytes()
    size = len(record(first[1][0]))
    pairs = le(1, 8) + le(3 * size, 8) + le(2, 8) + le(size, 8)
    assert data[:BLOCK] == header(1, 3 * BLOCK, 4 * BLOCK)
    assert data[3 * BLOCK :] == padded(record(be(-1) + be(MAP) + pairs))
    assert rig.mark.log_id == 0
    assert read_head(rig.path(LOG)).closed


def test_a_log_whose_index_cannot_be_read_is_closed_without_its_map(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0, 1])})
    plan_fault("index_read", 1)
    rig.roll()
    clear_fault()
    data = rig.path(LOG).read_bytes()
    assert data[:BLOCK] == header(1, 0, 2 * BLOCK)
    assert len(data) == 2 * BLOCK
    rig.reopen()
    assert not rig.damage()
    rig.check()


def test_a_map_has_at_most_10_000_pairs_a_record(rig: StoreRig) -> None:
    rig.flush({i: entries(i, [0], 1) for i in range(10_001)})
    rig.roll()
    maps = [r for r in scan_log(rig.path(LOG)) if isinstance(r, LogRecord) and r.ledger_id == -1]
    assert [len(r.body) for r in maps] == [16 + 160_000, 16 + 16]
    assert {r.entry_id for r in maps} == {MAP}


def test_a_scan_yields_records_in_file_order(rig: StoreRig) -> None:
    rig.flush({5: entries(5, range(3)), 6: entries(6, [1], 2 * MIB)})
    rig.flush({1: entries(1, [0])})
    found = [r for r in scan_log(rig.path(LOG)) if isinstance(r, LogRecord)]
    assert [(r.ledger_id, r.entry_id) for r in found] == [(5, 0), (5, 1), (5, 2), (6, 1), (1, 0)]
    assert found[3].body == rig.model[6][1]
    assert found[0].offset == BLOCK
    assert found[4].offset % BLOCK == 0


def test_a_scan_goes_on_after_a_damaged_record(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(5))})
    rig.flush({1: entries(1, range(5, 8))})
    data = bytearray(rig.path(LOG).read_bytes())
    size = len(record(rig.model[1][0]))
    data[BLOCK + 2 * size + 30] ^= 1  # the body of entry 2
    data[BLOCK + 4 * size] ^= 0xFF  # the size of entry 4, the last of the flush
    rig.path(LOG).write_bytes(data)
    found = [r.entry_id if isinstance(r, LogRecord) else -r.offset for r in scan_log(rig.path(LOG))]
    assert found == [0, 1, -(BLOCK + 2 * size), 3, -(BLOCK + 4 * size), 5, 6, 7]


def test_a_size_that_became_zero_is_damage_and_not_padding(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(3))})
    data = bytearray(rig.path(LOG).read_bytes())
    data[BLOCK : BLOCK + 4] = bytes(4)
    rig.path(LOG).write_bytes(data)
    assert next(scan_log(rig.path(LOG))) == Damage(rig.path(LOG), BLOCK)


@pytest.mark.parametrize("left", range(9))
def test_a_flush_may_end_just_before_a_block_does(rig: StoreRig, left: int) -> None:
    """Or a record begin there, its size on both sides of the border."""
    size = BLOCK - left - 8 - 32
    for turn in range(3):
        rig.flush({1: entries(1, [turn], size), 2: entries(2, [turn] * (turn > 0))})
    found = list(scan_log(rig.path(LOG)))
    assert [(r.ledger_id, r.entry_id) for r in found if isinstance(r, LogRecord)] == [
        (1, 0), (1, 1), (2, 1), (1, 2), (2, 2)
    ]  # fmt: skip
    rig.path("00000001.index").unlink()
    rig.reopen()
    rig.check()
    assert len(rig.damage()) == 1


def test_a_damaged_header_is_corrupt_to_a_scan_and_no_obstacle_to_reads(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(3))})
    rig.roll()
    data = bytearray(rig.path(LOG).read_bytes())
    data[20] ^= 1
    rig.path(LOG).write_bytes(data)
    with pytest.raises(Corrupt):
        next(scan_log(rig.path(LOG)))
    rig.reopen()
    rig.check()
    assert [(d.path, d.offset) for d in rig.damage()] == [(rig.path(LOG), 0)]


# --- truncation and flipped bits ----------------------------------------------------------


def small(folder: Path, *, closed: bool) -> StoreRig:
    """A store with ten entries, in two flushes."""
    rig = StoreRig(folder)
    rig.flush({1: entries(1, range(4)), 2: entries(2, [0, 90, 900])})
    rig.flush({1: entries(1, range(4, 6)), 3: entries(3, [0])})
    if closed:
        rig.roll()
    return rig


def telling(data: bytes) -> list[int]:
    """Offsets in *data* in and next to what is not padding."""
    return [
        n
        for n in range(len(data))
        if any(data[max(n - 4, 0) : n + 4]) or n % BLOCK in (0, BLOCK - 1)
    ]


def records_before(path: Path, size: int) -> int:
    return sum(
        isinstance(r, LogRecord) and r.ledger_id >= 0 and r.offset + len(r.body) + 8 <= size
        for r in scan_log(path)
    )


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_a_log_cut_short_is_reported_and_what_is_left_is_served(
    tmp_path: Path, closed: bool, step: int
) -> None:
    rig = small(tmp_path / "ledgers", closed=closed)
    mark, saved = rig.mark, tmp_path / "saved"
    rig.save(saved)
    data = rig.path(LOG).read_bytes()
    for size in telling(data)[::step]:
        rig.restore(saved, mark)
        rig.path(LOG).write_bytes(data[:size])
        rig.reopen()
        assert LOG in {d.path.name for d in rig.damage()}, size
        corrupt = rig.check_damaged()
        assert corrupt == 10 - records_before(saved / LOG, size), size
        rig.flush({8: entries(8, [size])})
        rig.reopen()
        assert rig.read(8, size) == rig.model.pop(8)[size]
        assert rig.check_damaged() == corrupt
    rig.close()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_a_log_never_yields_wrong_bytes(
    tmp_path: Path, closed: bool, step: int
) -> None:
    rig = small(tmp_path / "ledgers", closed=closed)
    mark, saved = rig.mark, tmp_path / "saved"
    rig.save(saved)
    data = rig.path(LOG).read_bytes()
    for bit in [8 * at + b for at in telling(data) for b in range(8)][::step]:
        rig.restore(saved, mark)
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        rig.path(LOG).write_bytes(flipped)
        rig.reopen()
        corrupt = rig.check_damaged()
        assert corrupt <= 1, bit
        damage = {(d.path, d.ledger_id >= 0) for d in rig.damage()}
        if corrupt:
            assert damage == {(rig.path(LOG), True)}, bit
        elif bit // 8 < 44:
            assert damage == {(rig.path(LOG), False)}, bit
    rig.close()


def test_a_lost_log_is_damage_and_its_entries_are_corrupt(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(3))})
    rig.roll()
    rig.flush({1: entries(1, range(3, 6))})
    for lost in ("00000001.log", "00000002.log"):
        rig.store.close()
        rig.path(lost).unlink()
        rig.reopen()
        assert lost in {d.path.name for d in rig.damage()}
    assert [rig.read(1, i) for i in range(7)] == [Corrupt] * 6 + [Absent]
    rig.model.clear()
    rig.flush({1: entries(1, [6])})
    assert rig.read(1, 6) == rig.model[1][6]


def test_a_log_lost_with_its_index_is_reported(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(3))})
    rig.store.close()
    rig.path(LOG).unlink()
    rig.path("00000001.index").unlink()
    rig.reopen()
    assert [(d.path, d.offset) for d in rig.damage()] == [(rig.path(LOG), 0)]

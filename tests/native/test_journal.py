"""Journal files: documented bytes, torn tails, damage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import Bookie
from wire import KEY as MASTER_KEY, be, crc32c, stored_entry

from native.errors import Corrupt
from native.journal import (
    FENCE,
    GROUP,
    KEY,
    Damage,
    End,
    Record,
    read_header,
    scan_journal,
)

BLOCK = 4096


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    bookie.close()


def newest(bookie: Bookie) -> Path:
    return max(bookie.journal_folder.glob("*.journal"))


def le(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def salt(file_id: int) -> int:
    """Return what record.h calls the salt: crc32c of the id, seeded with "QUIR"."""
    crc = 0x51554952 ^ 0xFFFFFFFF
    for byte in le(file_id, 8):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def record(file_id: int, body: bytes) -> bytes:
    size = le(len(body), 4)
    return size + le(crc32c(size + body) ^ salt(file_id), 4) + body


def test_a_file_holds_the_documented_bytes(bookie: Bookie) -> None:
    """PS-12, BK-12: journal.h and record.h, byte for byte."""
    bookie.add(1, 0, b"hello")
    data = newest(bookie).read_bytes()
    head = b"QUIREJNL" + le(1, 4) + le(0, 4) + le(1, 8) + le(0, 8) + le(0, 8)
    assert data[:BLOCK] == (head + le(crc32c(head), 4)).ljust(BLOCK, b"\0")
    records = record(1, be(1) + be(KEY) + MASTER_KEY) + record(1, stored_entry(1, 0, b"hello"))
    group = be(-1) + be(GROUP) + le(1, 8) + le(BLOCK, 8) + le(0, 8) + le(56 + len(records), 8)
    expected = (record(1, group) + records).ljust(BLOCK, b"\0")
    assert data[BLOCK : 2 * BLOCK] == expected


def test_scan_yields_what_was_written_in_order(bookie: Bookie) -> None:
    bookie.add(1, 0, b"a")
    bookie.add(2, 0, b"b")
    bookie.engine.fence(1, MASTER_KEY)
    bookie.engine.commit()
    found = list(scan_journal(newest(bookie)))
    shape = [(r.ledger_id, r.entry_id) for r in found if isinstance(r, Record)]
    assert shape == [
        (-1, GROUP), (1, KEY), (1, 0), (-1, GROUP), (2, KEY), (2, 0), (-1, GROUP), (1, FENCE),
    ]  # fmt: skip
    assert found[-1] == End(4 * BLOCK)


def entry_ends(path: Path) -> list[tuple[int, int]]:
    """Return where each entry's record ends, with its id."""
    return [
        (r.offset + 8 + len(r.body), r.entry_id)
        for r in scan_journal(path)
        if isinstance(r, Record) and r.entry_id >= 0
    ]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_cut_anywhere_keeps_every_whole_record_before_it(tmp_path: Path, step: int) -> None:
    """PS-24: a torn tail is a clean end, wherever the cut is; step 1 tries every byte."""
    bookie = Bookie(tmp_path / "a")
    for i in range(8):
        bookie.add(1, i, bytes([65 + i]) * (i * 37 % 90))
    path = newest(bookie)
    ends = entry_ends(path)
    whole = path.read_bytes()
    bookie.close()
    copy = tmp_path / "cut" / path.name
    copy.parent.mkdir()
    near = {end + d for end, _ in ends for d in range(-20, 3)}
    for cut in sorted(near | set(range(0, ends[-1][0] + 2, step))):
        copy.write_bytes(whole[:cut])
        found = [r.entry_id for r in scan_journal(copy) if isinstance(r, Record)]
        assert [e for e in found if e >= 0] == [e for end, e in ends if end <= cut], cut


def test_a_bookie_starts_on_a_journal_cut_anywhere(tmp_path: Path) -> None:
    """PS-24: it serves every whole record before the cut, and only those."""
    bookie = Bookie(tmp_path / "a")
    payloads = [bytes([65 + i]) * (i * 37 % 90) for i in range(5)]
    for i, payload in enumerate(payloads):
        bookie.add(1, i, payload)
    path, mark = newest(bookie), bookie.mark
    ends = entry_ends(path)
    whole = path.read_bytes()
    bookie.close()
    cuts = {*range(0, 6 * BLOCK, 1021), *(end for end, _ in ends), *(end - 1 for end, _ in ends)}
    for cut in sorted(cuts):
        folder = tmp_path / f"b{cut}"
        shutil.copytree(tmp_path / "a", folder)
        (folder / "journal" / path.name).write_bytes(whole[:cut])
        restarted = Bookie(folder, mark=mark)
        for end, entry_id in ends:
            if end <= cut:
                assert restarted.payload(1, entry_id) == payloads[entry_id]
            else:
                assert restarted.read(1, entry_id)[0] in (1, 2)
        restarted.close()
        shutil.rmtree(folder)


def test_every_flipped_bit_is_noticed_or_ends_the_tail(bookie: Bookie, tmp_path: Path) -> None:
    """TB-11 in small: nothing that was not written is ever read."""
    for i in range(3):
        bookie.add(1, i, b"payload %d" % i)
    path = newest(bookie)
    whole = path.read_bytes()[: 5 * BLOCK]
    sound = {(r.entry_id, r.body) for r in scan_journal(path) if isinstance(r, Record)}
    copy = tmp_path / path.name
    spans = [range(44), *(range(at, at + 190) for at in range(BLOCK, 4 * BLOCK, BLOCK))]
    for span in spans:
        for at in span:
            for bit in range(8):
                flipped = bytearray(whole)
                flipped[at] ^= 1 << bit
                copy.write_bytes(flipped)
                try:
                    found = list(scan_journal(copy))
                except Corrupt:
                    assert at < 44
                    continue
                records = {(r.entry_id, r.body) for r in found if isinstance(r, Record)}
                assert records <= sound, (at, bit)
                if records != sound and at < 3 * BLOCK:
                    # A sound group follows, so it is damage and not a torn tail -
                    # or the header is not this file's any more.
                    assert any(isinstance(f, Damage) for f in found) or at < 44, (at, bit)


def test_damage_before_a_sound_group_is_reported_and_reading_goes_on(bookie: Bookie) -> None:
    for i in range(4):
        bookie.add(1, i, b"x" * 100)
    path = newest(bookie)
    data = bytearray(path.read_bytes())
    data[2 * BLOCK + 100] ^= 1  # in entry 1
    path.write_bytes(data)
    found = list(scan_journal(path))
    assert [r.entry_id for r in found if isinstance(r, Record) and r.entry_id >= 0] == [0, 2, 3]
    assert [f.offset for f in found if isinstance(f, Damage)] == [2 * BLOCK + 56]


def test_an_older_file_must_be_whole(bookie: Bookie) -> None:
    """In a file that is not the newest, a bad last record is damage too."""
    bookie.add(1, 0, b"x")
    bookie.add(1, 1, b"y")
    path = newest(bookie)
    data = bytearray(path.read_bytes())
    data[2 * BLOCK + 60] ^= 1
    path.write_bytes(data)
    assert not any(isinstance(f, Damage) for f in scan_journal(path))
    found = list(scan_journal(path, end=3 * BLOCK))
    assert [f.offset for f in found if isinstance(f, Damage)] == [2 * BLOCK + 56]
    assert found[-1] == End(3 * BLOCK)


def test_a_reused_file_never_shows_its_former_life(tmp_path: Path) -> None:
    """BK-12, and BP-50 of BookKeeper: reuse must not make stale records look valid."""
    bookie = Bookie(tmp_path, journal_size_max=64 * 1024)
    for i in range(30):
        bookie.add(1, i, b"first life %d" % i * 20)
    for _ in range(3):
        bookie.checkpoint()
        bookie.add(1, 100, b"-")
    assert (
        list(bookie.journal_folder.glob("*.spare"))
        or len(list(bookie.journal_folder.glob("*.journal"))) > 1
    )
    for generation in range(6):
        for i in range(18):
            bookie.add(2, generation * 100 + i, b"life %d, entry %d" % (generation, i))
        bookie.checkpoint()
        bookie.add(3, generation, b"tail")
    entries = [
        r.entry_id
        for r in scan_journal(newest(bookie))
        if isinstance(r, Record) and r.entry_id >= 0
    ]
    bookie.crash()
    assert bookie.recovery.damages == 0
    assert len(entries) == len(set(entries))
    for generation in range(6):
        assert bookie.payload(3, generation) == b"tail"
        assert bookie.payload(2, generation * 100 + 7) == b"life %d, entry 7" % generation
    bookie.close()


def test_a_file_that_was_being_created_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / f"{7:016x}.journal"
    path.write_bytes(b"")
    assert read_header(path) is None
    assert list(scan_journal(path)) == [End(0)]
    path.write_bytes(b"\0" * BLOCK)  # its size reached the disk, and its header did not
    assert read_header(path) is None
    path.write_bytes(b"\0" * BLOCK + b"a group")
    with pytest.raises(Corrupt):
        read_header(path)

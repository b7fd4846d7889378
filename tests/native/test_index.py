"""Index files: documented bytes, dense and sparse tables, damage, rebuilding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import StoreRig, entries
from wire import crc32c

from native.errors import Absent, Corrupt
from native.faults import clear_fault, plan_fault
from native.store import Damage, Extent, NewIndex, rebuild_index, scan_index

BLOCK = 4096
LOG = "00000001.log"
INDEX = "00000001.index"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StoreRig]:
    rig = StoreRig(tmp_path / "ledgers")
    yield rig
    clear_fault()
    rig.close()


def le(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def checked(data: bytes) -> bytes:
    return data + le(crc32c(data), 4)


def row(
    ids: tuple[int, int, int], page: int, offset: int, size: int, count: int, kind: int
) -> bytes:
    return (
        b"".join(le(i, 8) for i in (*ids, page))
        + le(offset, 4)
        + le(size, 4)
        + le(count, 4)
        + le(kind, 4)
    )


def extents(rig: StoreRig, name: str = INDEX) -> list[Extent]:
    found = list(scan_index(rig.path(name)))
    assert not [d for d in found if isinstance(d, Damage)]
    return [e for e in found if isinstance(e, Extent)]


# --- layout -------------------------------------------------------------------------------


def test_an_index_holds_the_documented_bytes(rig: StoreRig) -> None:
    rig.flush({3: entries(3, [5, 6, 8]), 4: entries(4, [0, 100])})
    size = 8 + len(rig.model[3][5])
    pages = 4096 + 64 + 2 * 48
    rows = row((3, 5, 8), pages, BLOCK, 3 * size, 3, 0)
    rows += row((4, 0, 100), pages + 24, BLOCK + 3 * size, 2 * size, 2, 1)
    dense = checked(le(0, 4) + le(size, 4) + le(0xFFFFFFFF, 4) + le(2 * size, 4) + le(3 * size, 4))
    sparse = checked(le(0, 8) + le(0, 4) + le(100, 8) + le(size, 4) + le(2 * size, 4))
    fields = b"QUIREXTN" + le(4096, 8) + le(2, 4) + le(crc32c(rows), 4)
    fields += (
        le(len(dense) + len(sparse), 8) + le(BLOCK, 8) + le(2 * BLOCK, 8) + le(1, 4) + bytes(8)
    )
    header = checked(b"QUIREIDX" + le(1, 4) + le(1, 4) + le(1, 4)).ljust(BLOCK, b"\0")
    block = checked(fields) + rows + dense + sparse
    assert rig.path(INDEX).read_bytes() == header + block.ljust(-(-len(block) // 64) * 64, b"\0")
    assert rig.mark.index_end == rig.path(INDEX).stat().st_size


def test_a_second_flush_begins_at_a_multiple_of_64(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0])})
    end = rig.mark.index_end
    rig.flush({1: entries(1, [1])})
    assert end % 64 == 0
    assert [e.offset for e in extents(rig)] == [4096 + 64, end + 64]


@pytest.mark.parametrize(
    ("ids", "shapes"),
    [
        (range(6), [(6, False)]),
        (range(5000), [(5000, False)]),
        (range(0, 3000, 3), [(1000, False)]),
        (range(0, 8000, 8), [(1000, False)]),
        (range(0, 9000, 9), [(340, True), (340, True), (320, True)]),
        ([0, 10**15], [(2, True)]),
        ([5, *range(1000, 3000)], [(340, True), (1661, False)]),
        ([*range(400), 10**6, *range(2 * 10**6, 2 * 10**6 + 9)], [(400, False), (10, True)]),
        ([2**62], [(1, False)]),
    ],
)
def test_the_gaps_decide_the_kind_of_table(
    rig: StoreRig, ids: list[int], shapes: list[tuple[int, bool]]
) -> None:
    rig.flush({1: entries(1, ids, 1)})
    assert [(e.entries, e.sparse) for e in extents(rig)] == shapes
    rig.check()
    rig.reopen()
    rig.check()
    for i in ids[:3]:
        if i + 1 not in rig.model[1]:
            assert rig.read(1, i + 1) is Absent


def test_a_dense_table_has_pages_of_1022_slots(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(2 * 1022 + 1), 1)})
    (extent,) = extents(rig)
    data = rig.path(INDEX).read_bytes()[extent.page_offset :]
    for start, size in ((0, 4096), (4096, 4096), (8192, 12)):
        page = data[start : start + size]
        assert checked(page[:-4]) == page


# --- lookups cost two reads at most -------------------------------------------------------


def test_a_lookup_costs_one_page_and_one_record(rig: StoreRig) -> None:
    rig.index_cache_size = 0
    rig.flush({1: entries(1, range(3000)), 2: entries(2, range(0, 9000, 30))})
    rig.reopen()
    for i, (ledger_id, entry_id) in enumerate([(1, 0), (1, 1021), (1, 2999), (2, 60), (1, 1022)]):
        assert rig.read(ledger_id, entry_id) == rig.model[ledger_id][entry_id]
        stats = rig.store.stats()
        assert (stats.index_reads, stats.log_reads) == (i + 1, i + 1)


def test_a_cached_page_is_not_read_again(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(1000))})
    for i in range(1000):
        rig.read(1, i)
    stats = rig.store.stats()
    assert (stats.index_reads, stats.index_cache_hits) == (1, 999)


def test_the_cache_stays_within_its_bound(rig: StoreRig) -> None:
    rig.index_cache_size = 20_000
    rig.flush({i: entries(i, range(1500), 1) for i in range(20)})
    rig.reopen()
    for _ in range(2):
        for i in range(20):
            assert rig.read(i, 1200) == rig.model[i][1200]
            assert rig.read(i, 3) == rig.model[i][3]
            assert rig.store.stats().index_cache_bytes <= 20_000
    assert rig.store.stats().index_reads == 80


def test_the_directory_grows_with_ledgers_and_not_with_entries(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(20_000), 1)})
    few = rig.store.stats().directory_bytes
    rig.flush({i: entries(i, [0], 1) for i in range(2, 1002)})
    assert few < 1000
    assert rig.store.stats().directory_bytes < 1000 * 100


# --- truncation and flipped bits ----------------------------------------------------------


def small(folder: Path, *, closed: bool) -> StoreRig:
    rig = StoreRig(folder)
    rig.flush({1: entries(1, range(4)), 2: entries(2, [0, 90, 900])})
    rig.flush({1: entries(1, range(4, 6)), 3: entries(3, [0])})
    if closed:
        rig.roll()
    return rig


def telling(data: bytes) -> list[int]:
    return [n for n in range(len(data)) if n % BLOCK == 0 or any(data[max(n - 4, 0) : n + 4])]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_an_index_cut_short_is_built_anew(tmp_path: Path, closed: bool, step: int) -> None:
    rig = small(tmp_path / "ledgers", closed=closed)
    mark, saved = rig.mark, tmp_path / "saved"
    rig.save(saved)
    data = rig.path(INDEX).read_bytes()
    for size in telling(data)[::step]:
        rig.restore(saved, mark)
        rig.path(INDEX).write_bytes(data[:size])
        rig.reopen()
        assert {d.path for d in rig.damage()} == {rig.path(INDEX)}, size
        rig.check()
        rig.flush({1: entries(1, [6])})
        rig.reopen()
        rig.check()
        assert rig.damage() == []
        del rig.model[1][6]
    rig.close()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_an_index_never_yields_wrong_bytes(
    tmp_path: Path, closed: bool, step: int
) -> None:
    rig = small(tmp_path / "ledgers", closed=closed)
    mark, saved = rig.mark, tmp_path / "saved"
    rig.save(saved)
    data = rig.path(INDEX).read_bytes()
    pages = [(e.page_offset, e.page_offset + page_size(e)) for e in extents(rig)]
    for bit in [8 * at + b for at in telling(data) for b in range(8)][::step]:
        rig.restore(saved, mark)
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        rig.path(INDEX).write_bytes(flipped)
        rig.reopen()
        corrupt = rig.check_damaged()
        damage = rig.damage()
        in_page = any(start <= bit // 8 < end for start, end in pages)
        assert (corrupt > 0) == in_page, bit
        assert {d.path for d in damage} <= {rig.path(INDEX)}
        assert not in_page or damage
    rig.close()


def page_size(extent: Extent) -> int:
    slots = extent.last_entry - extent.first_entry + 1
    return extent.entries * 12 + 8 if extent.sparse else slots * 4 + 8


@pytest.mark.parametrize("closed", [False, True])
def test_a_missing_index_is_built_anew(tmp_path: Path, closed: bool) -> None:
    rig = small(tmp_path / "ledgers", closed=closed)
    rig.store.close()
    rig.path(INDEX).unlink()
    rig.reopen()
    rig.check()
    assert [d.path for d in rig.damage()] == [rig.path(INDEX)]
    rig.reopen()
    rig.check()
    assert rig.damage() == []
    rig.close()


# --- torn pages ---------------------------------------------------------------------------


def break_pages(rig: StoreRig, *ledger_ids: int) -> None:
    with rig.path(INDEX).open("r+b") as file:
        for extent in extents(rig):
            if ledger_ids and extent.ledger_id not in ledger_ids:
                continue
            file.seek(extent.page_offset)
            byte = file.read(1)[0]
            file.seek(extent.page_offset)
            file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("by_check", [False, True])
def test_an_index_with_a_damaged_page_is_built_anew_by_the_next_start(
    tmp_path: Path, closed: bool, by_check: bool
) -> None:
    rig = small(tmp_path / "ledgers", closed=closed)
    torn = rig.path("00000001.torn")
    break_pages(rig)
    rig.reopen()
    assert not torn.exists(), "a start reads no pages"
    if by_check:
        rig.store.check_log(1)
    else:
        assert rig.read(1, 0) is Corrupt
    assert torn.exists()
    assert rig.damage() != []
    rig.reopen()
    rig.check()
    assert [d.path for d in rig.damage()] == [rig.path(INDEX)]
    assert not torn.exists()
    assert not rig.path("limbo").exists()
    rig.flush({1: entries(1, [6])})
    rig.reopen()
    rig.check()
    assert rig.damage() == []
    rig.close()


def test_a_torn_index_is_kept_while_its_log_is_damaged(rig: StoreRig) -> None:
    """Built from the log, it would lack an entry of which it is known that it is damaged."""
    rig.flush({1: entries(1, range(9)), 2: entries(2, range(9))})
    rig.roll()
    place = rig.store.find(2, 4)
    break_pages(rig, 1)
    with rig.path(LOG).open("r+b") as file:
        file.seek(place.offset + 40)
        file.write(b"damaged")
    rig.reopen()
    assert rig.read(1, 0) is Corrupt
    rig.reopen()
    assert [rig.read(1, 0), rig.read(2, 4)] == [Corrupt, Corrupt]
    assert rig.read(2, 5) == rig.model[2][5]
    assert not rig.path("limbo").exists()
    assert rig.path("00000001.torn").exists()


def test_a_torn_index_stays_so_until_the_new_one_is_in_place(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(9))})
    rig.roll()
    break_pages(rig)
    rig.reopen()
    assert rig.read(1, 0) is Corrupt
    plan_fault("index_sync")
    rig.reopen()
    clear_fault()
    assert rig.read(1, 0) is Corrupt
    assert rig.path("00000001.torn").exists()
    rig.reopen()
    rig.check()


def test_a_log_that_goes_takes_the_word_of_its_torn_index_with_it(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(9))})
    rig.roll()
    break_pages(rig)
    rig.reopen()
    assert rig.read(1, 0) is Corrupt
    torn = rig.path("00000001.torn")
    assert torn.exists()
    rig.store.compact(1)
    assert not torn.exists()
    assert rig.damage() != []
    torn.touch()  # by a reader that met the damage while the log was deleted
    rig.reopen()
    rig.check()
    assert not torn.exists()
    assert rig.damage() == []


# --- rebuilding ---------------------------------------------------------------------------


def test_an_index_built_anew_says_the_same(rig: StoreRig) -> None:
    for turn in range(3):
        more = {i: entries(i, range(turn * 9, turn * 9 + 9), tag=str(turn)) for i in range(50)}
        rig.flush(more | {99: entries(99, range(turn, 9000, 90))})
    rig.roll()
    before = rig.path(INDEX).read_bytes()
    rig.path(INDEX).unlink()
    assert rebuild_index(rig.path(LOG), rig.path(INDEX)) == NewIndex(3 * 450 + 300, 0, 0)
    assert rig.path(INDEX).read_bytes() == before


def test_rebuilding_skips_what_is_damaged_and_says_so(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(9))})
    place = rig.store.find(1, 4)
    rig.close()
    data = bytearray(rig.path(LOG).read_bytes())
    data[place.offset + 40] ^= 1
    rig.path(LOG).write_bytes(data)
    assert rebuild_index(rig.path(LOG), rig.path(INDEX)) == NewIndex(8, 1, place.offset)
    assert rig.path(INDEX).read_bytes()[BLOCK + 52 : BLOCK + 60] == le(1, 4) + le(0, 4)
    rig.reopen()
    del rig.model[1][4]
    assert [e.entries for e in extents(rig)] == [4, 4]
    assert {i: rig.read(1, i) for i in rig.model[1]} == rig.model[1]


def test_rebuilding_leaves_out_an_id_that_no_entry_can_have(rig: StoreRig) -> None:
    """The greatest id would leave none for the next entry; an index with it is unsound."""
    rig.flush({1: entries(1, range(9))})
    place = rig.store.find(1, 8)
    rig.close()
    data = bytearray(rig.path(LOG).read_bytes())
    end = place.offset + 8 + len(rig.model[1][8])
    record = data[place.offset : end]
    record[16:24] = (2**63 - 1).to_bytes(8, "big")
    record[4:8] = le(crc32c(bytes(record[:4] + record[8:])), 4)
    data[place.offset : end] = record
    rig.path(LOG).write_bytes(data)
    assert rebuild_index(rig.path(LOG), rig.path(INDEX)) == NewIndex(8, 0, 0)
    assert [(e.first_entry, e.last_entry) for e in extents(rig)] == [(0, 7)]


def test_a_damaged_index_with_a_damaged_log_loses_only_the_damaged_record(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(9))})
    rig.roll()
    place = rig.store.find(1, 4)
    rig.close()
    data = bytearray(rig.path(LOG).read_bytes())
    data[place.offset + 40] ^= 1
    rig.path(LOG).write_bytes(data)
    rig.path(INDEX).unlink()
    rig.reopen()
    assert [rig.read(1, i) for i in (3, 5)] == [rig.model[1][3], rig.model[1][5]]
    assert {(d.path, d.offset) for d in rig.damage()} == {
        (rig.path(INDEX), 0),
        (rig.path(LOG), place.offset),
    }


def test_a_store_without_a_mark_takes_what_is_sound(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(9))})
    rig.roll()
    rig.flush({1: entries(1, range(9, 12))})
    for index in rig.folder.glob("*.index"):
        rebuild_index(index.with_suffix(".log"), index)
    rig.store.close()
    rig.store = type(rig.store).open(rig.folder, None, 1 << 30, 1 << 20)
    rig.check()
    assert rig.damage() == []
    rig.flush({1: entries(1, [12])})
    assert [log.log_id for log in rig.store.logs()] == [1, 2, 3]
    rig.reopen()
    rig.check()


def test_scanning_a_damaged_index_ends_with_the_damage(rig: StoreRig) -> None:
    rig.flush({1: entries(1, [0])})
    end = rig.mark.index_end
    rig.flush({1: entries(1, [1])})
    data = bytearray(rig.path(INDEX).read_bytes())
    data[end + 70] ^= 1
    rig.path(INDEX).write_bytes(data)
    found = list(scan_index(rig.path(INDEX)))
    assert isinstance(found[0], Extent)
    assert found[1:] == [Damage(rig.path(INDEX), end)]
    rig.path(INDEX).write_bytes(data[:100])
    with pytest.raises(Corrupt):
        next(scan_index(rig.path(INDEX)))


def test_scanning_tells_each_damaged_page_and_goes_on(rig: StoreRig) -> None:
    rig.flush({1: entries(1, range(3000)), 2: entries(2, [5, 900_000]), 3: entries(3, [0])})
    sound = list(scan_index(rig.path(INDEX), pages=True))
    pages = [found.page_offset for found in sound if isinstance(found, Extent)]
    data = bytearray(rig.path(INDEX).read_bytes())
    data[pages[0] + 4096 + 7] ^= 1  # the second page of ledger 1
    data[pages[1]] ^= 1
    rig.path(INDEX).write_bytes(data)
    found = list(scan_index(rig.path(INDEX), pages=True))
    assert [each for each in found if isinstance(each, Extent)] == sound
    places = [each.offset for each in found if isinstance(each, Damage)]
    assert places == [pages[0] + 4096, pages[1]]
    assert list(scan_index(rig.path(INDEX))) == sound

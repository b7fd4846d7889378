"""Records that went bad on disk: found by a check, stored again, and forgotten."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from engines import Bookie
from wire import add, add_responses

from native.engine import Request
from native.errors import Corrupt
from native.faults import clear_fault, plan_fault
from native.frame import Code, Flag, Opcode
from native.store import Damage, Place

RECOVERY = Flag.RECOVERY | Flag.PRIORITY
COUNT = 40


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    """Ledgers 1 and 2 in log 1, which is open."""
    bookie = Bookie(tmp_path)
    for ledger_id in (1, 2):
        bookie.send(b"".join(add(ledger_id, i, payload(i)) for i in range(COUNT)))
    commit(bookie)
    bookie.checkpoint()
    yield bookie
    bookie.close()


def payload(entry_id: int) -> bytes:
    return f"entry {entry_id} ".encode() * (1 + entry_id % 7)


def commit(bookie: Bookie) -> list[int]:
    while bookie.engine.commit():
        pass
    return [response.code for response in add_responses(bookie.connection.take())]


def damage(bookie: Bookie, *entry_ids: int, ledger_id: int = 1, at: int = 20) -> list[Damage]:
    """Flip a bit of each record, *at* bytes from its header; return what should be told."""
    told: list[Damage] = []
    for entry_id in entry_ids:
        place = bookie.engine.store.find(ledger_id, entry_id)
        path = log_path(bookie, place.log_id)
        with path.open("r+b") as file:
            file.seek(place.offset + at)
            byte = file.read(1)[0]
            file.seek(place.offset + at)
            file.write(bytes([byte ^ 0x10]))
        before = told[-1] if told else None
        if before and max(before.entry_id, before.last_entry) + 1 == entry_id:
            told[-1] = msgspec.structs.replace(before, last_entry=entry_id)
        else:
            told.append(Damage(path, place.offset, ledger_id, entry_id))
    return told


def log_path(bookie: Bookie, log_id: int) -> Path:
    return bookie.ledger_folder / f"{log_id:08x}.log"


def repair(bookie: Bookie, *entry_ids: int, ledger_id: int = 1) -> None:
    """Store the entries again, as a repair does."""
    for entry_id in entry_ids:
        bookie.send(add(ledger_id, entry_id, payload(entry_id), flags=RECOVERY))
        assert commit(bookie) == [0]


def roll(bookie: Bookie) -> None:
    assert bookie.mark is not None
    bookie.roll()


def batch(bookie: Bookie, start_id: int) -> bytes:
    request = Request(Opcode.BATCH_READ, ledger_id=1, entry_id=start_id, size_max=1 << 20)
    answer = bookie.engine.answer(request, use_disk=True, size_max=1 << 20)
    assert answer is not None
    return answer[36:]


def assert_whole(bookie: Bookie) -> None:
    """All entries are read, one by one and together, and nothing is amiss."""
    for ledger_id in (1, 2):
        assert [bookie.payload(ledger_id, i) for i in range(COUNT)] == [
            payload(i) for i in range(COUNT)
        ]
    whole = batch(bookie, 0)
    start = 0
    for entry_id in range(COUNT):
        size = int.from_bytes(whole[start : start + 4], "big")
        assert whole[start + 36 : start + 4 + size] == payload(entry_id)
        start += 4 + size
    assert start == len(whole)
    assert bookie.engine.store.take_damage() == []


# --- from the log alone ---------------------------------------------------------------------


def from_log(bookie: Bookie, start_id: int) -> tuple[int, int]:
    """Read the logs alone; return the code and the size of the entries."""
    request = Request(
        Opcode.BATCH_READ, flags=Flag.FROM_LOG, ledger_id=1, entry_id=start_id, size_max=1 << 20
    )
    answer = bookie.engine.answer(request, use_disk=True, size_max=1 << 20)
    assert answer is not None
    return int.from_bytes(answer[8:12], "big"), len(answer[36:])


def test_a_read_from_the_log_alone_shows_no_entry_of_the_memtable(bookie: Bookie) -> None:
    """A copy in memory does not prove that the one on disk is sound."""
    assert from_log(bookie, 0) == (Code.OK, len(batch(bookie, 0)))
    damage(bookie, 5)
    before = from_log(bookie, 0)
    assert from_log(bookie, 5)[0] == Code.IO_ERROR
    repair(bookie, 5)
    assert from_log(bookie, 5)[0] == Code.NO_ENTRY
    assert from_log(bookie, 0) == before, "it ends where the memtable has another copy"
    bookie.engine.seal()
    assert from_log(bookie, 5)[0] == Code.NO_ENTRY
    bookie.checkpoint()
    assert from_log(bookie, 0) == (Code.OK, len(batch(bookie, 0)))


def test_a_read_from_the_log_alone_is_not_answered_from_memory(bookie: Bookie) -> None:
    bookie.send(add(1, COUNT, b"new"))
    commit(bookie)
    request = Request(
        Opcode.BATCH_READ, flags=Flag.FROM_LOG, ledger_id=1, entry_id=COUNT, size_max=1 << 20
    )
    assert bookie.engine.answer(request, use_disk=False, size_max=1 << 20) is None
    assert from_log(bookie, COUNT)[0] == Code.NO_ENTRY


# --- stored again ---------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 2, 4, 8, 23, 40])
def test_a_damaged_record_is_replaced_by_its_entry_stored_again(bookie: Bookie, at: int) -> None:
    """BK-11: damage is told, never absence; it may be in size, check, ids or payload."""
    told = damage(bookie, 0, 7, 8, COUNT - 1, at=at)
    assert [bookie.read(1, i)[0] for i in (0, 7, 8, COUNT - 1)] == [Code.IO_ERROR] * 4
    assert bookie.engine.store.take_damage() == told
    repair(bookie, 0, 7, 8, COUNT - 1)
    assert_whole(bookie)
    for step in (Bookie.checkpoint, Bookie.crash, Bookie.checkpoint):
        step(bookie)
        assert_whole(bookie)


@pytest.mark.parametrize("same_log", [True, False])
def test_compaction_leaves_the_damaged_record_out(bookie: Bookie, same_log: bool) -> None:
    damage(bookie, 3, 9)
    if not same_log:
        roll(bookie)
    repair(bookie, 3, 9)
    bookie.checkpoint()
    roll(bookie)
    for log in bookie.engine.store.logs():
        bookie.engine.store.compact(log.log_id)
    assert_whole(bookie)
    bookie.crash()
    assert_whole(bookie)
    for log in bookie.engine.store.logs():
        bookie.engine.store.check_log(log.log_id)
    assert_whole(bookie)


def test_an_index_built_anew_leads_to_the_newer_place(bookie: Bookie) -> None:
    damage(bookie, 3, 9)
    roll(bookie)
    repair(bookie, 3)
    bookie.checkpoint()
    repair(bookie, 9)
    bookie.checkpoint()
    for index in bookie.ledger_folder.glob("*.index"):
        index.unlink()
    bookie.crash()
    assert {d.path.suffix for d in bookie.engine.store.take_damage()} == {".index", ".log"}
    assert_whole(bookie)


def test_an_entry_in_memory_is_not_stored_again(bookie: Bookie) -> None:
    repair(bookie, 3)
    before = bookie.engine.stats()
    repair(bookie, 3)
    after = bookie.engine.stats()
    assert after.adds_repeated == before.adds_repeated + 1
    assert after.memtable_entries == before.memtable_entries


def test_compaction_keeps_a_log_whose_damage_nobody_repaired(bookie: Bookie) -> None:
    told = damage(bookie, 3, 9)
    roll(bookie)
    repair(bookie, 3)
    bookie.checkpoint()
    with pytest.raises(Corrupt):
        bookie.engine.store.compact(1)
    assert bookie.engine.store.take_damage() == told[1:]
    assert bookie.engine.store.logs()[0].damaged
    repair(bookie, 9)
    bookie.checkpoint()
    bookie.engine.store.check_log(1)
    assert not bookie.engine.store.logs()[0].damaged
    bookie.engine.store.compact(1)
    assert_whole(bookie)


# --- the check ---------------------------------------------------------------------------------


def test_a_sound_log_is_checked_to_its_end(bookie: Bookie) -> None:
    (log,) = bookie.engine.store.logs()
    assert log.open
    assert bookie.engine.store.check_log(1) == log.live
    bookie.checkpoint()
    roll(bookie)
    assert bookie.engine.store.check_log(1) == log.live
    assert bookie.engine.store.take_damage() == []


@pytest.mark.parametrize("at", [0, 4, 8, 16, 40])
def test_the_check_names_every_damaged_entry(bookie: Bookie, at: int) -> None:
    told = damage(bookie, 0, 5, 6, COUNT - 1, at=at) + damage(bookie, 11, ledger_id=2, at=at)
    bookie.engine.store.check_log(1)
    assert bookie.engine.store.take_damage() == told
    bookie.engine.store.check_log(1)
    assert bookie.engine.store.take_damage() == told, "it is told again until it is repaired"
    repair(bookie, 0, 5, 6, COUNT - 1)
    repair(bookie, 11, ledger_id=2)
    bookie.checkpoint()
    bookie.engine.store.check_log(1)
    assert bookie.engine.store.take_damage() == []


def test_damage_of_a_deleted_ledger_is_nobodys(bookie: Bookie) -> None:
    damage(bookie, 5)
    bookie.engine.delete_ledger(1, 1000)
    bookie.engine.store.check_log(1)
    assert bookie.engine.store.take_damage() == []


@pytest.mark.parametrize("step", [3, 50])
def test_entries_with_gaps_between_them_are_named_too(bookie: Bookie, step: int) -> None:
    bookie.send(b"".join(add(3, i * step, bytes(100)) for i in range(2000)))
    commit(bookie)
    bookie.checkpoint()
    told = damage(bookie, *(i * step for i in (0, 400, 401, 1300, 1999)), ledger_id=3, at=50)
    bookie.engine.store.check_log(1)
    assert bookie.engine.store.take_damage() == told


def test_large_records_are_checked(bookie: Bookie) -> None:
    sizes = [5 << 20, 100, 3 << 20, 1 << 20]
    for entry_id, size in enumerate(sizes):
        bookie.add(3, entry_id, bytes(max(size - 200, 60)))  # about the largest first
    bookie.checkpoint()
    told = damage(bookie, 0, 2, ledger_id=3, at=2_000_000)
    assert bookie.engine.store.check_log(1) > sum(sizes) - 1000
    assert bookie.engine.store.take_damage() == told


def test_a_damaged_index_page_is_told(bookie: Bookie) -> None:
    roll(bookie)
    index = log_path(bookie, 1).with_suffix(".index")
    bookie.crash()
    data = bytearray(index.read_bytes())
    data[4096 + 64 + 2 * 48 + 10] ^= 1
    index.write_bytes(data)
    bookie.engine.store.check_log(1)
    assert [(d.path, d.ledger_id) for d in bookie.engine.store.take_damage()] == [(index, 1)]


def test_a_log_that_was_cut_short_or_is_lost_is_told(bookie: Bookie) -> None:
    bookie.crash()  # no descriptor is open
    path = log_path(bookie, 1)
    place = bookie.engine.store.find(2, COUNT - 2)
    saved = shutil.copy(path, path.with_suffix(".saved"))
    with path.open("r+b") as file:
        file.truncate(place.offset + 30)
    bookie.engine.store.check_log(1)
    told = [(d.ledger_id, d.entry_id, d.last_entry) for d in bookie.engine.store.take_damage()]
    assert told == [(2, COUNT - 2, COUNT - 1)]
    shutil.copy(saved, path)
    bookie.crash()
    path.unlink()
    bookie.engine.store.check_log(1)
    lost = [(d.ledger_id, d.entry_id) for d in bookie.engine.store.take_damage()]
    assert lost == [(1, -1), (2, -1)]


def test_an_unreadable_block_costs_an_index_built_anew_what_it_held(bookie: Bookie) -> None:
    """The scan finds its way again where a flush began, on a block of its own."""
    bookie.checkpoint()
    for i in range(COUNT):
        bookie.add(3, i, payload(i))
    bookie.checkpoint()
    assert bookie.engine.store.find(3, 0).log_id == 1
    roll(bookie)
    log_path(bookie, 1).with_suffix(".index").unlink()
    plan_fault("log_read", 2)
    try:
        bookie.crash()
    finally:
        clear_fault()
    assert (bookie.ledger_folder / "limbo").exists()
    assert {d.path.suffix for d in bookie.engine.store.take_damage()} == {".index", ".log"}
    assert [bookie.payload(3, i) for i in range(COUNT)] == [payload(i) for i in range(COUNT)]
    found = {(n, i): bookie.read(n, i) for n in (1, 2) for i in range(COUNT)}
    assert all(entry[32:] == payload(i) for (_, i), (code, entry) in found.items() if code == 0)
    assert found[1, 0][0] != 0


# --- more damage than there is room for -------------------------------------------------------


def overwrite(bookie: Bookie, *places: Place) -> None:
    for place in places:
        with log_path(bookie, place.log_id).open("r+b") as file:
            file.seek(place.offset + 20)
            file.write(b"\xaa" * (place.record_size - 20))


def entries_of(damages: list[Damage], ledger_id: int) -> set[int]:
    return {
        entry_id
        for damage in damages
        if damage.ledger_id == ledger_id
        for entry_id in range(damage.entry_id, max(damage.entry_id, damage.last_entry) + 1)
    }


def test_damaged_entries_in_a_row_are_told_as_one(bookie: Bookie) -> None:
    bookie.send(b"".join(add(3, i, bytes(20)) for i in range(3000)))
    commit(bookie)
    bookie.checkpoint()
    store = bookie.engine.store
    places = [store.find(3, i) for i in range(3000)]
    overwrite(bookie, *places)
    for _ in range(2):
        met = store.stats().damaged
        store.check_log(1)
        assert store.stats().damaged - met == 3000
        (told,) = store.take_damage()
        assert (told.offset, told.entry_id, told.last_entry) == (places[0].offset, 0, 2999)


def test_every_ledger_with_damage_is_told_however_many_there_are(bookie: Bookie) -> None:
    """What found no room was never marked for repair: each round found the same first ones."""
    ledgers = range(10, 1510)
    for ledger_id in ledgers:
        bookie.send(b"".join(add(ledger_id, i, bytes(20)) for i in range(3)))
    commit(bookie)
    bookie.checkpoint()
    store = bookie.engine.store
    overwrite(bookie, *(store.find(ledger_id, i) for ledger_id in ledgers for i in (0, 2)))
    store.check_log(1)
    told = store.take_damage()
    assert [(d.ledger_id, d.entry_id) for d in told] == [(n, i) for n in ledgers for i in (0, 2)]
    assert store.stats().damaged == len(told)


def test_all_damage_of_a_ledger_is_told_however_scattered_it_is(bookie: Bookie) -> None:
    bookie.send(b"".join(add(n, i, bytes(20)) for n in (3, 4) for i in range(3000)))
    commit(bookie)
    bookie.checkpoint()
    store = bookie.engine.store
    overwrite(bookie, *(store.find(3, i) for i in range(0, 3000, 2)), store.find(4, 7))
    store.check_log(1)
    told = store.take_damage()
    assert entries_of(told, 3) >= set(range(0, 3000, 2))
    assert entries_of(told, 4) == {7}
    assert store.stats().damaged == 1501


def test_compaction_takes_no_log_whose_damage_was_told_in_parts(bookie: Bookie) -> None:
    ledgers = range(10, 810)
    for ledger_id in ledgers:
        bookie.send(b"".join(add(ledger_id, i, bytes(20)) for i in range(2)))
    commit(bookie)
    bookie.checkpoint()
    roll(bookie)
    store = bookie.engine.store
    overwrite(bookie, *(store.find(ledger_id, 0) for ledger_id in ledgers[:501]))
    with pytest.raises(Corrupt):
        store.compact(1)
    assert len(store.take_damage()) == 1
    store.check_log(1)
    assert len(store.take_damage()) == 501
    assert store.logs()[0].damaged


def test_a_log_that_is_not_there_is_not_checked(bookie: Bookie) -> None:
    with pytest.raises(FileNotFoundError):
        bookie.engine.store.check_log(7)

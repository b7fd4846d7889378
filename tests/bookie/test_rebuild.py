from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import rig
import v2
from engines import Bookie

import bookie.rebuild
from bookie.config import BookieConfig
from bookie.errors import BookieError
from bookie.limbo import enter_limbo, in_limbo
from bookie.mark import read_mark, write_mark
from bookie.rebuild import Rebuilt, rebuild, total_size
from native.digest import crc32c
from native.engine import Engine
from native.faults import clear_fault, plan_fault
from native.frame import Flag, incarnation
from native.journal import INCARNATION, scan_journal
from native.store import scan_log

LEDGERS = (3, 7)
FLUSHED = 40
ENTRIES = 60


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    return rig.settings(tmp_path)


def entry(ledger_id: int, entry_id: int) -> bytes:
    return v2.entry(ledger_id, entry_id, b"payload %d" % entry_id * 20)


def frames(first: int, end: int) -> bytes:
    return b"".join(
        v2.add(ledger_id, entry_id, b"payload %d" % entry_id * 20)
        for ledger_id in LEDGERS
        for entry_id in range(first, end)
    )


def fill(folder: Path) -> None:
    """A bookie with entries in a log, and later ones in the journal only."""
    filled = Bookie(folder)
    filled.send(frames(0, FLUSHED))
    filled.engine.commit()
    filled.checkpoint()
    filled.send(frames(FLUSHED, ENTRIES))
    filled.engine.fence(LEDGERS[0], v2.KEY)
    filled.engine.commit()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def run(config: BookieConfig) -> Rebuilt:
    total = total_size(config)
    read = []
    done = rebuild(config, lambda step: read.append(step.size))
    assert sum(read) == total
    return done


def opened(config: BookieConfig) -> Engine:
    mark = read_mark(Path(config.ledger_folder))
    assert mark is not None
    engine, recovery = Engine.open(
        journal_folder=Path(config.journal_folder),
        ledger_folder=Path(config.ledger_folder),
        mark=mark,
        memtable_size=config.memtable_size,
        journal_size_max=config.journal_size_max,
        journal_spares=1,
        log_size_max=config.log_size_max,
        index_cache_size=config.index_cache_size,
    )
    assert recovery.damages == 0
    return engine


def missing(config: BookieConfig) -> Iterator[tuple[int, int]]:
    """Entries that a bookie started over the folders does not have."""
    with opened(config) as engine:
        for ledger_id in LEDGERS:
            for entry_id in range(ENTRIES):
                try:
                    found = engine.store.read(ledger_id, entry_id)
                except Exception:  # noqa: BLE001 - whatever the reason, it is missing
                    yield ledger_id, entry_id
                else:
                    assert found == entry(ledger_id, entry_id)


def assert_whole(config: BookieConfig) -> None:
    assert list(missing(config)) == []
    with opened(config) as engine:
        assert [state.ledger_id for state in engine.ledgers()] == list(LEDGERS)
        assert all(state.fenced for state in engine.ledgers())
        assert all(state.key == v2.KEY for state in engine.ledgers())


LOSSES = {
    "nothing": [],
    "the mark": ["ledgers/lastMark"],
    "the indexes": ["ledgers/*.index"],
    "the mark and the indexes": ["ledgers/lastMark", "ledgers/*.index"],
}


@pytest.mark.parametrize("lost", LOSSES)
def test_a_rebuilt_bookie_has_every_entry_and_all_ledgers_fenced(
    folder: Path, config: BookieConfig, lost: str
) -> None:
    for pattern in LOSSES[lost]:
        for path in folder.glob(pattern):
            path.unlink()
    done = run(config)
    assert done.damages == []
    # Without a mark nobody knows whether journal files are missing.
    assert done.limbo == in_limbo(folder / "ledgers") == ("the mark" in lost)
    assert done.ledgers == len(LEDGERS)
    assert_whole(config)


def test_an_index_that_was_torn_is_no_damage_once_it_was_rebuilt(
    folder: Path, config: BookieConfig
) -> None:
    torn = folder / "ledgers" / "00000001.torn"
    torn.touch()
    done = run(config)
    assert done.damages == []
    assert not done.limbo
    assert not torn.exists()
    assert_whole(config)


def test_an_unreadable_block_of_a_log_leads_to_limbo(folder: Path, config: BookieConfig) -> None:
    plan_fault("log_read", 3)
    try:
        done = run(config)
    finally:
        clear_fault()
    assert done.limbo
    assert in_limbo(folder / "ledgers")
    assert {Path(place.file).name for place in done.damages} == {"00000001.log"}
    assert not set(missing(config)) & {(ledger, i) for ledger in LEDGERS for i in range(3)}


def test_an_unreadable_block_before_a_ledger_s_entries_stops_no_rebuild(
    tmp_path: Path, config: BookieConfig
) -> None:
    """Which ledger of its id they are of would be told there, had its writer said so."""
    filled = Bookie(tmp_path)
    for first, end in ((0, 3), (3, ENTRIES)):
        filled.send(frames(first, end))
        filled.engine.commit()
        filled.checkpoint()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    plan_fault("log_read", 2)  # all of the first flush
    try:
        done = run(config)
    finally:
        clear_fault()
    assert done.limbo
    assert in_limbo(tmp_path / "ledgers")
    assert set(missing(config)) <= {(ledger, i) for ledger in LEDGERS for i in range(3)}


def test_a_rebuild_that_fails_leaves_no_half_an_index(
    folder: Path, config: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_log: object, _end: int) -> Iterator[object]:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(bookie.rebuild, "_damages_in", fail)
    plan_fault("log_read", 3)
    try:
        with pytest.raises(OSError, match="no memory"):
            run(config)
    finally:
        clear_fault()
    assert not list((folder / "ledgers").glob("*.rebuilt"))


@pytest.mark.parametrize("is_open", [False, True])
def test_a_log_that_is_damaged_only_now_and_then_keeps_its_index(
    folder: Path, config: BookieConfig, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """Else the new one would lack entries, and nothing would say so."""
    index = folder / "ledgers" / "00000001.index"
    before = index.read_bytes()
    if not is_open:  # by the mark, behind which the log's end may be torn
        (folder / "ledgers/lastMark").unlink()
    monkeypatch.setattr(bookie.rebuild, "_damages_in", lambda _log, _end: iter(()))
    plan_fault("log_read", 3)
    try:
        with pytest.raises(BookieError, match="not when it was read again"):
            run(config)
    finally:
        clear_fault()
    assert index.read_bytes() == before
    assert not index.with_suffix(".rebuilt").exists()


def test_a_rebuilt_bookie_may_be_rebuilt_again(folder: Path, config: BookieConfig) -> None:
    for _ in range(3):
        run(config)
        assert_whole(config)


def test_a_damaged_mark_is_rebuilt_and_leads_to_limbo(folder: Path, config: BookieConfig) -> None:
    (folder / "ledgers/lastMark").write_text("quire lastMark 1\njournal_id 99999\n")
    done = run(config)
    assert (done.damages, done.limbo) == ([], True)
    assert_whole(config)


def test_limbo_is_there_before_an_index_that_lacks_a_record(
    folder: Path, config: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BK-11: a crash in between must not leave a bookie that denies the entry."""
    (log,) = (folder / "ledgers").glob("*.log")
    victim = next(each for each in scan_log(log) if getattr(each, "entry_id", -1) == 5)
    with log.open("r+b") as file:
        file.seek(victim.offset + 60)
        file.write(b"\xff")
    index = log.with_suffix(".index")
    before = index.read_bytes()

    def cut_off(ledger_folder: Path, places: object) -> None:
        assert index.read_bytes() == before
        enter_limbo(ledger_folder, ())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bookie.rebuild, "enter_limbo", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run(config)
    assert in_limbo(folder / "ledgers")
    assert run(config).limbo


def test_a_lost_ledger_table_leaves_every_ledger_fenced(folder: Path, config: BookieConfig) -> None:
    for path in folder.glob("ledgers/*.table"):
        path.unlink()
    assert run(config).limbo
    assert list(missing(config)) == []
    with opened(config) as engine:
        assert all(state.fenced for state in engine.ledgers())


OLD, NEW, USED_AGAIN = 1111, 2222, 7


def use_again(folder: Path, *, compacted: bool = False) -> None:
    """Ledger 7 was deleted and made again; neither journal nor mark reach back to that."""
    filled = Bookie(folder, journal_size_max=1 << 20)

    def add(ledger_id: int, payload: bytes, count: int) -> None:
        filled.send(b"".join(v2.add(ledger_id, i, payload) for i in range(count)))
        filled.engine.commit()

    filled.send(incarnation(USED_AGAIN, OLD))
    add(3, b"another", 3)
    add(USED_AGAIN, b"old", 10)
    filled.checkpoint()
    assert filled.engine.renew_ledger(USED_AGAIN, OLD, NEW)
    filled.send(incarnation(USED_AGAIN, NEW))
    add(USED_AGAIN, b"new", 2)
    filled.checkpoint()
    if compacted:
        filled.roll()
        for log in filled.engine.store.logs():
            filled.engine.store.compact(log.log_id)
    for ledger_id in (4, 5):
        add(ledger_id, bytes(2 << 20), 1)
        filled.checkpoint()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    journals = (folder / "journal").glob("*.journal")
    assert not any(
        getattr(each, "ledger_id", -1) == USED_AGAIN
        for journal in journals
        for each in scan_journal(journal)
    )


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("lost", ["all", "end", "middle"])
def test_a_deleted_ledger_stays_gone_though_the_ledger_table_is_lost(
    tmp_path: Path, config: BookieConfig, *, lost: str, compacted: bool
) -> None:
    use_again(tmp_path, compacted=compacted)
    (table,) = (tmp_path / "ledgers").glob("*.table")
    data = bytearray(table.read_bytes())
    if lost == "all":
        table.unlink()
    elif lost == "end":
        table.write_bytes(data[: len(data) - 30])
    else:
        data[60] ^= 0xFF
        table.write_bytes(data)
    for again in (False, True):
        done = run(config)
        assert done.limbo
        assert in_limbo(tmp_path / "ledgers")
        assert [Path(place.file) for place in done.damages] == ([] if again else [table])
        with opened(config) as engine:
            state = engine.ledger(USED_AGAIN)
            assert state is not None
            assert (state.incarnation, state.last_entry, state.fenced) == (NEW, 1, True)
            assert engine.runs(USED_AGAIN) == [(0, 1)]
            assert engine.store.read(USED_AGAIN, 1)[32:] == b"new"
            assert engine.store.read(3, 2)[32:] == b"another"


def table_record(ledger_id: int, kind: int, rest: bytes) -> bytes:
    body = v2.int64(ledger_id) + kind.to_bytes(8, "big", signed=True) + rest
    size = len(body).to_bytes(4, "little")
    return size + crc32c(size + body).to_bytes(4, "little") + body


def test_what_the_table_has_behind_the_mark_does_not_count(
    tmp_path: Path, config: BookieConfig
) -> None:
    """A flush wrote it, and the power failed before the journal had that the ledger began.

    That ledger would be given the entries of the former one of its id.
    """
    filled = Bookie(tmp_path, journal_size_max=1 << 20)
    begin = incarnation(USED_AGAIN, OLD) + v2.add(USED_AGAIN, 0, b"old")
    for frame in (begin, v2.add(4, 0, bytes(2 << 20)), v2.add(5, 0)):
        filled.send(frame)
        filled.engine.commit()
        filled.checkpoint()
    filled.send(v2.add(USED_AGAIN, 1, b"old"))
    filled.engine.commit()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    (journal,) = (tmp_path / "journal").glob("*.journal")
    assert INCARNATION not in {getattr(each, "entry_id", 0) for each in scan_journal(journal)}
    (table,) = (tmp_path / "ledgers").glob("*.table")
    first_log = filled.mark.next_log_id.to_bytes(4, "big")
    with table.open("ab") as file:
        file.write(table_record(USED_AGAIN, INCARNATION, v2.int64(NEW) + first_log))
    for _ in range(2):
        assert run(config).damages == []
        with opened(config) as engine:
            state = engine.ledger(USED_AGAIN)
            assert state is not None
            assert (state.incarnation, engine.runs(USED_AGAIN)) == (OLD, [(0, 1)])


def test_a_table_that_was_sound_once_is_the_one_to_start_from(
    tmp_path: Path, config: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another look could end in a shorter one, and nothing would say so."""
    use_again(tmp_path)
    measured = iter([bookie.rebuild._measure_table])

    def measure(path: Path) -> tuple[int, int]:
        return next(measured, lambda _path: (0, 0))(path)

    monkeypatch.setattr(bookie.rebuild, "_measure_table", measure)
    assert run(config).damages == []
    with opened(config) as engine:
        state = engine.ledger(USED_AGAIN)
        assert state is not None
        assert state.key == v2.KEY, "neither journal nor logs have it"


def test_the_table_that_knows_more_ledgers_is_taken(folder: Path, config: BookieConfig) -> None:
    """A crash while the table was written anew leaves a second one that is cut short."""
    run(config)
    (table,) = (folder / "ledgers").glob("*.table")
    cut = table.with_name(f"{int(table.stem, 16) + 1:016x}.table")
    cut.write_bytes(table.read_bytes()[:50])
    (folder / "ledgers/lastMark").unlink()
    run(config)
    assert_whole(config)


def test_without_journals_the_logs_alone_are_rebuilt(folder: Path, config: BookieConfig) -> None:
    for path in folder.glob("journal/*"):
        path.unlink()
    done = run(config)
    assert done.limbo
    assert [Path(place.file).suffix for place in done.damages] == [".journal"]
    lost = [(ledger, e) for ledger in LEDGERS for e in range(FLUSHED, ENTRIES)]
    assert list(missing(config)) == lost


def test_a_damaged_record_is_told_and_restored_from_the_journal(
    folder: Path, config: BookieConfig
) -> None:
    (log,) = (folder / "ledgers").glob("*.log")
    victim = next(each for each in scan_log(log) if getattr(each, "entry_id", -1) == 5)
    with log.open("r+b") as file:
        file.seek(victim.offset + 60)
        file.write(b"\xff")
    done = run(config)
    assert [(place.file, place.offset) for place in done.damages] == [(str(log), victim.offset)]
    assert done.limbo
    assert in_limbo(folder / "ledgers")
    assert list(missing(config)) == []  # the journal had it still


def test_a_mended_entry_stays_so(tmp_path: Path, config: BookieConfig) -> None:
    """The journal has the wrong one, too, and both are replayed into the same memtable."""
    filled = Bookie(tmp_path)
    wrong = v2.add(9, 0, b"wrong")
    right = v2.add(9, 0, b"right", flags=Flag.RECOVERY | Flag.PRIORITY | Flag.MEND)
    for frame in (wrong, right):
        filled.send(frame)
        filled.engine.commit()
        filled.checkpoint()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    for _ in range(2):
        assert not run(config).limbo
        with opened(config) as engine:
            assert engine.store.read(9, 0) == v2.entry(9, 0, b"right")


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff")


def test_a_log_stays_while_its_copy_lacks_a_record(tmp_path: Path, config: BookieConfig) -> None:
    """The copy's new index looks whole without it, to this rebuild and to each start after it."""
    filled = Bookie(tmp_path)
    filled.send(frames(0, ENTRIES))
    filled.engine.commit()
    filled.checkpoint()
    filled.roll()
    (source,) = (tmp_path / "ledgers").glob("*.log")
    shutil.copytree(tmp_path / "ledgers", tmp_path / "before")
    filled.engine.store.compact(int(source.stem, 16))
    place = filled.engine.store.find(LEDGERS[0], 5)
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    damage(tmp_path / f"ledgers/{place.log_id:08x}.log", place.offset + 60)
    for name in (source.name, source.with_suffix(".index").name):
        shutil.copy(tmp_path / "before" / name, tmp_path / "ledgers" / name)
    for path in (tmp_path / "journal").glob("*"):
        path.unlink()
    for _ in range(2):
        assert run(config).limbo
        for _ in range(2):
            assert list(missing(config)) == []


def test_a_flush_that_was_cut_short_is_no_damage(folder: Path, config: BookieConfig) -> None:
    (log,) = (folder / "ledgers").glob("*.log")
    with log.open("ab") as file:
        file.write(b"\x30\x00\x00\x00 half a record")
    assert run(config).damages == []
    assert_whole(config)


def test_a_copy_that_compaction_did_not_finish_does_not_replace_its_source(
    folder: Path, config: BookieConfig
) -> None:
    run(config)  # closes the log
    source = min((folder / "ledgers").glob("*.log"))
    copy = source.with_name("000000ff.log")
    head = b"QUIRELOG" + b"".join(
        value.to_bytes(4, "little") for value in (1, 0xFF, int(source.stem, 16), 0, 0, 0, 0, 0)
    )
    block = (head + crc32c(head).to_bytes(4, "little")).ljust(4096, b"\0")
    copy.write_bytes(block + source.read_bytes()[4096:8192])
    run(config)
    assert not copy.exists()
    assert_whole(config)


def test_a_crash_before_the_end_leaves_a_bookie_without_a_mark(
    folder: Path, config: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("_close_logs", "_replay", "write_mark"):
        with monkeypatch.context() as patch:
            patch.setattr(bookie.rebuild, step, cut_off)
            with pytest.raises(KeyboardInterrupt):
                run(config)
        assert read_mark(folder / "ledgers") is None
    assert not run(config).limbo
    assert_whole(config)


def test_a_journal_file_missing_in_between_leads_to_limbo(
    tmp_path: Path, config: BookieConfig
) -> None:
    filled = Bookie(tmp_path, journal_size_max=1 << 20)
    for start in range(0, ENTRIES, 20):
        filled.send(frames(start, start + 20))
        filled.engine.commit()
        filled.engine.seal()
        filled.engine.flush()
        filled.crash()
    filled.close()
    journals = sorted((tmp_path / "journal").glob("*.journal"))
    assert len(journals) > 2
    journals[1].unlink()
    done = run(config)
    assert done.limbo
    assert done.damages


def test_damage_in_a_journal_takes_nothing_away_that_logs_have(
    tmp_path: Path, config: BookieConfig
) -> None:
    """The journal that is replayed has the beginning of a ledger, and not all that followed."""
    filled = Bookie(tmp_path)
    filled.send(incarnation(3, 77) + incarnation(7, 78))
    for start in range(0, FLUSHED, 10):  # a group each
        filled.send(frames(start, start + 10))
        filled.engine.commit()
    filled.checkpoint()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    (journal,) = (tmp_path / "journal").glob("*.journal")
    victim = next(r for r in scan_journal(journal) if getattr(r, "entry_id", -1) == 15)
    with journal.open("r+b") as file:
        file.seek(victim.offset + 60)
        file.write(b"\xff")
    for path in (tmp_path / "ledgers").glob("*.table"):
        path.unlink()
    for _ in range(2):
        assert run(config).limbo
        lost = [each for each in missing(config) if each[1] < FLUSHED]
        assert lost == []


def test_empty_folders_are_no_bookie(tmp_path: Path, config: BookieConfig) -> None:
    for name in ("journal", "ledgers"):
        (tmp_path / name).mkdir()
    with pytest.raises(BookieError):
        run(config)

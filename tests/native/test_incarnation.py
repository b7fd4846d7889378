"""Ledger ids that are used again: frames, records, and what is left of the former ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import MIB, Bookie
from wire import KEY, add, add_responses, be, crc32c, write_lac

from native import frame
from native.engine import Connection, Request, Verdict
from native.errors import Absent, OtherLedger, ProtocolBroken
from native.frame import Code, Flag, Opcode, parse_request
from native.journal import INCARNATION, Record, scan_table
from native.store import MAP, LogRecord, scan_log

OLD, NEW = 0x0123456789ABCDEF, 0x1EDCBA9876543210
LEDGER = 7
OTHER_KEY = bytes(range(20))
DAY_MS = 86_400_000


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    bookie.close()


def put(bookie: Bookie, *frames: bytes, connection: Connection | None = None) -> list[int]:
    """Send frames, sync, and return the codes of the answers."""
    bookie.send(b"".join(frames), connection)
    while bookie.engine.commit():
        pass
    return [each.code for each in add_responses((connection or bookie.connection).take())]


def said(incarnation: int) -> bytes:
    return frame.incarnation(LEDGER, incarnation)


def old(bookie: Bookie, *, flushed: bool = True) -> None:
    """The former ledger: entries 0 to 4, with another key, fenced, an explicit LAC."""
    frames = [add(LEDGER, i, b"old", key=OTHER_KEY) for i in range(5)]
    lac = write_lac(LEDGER, 1, 4, key=OTHER_KEY)
    assert put(bookie, said(OLD), *frames, lac) == [0] * 6
    bookie.engine.fence(LEDGER, OTHER_KEY, OLD)
    if flushed:
        bookie.checkpoint()


def renewed(bookie: Bookie) -> None:
    assert bookie.engine.renew_ledger(LEDGER, OLD, NEW)


def assert_new(bookie: Bookie, entries: int) -> None:
    """Nothing of the former ledger is left, and *entries* of the new one are there."""
    state = bookie.engine.ledger(LEDGER)
    assert state is not None
    assert (state.incarnation, state.last_entry) == (NEW, entries - 1)
    assert not state.fenced
    assert state.explicit_lac == -1
    assert state.key in (KEY, None)
    for entry_id in range(8):
        code, entry = bookie.read(LEDGER, entry_id)
        assert (code, entry[32:]) == ((0, b"new") if entry_id < entries else (Code.NO_ENTRY, b""))
    found = bookie.engine.runs(LEDGER)
    assert found == ([(0, entries - 1)] if entries else [])


# --- bytes -----------------------------------------------------------------------------


def test_the_frame_has_the_documented_bytes() -> None:
    documented = bytes.fromhex("000000140245000000000000000000070123456789abcdef")
    assert frame.incarnation(7, OLD) == documented
    request = parse_request(documented)
    assert request == Request(Opcode.INCARNATION, ledger_id=7, incarnation=OLD)


def test_a_frame_that_is_cut_or_stretched_is_none(bookie: Bookie) -> None:
    whole = said(OLD)
    for size in range(4, len(whole) + 8):
        body = (whole + bytes(8))[4:size]
        if size == len(whole) or len(body) < 4:
            continue
        with pytest.raises(ProtocolBroken):
            parse_request(be(len(body), 4) + body)
    for ids in (be(-1) + be(1), be(1) + be(-1)):
        peer = bookie.engine.connect(2)
        assert peer.feed(whole[:8] + ids).verdict is Verdict.CLOSE
        peer.close()
    for byte in whole:  # in pieces it counts as well
        assert bookie.connection.feed(bytes([byte])).verdict is Verdict.OK
    assert put(bookie, add(LEDGER, 0, b"old")) == [0]
    state = bookie.engine.ledger(LEDGER)
    assert state is not None
    assert state.incarnation == OLD


def test_the_record_has_the_documented_bytes(bookie: Bookie) -> None:
    old(bookie)
    renewed(bookie)
    bookie.checkpoint()
    assert bookie.mark is not None
    data = (bookie.ledger_folder / f"{bookie.mark.table_id:016x}.table").read_bytes()
    body = be(7) + bytes.fromhex("fffffffffff80000") + be(NEW) + be(2, 4)
    assert record_of(body) in data


def record_of(body: bytes) -> bytes:
    size = len(body).to_bytes(4, "little")
    return size + crc32c(size + body).to_bytes(4, "little") + body


@pytest.mark.parametrize("compacted", [False, True])
def test_the_record_stands_before_a_ledger_s_entries_in_a_log(
    bookie: Bookie, *, compacted: bool
) -> None:
    assert put(bookie, add(LEDGER - 1, 0, b"theirs")) == [0]
    old(bookie)
    if compacted:
        compact(bookie)
    (log,) = bookie.ledger_folder.glob("*.log")
    records = [each for each in scan_log(log) if isinstance(each, LogRecord)]
    theirs, named, *entries = [each for each in records if each.entry_id != MAP]
    assert (theirs.ledger_id, theirs.entry_id) == (LEDGER - 1, 0)
    body = be(LEDGER) + bytes.fromhex("fffffffffff80000") + be(OLD) + be(0, 4)
    assert (named.offset, named.body) == (theirs.offset + 8 + len(theirs.body), body)
    assert [(each.ledger_id, each.entry_id) for each in entries] == [(LEDGER, i) for i in range(5)]


def test_each_log_that_a_ledger_reaches_into_has_the_record(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, log_size_max=64 << 10)
    frames = [add(LEDGER, i, bytes(10 << 10)) for i in range(20)]
    assert put(bookie, said(NEW), *frames) == [0] * 20
    bookie.checkpoint()
    logs = sorted(bookie.ledger_folder.glob("*.log"))
    assert len(logs) > 2
    for path in logs:
        first, *others = [each for each in scan_log(path) if isinstance(each, LogRecord)]
        assert (first.ledger_id, first.entry_id) == (LEDGER, INCARNATION)
        assert INCARNATION not in {each.entry_id for each in others}
    bookie.close()


def lose_table(bookie: Bookie) -> None:
    bookie.checkpoint()
    for path in bookie.ledger_folder.glob("*.table"):
        path.unlink()
    bookie.crash()


@pytest.mark.parametrize("cut", range(36))
def test_a_table_that_ends_in_the_record_is_damage(bookie: Bookie, cut: int) -> None:
    old(bookie)
    renewed(bookie)
    bookie.checkpoint()
    assert bookie.mark is not None
    path = bookie.ledger_folder / f"{bookie.mark.table_id:016x}.table"
    last = [r for r in scan_table(path) if isinstance(r, Record) and r.entry_id == INCARNATION][-1]
    bookie.connection.close()
    bookie.engine.close()
    with path.open("r+b") as file:
        file.truncate(last.offset + cut)
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert bookie.recovery.limbo
    assert bookie.engine.ledger(LEDGER) is not None


# --- statements ------------------------------------------------------------------------


def test_a_peer_that_means_another_ledger_stops_the_feed(bookie: Bookie) -> None:
    old(bookie)
    frames = said(NEW) + add(LEDGER, 0, b"new") + frame.read(LEDGER, 0)
    fed = bookie.connection.feed(frames)
    assert fed.used == len(said(NEW))
    assert [(r.opcode, r.incarnation) for r in fed.requests] == [(Opcode.INCARNATION, NEW)]
    renewed(bookie)
    fed = bookie.connection.feed(frames[fed.used :])
    assert [(r.opcode, r.incarnation) for r in fed.requests] == [(Opcode.READ, NEW)]
    assert put(bookie) == [0]
    assert_new(bookie, 1)


def test_nobody_is_served_from_another_ledger_than_he_means(bookie: Bookie) -> None:
    """Not with entries, and not with the news that there is none, before it is known which."""
    old(bookie)
    bookie.send(said(NEW))
    for code in (Code.UNKNOWN_STATE, Code.OTHER_LEDGER):
        reads = bookie.send(
            frame.read(LEDGER, 0)
            + frame.read(LEDGER, 99)
            + frame.read(LEDGER, -1, flags=Flag.FENCE, key=KEY)
            + frame.batch_read(LEDGER, 0, 1, 10, 1 << 20)
            + frame.read_wait(LEDGER, 0, 1, 10, 1 << 20, -1, 0)
        )
        answers = [
            bookie.engine.answer(each, use_disk=True, size_max=1 << 22) or b"" for each in reads
        ]
        assert [int.from_bytes(answer[8:12], "big") for answer in answers] == [code] * 5
        assert not any(b"old" in answer for answer in answers)
        writes = [add(LEDGER, 5, b"new"), add(LEDGER, 0, b"old", flags=Flag.RECOVERY)]
        assert put(bookie, *writes, write_lac(LEDGER, 1, 9)) == [code] * 3
        with pytest.raises(OtherLedger):
            bookie.engine.fence(LEDGER, KEY, NEW)
        bookie.connection.refuse(LEDGER, NEW)
    assert bookie.payload(LEDGER, 4) == b"old", "for who says nothing, as a BookKeeper client"
    assert put(bookie, said(OLD), add(LEDGER, 5, b"old", key=OTHER_KEY)) == [Code.FENCED]


def test_who_meant_the_former_ledger_is_not_served_from_the_new_one(bookie: Bookie) -> None:
    old(bookie)
    stale = bookie.engine.connect(2)
    (parked,) = bookie.send(said(OLD) + frame.read(LEDGER, 0), stale)
    renewed(bookie)
    assert put(bookie, said(NEW), add(LEDGER, 0, b"new")) == [0]
    answer = bookie.engine.answer(parked, use_disk=True, size_max=4096)
    assert answer is not None
    assert answer[8:12] == be(Code.UNKNOWN_STATE, 4)
    assert put(bookie, add(LEDGER, 1, b"old"), connection=stale) == [Code.UNKNOWN_STATE]
    assert put(bookie, write_lac(LEDGER, 1, 1), connection=stale) == [Code.UNKNOWN_STATE]
    stale.close()
    assert_new(bookie, 1)


def test_what_was_said_can_be_taken_back(bookie: Bookie) -> None:
    old(bookie)
    for _ in range(3):
        (stated,) = bookie.send(said(NEW))
        assert stated.opcode == Opcode.INCARNATION
        (read,) = bookie.send(said(0) + frame.read(LEDGER, 0))
        assert (read.incarnation, read.other_code) == (0, 0)


def test_a_connection_says_so_many_and_no_more(bookie: Bookie) -> None:
    frames = b"".join(frame.incarnation(ledger_id, 1) for ledger_id in range(65536))
    bookie.send(frames)
    bookie.send(frame.incarnation(5, 0) + frame.incarnation(70000, 1))
    bookie.send(b"".join(frame.incarnation(n, 0) for n in range(0, 65536, 2)))
    bookie.send(b"".join(frame.incarnation(n, 2) for n in range(0, 65536, 2) if n != 6))
    last = [frame.read(n, 0) for n in (5, 70000, 3, 4)]
    assert [each.incarnation for each in bookie.send(b"".join(last))] == [0, 1, 1, 2]
    bookie.send(frame.incarnation(6, 1))
    assert bookie.connection.feed(frame.incarnation(80000, 1)).verdict is Verdict.CLOSE


def test_all_connections_together_say_so_much_and_no_more(bookie: Bookie) -> None:
    """Strangers can have many connections; what each says is kept as long as it likes."""
    much = b"".join(frame.incarnation(ledger_id, 1) for ledger_id in range(65536))
    full = [bookie.engine.connect(token) for token in range(100, 132)]
    for connection in full:
        bookie.send(much, connection)
    own = 24 * 1024
    bookie.send(much[:own])
    assert bookie.connection.feed(much[own:]).verdict is Verdict.CLOSE
    full.pop().close()
    other = bookie.engine.connect(2)
    bookie.send(much, other)
    for connection in (*full, other):
        connection.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_ledger_of_unknown_incarnation_is_none_that_anybody_says(
    bookie: Bookie, *, flushed: bool
) -> None:
    """A client that says nothing wrote it, or the bookie lost what it knew. It stays."""
    assert put(bookie, add(LEDGER, 0, b"theirs")) == [0]
    if flushed:
        bookie.checkpoint()
    (stated,) = bookie.send(said(NEW))
    assert stated.incarnation == NEW
    (read, batch) = bookie.send(frame.read(LEDGER, 0) + frame.batch_read(LEDGER, 0, 1, 9, 1 << 20))
    for each in (read, batch):
        answer = bookie.engine.answer(each, use_disk=True, size_max=1 << 20) or b""
        assert int.from_bytes(answer[8:12], "big") == Code.UNKNOWN_STATE
        assert b"theirs" not in answer
    writes = [add(LEDGER, 1, b"ours"), add(LEDGER, 1, b"ours", flags=Flag.RECOVERY)]
    assert put(bookie, *writes) == [Code.UNKNOWN_STATE] * 2
    with pytest.raises(OtherLedger):
        bookie.engine.fence(LEDGER, KEY, NEW)
    assert not bookie.engine.renew_ledger(LEDGER, 0, NEW)
    bookie.crash()
    assert put(bookie, add(LEDGER, 1, b"theirs")) == [0]
    assert [bookie.payload(LEDGER, i) for i in (0, 1)] == [b"theirs", b"theirs"]


def test_a_tombstone_of_unknown_incarnation_gives_way(bookie: Bookie) -> None:
    assert put(bookie, add(LEDGER, 0, b"theirs", key=OTHER_KEY)) == [0]
    bookie.checkpoint()
    bookie.engine.delete_ledger(LEDGER, 1000)
    assert bookie.send(said(NEW))
    assert bookie.engine.renew_ledger(LEDGER, 0, NEW)
    assert put(bookie, add(LEDGER, 0, b"new")) == [0]
    for step in (Bookie.crash, Bookie.checkpoint, reindex):
        step(bookie)
        assert_new(bookie, 1)


# --- peers that say nothing --------------------------------------------------------------


@pytest.fixture
def guarded(bookie: Bookie) -> Bookie:
    bookie.engine.set_guarded(True)
    return bookie


NOBODYS = [add(LEDGER, 0, b"theirs"), write_lac(LEDGER, 1, 0)]


@pytest.mark.parametrize("request_", NOBODYS)
def test_a_peer_that_says_nothing_waits_until_it_is_known_whether_there_is_such_a_ledger(
    guarded: Bookie, request_: bytes
) -> None:
    fed = guarded.connection.feed(request_ * 3)
    assert (fed.verdict, fed.used) == (Verdict.ASK, 0)
    assert guarded.connection.asked == LEDGER
    assert guarded.engine.ledger(LEDGER) is None
    guarded.connection.tell(LEDGER, Code.NO_LEDGER)
    fed = guarded.connection.feed(request_ * 3)
    assert (fed.verdict, fed.used) == (Verdict.OK, 3 * len(request_)), "asked once for all"
    codes = [each.code for each in add_responses(guarded.connection.take())]
    assert codes == [Code.NO_LEDGER] * 3
    assert guarded.engine.ledger(LEDGER) is None
    guarded.connection.forget()
    assert guarded.connection.feed(request_).verdict is Verdict.ASK, "it may be there by now"


def test_what_is_known_of_one_ledger_counts_for_no_other(guarded: Bookie) -> None:
    frames = add(LEDGER, 0, b"theirs") + add(LEDGER + 1, 0, b"theirs")
    assert guarded.connection.feed(frames).verdict is Verdict.ASK
    guarded.connection.tell(LEDGER, Code.OK)
    fed = guarded.connection.feed(frames)
    assert (fed.verdict, guarded.connection.asked) == (Verdict.ASK, LEDGER + 1)
    assert guarded.engine.ledger(LEDGER + 1) is None


def test_a_ledger_that_is_there_is_made_as_what_it_is(guarded: Bookie) -> None:
    wrong, right = add(LEDGER, 0, b"theirs", key=OTHER_KEY), add(LEDGER, 0, b"new")
    assert guarded.connection.feed(wrong + right).verdict is Verdict.ASK
    guarded.connection.tell(LEDGER, Code.OK, NEW, KEY)
    assert put(guarded, wrong, right) == [Code.UNAUTHORIZED, Code.OK]
    guarded.connection.forget()
    assert put(guarded, add(LEDGER, 1, b"new"), said(NEW), add(LEDGER, 2, b"new")) == [0] * 2
    for step in (Bookie.crash, Bookie.checkpoint, Bookie.crash):
        step(guarded)
        assert_new(guarded, 3)


def test_a_peer_that_says_nothing_gives_no_ledger_its_key(guarded: Bookie) -> None:
    """One whose id was used again has none until its own writer comes."""
    old(guarded)
    renewed(guarded)
    wrong = add(LEDGER, 0, b"theirs", key=OTHER_KEY)
    assert put(guarded, said(0)) == []
    assert guarded.connection.feed(wrong).verdict is Verdict.ASK
    guarded.connection.tell(LEDGER, Code.OK, NEW, KEY)
    assert put(guarded, wrong, said(NEW), add(LEDGER, 0, b"new")) == [Code.UNAUTHORIZED, 0]
    assert_new(guarded, 1)


def test_who_says_which_ledger_it_means_is_asked_nothing(guarded: Bookie) -> None:
    assert put(guarded, said(NEW), add(LEDGER, 0, b"new"), write_lac(LEDGER, 1, 0)) == [0, 0]


# --- the former ledger is gone -----------------------------------------------------------


def compact(bookie: Bookie) -> None:
    bookie.checkpoint()
    bookie.roll()
    for log in bookie.engine.store.logs():
        bookie.engine.store.compact(log.log_id)


def reindex(bookie: Bookie) -> None:
    """Every index is built anew from its log at the next start."""
    for path in bookie.ledger_folder.glob("*.index"):
        path.unlink()
    bookie.crash()


STEPS: list[Callable[[Bookie], None]] = [Bookie.crash, Bookie.checkpoint, compact, reindex]


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", STEPS)
def test_the_former_ledger_never_comes_back(
    bookie: Bookie,
    flushed: bool,
    first: Callable[[Bookie], None],
    second: Callable[[Bookie], None],
) -> None:
    put(bookie, add(1, 0, b"another"))  # so that its log is not all dead
    old(bookie, flushed=flushed)
    renewed(bookie)
    put(bookie)
    for entries, step in enumerate((first, second, Bookie.crash)):
        step(bookie)
        assert_new(bookie, entries)
        assert put(bookie, said(NEW), add(LEDGER, entries, b"new")) == [0]
    assert bookie.payload(1, 0) == b"another"


def test_a_crash_before_the_sync_brings_the_former_ledger_back_whole(bookie: Bookie) -> None:
    old(bookie)
    renewed(bookie)
    bookie.send(said(NEW) + add(LEDGER, 0, b"new"))
    assert bookie.connection.take() == b"", "nothing is acknowledged before the sync"
    bookie.crash()
    state = bookie.engine.ledger(LEDGER)
    assert state is not None
    assert (state.incarnation, state.last_entry, state.fenced) == (OLD, 4, True)


def test_a_mark_waits_until_the_journal_has_what_the_table_tells(bookie: Bookie) -> None:
    """Else a start would give the new ledger what the journal has of the former one."""
    assert put(bookie, add(1, 0, b"another")) == [0]
    assert bookie.engine.seal()
    old(bookie, flushed=False)
    renewed(bookie)
    bookie.flush_sealed()
    bookie.crash()
    assert_new(bookie, 0)


def test_a_fence_of_the_new_ledger_holds(bookie: Bookie) -> None:
    old(bookie)
    renewed(bookie)
    assert put(bookie, said(NEW), add(LEDGER, 0, b"new")) == [0]
    bookie.engine.fence(LEDGER, KEY, NEW)
    put(bookie)
    for step in (Bookie.crash, Bookie.checkpoint, Bookie.crash):
        step(bookie)
        assert put(bookie, said(NEW), add(LEDGER, 1, b"new")) == [Code.FENCED]
        assert bookie.payload(LEDGER, 0) == b"new"


def test_a_fence_makes_a_ledger_of_its_incarnation(bookie: Bookie) -> None:
    bookie.engine.fence(LEDGER, KEY, NEW)
    put(bookie)
    bookie.crash()
    state = bookie.engine.ledger(LEDGER)
    assert state is not None
    assert (state.incarnation, state.fenced, state.key) == (NEW, True, KEY)


def test_a_tombstone_does_not_keep_the_next_ledger_away(bookie: Bookie) -> None:
    old(bookie)
    bookie.engine.delete_ledger(LEDGER, 1000)
    assert put(bookie, said(OLD), add(LEDGER, 9, b"old", key=OTHER_KEY)) == [Code.FENCED]
    (stated,) = bookie.send(said(NEW))
    assert stated.incarnation == NEW
    renewed(bookie)
    assert put(bookie, add(LEDGER, 0, b"new")) == [0]
    for step in (Bookie.crash, Bookie.checkpoint, Bookie.crash):
        step(bookie)
        assert_new(bookie, 1)


def test_whoever_deletes_a_ledger_deletes_no_later_one(bookie: Bookie) -> None:
    old(bookie)
    renewed(bookie)
    assert put(bookie, said(NEW), add(LEDGER, 0, b"new")) == [0]
    with pytest.raises(Absent):
        bookie.engine.delete_ledger(LEDGER, 1000, OLD)
    assert not bookie.engine.renew_ledger(LEDGER, OLD, 5), "nor does who renews it"
    assert_new(bookie, 1)


def test_an_id_whose_tombstone_was_forgotten_shows_nothing_of_it(bookie: Bookie) -> None:
    """A log that is mostly alive keeps its dead records for ever."""
    assert put(bookie, *(add(1, i, bytes(1000)) for i in range(9))) == [0] * 9
    old(bookie)
    bookie.engine.delete_ledger(LEDGER, 1000)
    bookie.checkpoint()
    bookie.engine.forget_tombstones(1001 + 7 * DAY_MS)
    assert bookie.engine.ledger(LEDGER) is not None, "a log still has its entries"
    compact(bookie)
    bookie.engine.forget_tombstones(1001 + 7 * DAY_MS)
    assert bookie.engine.ledger(LEDGER) is None
    assert put(bookie, said(NEW), add(LEDGER, 0, b"new")) == [0]
    for step in (Bookie.crash, Bookie.checkpoint, reindex):
        step(bookie)
        assert_new(bookie, 1)


def test_a_full_memtable_makes_the_renewal_wait(bookie: Bookie) -> None:
    """Entries on their way to a log would come out behind the new ledger's beginning."""
    old(bookie, flushed=False)
    bookie.engine.seal()
    from native.errors import Full

    with pytest.raises(Full):
        bookie.engine.renew_ledger(LEDGER, OLD, NEW)
    assert bookie.payload(LEDGER, 4) == b"old"
    put(bookie)
    bookie.flush_sealed()
    renewed(bookie)
    put(bookie)
    for step in (Bookie.crash, Bookie.checkpoint, Bookie.crash):
        step(bookie)
        assert_new(bookie, 0)


def test_a_start_that_flushes_the_former_ledger_forgets_it_all_the_same(tmp_path: Path) -> None:
    """The journal is larger than the memtable, so halves are written during replay."""
    bookie, large = Bookie(tmp_path, memtable_size=64 * MIB), bytes(4 * MIB)
    old(bookie, flushed=False)
    assert put(bookie, *(add(1, i, large) for i in range(4))) == [0] * 4
    renewed(bookie)
    assert put(bookie, said(NEW), add(LEDGER, 0, b"new")) == [0]
    assert put(bookie, *(add(1, i, large) for i in range(4, 8))) == [0] * 4
    bookie.memtable_size = 10 * MIB
    for step in (Bookie.crash, Bookie.crash, Bookie.checkpoint, Bookie.crash, reindex):
        step(bookie)
        assert_new(bookie, 1)
    bookie.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_start_without_the_ledger_table_learns_from_logs_which_ledger_it_has(
    bookie: Bookie, step: Callable[[Bookie], None]
) -> None:
    assert put(bookie, add(1, 0, b"another")) == [0]
    old(bookie)
    renewed(bookie)
    assert put(bookie, said(NEW), add(LEDGER, 0, b"new")) == [0]
    bookie.checkpoint()
    step(bookie)
    for _ in range(2):
        lose_table(bookie)
        assert bookie.recovery.limbo
        state = bookie.engine.ledger(LEDGER)
        assert state is not None
        assert (state.incarnation, state.last_entry, state.fenced) == (NEW, 0, True)
        assert bookie.engine.runs(LEDGER) == [(0, 0)]
        assert bookie.payload(LEDGER, 0) == b"new"
        assert bookie.payload(1, 0) == b"another"
        compact(bookie)  # which must not lose what the next start needs


def test_what_a_start_flushes_of_the_former_ledger_is_never_named_as_the_new_one(
    tmp_path: Path,
) -> None:
    """The table is ahead of the mark; the journal has the former ledger's entries first."""
    bookie, large = Bookie(tmp_path, memtable_size=64 * MIB), bytes(4 * MIB)
    old(bookie)
    assert put(bookie, add(1, 0, b"another")) == [0]
    assert bookie.engine.seal()
    late = [add(LEDGER, i, b"old", key=OTHER_KEY, flags=Flag.RECOVERY) for i in (5, 6)]
    assert put(bookie, *late, *(add(1, i, large) for i in range(1, 5))) == [0] * 6
    renewed(bookie)
    bookie.flush_sealed()
    bookie.memtable_size = 10 * MIB
    bookie.crash()
    assert_new(bookie, 0)
    lose_table(bookie)
    state = bookie.engine.ledger(LEDGER)
    assert state is None or state.incarnation != NEW
    bookie.close()


def test_an_id_is_used_again_and_again(bookie: Bookie) -> None:
    previous = 0
    for turn in range(1, 9):
        if previous:
            assert bookie.engine.renew_ledger(LEDGER, previous, turn)
        payload = b"turn %d" % turn
        count = 1 + (turn * 5) % 4
        frames = [add(LEDGER, i, payload) for i in range(count)]
        assert put(bookie, said(turn), *frames) == [0] * count
        STEPS[turn % len(STEPS)](bookie)
        found = [bookie.read(LEDGER, i)[1][32:] for i in range(5)]
        assert found == [payload] * count + [b""] * (5 - count)
        previous = turn


def test_a_parked_read_of_the_former_ledger_is_woken(bookie: Bookie) -> None:
    assert put(bookie, said(OLD), add(LEDGER, 0, b"old")) == [0]
    assert bookie.engine.watch(LEDGER, 5)
    renewed(bookie)
    assert bookie.engine.woken() == [LEDGER]

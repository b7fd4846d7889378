"""The engine: adds, acknowledgements, crashes, fences, reads."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engines import MIB, Bookie
from wire import KEY, add, add_responses, be, framed, header, stored_entry, write_lac

from native.engine import MEMTABLE_SIZE_MIN, Event, Request, Verdict
from native.errors import Absent, Refused
from native.faults import clear_fault, plan_fault
from native.journal import Record, scan_journal

OTHER_KEY = b"k" * 20


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    clear_fault()
    bookie.close()


def codes(bookie: Bookie) -> list[int]:
    while bookie.engine.commit():
        pass
    return [r.code for r in add_responses(bookie.connection.take())]


# --- acknowledgement ----------------------------------------------------------------


def test_nothing_is_acknowledged_before_the_sync(bookie: Bookie) -> None:
    """PS-18, PS-19: journal and memtable first, then the response."""
    bookie.send(add(1, 0, b"one"))
    assert bookie.connection.take() == b""
    assert Event.READY not in bookie.engine.poll()
    assert bookie.engine.commit()
    assert Event.READY in bookie.engine.poll()
    assert bookie.engine.ready() == [1]
    assert add_responses(bookie.connection.take()) == [(1, 0, 1, 0)]
    assert bookie.connection.take() == b""


def test_an_acknowledged_entry_is_in_the_journal_file(bookie: Bookie) -> None:
    """PS-12: journal first."""
    bookie.add(1, 0, b"one")
    path = max(bookie.journal_folder.glob("*.journal"))
    bodies = [r.body for r in scan_journal(path) if isinstance(r, Record)]
    assert stored_entry(1, 0, b"one") in bodies


def test_adds_that_gather_share_one_sync(bookie: Bookie) -> None:
    before = bookie.engine.stats().groups
    bookie.send(b"".join(add(1, i, b"x") for i in range(100)))
    assert codes(bookie) == [0] * 100
    assert bookie.engine.stats().groups == before + 1


def test_threads_that_commit_at_once_write_each_group_once(bookie: Bookie) -> None:
    """A flush commits what it needs, maybe beside somebody who does the same."""
    groups = bookie.engine.stats().groups
    with ThreadPoolExecutor(4) as threads:
        for entry_id in range(20):
            bookie.send(add(1, entry_id, b"x"))
            done = threads.map(lambda _: bookie.engine.commit(), range(4))
            assert sorted(done) == [False, False, False, True]
    assert bookie.engine.stats().groups == groups + 20
    assert codes(bookie) == [0] * 20


@pytest.mark.parametrize("site", ["journal_write", "journal_sync"])
def test_a_failed_journal_acknowledges_nothing_ever_again(bookie: Bookie, site: str) -> None:
    """A failed write or sync is fatal: never retried, never acknowledged."""
    bookie.add(1, 0, b"before")
    plan_fault(site, 1, errno.EIO)
    bookie.send(add(1, 1, b"during"))
    with pytest.raises(OSError, match="journal") as failure:
        bookie.engine.commit()
    assert failure.value.errno == errno.EIO
    clear_fault()
    bookie.send(add(1, 2, b"after"))
    with pytest.raises(OSError, match="journal"):
        bookie.engine.commit()
    with pytest.raises(OSError, match="must stop"):
        bookie.engine.poll()
    assert bookie.connection.take() == b""


def test_frames_may_be_cut_anywhere(bookie: Bookie) -> None:
    frames = b"".join(add(1, i, bytes(i * 7)) for i in range(5))
    for cut in range(1, len(frames)):
        connection = bookie.engine.connect(cut)
        for part in (frames[:cut], frames[cut:]):
            assert connection.feed(part).verdict is Verdict.OK
        while bookie.engine.commit():
            pass
        assert [r.code for r in add_responses(connection.take())] == [0] * 5
        connection.close()
    for i in range(5):
        assert bookie.payload(1, i) == bytes(i * 7)


def test_one_byte_at_a_time(bookie: Bookie) -> None:
    for byte in add(9, 0, b"slowly") + add(9, 1, b"!"):
        assert bookie.connection.feed(bytes([byte])).verdict is Verdict.OK
    assert codes(bookie) == [0, 0]
    assert bookie.connection.backlog().partial == 0


# --- refusals ---------------------------------------------------------------------------


def test_the_first_add_creates_the_ledger_with_its_key(bookie: Bookie) -> None:
    bookie.send(add(5, 0, b"x", key=OTHER_KEY) + add(5, 1, b"y", key=KEY))
    assert codes(bookie) == [0, 102]
    state = bookie.engine.ledger(5)
    assert state is not None
    assert state.key == OTHER_KEY
    assert state.last_entry == 0


def test_codes_of_refused_adds(bookie: Bookie) -> None:
    bookie.add(1, 0, b"x")
    bookie.engine.fence(1, KEY)
    bookie.send(add(1, 1, b"late"))
    bookie.send(add(1, 1, b"recovery", flags=2))
    bookie.send(add(-5, 1, b"") + add(1, -7, b""))
    assert codes(bookie) == [104, 0, 100, 100]
    bookie.engine.set_read_only(True, True)
    bookie.send(add(2, 0, b"") + add(2, 0, b"", flags=6))
    assert codes(bookie) == [105, 0]
    bookie.engine.set_read_only(True, False)
    bookie.send(add(2, 1, b"") + add(2, 1, b"", flags=6))
    assert codes(bookie) == [105, 105]


def test_a_newer_version_is_answered_then_closed(bookie: Bookie) -> None:
    fed = bookie.connection.feed(framed(header(2, version=3) + be(1) + be(0)))
    assert fed.verdict is Verdict.CLOSE
    assert add_responses(bookie.connection.take())[0].code == 103


@pytest.mark.parametrize(
    "frame",
    [
        be(5 * MIB + 1, 4),
        be(3, 4) + b"abc",
        framed(header(66) + bytes(40)),
        framed(header(4) + bytes(40)),
        framed(header(1) + KEY + bytes(31)),
        framed(header(2) + bytes(15)),
        be(0x80000000, 4) + bytes(8),
    ],
    ids=["too long", "too short", "chain add", "read lac", "short add", "short read", "negative"],
)
def test_what_no_frame_allows_closes_the_connection(bookie: Bookie, frame: bytes) -> None:
    assert bookie.connection.feed(frame).verdict is Verdict.CLOSE
    assert bookie.connection.take() == b""
    other = bookie.engine.connect(2)
    bookie.send(add(1, 0, b"unaffected"), other)
    bookie.engine.commit()
    assert add_responses(other.take())[0].code == 0
    other.close()


def test_an_entry_sent_twice_is_acknowledged_twice_and_stored_once(bookie: Bookie) -> None:
    bookie.send(add(1, 0, b"same") * 3)
    assert codes(bookie) == [0, 0, 0]
    stats = bookie.engine.stats()
    assert (stats.memtable_entries, stats.adds_repeated) == (1, 2)


# --- crash and replay ---------------------------------------------------------------------


def test_everything_acknowledged_survives_crashes_and_flushes(bookie: Bookie) -> None:
    """PS-20..26, BK-14, BK-15: a dictionary agrees after any mix of adds, flushes, crashes."""
    draw = random.Random(7)
    expected: dict[tuple[int, int], bytes] = {}
    following = dict.fromkeys(range(6), 0)
    for _ in range(300):
        action = draw.random()
        if action < 0.8:
            ledger_id = draw.randrange(6)
            frames = []
            for _ in range(draw.randrange(1, 40)):
                payload = draw.randbytes(draw.choice([0, 10, 100, 5000]))
                expected[ledger_id, following[ledger_id]] = payload
                frames.append(add(ledger_id, following[ledger_id], payload))
                following[ledger_id] += 1
            draw.shuffle(frames)
            bookie.send(b"".join(frames))
            assert set(codes(bookie)) == {0}
        elif action < 0.9:
            bookie.checkpoint()
        else:
            bookie.crash()
            assert bookie.recovery.damages == 0
    bookie.crash()
    for (ledger_id, entry_id), payload in expected.items():
        assert bookie.payload(ledger_id, entry_id) == payload
    for ledger_id, end in following.items():
        assert bookie.read(ledger_id, end)[0] == 2
        assert bookie.read(ledger_id, -1)[1][8:16] == be(end - 1)


def test_adds_wait_when_both_halves_are_full(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    frames = b"".join(add(1, i, bytes(MIB)) for i in range(30))
    fed = bookie.connection.feed(frames)
    assert fed.verdict is Verdict.FULL
    assert 0 < fed.used < len(frames)
    again = bookie.connection.feed(frames[fed.used :])
    assert (again.verdict, again.used) == (Verdict.FULL, 0)
    assert Event.FLUSH in bookie.engine.poll()
    bookie.flush_sealed()
    assert Event.SPACE in bookie.engine.poll()
    bookie.send(frames[fed.used :])
    assert codes(bookie) == [0] * 30
    bookie.crash()
    assert [len(bookie.payload(1, i)) for i in range(30)] == [MIB] * 30
    bookie.close()


def test_entries_in_descending_order_cost_no_more(bookie: Bookie) -> None:
    count = 20000
    bookie.send(b"".join(add(1, i, b"d%d" % i) for i in reversed(range(count))))
    assert set(codes(bookie)) == {0}
    assert bookie.payload(1, 12345) == b"d12345"
    bookie.checkpoint()
    assert bookie.payload(1, 0) == b"d0"
    assert bookie.payload(1, count - 1) == b"d%d" % (count - 1)


def test_a_missing_journal_file_refuses_the_start(bookie: Bookie) -> None:
    bookie.add(1, 0, b"x")
    bookie.connection.close()
    bookie.engine.close()
    for path in bookie.journal_folder.glob("*.journal"):
        path.unlink()
    with pytest.raises(FileNotFoundError):
        bookie._open()


def test_entries_without_a_mark_refuse_the_start(bookie: Bookie) -> None:
    bookie.add(1, 0, b"x")
    bookie.connection.close()
    bookie.engine.close()
    bookie.mark = None
    with pytest.raises(FileExistsError):
        bookie._open()


def test_damage_in_the_journal_puts_the_bookie_in_limbo(bookie: Bookie) -> None:
    """BK-11: what may have been lost is never answered with "no such entry"."""
    for i in range(4):
        bookie.add(1, i, b"x" * 50)
    path = max(bookie.journal_folder.glob("*.journal"))
    data = bytearray(path.read_bytes())
    data[2 * 4096 + 100] ^= 4
    bookie.connection.close()
    bookie.engine.close()
    path.write_bytes(data)
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert bookie.recovery.limbo
    assert bookie.recovery.damages == 1
    damage = bookie.engine.store.take_damage()
    assert [(Path(d.path), d.offset) for d in damage] == [(path, 2 * 4096 + 56)]
    bookie.engine.set_limbo(True)
    assert [bookie.read(1, i)[0] for i in range(5)] == [0, 101, 0, 0, 101]
    assert bookie.read(77, 0)[0] == 101


# --- fences, LAC, deletion ------------------------------------------------------------------


def test_a_fence_is_durable_when_its_ticket_is_synced(bookie: Bookie) -> None:
    ticket = bookie.engine.fence(1, KEY)
    assert bookie.engine.synced() < ticket
    bookie.engine.notify(ticket)
    bookie.engine.commit()
    assert bookie.engine.synced() >= ticket
    assert Event.SYNCED in bookie.engine.poll()
    bookie.crash()
    bookie.send(add(1, 0, b"old writer"))
    assert codes(bookie) == [104]
    bookie.checkpoint()
    bookie.crash()
    bookie.send(add(1, 0, b"old writer"))
    assert codes(bookie) == [104]
    with pytest.raises(Refused):
        bookie.engine.fence(1, OTHER_KEY)


def test_lac_comes_with_entries_and_explicitly_and_wakes_watchers(bookie: Bookie) -> None:
    bookie.add(1, 0, b"a")
    assert bookie.engine.watch(1, -1)
    bookie.add(1, 1, b"b")
    assert bookie.engine.woken() == [1]
    assert bookie.engine.watch(1, -1) is False
    assert bookie.engine.watch(1, 0)
    bookie.send(write_lac(1, 42, 1))
    bookie.engine.commit()
    assert add_responses(bookie.connection.take()) == [(65, 0, 1, 42)]
    assert bookie.engine.woken() == [1]
    with pytest.raises(Absent):
        bookie.engine.watch(99, -1)
    for _ in range(2):
        bookie.crash()
        state = bookie.engine.ledger(1)
        assert state is not None
        assert (state.lac, state.explicit_lac) == (1, 1)
        bookie.checkpoint()


def test_lac_of_a_ledger_on_disk_is_read_from_its_last_entry(bookie: Bookie) -> None:
    bookie.add(1, 0, b"a")
    bookie.add(1, 1, b"b")
    bookie.checkpoint()
    bookie.crash()
    request = Request(64, ledger_id=1, entry_id=0, request_id=3, count_max=10, size_max=MIB)
    assert bookie.engine.answer(request, use_disk=False, size_max=MIB) is None
    frame = bookie.engine.answer(request, use_disk=True, size_max=MIB)
    assert frame is not None
    assert frame[36:44] == be(0)
    assert frame[48:] == be(33, 4) + stored_entry(1, 0, b"a")


def test_a_deleted_ledger_is_gone_and_stays_fenced(bookie: Bookie) -> None:
    """BK-18: a late writer cannot bring a deleted ledger back."""
    bookie.add(1, 0, b"a")
    bookie.checkpoint()
    bookie.add(1, 1, b"b")
    bookie.engine.delete_ledger(1, now_ms=1000)
    for _ in range(3):
        assert bookie.read(1, 0)[0] == 1
        bookie.send(add(1, 2, b"late"))
        assert codes(bookie) == [104]
        assert [s.ledger_id for s in bookie.engine.ledgers()] == []
        bookie.checkpoint()
        bookie.crash()
    assert bookie.engine.store.stats().live_bytes == 0
    bookie.engine.forget_tombstones(1001 + 7 * 86_400_000)
    assert bookie.engine.ledger(1) is not None, "a log still has entries of it"
    bookie.drop_dead_logs()
    bookie.engine.forget_tombstones(1000 + 7 * 86_400_000)
    assert bookie.engine.ledger(1) is not None
    bookie.engine.forget_tombstones(1001 + 7 * 86_400_000)
    assert bookie.engine.ledger(1) is None


def test_the_ledger_table_is_written_anew_when_it_grows(bookie: Bookie) -> None:
    bookie.add(1, 0, b"a")
    for i in range(30000):
        bookie.send(write_lac(1, i, i))
        if i % 3000 == 0:
            bookie.engine.commit()
            bookie.checkpoint()
    bookie.engine.commit()
    for _ in range(3):
        bookie.checkpoint()
        bookie.crash()
    state = bookie.engine.ledger(1)
    assert state is not None
    assert state.explicit_lac == 29999
    assert len(list(bookie.ledger_folder.glob("*.table"))) == 1


def test_a_damaged_ledger_table_fences_everything(bookie: Bookie) -> None:
    bookie.add(1, 0, b"a")
    bookie.checkpoint()
    bookie.connection.close()
    bookie.engine.close()
    table = max(bookie.ledger_folder.glob("*.table"))
    data = bytearray(table.read_bytes())
    data[10] ^= 1
    table.write_bytes(data)
    bookie.engine, bookie.recovery = bookie._open()
    bookie.connection = bookie.engine.connect(1)
    assert bookie.recovery.limbo
    bookie.send(add(1, 1, b"x"))
    assert codes(bookie) == [104]
    bookie.checkpoint()
    bookie.crash()
    bookie.send(add(1, 1, b"x"))
    assert codes(bookie) == [104]


# --- reads -----------------------------------------------------------------------------------


def test_batches_cross_from_disk_to_memory(bookie: Bookie) -> None:
    """PS-22, PS-23: memtable first, then index and entry log."""
    for i in range(10):
        bookie.add(1, i, b"%d" % i)
        if i == 5:
            bookie.checkpoint()
    request = Request(7, ledger_id=1, entry_id=3, request_id=8, count_max=0, size_max=MIB)
    frame = bookie.engine.answer(request, use_disk=True, size_max=MIB)
    assert frame is not None
    assert frame[12:36] == be(1) + be(3) + be(8)
    assert frame[36:] == b"".join(be(33, 4) + stored_entry(1, i, b"%d" % i) for i in range(3, 10))
    two = Request(7, ledger_id=1, entry_id=3, count_max=2, size_max=MIB)
    frame = bookie.engine.answer(two, use_disk=True, size_max=MIB)
    assert frame is not None
    assert len(frame) == 36 + 2 * 37
    tiny = Request(7, ledger_id=1, entry_id=3, count_max=2, size_max=1)
    frame = bookie.engine.answer(tiny, use_disk=True, size_max=MIB)
    assert frame is not None
    assert len(frame) == 36 + 37


def test_size_of_a_batch_counts_as_upstream_counts(bookie: Bookie) -> None:
    """Accounting starts at 24 + 8 + 4 and adds 4 to each entry."""
    for i in range(5):
        bookie.add(1, i, b"x" * 10)
    for size_max in range(30, 300):
        request = Request(7, ledger_id=1, entry_id=0, size_max=size_max)
        frame = bookie.engine.answer(request, use_disk=False, size_max=MIB)
        assert frame is not None
        assert (len(frame) - 36) // 46 == max(1, min(5, (size_max - 36) // 46)), size_max


def test_release_memory_keeps_what_is_held(bookie: Bookie) -> None:
    bookie.add(1, 0, b"kept")
    bookie.engine.release_memory()
    assert bookie.payload(1, 0) == b"kept"
    bookie.checkpoint()
    bookie.engine.release_memory()
    assert bookie.payload(1, 0) == b"kept"
    bookie.add(1, 1, b"more")
    assert bookie.payload(1, 1) == b"more"


def test_the_smallest_memtable_takes_the_largest_entries(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        Bookie(tmp_path / "smaller", memtable_size=MEMTABLE_SIZE_MIN - 4096)
    bookie = Bookie(tmp_path / "least", memtable_size=MEMTABLE_SIZE_MIN, journal_size_max=MIB)
    payloads = [bytes([i]) * (5 * MIB - 48 - 32 - 4 * i) for i in range(5)]
    for i, payload in enumerate(payloads):
        bookie.add(1, i, payload)
    for _ in range(2):
        bookie.crash()
        assert bookie.recovery.damages == 0
        assert [bookie.payload(1, i) for i in range(5)] == payloads
        bookie.checkpoint()
    bookie.close()


# --- what BookKeeper calls the ledger ------------------------------------------------------


def test_a_ledger_is_a_name_of_entries_and_no_file(bookie: Bookie) -> None:
    """PS-10: ledgers share every file, and entries are written, found and read one by one."""
    draw = random.Random(3)
    entries = [(ledger_id, entry_id) for ledger_id in range(50) for entry_id in range(20)]
    draw.shuffle(entries)
    files = len([*bookie.ledger_folder.iterdir()])
    for ledger_id, entry_id in entries:
        bookie.send(add(ledger_id, entry_id, b"%d of %d" % (entry_id, ledger_id)))
    assert set(codes(bookie)) == {0}
    bookie.checkpoint()
    (log,) = {bookie.engine.store.find(*entry).log_id for entry in entries}
    assert log == 1
    assert len([*bookie.ledger_folder.iterdir()]) <= files + 2  # a log and its index
    draw.shuffle(entries)
    for ledger_id, entry_id in entries:
        assert bookie.payload(ledger_id, entry_id) == b"%d of %d" % (entry_id, ledger_id)
    assert bookie.read(7, 20)[0] == 2
    bookie.send(add(7, 40, b"with a gap"))  # what is between them is the writer's concern
    assert codes(bookie) == [0]
    assert bookie.payload(7, 40) == b"with a gap"
    assert bookie.read(7, 30)[0] == 2


def journal_files(bookie: Bookie) -> list[Path]:
    return sorted(bookie.journal_folder.glob("*.journal"))


def test_the_journal_goes_on_in_the_next_file_by_size_and_whoever_adds_does_not_do_it(
    tmp_path: Path,
) -> None:
    """PS-13: adding touches no file; the step that syncs rolls, in a thread of its own."""
    bookie = Bookie(tmp_path, journal_size_max=4 * MIB)
    before = journal_files(bookie)
    frames = b"".join(add(1, i, bytes(MIB // 2)) for i in range(40))
    fed = bookie.connection.feed(frames)
    assert (fed.used, fed.verdict) == (len(frames), Verdict.OK)
    assert journal_files(bookie) == before
    assert codes(bookie) == [0] * 40
    assert len(journal_files(bookie)) > len(before)  # between two halves of the memtable
    bookie.crash()
    assert [len(bookie.payload(1, i)) for i in (0, 39)] == [MIB // 2] * 2
    bookie.close()

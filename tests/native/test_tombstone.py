"""Deleted ledgers that recovery brings back, with a crash at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import MIB, Bookie
from wire import KEY, add, add_responses, write_lac

from native.engine import Verdict
from native.errors import Absent
from native.frame import Code, Flag

RECOVERY = Flag.RECOVERY | Flag.PRIORITY
DAY_MS = 86_400_000


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    bookie.close()


def put(bookie: Bookie, *frames: bytes) -> list[int]:
    """Send frames, sync, and return the codes of the answers."""
    bookie.send(b"".join(frames))
    while bookie.engine.commit():
        pass
    return [response.code for response in add_responses(bookie.connection.take())]


def again(entry_id: int, payload: bytes, *, key: bytes = KEY) -> bytes:
    return add(1, entry_id, payload, key=key, flags=RECOVERY)


def deleted(bookie: Bookie) -> None:
    """Ledger 1 had entries 0 to 4 on disk and 5 to 6 in memory, and is a tombstone."""
    assert put(bookie, *(add(1, i, b"old") for i in range(5))) == [0] * 5
    bookie.checkpoint()
    assert put(bookie, add(1, 5, b"old"), add(1, 6, b"old")) == [0, 0]
    bookie.engine.delete_ledger(1, 1000)
    assert put(bookie) == []


def assert_revived(bookie: Bookie) -> None:
    """Entries 1 and 6 are what was added again; a writer is kept away."""
    state = bookie.engine.ledger(1)
    assert state is not None
    assert state.fenced
    assert not state.deleted
    assert (bookie.payload(1, 1), bookie.payload(1, 6)) == (b"new", b"new")
    assert bookie.payload(1, -1) == b"new"
    assert put(bookie, add(1, 7, b"late")) == [Code.FENCED]


def seal(bookie: Bookie) -> None:
    bookie.engine.seal()


def lose_mark(bookie: Bookie) -> None:
    """Flush, and crash before the mark is persisted."""
    bookie.engine.seal()
    bookie.engine.flush()
    bookie.crash()


STEPS: list[Callable[[Bookie], None]] = [Bookie.crash, Bookie.checkpoint, seal, lose_mark]


@pytest.mark.parametrize("before", [None, *STEPS])
@pytest.mark.parametrize("middle", [None, *STEPS])
@pytest.mark.parametrize("after", STEPS)
def test_a_revived_ledger_survives_a_crash_at_any_step(
    bookie: Bookie,
    before: Callable[[Bookie], None] | None,
    middle: Callable[[Bookie], None] | None,
    after: Callable[[Bookie], None],
) -> None:
    deleted(bookie)
    if before is not None:
        before(bookie)
    assert put(bookie, again(1, b"new")) == [0]
    if middle is not None:
        middle(bookie)
    assert put(bookie, again(6, b"new")) == [0]
    assert_revived(bookie)
    after(bookie)
    bookie.crash()
    assert_revived(bookie)
    bookie.checkpoint()
    assert_revived(bookie)
    bookie.crash()
    assert bookie.recovery.replayed_records == 0
    assert_revived(bookie)


def test_a_revived_ledger_begins_without_entries(bookie: Bookie) -> None:
    deleted(bookie)
    assert put(bookie, again(2, b"new")) == [0]
    assert bookie.engine.runs(1) == [(2, 2)]
    assert bookie.read(1, 5)[0] == bookie.read(1, 0)[0] == Code.NO_ENTRY


def test_a_plain_add_and_a_lac_stay_refused(bookie: Bookie) -> None:
    deleted(bookie)
    for _ in range(2):
        assert put(bookie, add(1, 7, b"late"), write_lac(1, 9, 3)) == [Code.FENCED] * 2
        bookie.checkpoint()
        bookie.crash()


def test_another_key_brings_nothing_back(bookie: Bookie) -> None:
    deleted(bookie)
    assert put(bookie, again(1, b"new", key=b"x" * 20)) == [Code.UNAUTHORIZED]
    with pytest.raises(Absent):
        bookie.engine.runs(1)


def test_an_entry_on_its_way_to_a_log_makes_the_add_wait(bookie: Bookie) -> None:
    """Its flush leaves it out, so it must not count as stored."""
    deleted(bookie)
    bookie.engine.seal()
    fed = bookie.connection.feed(again(5, b"new"))
    assert (fed.used, fed.verdict) == (0, Verdict.FULL)
    bookie.engine.commit()
    bookie.flush_sealed()
    assert put(bookie, again(5, b"new")) == [0]
    bookie.crash()
    assert bookie.payload(1, 5) == b"new"


def test_a_deletion_is_remembered_without_a_flush(bookie: Bookie) -> None:
    deleted(bookie)
    bookie.crash()
    state = bookie.engine.ledger(1)
    assert state is not None
    assert state.deleted
    assert bookie.engine.store.stats().live_bytes == 0
    bookie.checkpoint()
    assert put(bookie, add(1, 7, b"late")) == [Code.FENCED]


def test_deleting_and_reviving_may_go_on_for_ever(bookie: Bookie) -> None:
    deleted(bookie)
    for turn in range(12):
        payload = b"turn %d" % turn
        assert put(bookie, again(3, payload)) == [0]
        if turn % 3 == 0:
            bookie.checkpoint()
        elif turn % 3 == 1:
            bookie.crash()
        assert bookie.payload(1, 3) == payload
        bookie.engine.delete_ledger(1, 1000 + turn)
        if turn % 2:
            put(bookie)
            bookie.crash()
        assert bookie.read(1, 3)[0] == Code.NO_LEDGER


def test_dead_bytes_are_collected_and_the_revived_stay(bookie: Bookie) -> None:
    deleted(bookie)
    assert put(bookie, again(1, b"new"), again(6, b"new")) == [0, 0]
    bookie.checkpoint()
    for _ in range(2):
        assert bookie.mark is not None
        bookie.roll()
        for log in bookie.engine.store.logs():
            bookie.engine.store.compact(log.log_id)
        assert_revived(bookie)
        bookie.crash()
        assert_revived(bookie)
    assert bookie.engine.runs(1) == [(1, 1), (6, 6)]


def test_old_entries_that_a_log_still_has_can_be_read_after_a_start(bookie: Bookie) -> None:
    """What is told to be here is here."""
    deleted(bookie)
    assert put(bookie, again(1, b"new")) == [0]
    bookie.checkpoint()
    bookie.crash()
    assert bookie.engine.runs(1) == [(0, 4)]
    assert [bookie.payload(1, i) for i in range(5)] == [b"old", b"new", b"old", b"old", b"old"]


def test_a_ledger_made_anew_after_its_tombstone_was_forgotten_stays(bookie: Bookie) -> None:
    deleted(bookie)
    bookie.checkpoint()
    bookie.drop_dead_logs()
    bookie.engine.forget_tombstones(1001 + 7 * DAY_MS)
    assert bookie.engine.ledger(1) is None
    assert put(bookie, again(3, b"new")) == [0]
    for step in (Bookie.crash, Bookie.checkpoint, Bookie.crash):
        step(bookie)
        assert bookie.payload(1, 3) == b"new"


def test_a_fence_of_a_tombstone_is_durable_by_itself(bookie: Bookie) -> None:
    """BK-07: a fence that is answered holds after a crash."""
    deleted(bookie)
    ticket = bookie.engine.fence(1, KEY)
    assert ticket > bookie.engine.synced()
    put(bookie)
    bookie.crash()
    state = bookie.engine.ledger(1)
    assert state is not None
    assert (state.deleted, state.fenced) == (True, True)
    assert put(bookie, again(1, b"new")) == [0]


def test_a_start_that_flushes_keeps_what_came_back(tmp_path: Path) -> None:
    """The journal is larger than the memtable, so halves are written during replay."""
    bookie, large = Bookie(tmp_path, memtable_size=64 * MIB), bytes(4 * MIB)
    deleted(bookie)
    for turn in range(4):
        put(bookie, add(2, 2 * turn, large))
        put(bookie, again(3, b"turn %d" % turn))
        put(bookie, add(2, 2 * turn + 1, large))
        if turn < 3:
            bookie.engine.delete_ledger(1, 2000 + turn)
    bookie.memtable_size = 10 * MIB
    bookie.crash()
    assert bookie.recovery.replayed_bytes > 20 * MIB
    assert bookie.payload(1, 3) == b"turn 3"
    bookie.checkpoint()
    bookie.crash()
    assert bookie.payload(1, 3) == b"turn 3"
    bookie.close()

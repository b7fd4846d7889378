"""READs that came together are answered as each would be by itself."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from engines import MIB, Bookie
from hypothesis import given, settings, strategies as st
from wire import add, add_responses, be

from native import frame
from native.engine import Reads
from native.frame import Code, Flag, Opcode, Request
from native.store import Damage

HEADER_SIZE = 28
LEDGERS = (1, 2, 3, 9)
"""Half in a log, in turn in log and memory, with holes, and absent."""
SPAN = 60
LARGE = 7
"""The entry of ledger 1 that is larger than the others together."""
RECOVERY = Flag.RECOVERY | Flag.PRIORITY


def payload(ledger_id: int, entry_id: int) -> bytes:
    size = 70_000 if (ledger_id, entry_id) == (1, LARGE) else entry_id * 7919 % 300
    return b"%d/%d " % (ledger_id, entry_id) + bytes(size)


def fill(bookie: Bookie) -> None:
    """Store the *LEDGERS*, and leave the memtable with a part of them."""

    def put(*entries: tuple[int, int]) -> None:
        bookie.send(b"".join(add(*each, payload(*each), flags=RECOVERY) for each in entries))
        commit(bookie)

    put(*((1, i) for i in range(30)))
    put(*((2, i) for i in range(0, SPAN, 2)))
    put(*((3, i) for i in range(SPAN) if i % 20 < 12))
    bookie.checkpoint()
    put(*((1, i) for i in range(30, SPAN)))
    put(*((2, i) for i in range(1, SPAN, 2)))


def commit(bookie: Bookie) -> None:
    while bookie.engine.commit():
        pass
    assert {each.code for each in add_responses(bookie.connection.take())} <= {0}


@pytest.fixture(scope="module")
def filled() -> Iterator[Bookie]:
    with tempfile.TemporaryDirectory() as folder:
        bookie = Bookie(Path(folder))
        fill(bookie)
        yield bookie
        bookie.close()


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    fill(bookie)
    yield bookie
    bookie.close()


def gathered(bookie: Bookie, wanted: Sequence[tuple[int, int]]) -> Reads:
    """Send READs in one piece, and return them."""
    asked = b"".join(frame.read(*each) for each in wanted)
    parts: list[Reads] = []
    while asked:
        fed = bookie.connection.feed(asked, gathers=True)
        assert fed.requests == []
        assert fed.reads is not None
        parts.append(fed.reads)
        asked = asked[fed.used :]
    return Reads.joined(parts)


def split(answers: bytes) -> list[bytes]:
    frames = []
    while answers:
        size = 4 + int.from_bytes(answers[:4], "big")
        frames.append(answers[:size])
        answers = answers[size:]
    return frames


def answered(bookie: Bookie, reads: Reads, *, size_max: int = MIB) -> list[bytes]:
    """Answer them all, in as many calls as it takes; each call is within its room."""
    frames: list[bytes] = []
    while reads:
        answers = bookie.engine.answer_reads(reads, use_disk=True, size_max=size_max)
        if not answers:  # a single answer is larger
            answers = bookie.engine.answer_reads(reads, use_disk=True, size_max=MIB)
        else:
            assert len(answers) <= size_max
        assert answers
        frames += split(answers)
    return frames


def one_by_one(bookie: Bookie, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
    return [
        bookie.engine.answer(
            Request(Opcode.READ, ledger_id=ledger_id, entry_id=entry_id),
            use_disk=True,
            size_max=MIB,
        )
        or b""
        for ledger_id, entry_id in wanted
    ]


LAST_ID = (1 << 63) - 1
STARTS = st.one_of(st.integers(-2, SPAN), st.integers(LAST_ID - SPAN, LAST_ID))
ENTRIES = st.one_of(
    st.tuples(st.sampled_from(LEDGERS), st.integers(-2, SPAN + 3)).map(lambda one: [one]),
    st.tuples(st.sampled_from(LEDGERS), STARTS, st.integers(2, SPAN)).map(
        lambda row: [(row[0], min(row[1] + i, LAST_ID)) for i in range(row[2])]
    ),
)
WANTED = st.lists(ENTRIES, min_size=1, max_size=8).map(
    lambda rows: [e for row in rows for e in row]
)


@settings(max_examples=300, deadline=None)
@given(wanted=WANTED, size_max=st.sampled_from([4096, 5000, 40_000, 80_000, MIB]))
def test_reads_in_any_pattern_get_the_same_answers_together(
    filled: Bookie, wanted: list[tuple[int, int]], size_max: int
) -> None:
    together = answered(filled, gathered(filled, wanted), size_max=size_max)
    assert sorted(together) == sorted(one_by_one(filled, wanted))


@settings(max_examples=200, deadline=None)
@given(wanted=WANTED, size_max=st.sampled_from([4096, 40_000, MIB]))
def test_what_memory_cannot_answer_is_left_for_the_disk(
    filled: Bookie, wanted: list[tuple[int, int]], size_max: int
) -> None:
    reads = gathered(filled, wanted)
    before = filled.engine.store.stats().log_reads
    frames: list[bytes] = []
    while answers := filled.engine.answer_reads(reads, use_disk=False, size_max=size_max):
        assert len(answers) <= size_max
        frames += split(answers)
    assert filled.engine.answer_reads(reads, use_disk=False, size_max=MIB) == b""
    assert filled.engine.store.stats().log_reads == before
    frames += answered(filled, reads)
    assert sorted(frames) == sorted(one_by_one(filled, wanted))


def test_a_row_is_read_from_the_log_with_few_reads(bookie: Bookie) -> None:
    wanted = [(1, i) for i in range(8, 28)]
    expected = one_by_one(bookie, wanted)
    before = bookie.engine.store.stats().log_reads
    assert answered(bookie, gathered(bookie, wanted)) == expected
    assert bookie.engine.store.stats().log_reads - before == 1


def test_a_damaged_entry_spoils_no_other_of_its_row(bookie: Bookie) -> None:
    (told,) = damage(bookie, 1, 14)
    frames = answered(bookie, gathered(bookie, [(1, i) for i in range(8, 28)]))
    codes = {int.from_bytes(f[20:28], "big"): int.from_bytes(f[8:12], "big") for f in frames}
    assert codes == {i: Code.IO_ERROR if i == 14 else Code.OK for i in range(8, 28)}
    assert set(bookie.engine.store.take_damage()) == {told}
    assert bookie.engine.stats().read_errors == 1


def test_a_damaged_entry_spoils_no_other_read_of_its_hop(bookie: Bookie) -> None:
    (told,) = damage(bookie, 1, 14)
    wanted = [(1, 2), (1, 14), (1, 20)]
    frames = answered(bookie, gathered(bookie, wanted))
    assert [int.from_bytes(each[8:12], "big") for each in frames] == [0, Code.IO_ERROR, 0]
    assert bookie.engine.store.take_damage() == [told]


def test_refused_reads_are_counted_once_each(bookie: Bookie) -> None:
    before = bookie.engine.stats().reads_missing
    answered(bookie, gathered(bookie, [(9, i) for i in range(20)]))
    assert bookie.engine.stats().reads_missing - before == 20


def test_in_limbo_nothing_is_said_to_be_absent(bookie: Bookie) -> None:
    """BK-11: what may have been lost is never answered with "no such entry"."""
    bookie.engine.set_limbo(True)
    frames = answered(bookie, gathered(bookie, [(2, i) for i in range(SPAN - 4, SPAN + 6)]))
    frames += answered(bookie, gathered(bookie, [(9, i) for i in range(10)]))
    codes = [int.from_bytes(each[8:12], "big") for each in frames]
    assert codes == [Code.OK] * 4 + [Code.IO_ERROR] * 16
    stats = bookie.engine.stats()
    assert (stats.reads_in_limbo, stats.read_errors) == (16, 0), "limbo is no failing disk"


def test_damage_in_limbo_is_a_read_error(bookie: Bookie) -> None:
    damage(bookie, 1, 14)
    bookie.engine.set_limbo(True)
    answered(bookie, gathered(bookie, [(1, 14)]))
    stats = bookie.engine.stats()
    assert (stats.reads_in_limbo, stats.read_errors) == (0, 1)


def test_a_row_means_one_ledger_only(bookie: Bookie) -> None:
    """Who was told of another ledger of this id gets nothing, wherever its READs are in the row."""
    row = [(20, i) for i in range(20)]
    bookie.send(frame.incarnation(20, 5) + b"".join(add(*each, b"x") for each in row))
    commit(bookie)
    asked = b"".join(frame.read(*each) for each in row[:10]) + frame.incarnation(20, 6)
    asked += b"".join(frame.read(*each) for each in row[10:])
    parts = []
    while asked:
        fed = bookie.connection.feed(asked, gathers=True)
        parts += [fed.reads] if fed.reads else []
        asked = asked[fed.used :]
    frames = answered(bookie, Reads.joined(parts))
    codes = [int.from_bytes(each[8:12], "big") for each in frames]
    assert codes == [Code.OK] * 10 + [Code.UNKNOWN_STATE] * 10


def test_nobody_gets_entries_of_a_ledger_that_is_renewed_meanwhile(bookie: Bookie) -> None:
    """Each ledger of the id has its own number in all entries; who asks for one gets no other."""
    ledger_id, count, renewals = 20, 64, 150
    row = [(ledger_id, i) for i in range(count)]
    asking = bookie.engine.connect(2)
    feeding = threading.Lock()  # one thread at a time feeds connections
    over = threading.Event()
    meant: list[int] = [1]
    errors: list[tuple[int, bytes]] = []

    def write(number: int) -> None:
        with feeding:
            bookie.send(frame.incarnation(ledger_id, number))
            bookie.send(b"".join(add(*each, be(number)) for each in row))
        commit(bookie)
        meant[0] = number

    def ask() -> None:
        while not over.is_set():
            with feeding:
                number = meant[0]
                asking.feed(frame.incarnation(ledger_id, number))
                fed = asking.feed(b"".join(frame.read(*each) for each in row), gathers=True)
            assert fed.reads is not None
            answers = bookie.engine.answer_reads(fed.reads, use_disk=True, size_max=MIB)
            found = (f[HEADER_SIZE + 32 :] for f in split(answers) if f[8:12] == be(0, 4))
            errors.extend((number, entry) for entry in found if entry != be(number))

    write(1)
    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for number in range(2, renewals):
            assert bookie.engine.renew_ledger(ledger_id, number - 1, number)
            write(number)
    finally:
        over.set()
        asker.join()
        asking.close()
    assert errors == []


def damage(bookie: Bookie, ledger_id: int, entry_id: int) -> list[Damage]:
    """Flip a bit of an entry in its log; return what should be told."""
    place = bookie.engine.store.find(ledger_id, entry_id)
    path = bookie.ledger_folder / f"{place.log_id:08x}.log"
    with path.open("r+b") as file:
        file.seek(place.offset + 20)
        byte = file.read(1)[0]
        file.seek(place.offset + 20)
        file.write(bytes([byte ^ 0x10]))
    return [Damage(path, place.offset, ledger_id, entry_id)]

"""Adds of entries that are there already: the same are acknowledged, others refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import Bookie
from wire import KEY, add, add_responses, be, framed, header

from native import frame
from native.digest import Digest, DigestKind
from native.engine import Verdict
from native.frame import Code, Flag

LEDGER = 3
KINDS = list(DigestKind)


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Bookie]:
    bookie = Bookie(tmp_path)
    yield bookie
    bookie.close()


def put(bookie: Bookie, *frames: bytes) -> list[int]:
    bookie.send(b"".join(frames))
    while bookie.engine.commit():
        pass
    return [each.code for each in add_responses(bookie.connection.take())]


def unsynced(_: Bookie) -> None:
    """The entry is in the memtable, and its group not written yet."""


def synced(bookie: Bookie) -> None:
    while bookie.engine.commit():
        pass


def sealed(bookie: Bookie) -> None:
    synced(bookie)
    bookie.engine.seal()


def restarted(bookie: Bookie) -> None:
    synced(bookie)
    bookie.crash()


def flushed(bookie: Bookie) -> None:
    synced(bookie)
    bookie.checkpoint()


def flushed_and_restarted(bookie: Bookie) -> None:
    flushed(bookie)
    bookie.crash()


PLACES = [unsynced, synced, sealed, restarted, flushed, flushed_and_restarted]


def signed(kind: DigestKind, payload: bytes, *, lac: int, length: int = 100) -> bytes:
    """An ADD of entry 5 with a digest, made by hand."""
    digest = Digest(kind, b"secret")
    head = be(LEDGER) + be(5) + be(lac) + be(length)
    stored = head + digest.compute(head, payload) + payload
    return framed(header(1, Flag.RECOVERY) + KEY + stored)


@pytest.mark.parametrize("place", PLACES)
def test_the_same_entry_is_acknowledged_and_another_refused(
    bookie: Bookie, place: Callable[[Bookie], None]
) -> None:
    bookie.send(b"".join(add(LEDGER, i, b"right %d" % i) for i in range(10)))
    place(bookie)
    put(bookie)
    again = [add(LEDGER, 4, b"wrong 4"), add(LEDGER, 4, b"right 4"), add(LEDGER, 4, b"right")]
    assert put(bookie, *again) == [Code.BAD_REQUEST, Code.OK, Code.BAD_REQUEST]
    for step in (Bookie.crash, Bookie.checkpoint):
        assert bookie.payload(LEDGER, 4) == b"right 4"
        step(bookie)
    assert bookie.payload(LEDGER, 4) == b"right 4"


def test_a_repeated_add_is_acknowledged_after_the_sync_of_the_first(bookie: Bookie) -> None:
    bookie.send(add(LEDGER, 0, b"a") + add(LEDGER, 0, b"a"))
    assert bookie.connection.take() == b""
    bookie.engine.commit()
    assert [each.code for each in add_responses(bookie.connection.take())] == [0, 0]


def test_the_disk_is_asked_only_by_who_may(bookie: Bookie) -> None:
    """And only for entries that an extent spans: adds in order never wait."""
    assert put(bookie, *(add(LEDGER, i, b"x") for i in (0, 1, 5, 6))) == [0] * 4
    bookie.checkpoint()
    assert bookie.connection.feed(add(LEDGER, 7, b"x")).verdict is Verdict.OK
    assert bookie.connection.feed(add(LEDGER, 3, b"x")).verdict is Verdict.AGAIN
    bookie.connection.look()
    assert bookie.connection.feed(add(LEDGER, 3, b"x")).verdict is Verdict.OK, "a hole is filled"
    assert put(bookie) == [0, 0]
    assert bookie.connection.feed(add(LEDGER, 5, b"x")).verdict is Verdict.AGAIN
    assert bookie.connection.feed(add(LEDGER, 5, b"x")).verdict is Verdict.AGAIN
    bookie.connection.look()
    fed = bookie.connection.feed(add(LEDGER, 5, b"x"))
    assert (fed.verdict, put(bookie)) == (Verdict.OK, [0])
    assert bookie.engine.stats().adds_repeated == 1


def test_an_add_in_pieces_waits_for_the_disk_too(bookie: Bookie) -> None:
    assert put(bookie, add(LEDGER, 0, b"first")) == [0]
    bookie.checkpoint()
    whole = add(LEDGER, 0, b"other")
    assert bookie.connection.feed(whole[:30]).verdict is Verdict.OK
    assert bookie.connection.feed(whole[30:]).verdict is Verdict.AGAIN
    bookie.connection.look()
    assert bookie.connection.feed(b"").verdict is Verdict.OK
    assert put(bookie, add(LEDGER, 1, b"next")) == [Code.BAD_REQUEST, 0]


def test_what_was_looked_up_before_a_deletion_does_not_count(bookie: Bookie) -> None:
    assert put(bookie, add(LEDGER, 0, b"first")) == [0]
    bookie.checkpoint()
    again = add(LEDGER, 0, b"other", flags=Flag.RECOVERY)
    assert bookie.connection.feed(again).verdict is Verdict.AGAIN
    bookie.connection.look()
    bookie.engine.delete_ledger(LEDGER, 1000)
    assert put(bookie, again) == [0]
    assert bookie.payload(LEDGER, 0) == b"other"


def test_what_was_looked_up_before_a_renewal_does_not_count(bookie: Bookie) -> None:
    """The entry that was asked for is on disk again, and is another ledger's."""
    bookie.send(frame.incarnation(LEDGER, 1))
    assert put(bookie, add(LEDGER, 0, b"former")) == [0]
    bookie.checkpoint()
    late = bookie.engine.connect(2)
    assert late.feed(add(LEDGER, 0, b"former")).verdict is Verdict.AGAIN
    late.look()
    bookie.engine.renew_ledger(LEDGER, 1, 2)
    bookie.send(frame.incarnation(LEDGER, 2))
    assert put(bookie, add(LEDGER, 0, b"later")) == [0]
    bookie.checkpoint()
    assert late.feed(add(LEDGER, 0, b"former")).verdict is Verdict.AGAIN, "it is looked up anew"
    late.look()
    assert late.feed(add(LEDGER, 0, b"former")).verdict is Verdict.OK
    assert [each.code for each in add_responses(late.take())] == [Code.BAD_REQUEST]
    late.close()


@pytest.mark.parametrize("place", [synced, flushed])
@pytest.mark.parametrize("kind", KINDS)
def test_recovery_adds_the_same_entry_with_another_lac(
    bookie: Bookie, kind: DigestKind, place: Callable[[Bookie], None]
) -> None:
    payload = bytes(range(100))
    assert put(bookie, signed(kind, payload, lac=4)) == [0]
    place(bookie)
    assert put(bookie, signed(kind, payload, lac=1)) == [Code.OK]
    others = [
        signed(kind, payload[:-1] + b"!", lac=1),
        signed(kind, payload[:-1] + b"!", lac=4),
        signed(kind, payload[:-1], lac=1),
        signed(kind, payload, lac=1, length=101),
        signed(kind, payload, lac=4, length=101),
    ]
    if kind in (DigestKind.CRC32, DigestKind.CRC32C):
        others.append(signed(kind, b"!" + payload[1:], lac=1))
    assert put(bookie, *others) == [Code.BAD_REQUEST] * len(others)
    code, entry = bookie.read(LEDGER, 5)
    assert (code, entry[16:24]) == (0, be(4)), "the first stays"


@pytest.mark.parametrize("kind", [DigestKind.CRC32, DigestKind.CRC32C])
def test_a_wrong_digest_with_another_lac_is_no_equal(bookie: Bookie, kind: DigestKind) -> None:
    payload = bytes(range(100))
    first = bytearray(signed(kind, payload, lac=4))
    first[60] ^= 1  # in the digest
    assert put(bookie, bytes(first)) == [0]
    assert put(bookie, signed(kind, payload, lac=1)) == [Code.BAD_REQUEST]


def test_who_mends_replaces_what_is_on_disk(bookie: Bookie) -> None:
    """The digest was wrong before the entry came here: only its readers can tell."""
    assert put(bookie, add(LEDGER, 0, b"wrong")) == [0]
    bookie.checkpoint()
    mending = add(LEDGER, 0, b"right", flags=Flag.RECOVERY | Flag.PRIORITY | Flag.MEND)
    assert put(bookie, mending) == [0]
    for step in (Bookie.crash, Bookie.checkpoint, Bookie.crash):
        assert bookie.payload(LEDGER, 0) == b"right"
        step(bookie)
    assert bookie.payload(LEDGER, 0) == b"right"


def test_a_mended_entry_stays_so_when_both_its_records_are_replayed(bookie: Bookie) -> None:
    """A crash between a flush and its mark replays the wrong one, too, into the same memtable."""
    assert put(bookie, add(LEDGER, 0, b"wrong"), add(LEDGER, 1, b"sound")) == [0, 0]
    before = bookie.mark
    bookie.checkpoint()
    mending = add(LEDGER, 0, b"right", flags=Flag.RECOVERY | Flag.PRIORITY | Flag.MEND)
    assert put(bookie, mending) == [0]
    bookie.mark = before
    bookie.crash()
    for step in (Bookie.checkpoint, Bookie.crash):
        assert [bookie.payload(LEDGER, i) for i in (0, 1)] == [b"right", b"sound"]
        step(bookie)
    assert [bookie.payload(LEDGER, i) for i in (0, 1)] == [b"right", b"sound"]

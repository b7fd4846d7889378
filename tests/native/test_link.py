"""A link: streams cut anywhere, answers to writers, lifetimes, damaged entries."""

from __future__ import annotations

import gc
import itertools
import random
from contextlib import closing

import pytest
from hypothesis import given, strategies as st
from wire import be, framed, header

from native import frame
from native.digest import Digest, DigestKind
from native.errors import ProtocolBroken
from native.frame import Code, Opcode
from native.link import Entries, Link, Response, Writer, check_entries

CRC32C = Digest(DigestKind.CRC32C)
STREAM: list[tuple[bytes, Response | None]] = [
    (frame.response(Opcode.ADD, Code.OK, 1, 0), None),
    (
        frame.response(Opcode.READ, Code.OK, 1, -1, b"entry"),
        Response(Opcode.READ, 0, 1, -1, 0, 0, False, b"entry"),
    ),
    (frame.response(Opcode.ADD, Code.OK, 1, 1), None),
    (
        frame.response(Opcode.ADD, Code.FENCED, 2, 5),
        Response(Opcode.ADD, 104, 2, 5, 0, 0, False, b""),
    ),
    (
        frame.batch_response(Code.OK, 1, 2, 3, b"entries"),
        Response(Opcode.BATCH_READ, 0, 1, 2, 3, 0, False, b"entries"),
    ),
    (
        frame.read_wait_response(Code.OK, 1, 2, 3, 4, True, b""),
        Response(Opcode.READ_WAIT, 0, 1, 2, 3, 4, True, b""),
    ),
    (
        frame.response(Opcode.WRITE_LAC, Code.READ_ONLY, 1, 77),
        Response(Opcode.WRITE_LAC, 105, 1, 0, 77, 0, False, b""),
    ),
    (
        frame.call_response(Code.OK, 9, b"reply"),
        Response(Opcode.CALL, 0, 0, 0, 9, 0, False, b"reply"),
    ),
    (
        framed(header(3) + b"\x0a\x00\x12\x00"),
        Response(Opcode.AUTH, 0, 0, 0, 0, 0, False, b"\x0a\x00\x12\x00"),
    ),
    (frame.response(Opcode.ADD, Code.OK, 1, 2), None),
]
BYTES = b"".join(data for data, _ in STREAM)
EXPECTED = [response for _, response in STREAM if response is not None]


def attached(ledger_id: int = 1, token: int = 7) -> tuple[Link, Writer]:
    """A link, and a writer of one bookie with three entries pending on it."""
    link, writer = Link(), Writer(ledger_id, 1, 1, 1, CRC32C, token=token)
    writer.add([b"a", b"b", b"c"])
    link.attach(writer, 0)
    return link, writer


def feed_in_pieces(cuts: list[int]) -> None:
    """Feed the stream cut at these places: the result is that of one piece."""
    link, writer = attached()
    places = [0, *sorted(cuts), len(BYTES)]
    responses = []
    for start, end in itertools.pairwise(places):
        responses += link.feed(BYTES[start:end])
    assert responses == EXPECTED
    assert link.dirty() == [7]
    assert link.dirty() == []
    assert writer.state().lac == 2


def test_a_stream_cut_at_any_byte_gives_the_same() -> None:
    feed_in_pieces([])
    for place in range(len(BYTES) + 1):
        feed_in_pieces([place])


def test_a_stream_of_single_bytes_gives_the_same() -> None:
    feed_in_pieces(list(range(len(BYTES))))


@given(st.lists(st.integers(0, len(BYTES)), max_size=12))
def test_a_stream_cut_in_many_places_gives_the_same(cuts: list[int]) -> None:
    feed_in_pieces(cuts)


def test_more_responses_than_fit_one_call_all_arrive() -> None:
    data = b"".join(frame.call_response(0, i, b"%d" % i) for i in range(2000))
    responses = Link().feed(data)
    assert [(r.request_id, r.body) for r in responses] == [(i, b"%d" % i) for i in range(2000)]


def test_a_large_response_in_pieces_arrives_whole() -> None:
    body = random.Random(1).randbytes(4 << 20)
    data = frame.call_response(0, 1, body) + frame.call_response(0, 2, b"x")
    link, responses = Link(), []
    for start in range(0, len(data), 100_000):
        responses += link.feed(data[start : start + 100_000])
    assert [(r.request_id, r.body) for r in responses] == [(1, body), (2, b"x")]


def fill(link: Link, data: bytes, most: int) -> list[Response]:
    """Put *data* where the link wants it, at most *most* bytes at a time."""
    responses = []
    left = memoryview(data)
    while left:
        room = link.room()
        size = min(len(room), len(left), most)
        room[:size] = left[:size]
        responses += link.filled(size)
        left = left[size:]
    return responses


@pytest.mark.parametrize("most", [1, 7, 100_000, 1 << 20, 1 << 30])
def test_bytes_put_into_the_room_of_a_link_are_as_good_as_fed(most: int) -> None:
    bodies = [b"", b"x", random.Random(1).randbytes(200_000 if most < 100 else 3_000_000), b"y"]
    data = b"".join(frame.call_response(0, i, body) for i, body in enumerate(bodies))
    link, _writer = attached()
    assert fill(link, BYTES, most) == EXPECTED
    assert [r.body for r in fill(link, data, most)] == bodies


def test_a_large_body_outlives_its_link_and_later_frames() -> None:
    bodies = [random.Random(i).randbytes(1 << 20) for i in range(3)]
    link = Link()
    kept = [fill(link, frame.call_response(0, 1, body), 300_000)[0].body for body in bodies]
    link.close()
    gc.collect()
    assert kept == bodies


def test_the_room_of_a_link_can_be_written_after_its_close() -> None:
    link = Link()
    link.feed(frame.call_response(0, 1, bytes(1 << 20))[:100])
    room = link.room()
    link.close()
    room[:] = bytes(len(room))


@pytest.mark.parametrize(
    "wrong",
    [
        be(3, 4),
        be((5 << 20) + 1, 4),
        framed(header(99) + bytes(24)),
        framed(header(2, 0, 3) + bytes(24)),
        framed(header(2) + bytes(19)),
        framed(header(1) + bytes(21)),
        framed(header(67) + bytes(11)),
    ],
    ids=["short", "long", "opcode", "version", "cut read", "long add", "cut call"],
)
def test_what_is_no_response_breaks_the_link_for_good(wrong: bytes) -> None:
    for pieces in ([wrong], [wrong[:2], wrong[2:]]):
        link = Link()
        with pytest.raises(ProtocolBroken):
            for piece in pieces:
                link.feed(piece)
        with pytest.raises(ProtocolBroken):
            link.feed(frame.call_response(0, 1, b""))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_taken_or_refused(data: bytes, cut: int) -> None:
    link, _ = attached()
    try:
        link.feed(data[:cut])
        link.feed(data[cut:])
    except ProtocolBroken:
        pass


def test_every_flipped_bit_is_taken_or_refused() -> None:
    for bit in range(len(BYTES) * 8):
        flipped = bytearray(BYTES)
        flipped[bit // 8] ^= 1 << bit % 8
        link, writer = attached()
        try:
            link.feed(flipped)
        except ProtocolBroken:
            continue
        assert -1 <= writer.state().lac <= 2


# --- writers ------------------------------------------------------------------------


def test_three_links_make_a_quorum() -> None:
    writer = Writer(1, 3, 3, 2, CRC32C, token=5)
    links = [Link() for _ in range(3)]
    for bookie, link in enumerate(links):
        link.attach(writer, bookie)
    writer.add([b"a"])
    answer = frame.response(Opcode.ADD, Code.OK, 1, 0)
    dirty = []
    for link in links:
        link.feed(answer)
        link.feed(answer)
        dirty.append(link.dirty())
    assert dirty == [[], [5], []]
    assert writer.state().lac == 0


def test_a_refusal_makes_a_writer_dirty_once() -> None:
    link, writer = attached()
    refusal = frame.response(Opcode.ADD, Code.FENCED, 1, 0)
    link.feed(refusal)
    assert link.dirty() == [7]
    link.feed(refusal)
    assert link.dirty() == []
    assert (writer.state().code, writer.state().refused) == (Code.FENCED, 1)


def test_a_link_carries_thousands_of_writers() -> None:
    link, answers = Link(), []
    writers = [Writer(i * 1000, 1, 1, 1, CRC32C, token=i) for i in range(5000)]
    for writer in writers:
        link.attach(writer, 0)
    for i, writer in enumerate(writers):
        writer.add([b"a"])
        answers.append(frame.response(Opcode.ADD, Code.OK, i * 1000, 0))
    for writer in writers[::3]:
        writer.close()
    random.Random(2).shuffle(answers)
    strays = link.feed(b"".join(answers))
    assert len(strays) == len(writers[::3])
    assert sorted(link.dirty()) == [i for i in range(5000) if i % 3]
    assert all(writer.state().lac == 0 for writer in writers if writer.is_open)


def test_one_writer_a_ledger_and_link() -> None:
    link, writer = attached()
    with pytest.raises(FileExistsError):
        link.attach(writer, 0)
    with pytest.raises(FileExistsError):
        link.attach(Writer(1, 1, 1, 1, CRC32C), 0)
    link.detach(writer)
    link.attach(writer, 0)


def test_an_index_outside_of_the_ensemble_is_refused() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        Link().attach(Writer(1, 3, 2, 2, CRC32C), 3)


def test_after_detaching_answers_are_the_callers() -> None:
    link, writer = attached()
    link.feed(frame.response(Opcode.ADD, Code.OK, 1, 0))
    link.detach(writer)
    link.detach(writer)
    assert link.dirty() == []
    strays = link.feed(frame.response(Opcode.ADD, Code.OK, 1, 1))
    assert [(r.opcode, r.entry_id) for r in strays] == [(Opcode.ADD, 1)]
    assert writer.state().lac == 0


def test_detaching_another_writer_of_the_ledger_changes_nothing() -> None:
    link, writer = attached()
    link.detach(Writer(1, 1, 1, 1, CRC32C))
    link.feed(frame.response(Opcode.ADD, Code.OK, 1, 0))
    assert writer.state().lac == 0


@given(st.randoms(use_true_random=False))
def test_writers_and_links_may_go_in_any_order(choices: random.Random) -> None:
    links = [Link() for _ in range(4)]
    writers = [Writer(i, 4, 3, 2, CRC32C, token=i) for i in range(6)]
    for writer in writers:
        writer.add([b"a", b"b"])
        for bookie in choices.sample(range(4), choices.randint(0, 4)):
            links[bookie].attach(writer, bookie)
    leaving: list[Link | Writer] = [*links, *writers]
    choices.shuffle(leaving)
    for gone in leaving:
        gone.close()
        for link in [link for link in links if link in leaving[leaving.index(gone) + 1 :]]:
            for i in range(6):
                link.feed(frame.response(Opcode.ADD, Code.OK, i, choices.randint(0, 1)))
            link.dirty()
        for left in leaving[leaving.index(gone) + 1 :]:
            if isinstance(left, Writer):
                left.state()


def test_collected_objects_leave_each_other() -> None:
    link, writer = attached()
    del writer
    gc.collect()
    assert len(link.feed(frame.response(Opcode.ADD, Code.OK, 1, 0))) == 1
    link, writer = attached()
    del link
    gc.collect()
    writer.acknowledge(0, 0)
    assert writer.state().lac == 0


def test_a_closed_link_refuses_work() -> None:
    link, writer = attached()
    link.close()
    link.close()
    link.detach(writer)
    for work in (lambda: link.feed(b""), link.dirty, lambda: link.attach(writer, 0)):
        with pytest.raises(ValueError, match="closed"):
            work()


# --- entries ------------------------------------------------------------------------


PAYLOADS = [b"one", b"", b"three" * 20]


def batch(kind: DigestKind = DigestKind.CRC32C) -> bytes:
    """Entries 5, 6 and 7 of ledger 1, as in a batch response, confirmed up to 4."""
    _, buffers = Writer(1, 1, 1, 1, Digest(kind), first_entry=5, length=10).add(PAYLOADS)
    body, data = b"", bytes(buffers[0])
    while data:
        size, _ = frame.find(data)
        body += be(size - 28, 4) + data[28:size]
        data = data[size:]
    return body


def payloads_in(body: bytes, found: Entries) -> list[bytes]:
    places = zip(found.offsets, found.sizes, strict=True)
    return [body[offset : offset + size] for offset, size in places]


@pytest.mark.parametrize("kind", list(DigestKind))
def test_entries_of_a_batch_are_found(kind: DigestKind) -> None:
    body = batch(kind)
    found = check_entries(Digest(kind), body, 1, 5, 100)
    assert payloads_in(body, found) == PAYLOADS
    assert (found.count, found.lac, found.length, found.sound) == (3, 4, 113, True)


def test_no_more_entries_than_asked_for_are_looked_at() -> None:
    body = batch()
    assert check_entries(CRC32C, body, 1, 5, 2).count == 2
    assert check_entries(CRC32C, body, 1, 5, 0) == Entries(0, [], [], -1, 0, True)
    assert check_entries(CRC32C, b"", 1, 5, 9) == Entries(0, [], [], -1, 0, True)


def test_every_cut_keeps_the_sound_entries_before_it() -> None:
    body = batch()
    ends = [0, 43, 83, len(body)]
    for size in range(len(body)):
        found = check_entries(CRC32C, body[:size], 1, 5, 100)
        assert found.count == sum(end <= size for end in ends[1:])
        assert found.sound == (size in ends)


def test_every_flipped_bit_is_found_at_its_entry() -> None:
    body = batch()
    ends = [43, 83, len(body)]
    for bit in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        found = check_entries(CRC32C, bytes(flipped), 1, 5, 100)
        assert found.count == sum(end <= bit // 8 for end in ends)
        assert not found.sound


@pytest.mark.parametrize(("ledger_id", "start_id"), [(2, 5), (1, 4), (1, 6), (1, -1)])
def test_entries_under_other_ids_are_not_sound(ledger_id: int, start_id: int) -> None:
    found = check_entries(CRC32C, batch(), ledger_id, start_id, 100)
    assert (found.count, found.sound) == (0, False)


@given(st.binary(max_size=200), st.integers(-1, 100))
def test_any_bytes_as_entries_give_a_verdict(body: bytes, count_max: int) -> None:
    found = check_entries(Digest(DigestKind.DUMMY), body, 0, 0, count_max)
    assert found.count <= max(0, count_max)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", "it speaks TLS; name it as bookie\\+tls://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP"),
        (b"<!DOCTYPE HTML>\n<html>", "it speaks HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "a response"),
    ],
)
def test_a_peer_that_speaks_another_protocol_is_named(data: bytes, words: str) -> None:
    with closing(Link()) as link, pytest.raises(ProtocolBroken, match=words):
        link.feed(data)

"""A ledger being written, against a model in a few lines of Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, strategies as st
from wire import KEY, be, crc32c, framed, header

from native import frame, link
from native.digest import Digest, DigestKind
from native.frame import Code
from native.link import Writer

CRC32C = Digest(DigestKind.CRC32C)
HELLO = bytes.fromhex(
    "0000004102010000850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    "00000000000000010000000000000000ffffffffffffffff0000000000000005e3a5f74d68656c6c6f"
)

FINAL = [Code.FENCED, Code.UNAUTHORIZED, Code.OTHER_LEDGER, Code.BAD_REQUEST]


class Model:
    """What a writer should know: who has which entry, and up to where that is enough."""

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self.quorums = ensemble_size, write_quorum, ack_quorum
        self.sizes: list[int] = []
        self.holders: list[set[int]] = []
        self.lac = -1
        self.refusals: list[tuple[int, int]] = []

    def write_set(self, entry_id: int) -> list[int]:
        ensemble_size, write_quorum, _ = self.quorums
        return [(entry_id + i) % ensemble_size for i in range(write_quorum)]

    def acknowledge(self, bookie: int, entry_id: int, code: int) -> None:
        if not 0 <= entry_id < len(self.sizes) or bookie not in self.write_set(entry_id):
            return
        if entry_id > self.lac and bookie in self.holders[entry_id]:
            return
        if code:
            self.refusals.append((bookie, code))
        elif entry_id > self.lac:
            self.holders[entry_id].add(bookie)
        while self.lac + 1 < len(self.sizes) and (
            len(self.holders[self.lac + 1]) >= self.quorums[2]
        ):
            self.lac += 1

    @property
    def code(self) -> int:
        codes = [code for _, code in self.refusals]
        final = [code for code in codes if code in FINAL]
        return [*final, *codes, 0][0]


def add_frame(ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes) -> bytes:
    head = be(ledger_id) + be(entry_id) + be(lac) + be(length)
    return framed(header(1) + KEY + head + be(crc32c(head + payload), 4) + payload)


def cut(data: bytes) -> Iterator[bytes]:
    while data:
        size, whole = frame.find(data)
        assert whole
        yield data[:size]
        data = data[size:]


quorums = st.integers(1, 7).flatmap(
    lambda e: st.integers(1, e).flatmap(
        lambda w: st.tuples(st.just(e), st.just(w), st.integers(1, w))
    )
)
adds = st.lists(st.integers(0, 40), max_size=8)
acknowledgements = st.tuples(
    st.integers(0, 8), st.integers(-2, 40), st.sampled_from([0, 0, 0, 0, 0, 101, 102, 104, 105])
)
steps = st.lists(st.one_of(adds, acknowledgements, acknowledgements), max_size=80)


@given(quorums, steps)
@example((2, 1, 1), [[0, 0], []])
@example((5, 3, 2), [[1, 2, 3], (1, 0, 0), (1, 0, 0), (4, 0, 0), (2, 0, 0), (2, 1, 0), (3, 1, 0)])
def test_any_order_of_adds_and_answers_agrees_with_the_model(
    shape: tuple[int, int, int], todo: list[list[int] | tuple[int, int, int]]
) -> None:
    writer, model = Writer(3, *shape, CRC32C, token=9), Model(*shape)
    for step in todo:
        if isinstance(step, tuple):
            writer.acknowledge(*step)
            model.acknowledge(*step)
        else:
            check_add(writer, model, step)
        check_state(writer, model)


def check_add(writer: Writer, model: Model, sizes: list[int]) -> None:
    """Add payloads of these sizes: each bookie gets its entries' frames, in order."""
    expected: list[bytes] = [b""] * model.quorums[0]
    payloads = [bytes([len(model.sizes) + i & 255]) * size for i, size in enumerate(sizes)]
    first = len(model.sizes)
    for payload in payloads:
        model.sizes.append(len(payload))
        model.holders.append(set())
        entry_id = len(model.sizes) - 1
        built = add_frame(3, entry_id, model.lac, sum(model.sizes), payload)
        for bookie in model.write_set(entry_id):
            expected[bookie] += built
    first_entry, buffers = writer.add(payloads)
    assert first_entry == first
    assert [bytes(buffer) for buffer in buffers] == expected


def check_state(writer: Writer, model: Model) -> None:
    state = writer.state()
    assert (state.lac, state.next_entry) == (model.lac, len(model.sizes))
    assert state.length == sum(model.sizes)
    assert state.confirmed_length == sum(model.sizes[: model.lac + 1])
    assert state.pending_bytes == state.length - state.confirmed_length
    assert state.refused == sum(1 << b for b in {bookie for bookie, _ in model.refusals})
    assert state.code == model.code


def test_hello_is_the_documented_frame() -> None:
    first_entry, buffers = Writer(1, 3, 3, 2, CRC32C).add([b"hello"])
    assert first_entry == 0
    assert [bytes(buffer) for buffer in buffers] == [HELLO] * 3
    assert buffers[0] is buffers[1] is buffers[2]
    assert link.add_frame(CRC32C, 1, 0, -1, 5, b"hello") == HELLO


@pytest.mark.parametrize("kind", list(DigestKind))
def test_what_is_sent_can_be_checked(kind: DigestKind) -> None:
    digest = Digest(kind, b"passwd")
    _, buffers = Writer(7, 2, 2, 1, digest, first_entry=3, length=10).add([b"one", b"", b"three"])
    for entry_id, built in enumerate(cut(bytes(buffers[0])), 3):
        request = frame.parse_request(built)
        assert (request.ledger_id, request.entry_id) == (7, entry_id)
        assert request.key == digest.master_key
        digest.check(request.body, 7, entry_id)


def test_an_entry_is_confirmed_only_after_all_before_it() -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    writer.add([b"a", b"bb", b"ccc"])
    for entry_id in (2, 1):
        for bookie in range(3):
            writer.acknowledge(bookie, entry_id)
    assert writer.state().lac == -1
    writer.acknowledge(0, 0)
    assert writer.state().lac == -1
    writer.acknowledge(2, 0)
    assert (writer.state().lac, writer.state().confirmed_length) == (2, 6)


def test_later_entries_carry_the_last_confirmed_one() -> None:
    writer = Writer(1, 1, 1, 1, CRC32C, first_entry=100, length=7)
    _, sent = writer.add([b"a", b"b"])
    writer.acknowledge(0, 100)
    _, more = writer.add([b"c"])
    headers = [built[28:60] for built in cut(bytes(sent[0]) + bytes(more[0]))]
    assert headers == [
        be(1) + be(100) + be(99) + be(8),
        be(1) + be(101) + be(99) + be(9),
        be(1) + be(102) + be(100) + be(10),
    ]


def test_answers_that_do_not_belong_change_nothing() -> None:
    writer = Writer(1, 5, 3, 2, CRC32C, first_entry=10)
    writer.add([b"a", b"b"])  # entry 10 is for bookies 0, 1, 2; entry 11 for 1, 2, 3
    before = writer.state()
    for code in (Code.OK, Code.FENCED):
        for bookie, entry_id in ((3, 10), (4, 10), (0, 11), (5, 10), (64, 10), (1 << 31, 10)):
            writer.acknowledge(bookie, entry_id, code)
        for entry_id in (-1, 0, 9, 12, 1 << 62, -(1 << 63)):
            writer.acknowledge(1, entry_id, code)
    assert writer.state() == before


def test_the_same_bookie_twice_is_one_copy() -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    writer.add([b"a"])
    for _ in range(5):
        writer.acknowledge(1, 0)
    writer.acknowledge(1, 0, Code.IO_ERROR)
    state = writer.state()
    assert (state.lac, state.refused, state.code) == (-1, 0, 0)


def test_a_refusal_of_a_confirmed_entry_is_remembered() -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    writer.add([b"a"])
    writer.acknowledge(0, 0)
    writer.acknowledge(1, 0)
    writer.acknowledge(2, 0, Code.READ_ONLY)
    state = writer.state()
    assert (state.lac, state.refused, state.code) == (0, 0b100, Code.READ_ONLY)


@pytest.mark.parametrize("final", FINAL)
def test_a_final_refusal_replaces_another(final: Code) -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    writer.add([b"a"])
    for bookie, code in enumerate((Code.IO_ERROR, final, Code.TOO_MANY)):
        writer.acknowledge(bookie, 0, code)
    assert (writer.state().code, writer.state().refused) == (final, 0b111)


def test_many_pending_entries_survive_the_growth_of_their_ring() -> None:
    writer = Writer(1, 3, 2, 2, CRC32C)
    for size in (1, 63, 1, 200, 5000):
        writer.add([b"x"] * size)
        writer.acknowledge(0, 0)
        writer.acknowledge(1, 0)
    count = writer.state().next_entry
    for entry_id in reversed(range(1, count)):
        for bookie in range(3):
            writer.acknowledge(bookie, entry_id)
    assert (writer.state().lac, writer.state().pending_bytes) == (count - 1, 0)


def test_64_bookies_are_the_most() -> None:
    writer = Writer(1, 64, 64, 64, CRC32C)
    writer.add([b"a"])
    for bookie in range(64):
        assert writer.state().lac == -1
        writer.acknowledge(bookie, 0)
    assert writer.state().lac == 0


@pytest.mark.parametrize(
    "shape", [(0, 0, 0), (1, 1, 0), (1, 1, 2), (1, 2, 1), (3, 2, 3), (65, 3, 2)]
)
def test_an_impossible_quorum_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        Writer(1, *shape, CRC32C)


def test_the_largest_payload_is_built_and_one_byte_more_is_not() -> None:
    writer = Writer(1, 1, 1, 1, CRC32C)
    largest = bytes(CRC32C.payload_size_max)
    _, buffers = writer.add([largest])
    assert frame.find(buffers[0]) == ((5 << 20) - 20, True)
    before = writer.state()
    with pytest.raises(ValueError, match="more than"):
        writer.add([b"fits", largest + b"x"])
    with pytest.raises(ValueError, match="more than"):
        link.add_frame(CRC32C, 1, 0, -1, 5, largest + b"x")
    assert writer.state() == before


def test_ids_that_would_run_out_are_refused() -> None:
    writer = Writer(1, 1, 1, 1, CRC32C, first_entry=(1 << 63) - 3)
    writer.add([b"a", b"b"])
    with pytest.raises(ValueError, match="run out"):
        writer.add([b"c"])


def test_nothing_to_add_is_fine() -> None:
    first_entry, buffers = Writer(1, 5, 3, 2, CRC32C, first_entry=4).add([])
    assert first_entry == 4
    assert [bytes(buffer) for buffer in buffers] == [b""] * 5


def test_a_closed_writer_refuses_work() -> None:
    writer = Writer(1, 1, 1, 1, CRC32C)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.add([b"a"])
    with pytest.raises(ValueError, match="closed"):
        writer.state()

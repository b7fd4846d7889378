"""A writer whose bookies are replaced: held, replaced and let go, against a model."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from wire import be

from native import frame
from native.digest import Digest, DigestKind
from native.frame import Code, Flag, Opcode
from native.link import Link, Writer

CRC32C = Digest(DigestKind.CRC32C)
ENSEMBLE_SIZE, WRITE_QUORUM, ACK_QUORUM = 4, 3, 2

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("acknowledge"), st.integers(0, 3), st.integers(0, 12)),
        st.tuples(st.just("acknowledge"), st.integers(0, 3), st.integers(0, 12)),
        st.tuples(st.just("replace"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("let go"), st.just(0), st.just(0)),
    ),
    max_size=100,
)


class Model:
    """Who has which entry above the LAC; the LAC moves while it is not held."""

    def __init__(self) -> None:
        self.holders: list[set[int]] = []
        self.lac = -1
        self.held = False

    def do(self, verb: str, number: int, entry_id: int) -> None:
        if verb == "add":
            self.holders += [set() for _ in range(number)]
        elif verb == "acknowledge" and self.lac < entry_id < len(self.holders):
            if (number - entry_id) % ENSEMBLE_SIZE < WRITE_QUORUM:
                self.holders[entry_id].add(number)
        elif verb == "replace":
            self.held = True
            for holders in self.holders[self.lac + 1 :]:
                holders.discard(number)
        self.held = self.held and verb != "let go"
        while not self.held and self.is_complete(self.lac + 1):
            self.lac += 1

    def is_complete(self, entry_id: int) -> bool:
        return entry_id < len(self.holders) and len(self.holders[entry_id]) >= ACK_QUORUM


@given(steps)
def test_any_order_of_changes_agrees_with_the_model(todo: list[tuple[str, int, int]]) -> None:
    writer, model = Writer(1, ENSEMBLE_SIZE, WRITE_QUORUM, ACK_QUORUM, CRC32C), Model()
    for verb, number, entry_id in todo:
        if verb == "add":
            writer.add([b"x"] * number)
        elif verb == "acknowledge":
            writer.acknowledge(number, entry_id)
        elif verb == "replace":
            writer.hold(True)
            writer.replace(number)
        else:
            writer.hold(False)
        model.do(verb, number, entry_id)
        assert writer.state().lac == model.lac


def test_nothing_is_confirmed_while_the_writer_is_held() -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    writer.add([b"a", b"bb"])
    writer.hold(True)
    for entry_id in (0, 1):
        writer.acknowledge(0, entry_id)
        writer.acknowledge(1, entry_id)
    assert writer.state().lac == -1
    _, sent = writer.add([b"c"])
    assert bytes(sent[0])[44:52] == be(-1), "later entries carry the LAC that stands"
    writer.hold(False)
    assert (writer.state().lac, writer.state().confirmed_length) == (1, 3)


def test_a_replaced_bookie_counts_no_longer_and_its_successor_does() -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    writer.add([b"a"])
    writer.acknowledge(0, 0)
    writer.hold(True)
    writer.replace(0)
    writer.acknowledge(1, 0)
    writer.hold(False)
    assert writer.state().lac == -1
    writer.acknowledge(0, 0)
    assert writer.state().lac == 0


def test_a_late_answer_of_the_replaced_bookie_goes_to_nobody() -> None:
    writer, old, new = Writer(1, 1, 1, 1, CRC32C), Link(), Link()
    writer.add([b"a"])
    old.attach(writer, 0)
    writer.hold(True)
    writer.replace(0)
    new.attach(writer, 0)
    answer = frame.response(Opcode.ADD, Code.OK, 1, 0)
    assert len(old.feed(answer)) == 1
    writer.hold(False)
    assert writer.state().lac == -1
    assert new.feed(answer) == []
    assert writer.state().lac == 0


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        (Code.IO_ERROR, 0),
        (Code.UNKNOWN_STATE, 0),
        (Code.FENCED, Code.FENCED),
        (Code.UNAUTHORIZED, Code.UNAUTHORIZED),
        (Code.OTHER_LEDGER, Code.OTHER_LEDGER),
        (Code.BAD_REQUEST, Code.BAD_REQUEST),
    ],
)
def test_only_a_final_refusal_outlives_the_bookie(code: Code, kept: int) -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    writer.add([b"a"])
    writer.acknowledge(2, 0, code)
    writer.acknowledge(1, 0, Code.TOO_MANY)
    writer.hold(True)
    writer.replace(2)
    assert (writer.state().refused, writer.state().code) == (0b010, kept)


def test_a_bookie_is_replaced_only_while_the_writer_is_held() -> None:
    writer = Writer(1, 3, 3, 2, CRC32C)
    with pytest.raises(OSError, match="Invalid argument"):
        writer.replace(0)
    writer.hold(True)
    with pytest.raises(OSError, match="Invalid argument"):
        writer.replace(3)


def test_a_recovering_writer_marks_every_frame() -> None:
    flags = Flag.RECOVERY | Flag.PRIORITY
    writer = Writer(1, 3, 3, 2, CRC32C, first_entry=5, length=10, flags=flags)
    _, sent = writer.add([b"a"])
    request = frame.parse_request(sent[0])
    assert (request.flags, request.entry_id, request.ledger_id) == (flags, 5, 1)
    CRC32C.check(request.body, 1, 5)


def test_a_bookie_is_behind_until_it_acknowledged_all_that_it_got() -> None:
    writer = Writer(1, 3, 2, 1, CRC32C)  # entry e is for bookies e and e + 1, mod 3
    assert writer.behind() == 0
    writer.add([b"a", b"b", b"c", b"d"])
    for bookie, entry_id, behind in (
        *((0, 2, 0b111), (2, 2, 0b111), (0, 3, 0b111), (0, 0, 0b110)),
        *((1, 1, 0b110), (1, 3, 0b110), (1, 0, 0b100)),
    ):
        writer.acknowledge(bookie, entry_id)
        assert writer.behind() == behind
    assert writer.state().lac == 3
    writer.acknowledge(2, 1, Code.IO_ERROR)
    assert writer.behind() == 0b100
    writer.acknowledge(2, 1)
    assert writer.behind() == 0


def test_a_bookie_that_came_in_owes_nothing_of_what_was_confirmed_before() -> None:
    writer = Writer(1, 2, 2, 1, CRC32C)
    writer.add([b"a", b"b"])
    writer.acknowledge(0, 0)
    writer.hold(True)
    writer.replace(1)
    writer.hold(False)
    writer.acknowledge(0, 1)
    writer.acknowledge(1, 0)  # sent again together with what it needs
    assert writer.behind() == 0b10
    writer.acknowledge(1, 1)
    assert writer.behind() == 0

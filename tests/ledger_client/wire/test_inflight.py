"""What one connection has in flight: queued bytes, declared ledgers, open requests."""

from __future__ import annotations

import gc

import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client.errors import BookieUnavailable
from ledger_client.wire.inflight import (
    DECLARED_MAX,
    LATE_S,
    Declarations,
    Key,
    LedgerName,
    Reply,
    ReplyBook,
)
from ledger_client.wire.session import CHUNK_SIZE, Outgoing
from native import frame
from native.frame import Opcode
from native.link import Response

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3), st.sampled_from([1, 100, CHUNK_SIZE + 1])),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
        st.tuples(st.just("revoke"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_buffers_leave_whole_in_order_and_are_counted(plan: list[tuple[str, int, int]]) -> None:
    async def follow_plan() -> None:
        outgoing = Outgoing(1000)
        model: list[tuple[int, bytes]] = []
        for number, (step, owner, size) in enumerate(plan):
            if step == "put":
                buffer = bytes([number]) * size
                outgoing.put(owner, buffer)
                model.append((owner, buffer))
            elif step == "take" and model:
                taken = bytes(await outgoing.take())
                outgoing.sent(len(taken))
                while taken:
                    _, first = model.pop(0)
                    assert taken.startswith(first)
                    taken = taken[len(first) :]
            elif step == "revoke":
                outgoing.revoke(owner)
                model = [pair for pair in model if pair[0] != owner]
            elif step == "clear":
                outgoing.clear()
                model.clear()
            assert outgoing.size == sum(len(buffer) for _, buffer in model)
            assert outgoing.full == (outgoing.size >= 1000)

    trio.run(follow_plan)


async def test_who_waits_for_room_goes_on_when_enough_was_sent_or_revoked(
    autojump_clock: MockClock,
) -> None:
    for way in ("sent", "revoked", "cleared"):
        outgoing = Outgoing(1000)
        outgoing.put(1, bytes(1500))
        waited = trio.Event()

        async def wait(queue: Outgoing = outgoing, done: trio.Event = waited) -> None:
            await queue.wait_room()
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not waited.is_set()
            if way == "sent":
                outgoing.sent(900)
            elif way == "revoked":
                outgoing.revoke(1)
            else:
                outgoing.clear()
            await wait_all_tasks_blocked()
            assert waited.is_set()


def test_only_so_many_ledgers_are_declared_at_a_time() -> None:
    frames: list[bytes] = []
    declared = Declarations(frames.append)
    declared.hold(LedgerName(0, 5))
    for ledger_id in range(1, DECLARED_MAX + 10):
        declared.declare(LedgerName(ledger_id, 5))
    withdrawn = [each for each in frames if each.endswith(bytes(8))]
    assert withdrawn == [frame.incarnation(ledger_id, 0) for ledger_id in range(1, 11)]
    assert len(frames) - 2 * len(withdrawn) == DECLARED_MAX
    count = len(frames)
    declared.declare(LedgerName(0, 5))
    assert len(frames) == count, "the writer's was not withdrawn"


def answer(opcode: Opcode, request_id: int = 0, entry_id: int = 0) -> Response:
    return Response(opcode, 0, 1, entry_id, request_id, 0, False, b"")


def ask(book: ReplyBook, key: Key) -> tuple[Reply, list[str]]:
    """Add a question; the list grows when it is answered."""
    news: list[str] = []
    reply = Reply("b1", lambda: news.append("arrived"))
    book.add(key, reply)
    return reply, news


async def test_equal_reads_are_answered_one_by_one_the_oldest_first() -> None:
    book = ReplyBook()
    first, second = ask(book, (1, 7)), ask(book, (1, 7))
    for expected in ([True, False], [True, True], [True, True]):
        book.resolve(answer(Opcode.READ, entry_id=7))
        assert [first[0].arrived, second[0].arrived] == expected
    assert first[1] == second[1] == ["arrived"]


async def test_the_late_answer_to_an_abandoned_read_is_none_to_the_next_one() -> None:
    """The next one may fence, and the late answer does not say that it is done."""
    book = ReplyBook()
    first, second = ask(book, (1, -1))[0], ask(book, (1, -1))[0]
    first.abandon()
    for is_answered in (False, True):
        assert list(book) == [second]
        book.resolve(answer(Opcode.READ, entry_id=-1))
        assert second.arrived == is_answered
    assert not book


async def test_a_read_that_was_never_answered_is_in_the_way_of_others_for_a_while_only(
    autojump_clock: MockClock,
) -> None:
    book = ReplyBook()
    ask(book, (1, 7))[0].abandon()
    await trio.sleep(LATE_S + 1)
    reply = ask(book, (1, 7))[0]
    book.resolve(answer(Opcode.READ, entry_id=7))
    assert reply.arrived


async def test_an_abandoned_question_is_answered_to_nobody() -> None:
    book = ReplyBook()
    asked = [ask(book, 5), ask(book, (1, 5))]
    for reply, _ in asked:
        reply.abandon()
    book.resolve(answer(Opcode.BATCH_READ, request_id=5))
    book.resolve(answer(Opcode.READ, entry_id=5))
    assert [(reply.arrived, news) for reply, news in asked] == [(False, []), (False, [])]
    assert list(book) == []


async def test_reads_of_two_ledgers_with_one_id_are_not_asked_at_once() -> None:
    """An answer names ledger and entry, and not the incarnation."""
    book = ReplyBook()
    reply = Reply("b1", lambda: None)
    book.add((1, -1), reply, 5)
    book.add((1, 4), Reply("b1", lambda: None), 5)
    reply.abandon()
    for _ in range(2):
        assert book.is_ambiguous((1, -1), 6)
        assert not book.is_ambiguous((1, -1), 5)
        assert not book.is_ambiguous((2, -1), 6)
        assert not book.is_ambiguous(1, 6), "a question with an id of its own"
        book.resolve(answer(Opcode.READ, entry_id=-1))
    assert not book.is_ambiguous((1, -1), 6)


async def test_an_answer_is_freed_with_its_last_reference() -> None:
    """Answers are megabytes: a reference cycle would keep hundreds of them."""
    book = ReplyBook()
    asked = [ask(book, 5), ask(book, (1, 5)), ask(book, 6)]
    gc.collect()
    gc.disable()
    try:
        book.resolve(answer(Opcode.BATCH_READ, request_id=5))
        book.resolve(answer(Opcode.READ, entry_id=5))
        book.fail(BookieUnavailable("b1", "gone"))
        asked.clear()
        assert gc.collect() == 0
    finally:
        gc.enable()

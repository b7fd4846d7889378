"""Answers are matched to questions, and live no longer than somebody wants them."""

from __future__ import annotations

import gc

from ledger_client.errors import BookieUnavailable
from ledger_client.replies import Key, Reply, ReplyBook
from native.frame import Opcode
from native.link import Response


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

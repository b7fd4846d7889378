"""Calls: what is answered, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bookie.bell import Bell
from bookie.budget import Budget
from bookie.calls import Calls
from bookie.incarnations import Incarnations
from bookie.outbox import Outbox
from bookie.parked import CallRoom, ParkedCalls
from metadata.calls import (
    CollectGarbage,
    EntryLocation,
    Failure,
    FlushNow,
    GarbageReport,
    LedgerRuns,
    LogKept,
    Request,
    RunPage,
    decode_reply,
    encode_request,
)


def room(bytes_max: int = 1 << 30, parked_max: int = 10) -> CallRoom:
    outbox = Outbox(Budget(bytes_max), "10.0.0.1", Bell())
    return CallRoom(outbox, ParkedCalls(parked_max), ParkedCalls())


class HeldJournal:
    """A bookie with entries that are in the memtable, and not synced before *durable* is set."""

    def __init__(self) -> None:
        self.durable = trio.Event()
        self.waited_for = trio.Event()
        self.asked: list[int] = []
        self.engine = SimpleNamespace(
            runs=lambda *_: [(0, 3)], gathered=lambda: 7, ledger=lambda _: None
        )
        self.events = self

    async def synced(self, ticket: int) -> None:
        self.asked.append(ticket)
        self.waited_for.set()
        await self.durable.wait()


async def test_entries_are_named_once_they_are_durable() -> None:
    """Repair calls a ledger whole by what is named: a power cut must not undo that."""
    journal: Any = HeldJournal()
    nothing: Any = None
    incarnations = Incarnations(journal.engine, nothing, nothing, "b1")
    calls = Calls(nothing, journal, nothing, nothing, incarnations)
    answers: list[object] = []

    async def ask() -> None:
        answers.append(decode_reply(await calls.answer(encode_request(LedgerRuns(1)), room())))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await journal.waited_for.wait()
        assert answers == []
        journal.durable.set()
    assert answers == [RunPage([(0, 3)])]
    assert journal.asked == [7]


class FailingDisk:
    """A bookie whose disk neither reads nor writes."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(store=SimpleNamespace(find=self._fail))

    def _fail(self, *_: int) -> None:
        raise OSError(24, "Too many open files")

    async def checkpoint(self) -> None:
        self._fail()

    async def collect(self, *, major: bool) -> None:
        self._fail(major)


def calls_over(disk: FailingDisk) -> Calls:
    anything: Any = disk
    return Calls(anything, anything, anything, anything, anything)


async def test_a_call_that_cannot_read_the_disk_is_answered_with_a_failure() -> None:
    reply = await calls_over(FailingDisk()).answer(encode_request(EntryLocation(1, 0)), room())
    assert decode_reply(reply) == Failure("ReadFailed", "[Errno 24] Too many open files")


@pytest.mark.parametrize("request_", [FlushNow(), CollectGarbage()])
async def test_a_call_that_writes_lets_a_failed_disk_end_the_bookie(request_: Request) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        await calls_over(FailingDisk()).answer(encode_request(request_), room())


async def test_a_reply_that_fits_no_frame_becomes_a_failure() -> None:
    class Crowd(FailingDisk):
        async def collect(self, *, major: bool) -> GarbageReport:  # type: ignore[override]
            assert not major
            return GarbageReport(kept=[LogKept(1, 1, 1, "r" * 10_000)] * 600)

    encoded = await calls_over(Crowd()).answer(encode_request(CollectGarbage()), room())
    reply = decode_reply(encoded)
    assert isinstance(reply, Failure)
    assert reply.kind == "AnswerTooLarge"

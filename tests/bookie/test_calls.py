"""Calls: what is answered, and when."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from bookie import calls as calls_module
from bookie.budget import MemoryBudget
from bookie.calls import Calls
from bookie.events import Wakeup
from bookie.incarnations import Incarnations
from bookie.outbox import CallRoom, Outbox, ParkedCalls
from metadata.calls import (
    CollectGarbage,
    DiskUse,
    EntryLocation,
    Failure,
    FlushNow,
    GarbageReport,
    LedgerRuns,
    LogKept,
    Request,
    RunPage,
    ScrubNow,
    ScrubReport,
    decode_reply,
    encode_request,
)
from metadata.inspections import JournalFiles


def room(bytes_max: int = 1 << 30, parked_max: int = 10) -> CallRoom:
    outbox = Outbox(MemoryBudget(bytes_max), "10.0.0.1", Wakeup())
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
    calls = Calls(nothing, journal, nothing, nothing, incarnations, nothing, nothing)
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
    return Calls(*[anything] * 7)


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


class HangingDisk:
    """A bookie whose reads hang until *moves* is set."""

    folders = ()

    def __init__(self) -> None:
        self.moves = threading.Event()
        self.engine = SimpleNamespace(
            store=SimpleNamespace(find=self._hang), runs=self._hang, ledger=lambda _: None
        )

    @property
    def own_folders(self) -> tuple[str, str]:
        self._hang()
        raise AssertionError("it failed then")

    def _hang(self, *_: object) -> None:
        self.moves.wait()
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    "request_", [EntryLocation(1, 0), LedgerRuns(1), DiskUse(), JournalFiles()], ids=repr
)
async def test_calls_that_hang_leave_threads_to_the_flush(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one the flush stands still, and the bookie ends as if its disk hung."""
    disk = HangingDisk()
    anything: Any = disk
    incarnations = Incarnations(anything.engine, anything, anything, "b1")
    calls = Calls(anything, anything, anything, anything, incarnations, anything, anything)
    monkeypatch.setattr(calls_module, "measure", disk._hang)
    replies: list[object] = []

    async def ask() -> None:
        replies.append(decode_reply(await calls.answer(encode_request(request_), room())))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        try:
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        finally:
            disk.moves.set()
    assert replies == [Failure("ReadFailed", "[Errno 5] Input/output error")] * 50


async def test_a_call_that_works_for_hours_holds_no_memory_of_answers() -> None:
    """Else some of them would keep everybody's reads waiting as long."""

    class SlowScrub:
        ends = trio.Event()

        async def check(self) -> ScrubReport:
            await self.ends.wait()
            return ScrubReport(7)

    scrub: Any = SlowScrub()
    budget = MemoryBudget(1 << 20)
    outbox = Outbox(budget, "10.0.0.1", Wakeup())
    answers: list[object] = []

    async def ask() -> None:
        with CallRoom(outbox, ParkedCalls(100), ParkedCalls()) as taken:
            calls = Calls(scrub, scrub, scrub, scrub, scrub, scrub, scrub)
            answers.append(decode_reply(await calls.answer(encode_request(ScrubNow()), taken)))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.held == 0
        scrub.ends.set()
    assert answers == [ScrubReport(7)] * 50
    assert budget.held == 0

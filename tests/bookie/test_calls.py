"""Calls: what is answered, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from bookie.calls import Calls
from metadata.calls import LedgerRuns, RunPage, decode_reply, encode_request


class HeldJournal:
    """A bookie with entries that are in the memtable, and not synced before *durable* is set."""

    def __init__(self) -> None:
        self.durable = trio.Event()
        self.waited_for = trio.Event()
        self.asked: list[int] = []
        self.engine = SimpleNamespace(runs=lambda *_: [(0, 3)], gathered=lambda: 7)
        self.events = self

    async def synced(self, ticket: int) -> None:
        self.asked.append(ticket)
        self.waited_for.set()
        await self.durable.wait()


async def test_entries_are_named_once_they_are_durable() -> None:
    """Repair calls a ledger whole by what is named: a power cut must not undo that."""
    journal: Any = HeldJournal()
    nothing: Any = None
    calls = Calls(nothing, journal, nothing, nothing)
    answers: list[object] = []

    async def ask() -> None:
        answers.append(decode_reply(await calls.answer(encode_request(LedgerRuns(1)))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await journal.waited_for.wait()
        assert answers == []
        journal.durable.set()
    assert answers == [RunPage([(0, 3)])]
    assert journal.asked == [7]

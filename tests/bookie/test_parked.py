"""Calls that wait for a change: they keep nobody else from being answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import v2
from rig import settings
from running import connected, running

from bookie.budget import MemoryBudget
from bookie.calls import Calls
from bookie.errors import CallRefused
from bookie.events import Wakeup
from bookie.outbox import CallRoom, Outbox, ParkedCalls
from metadata import calls
from metadata.store import Changes, Put
from metadata.urls import open_store


def call(number: int, request: calls.Request) -> bytes:
    """A CALL with this request id."""
    return v2.frame(v2.CALL, v2.int64(number) + calls.encode_request(request))


async def test_a_client_that_follows_many_ledgers_still_gets_its_calls_through(
    tmp_path: Path,
) -> None:
    """It follows more than any bound allows: those beyond are refused, and a put is done."""
    config = settings(tmp_path)
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
    ):
        changes = await store.changes("followed/")
        follow = calls.WatchSince("followed/", changes.revision, 60_000)
        for number in range(300):
            await peer.stream.send_all(call(number, follow))
        await peer.stream.send_all(call(1000, Put("key", b"value", 0)))
        refused = []
        with trio.fail_after(20):
            while (answer := await peer.response()).rest[:8] != v2.int64(1000):
                refused.append(calls.decode_reply(answer.rest[8:]))
        assert calls.decode_reply(answer.rest[8:]) == calls.Done([changes.revision + 1])
        assert len(refused) <= 300 - 256
        assert all(isinstance(each, calls.Failure) for each in refused)
        # Those that wait still do, and hear of a change.
        await peer.stream.send_all(call(1001, Put("followed/1", b"", 0)))
        told = 0
        with trio.fail_after(20):
            while told < 256:
                reply = calls.decode_reply((await peer.response()).rest[8:])
                told += isinstance(reply, Changes) and reply.keys == ["followed/1"]


class Store:
    """Metadata in which 1000 keys have changed."""

    def __init__(self) -> None:
        self.parked_reads: list[float] = []

    async def changes(self, prefix: str, *, since: int, wait_s: float) -> Changes:
        self.parked_reads.append(wait_s)
        return Changes(since + 1, [prefix + "x" * 50] * 1000)


async def test_a_large_answer_to_one_that_waited_is_made_once_there_is_room() -> None:
    store, nothing = Store(), None
    budget = MemoryBudget(800)
    pool = budget.making
    budget.unsent.change("10.0.0.2", 201)
    pool.change("10.0.0.2", 101)
    room = CallRoom(Outbox(budget, "10.0.0.1", Wakeup()), ParkedCalls(), ParkedCalls())
    answers: list[bytes] = []
    anything: Any = nothing
    shown: Any = store
    answerer = Calls(shown, *[anything] * 6)

    async def ask() -> None:
        body = calls.encode_request(calls.WatchSince("p/", 7, 5000))
        answers.append(await answerer.answer(body, room))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert (store.parked_reads, answers) == ([5.0], [])
        pool.change("10.0.0.2", -1)
    assert store.parked_reads == [5.0, 0.0]
    assert len(answers[0]) > 50_000


def test_parked_calls_are_bounded_and_hold_nothing() -> None:
    everywhere = ParkedCalls(2)
    outbox = Outbox(MemoryBudget(800), "10.0.0.1", Wakeup())
    rooms = [CallRoom(outbox, ParkedCalls(), everywhere) for _ in range(3)]
    with rooms[0].parked(), rooms[1].parked():
        with pytest.raises(CallRefused, match="2 calls wait already"), rooms[2].parked():
            pass
        assert everywhere.count == 2
    assert everywhere.count == 0

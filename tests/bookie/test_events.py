from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from bookie.events import Events
from native.engine import Event


class FakeEngine:
    """Says what the test put into it, and writes the eventfd as the core does."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._events = Event(0)
        self._synced = 0
        self.tokens: list[int] = []
        self.ledgers: list[int] = []
        self.asked: list[int] = []
        self.error: OSError | None = None

    def tell(self, events: Event) -> None:
        self._events |= events
        os.eventfd_write(self._fd, 1)

    def sync(self, ticket: int) -> None:
        self._synced = ticket
        if self.asked and self.asked[-1] <= ticket:
            self.tell(Event.SYNCED)

    def poll(self) -> Event:
        if self.error is not None:
            raise self.error
        events, self._events = self._events, Event(0)
        return events

    def ready(self) -> list[int]:
        tokens, self.tokens = self.tokens, []
        return tokens

    def woken(self) -> list[int]:
        ledgers, self.ledgers = self.ledgers, []
        return ledgers

    def notify(self, ticket: int) -> None:
        self.asked.append(ticket)
        if ticket <= self._synced:
            self.tell(Event.SYNCED)

    def synced(self) -> int:
        return self._synced


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def engine(fd: int) -> FakeEngine:
    return FakeEngine(fd)


@pytest.fixture
def events(engine: FakeEngine, fd: int, nursery: trio.Nursery) -> Events:
    events = Events(engine, fd)  # type: ignore[arg-type]  # a fake
    nursery.start_soon(events.run)
    return events


async def test_news_reach_those_they_are_for(events: Events, engine: FakeEngine) -> None:
    told: list[tuple[str, int]] = []
    events.on_ready = lambda token: told.append(("ready", token))
    events.on_woken = lambda ledger_id: told.append(("woken", ledger_id))
    space = events.space
    engine.tokens, engine.ledgers = [3, 5], [7]
    engine.tell(Event.READY | Event.WOKEN | Event.SPACE | Event.FLUSH)
    await space.wait()
    await events.sealed.wait()
    assert told == [("ready", 3), ("ready", 5), ("woken", 7)]
    assert not events.space.is_set()


async def test_tickets_are_told_in_any_order_of_asking(events: Events, engine: FakeEngine) -> None:
    durable: list[int] = []

    async def wait(ticket: int) -> None:
        await events.synced(ticket)
        durable.append(ticket)

    async with trio.open_nursery() as waiting:
        for ticket in (9, 2, 5, 5):
            waiting.start_soon(wait, ticket)
        await trio.testing.wait_all_tasks_blocked()
        for synced, expected in ((1, []), (4, [2]), (8, [2, 5, 5]), (9, [2, 5, 5, 9])):
            engine.sync(synced)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert durable == expected


async def test_a_ticket_already_synced_does_not_wait(events: Events, engine: FakeEngine) -> None:
    engine.sync(4)
    await events.synced(4)
    assert engine.asked == []


async def test_a_failed_journal_ends_the_telling(engine: FakeEngine, fd: int) -> None:
    events = Events(engine, fd)  # type: ignore[arg-type]  # a fake
    engine.error = OSError(5, "broken")
    engine.tell(Event.FAILED)
    with pytest.raises(OSError, match="broken"):
        await events.run()

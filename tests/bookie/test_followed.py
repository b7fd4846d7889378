"""Followers of many quiet ledgers, at a bookie with its real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import v2
from rig import settings
from running import ask, connected, known, running

import bookie.parked
from ledger_client import Client, Options
from ledger_client.topics.context import open_context
from metadata import calls
from metadata.calls import AwaitLedgers, FollowedLedger, LedgersMoved
from metadata.urls import open_store

COUNT = 400
UNHURRIED = Options(poll_s=5, read_timeout_s=3)


@pytest.mark.slow
async def test_many_followers_rest_and_hear_of_a_new_entry_at_once(tmp_path: Path) -> None:
    """TD-12, TD-27: more than a bookie parks reads of one connection; an end is news, too."""
    config = settings(tmp_path)
    heard: dict[int, list[int]] = {}
    ended: set[int] = set()
    news = trio.lowlevel.ParkingLot()

    async def follow(client: Client, ledger_id: int) -> None:
        async with client.ledgers.open(ledger_id, recover=False) as reader:
            async for entry in reader.follow():
                heard.setdefault(ledger_id, []).append(entry.entry_id)
                news.unpark_all()
        ended.add(ledger_id)
        news.unpark_all()

    async def until(count: int, entry_id: int) -> None:
        while sum(entry_id in each for each in heard.values()) < count:
            await news.park()

    async with (
        open_store(config.metadata) as behind,
        running(config, behind) as ready,
        open_context(f"bookie://{ready.address}", options=UNHURRIED) as writing,
        open_context(f"bookie://{ready.address}", options=UNHURRIED) as reading,
        trio.open_nursery() as nursery,
    ):
        writer = Client(writing)
        ledgers = [await nursery.start(write, writer) for _ in range(COUNT)]
        for ledger, _ in ledgers:
            await ledger.append(b"first")
            nursery.start_soon(follow, Client(reading), ledger.id)
        with trio.fail_after(60):
            await until(COUNT, 0)
        await trio.sleep(7)
        (connection,) = reading.ledgers.bookies.connections.values()
        assert len(connection.followed._known) == COUNT
        for number in (7, COUNT - 1):
            with trio.fail_after(1):
                await ledgers[number][0].append(b"second")
                await until(1 + (number != 7), 1)
        for _, end in ledgers[:5]:
            end.set()
        with trio.fail_after(5):
            while len(ended) < 5:
                await news.park()
        nursery.cancel_scope.cancel()


async def write(client: Client, task_status: trio.TaskStatus[object]) -> None:
    """Keep a ledger open until the event is set."""
    end = trio.Event()
    async with client.ledgers.create(1, 1, 1) as ledger:
        task_status.started((ledger, end))
        await end.wait()


async def test_a_bookie_reports_followed_ledgers_once(tmp_path: Path) -> None:
    """TD-53: also news from before they were followed."""
    config = settings(tmp_path)
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
        connected(ready.address) as writer,
    ):
        await known(store, 1, 2)
        for ledger_id in (1, 2):
            await writer.ask(v2.add(ledger_id, 0, b"x", lac=-1))
            await writer.ask(v2.add(ledger_id, 1, b"x", lac=0))
        followed = [FollowedLedger(1, -1), FollowedLedger(2, 0), FollowedLedger(3, -1)]
        assert await ask(peer, AwaitLedgers(followed, [], 60_000)) == LedgersMoved([1])
        await writer.ask(v2.add(2, 2, b"x", lac=1))
        assert await ask(peer, AwaitLedgers([], [], 60_000)) == LedgersMoved([2])
        assert await ask(peer, AwaitLedgers([], [], 10)) == LedgersMoved([])
        assert await ask(peer, AwaitLedgers([FollowedLedger(2, 1)], [2], 10)) == LedgersMoved([])
        await writer.ask(v2.add(2, 3, b"x", lac=2))
        assert await ask(peer, AwaitLedgers([], [2], 10)) == LedgersMoved([])


async def test_too_many_ledgers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie.parked, "FOLLOWED_MAX", 10)
    config = settings(tmp_path)
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
    ):
        many = [FollowedLedger(number, -1) for number in range(11)]
        refused = await ask(peer, AwaitLedgers(many))
        assert isinstance(refused, calls.Failure)
        assert refused.kind == "CallRefused"

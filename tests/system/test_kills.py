"""Bookies killed at any moment: what was acknowledged is there, and nothing else.

Writers append numbered payloads until bookies are killed under them. Entry i of a
ledger can only be payload i of that ledger, so both promises can be checked: every
acknowledged entry reads back as it was sent, and no bookie holds a byte that was
never sent.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from never_twice import never_twice
from own_copy import copy_at
from run_seed import run_seed
from sandboxes import open_sandbox

import ledger_client
from ledger_client import Client, LedgerWriter, Options
from ledger_client.commands.sandbox import Sandbox
from ledger_client.errors import LedgerError

WRITERS = 4
DEADLINE_S = 60.0
PATIENCE = Options(append_timeout_s=5.0, close_timeout_s=5.0, replace_timeout_s=1.0)
# Small halves and files, so that kills fall into flushes, rolls and checkpoints too.
SETTINGS = ["memtable_size=10MiB", "journal_size_max=16MiB", "checkpoint_interval_s=1"]


NOISE = random.Random(0).randbytes(70_000)
SIZES = (0, 1, 100, 100, 1000, 5000, 1000, 60_000)


def payload(ledger_id: int, entry_id: int) -> bytes:
    size = SIZES[(entry_id * 2654435761 >> 7) % len(SIZES)]
    start = (ledger_id * 1009 + entry_id) % 10_000
    return b"%d/%d" % (ledger_id, entry_id) + NOISE[start : start + size]


class Scribe:
    """Writes one ledger until it is told to stop, or can not go on."""

    def __init__(self, seed: int) -> None:
        self.ledger_id = -1
        self.sent = 0
        self.acknowledged = 0
        self._chance = random.Random(seed)

    async def write(self, client: Client, stop: trio.Event) -> None:
        try:
            async with client.ledgers.create(3, 3, 2) as ledger:
                self.ledger_id = ledger.id
                while not stop.is_set():
                    await self._append(ledger)
        except LedgerError:
            return  # the kill; what counts is what was acknowledged before

    async def _append(self, ledger: LedgerWriter) -> None:
        count = self._chance.choice((1, 10, 100))
        first = self.sent
        self.sent += count
        ids = await ledger.append_many(self.payloads(first, count))
        assert ids == range(first, first + count)
        self.acknowledged = first + count

    def payloads(self, first: int, count: int) -> list[bytes]:
        return [payload(self.ledger_id, first + i) for i in range(count)]


async def until_all_write(scribes: list[Scribe]) -> None:
    """Return once each has a ledger, and was told of an entry."""
    with trio.fail_after(DEADLINE_S):
        while not all(scribe.acknowledged for scribe in scribes):  # noqa: ASYNC110 - no event
            await trio.sleep(0.01)


@asynccontextmanager
async def connect(sandbox: Sandbox) -> AsyncGenerator[Client]:
    """Connect by way of the metadata itself, which outlives all bookies."""
    url = f"sqlite://{sandbox.folder}/metadata.db"
    async with ledger_client.connect(url, options=PATIENCE) as client:
        yield client


async def check(sandbox: Sandbox, scribes: list[Scribe]) -> None:
    async with connect(sandbox) as client:
        for scribe in scribes:
            with never_twice():
                await check_ledger(client, sandbox, scribe)


async def check_ledger(client: Client, sandbox: Sandbox, scribe: Scribe) -> None:
    async with client.ledgers.open(scribe.ledger_id) as reader:
        assert reader.closed
        assert scribe.acknowledged <= reader.last_confirmed + 1 <= scribe.sent
        entries = await reader.read(0, reader.last_confirmed)
        kept = [entry.payload for entry in entries]
        assert kept == scribe.payloads(0, len(kept))
    for bookie in sandbox.bookies:
        await check_copy(bookie.address, scribe)


async def check_copy(address: str, scribe: Scribe) -> None:
    first = 0
    async for payloads in copy_at(address, scribe.ledger_id):
        assert payloads == scribe.payloads(first, len(payloads))
        first += len(payloads)
    assert first <= scribe.sent


async def write_and_kill_all(sandbox: Sandbox, seed: int) -> list[Scribe]:
    """Kill every bookie at a moment that the seed chooses; return the writers."""
    scribes = [Scribe(seed + number) for number in range(WRITERS)]
    async with connect(sandbox) as client, trio.open_nursery() as nursery:
        for scribe in scribes:
            nursery.start_soon(scribe.write, client, trio.Event())
        await until_all_write(scribes)
        await trio.sleep(random.Random(seed).uniform(0, 1))
        await sandbox.kill_all()
    return scribes


async def kill_all_again_and_again(folder: Path, seed: int, rounds: int) -> None:
    async with open_sandbox(3, parent=folder, settings=SETTINGS) as sandbox:
        scribes: list[Scribe] = []
        for number in range(rounds):
            scribes += await write_and_kill_all(sandbox, run_seed() + 10 * seed + number)
            await sandbox.start()
            await check(sandbox, scribes)
        assert sum(scribe.acknowledged for scribe in scribes) > 0


@pytest.mark.real_processes
@pytest.mark.parametrize("seed", [1])
async def test_killing_all_bookies_loses_nothing(tmp_path: Path, seed: int) -> None:
    await kill_all_again_and_again(tmp_path, seed, rounds=1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real_processes
@pytest.mark.parametrize("seed", [2, 3])
async def test_killing_all_bookies_often_loses_nothing(tmp_path: Path, seed: int) -> None:
    await kill_all_again_and_again(tmp_path, seed, rounds=3)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.real_processes
async def test_killing_one_bookie_after_the_other_loses_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    scribes: list[Scribe] = []
    async with (
        open_sandbox(3, parent=tmp_path, settings=SETTINGS) as sandbox,
        connect(sandbox) as client,
    ):
        for _ in range(2):
            new = [Scribe(chance.randrange(1 << 30)) for _ in range(WRITERS)]
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                for scribe in new:
                    nursery.start_soon(scribe.write, client, stop)
                await until_all_write(new)
                await trio.sleep(chance.uniform(0, 0.4))
                victim = chance.choice(sandbox.bookies)
                command = sandbox.kill(victim)
                before = [scribe.acknowledged for scribe in new]
                await trio.sleep(0.3)
                await sandbox.restart(victim, command)
                stop.set()
            # Two of three were enough to go on.
            assert all(s.acknowledged > b for s, b in zip(new, before, strict=True))
            scribes += new
        await check(sandbox, scribes)

"""One process that reads a topic by timestamp, or takes timestamps: killed at any moment.

    python time_worker.py follow|take URL HISTORY TOPIC NAME

A follower reads from the beginning, and goes on from its position after a failure and every few
seconds. At the end of standard input it reads what is left, and ends. Who takes timestamps sees
the topic's ticks, too.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from chance import seed_process
from history import HistoryFile, Recorder
from run_seed import run_seed
from time_witness import TickWitness, TimedAudience, TimeTaker
from topic_worker import PATIENCE, PAUSE_S

import ledger_client
from ledger_client import Client
from ledger_client.errors import LedgerError

SESSION_S = 3.0
SIZE = 200_000
END_S = 60.0


async def repeat(work: Callable[[], Awaitable[object]]) -> None:
    """Do some work again and again; a failure is an answer that a cluster in trouble may give."""
    while True:
        try:
            await work()
        except LedgerError as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
            await trio.sleep(PAUSE_S)


async def follow(client: Client, audience: TimedAudience) -> None:
    """Follow in one session after the other."""
    number = 0

    async def read() -> None:
        nonlocal number
        number += 1
        with trio.move_on_after(SESSION_S):
            await audience.read(client, follow=True, arrow=number % 2 == 0, size=SIZE)

    await repeat(read)


async def read_the_rest(client: Client, audience: TimedAudience) -> None:
    """Read on to the end."""
    with trio.fail_after(END_S):
        while True:
            try:
                return await audience.read(client, follow=False, arrow=False, size=SIZE)
            except LedgerError as answer:
                sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
                await trio.sleep(PAUSE_S)


async def take(client: Client, history: Recorder, topic: str, name: str) -> None:
    """Take timestamps and see ticks, without a rest."""
    number = 0

    async def take_some() -> None:
        nonlocal number
        number += 1
        await TimeTaker(history, f"{name}/{number}").take(client, 1 + number % 50)
        await trio.sleep(0.02)

    async def see() -> None:
        record, _ = await client._context.catalogue.get(topic)
        witness = TickWitness(history, client, record, name)
        try:
            while True:
                await witness.see_newest()
                await trio.sleep(0.1)
        finally:
            witness.close()

    async def see_stored() -> None:
        record, _ = await client._context.catalogue.get(topic)
        witness = TickWitness(history, client, record, f"{name}, stored")
        try:
            while await witness.see_stored():
                pass
        finally:
            witness.close()

    async with trio.open_nursery() as nursery:
        for work in (take_some, see, see_stored):
            nursery.start_soon(repeat, work)


async def main(*command: str) -> None:
    """Do what the command says."""
    role, url, path, topic, _name = command
    history, run = HistoryFile(Path(path)), Path(path).stem
    async with ledger_client.connect(url, options=PATIENCE) as client:
        audience = TimedAudience(history, topic, run)
        async with trio.open_nursery() as nursery:
            if role == "follow":
                audience.begun(follows=True)
                nursery.start_soon(follow, client, audience)
            else:
                nursery.start_soon(take, client, history, topic, run)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        if role == "follow":
            await read_the_rest(client, audience)


if __name__ == "__main__":
    seed_process(f"{Path(sys.argv[3]).name} {run_seed()}")
    trio.run(main, *sys.argv[1:])

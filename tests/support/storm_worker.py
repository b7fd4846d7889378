"""One process of a storm: run as a script, killed at any moment.

    python storm_worker.py write|read|recover|list URL HISTORY SEED [E/QW/QA]

Every answer is in the history before it is acted on. The end of standard input is the
sign to finish: a writer then closes its ledger.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio
from chance import seed_process
from history import HistoryFile
from storm_roles import Lister, Role, read, recover, write
from witness import Witness

import ledger_client
from ledger_client import Options
from ledger_client.errors import LedgerError
from ledger_client.wire.stores import open_store
from metadata.errors import MetadataUnavailable

PATIENCE = Options(
    append_timeout_s=15, close_timeout_s=5, read_timeout_s=3, request_timeout_s=2, poll_s=0.5
)
PAUSE_S = 0.2


async def main(*words: str) -> None:
    role, url, path, seed, *quorums = words
    history = HistoryFile(Path(path))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_end, stop)
        if role == "list":
            await list_all(url, history, stop)
        else:
            act = partial(write, quorums=quorums[0]) if role == "write" else ROLES[role]
            witness = Witness(history, f"{role} {os.getpid()}")
            await act_on_ledgers(url, witness, random.Random(int(seed)), stop, act)
        nursery.cancel_scope.cancel()


ROLES: dict[str, Callable[[Role], Awaitable[None]]] = {"read": read, "recover": recover}


async def act_on_ledgers(
    url: str,
    witness: Witness,
    chance: random.Random,
    stop: trio.Event,
    act: Callable[[Role], Awaitable[None]],
) -> None:
    async with ledger_client.connect(url, options=PATIENCE) as client:
        role = Role(client, witness, chance, stop)
        while not stop.is_set():
            try:
                await act(role)
            except LedgerError as answer:
                sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
            await trio.sleep(PAUSE_S * chance.random())


async def list_all(url: str, history: HistoryFile, stop: trio.Event) -> None:
    async with open_store(url) as store:
        lister = Lister(store, history)
        while not stop.is_set():
            try:
                await lister.look()
            except MetadataUnavailable as answer:
                sys.stderr.write(f"{answer}\n")
            await trio.sleep(PAUSE_S)


async def wait_for_end(stop: trio.Event) -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    stop.set()


if __name__ == "__main__":
    seed_process(sys.argv[4])
    trio.run(main, *sys.argv[1:])

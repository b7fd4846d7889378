"""A process that calls a store as a test orders: run as a script."""

from __future__ import annotations

import resource
import sqlite3
import sys
from pathlib import Path

import trio
from chance import seed_process
from leases import grant

from metadata.errors import MetadataUnavailable, VersionConflict
from metadata.sqlite import SqliteStore
from metadata.store import Put


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def count(store: SqliteStore, rounds: str) -> None:
    """Add 1 to a number *rounds* times, by compare-and-set; take as many ids."""
    for _ in range(int(rounds)):
        while True:
            found = await store.get("number")
            assert found is not None
            try:
                await store.put("number", b"%d" % (int(found.value) + 1), expected=found.version)
            except VersionConflict:
                continue
            break
        say(await store.next_id("ids"))


async def put_when_told(store: SqliteStore, key: str) -> None:
    say("ready")
    await trio.to_thread.run_sync(sys.stdin.readline)
    await store.put(key, b"")


async def put_pairs(store: SqliteStore, first: str) -> None:
    """Set two keys to the same number, over and over, until killed."""
    number = int(first)
    while True:
        value = b"%d" % number + bytes(100_000)
        await store.transact([Put("left", value), Put("right", value)])
        say(number)
        number += 1


async def hold(store: SqliteStore, ttl_s: str) -> None:
    lease = await grant(store, "leader", "the dead one", ttl_s=float(ttl_s))
    say(lease.epoch)
    await trio.sleep_forever()


async def fill(store: SqliteStore, size: str) -> None:
    """Write until files may not grow any more, then see that reading goes on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    number = 0
    try:
        while True:
            await store.put("key", b"%d" % number + bytes(50_000))
            number += 1
    except MetadataUnavailable as error:
        say(error)
    found = await store.get("key")
    assert found is not None
    say(number - 1)
    say(int(found.value.rstrip(b"\0")))


def stall(path: Path) -> None:
    """Stop inside a transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE keys SET value = 'torn'")
    say("inside")
    sys.stdin.readline()


async def main(path: Path, *job: str) -> None:
    store = await SqliteStore.open(path)
    await globals()[job[0]](store, *job[1:])
    await store.aclose()


if __name__ == "__main__":
    if sys.argv[2] == "stall":
        stall(Path(sys.argv[1]))
    else:
        seed_process(sys.argv[2:])
        trio.run(main, Path(sys.argv[1]), *sys.argv[2:])

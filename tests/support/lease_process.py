"""A process that holds a lease and says what becomes of it: python lease_process.py URL NAME.

It prints "held EPOCH", and "over" when the session ends. Then it tries a change that carries the
lease, which prints the error's name, and takes the lease again.
"""

from __future__ import annotations

import sys

import trio
from chance import seed_process
from run_seed import run_seed

from metadata.errors import LeaseHeld, MetadataError, MetadataUnavailable
from metadata.sessions import HeldLease, ProcessSession
from metadata.store import MetadataStore, Put
from metadata.zookeeper.store import open_zookeeper_store


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def act(store: MetadataStore, held: HeldLease) -> str:
    """Make a change that only the holder may make; return how it ended."""
    while True:
        try:
            await store.transact([held.check, Put("acted", b"%d" % held.lease.epoch)])
        except MetadataUnavailable:
            await trio.sleep(0.1)
        except MetadataError as refused:
            return type(refused).__name__
        else:
            return "done"


async def main(url: str, name: str) -> None:
    async with open_zookeeper_store(url) as store, trio.open_nursery() as nursery:
        session = ProcessSession(store, nursery)
        while True:
            over = trio.Event()
            try:
                held = await session.grant(name, on_over=over.set)
            except (LeaseHeld, MetadataUnavailable) as wait:
                say(type(wait).__name__)
                await trio.sleep(0.5)
                continue
            say("held", held.lease.epoch)
            await over.wait()
            say("over", await act(store, held))


if __name__ == "__main__":
    _, cluster, lease = sys.argv
    seed_process(f"{lease} {run_seed()}")
    trio.run(main, cluster, lease)

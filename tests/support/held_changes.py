"""A process that stops in the midst of changes of topics with timesync: held_changes.py URL PREFIX.

It begins all CHANGES at once, each by a client of its own, and of a topic of its own, whose name is
PREFIX and that of the change. Each stops at its place. Once all have, it prints "held". If it reads
a line then, they go on, and for each it prints its name and "done", or what it raised.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

import trio
from chance import seed_process
from run_seed import run_seed
from staged_rig import rows, write_job

import ledger_client
from ledger_client import Client, LedgerError
from ledger_client.jobs.staging import showing
from ledger_client.jobs.staging.showing import Showing
from ledger_client.jobs.staging.writing_job import SinkBatch
from ledger_client.topics import catalogue
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.lanes.lane_rows import LaneRows
from metadata.store import Op, fits as is_small
from metadata.time.tick_holds import hold_ticks

T = TypeVar("T")
JOB = ({0: rows("a", "b"), 1: rows("c")}, {1: rows("d"), 0: rows("e")})
"""The messages of a job. It is a batch of a query: shown once, however often it is written."""
BATCH = SinkBatch("query", 0)
PARTITIONS = 4
"""An alteration gives the topic so many; before it has two."""
CHANGES = {
    "show-held": "a job holds ticks, and has no timestamp yet",
    "show-stamped": "a job has its timestamp, and nothing is shown",
    "show-stepped": "a job has put all rows, and the pointer that shows them is still open",
    "show-done": "the result of a job is shown, and the job does not know",
    "alter-held": "an alteration holds ticks, and has no timestamp yet",
    "alter-stamped": "an alteration has its timestamp, and is not stored",
    "alter-done": "an alteration is stored, and ticks are still held",
    "delete-held": "a deletion holds ticks, and has no timestamp yet",
    "delete-stamped": "a deletion has its timestamp, and is not stored",
    "delete-done": "a deletion is stored, and ticks are still held",
    "create-stamped": "a creation has its timestamp, and is not stored",
    "create-done": "a creation is stored, and its client does not know",
}
_change = ContextVar("_change", default="")
_stopped: set[str] = set()
_go = trio.Event()


async def change(client: Client, kind: str, topic: str) -> None:
    """Show a job, or alter, delete or create a topic: the *kind* is a name in CHANGES."""
    what = kind.partition("-")[0]
    if what == "show":
        await write_job(client._context.ledgers, topic, *JOB, sink=BATCH)
    elif what == "alter":
        await client.topics.alter(topic, partitions=PARTITIONS)
    elif what == "delete":
        await client.topics.delete(topic)
    else:
        await client.topics.create(topic, 2, timesync=True, replication=2, ack_quorum=2)


async def _stop(*places: str) -> None:
    """Wait here if this is the place of the change."""
    kind = _change.get()
    if kind not in places or kind in _stopped:
        return
    _stopped.add(kind)
    if len(_stopped) == len(CHANGES):
        _print("held")
    await _go.wait()


def _after(work: Callable[..., Awaitable[T]], *places: str) -> Callable[..., Awaitable[T]]:
    async def stopping(*args: object, **options: object) -> T:
        result = await work(*args, **options)
        await _stop(*places)
        return result

    return stopping


def _between(work: Callable[..., Awaitable[T]], name: str) -> Callable[..., Awaitable[T]]:
    async def stopping(*args: object, **options: object) -> T:
        await _stop(*(f"{what}-{name}" for what in ("show", "alter", "delete", "create")))
        result = await work(*args, **options)
        if result:  # else another change came between, and this one is made anew
            await _stop(*(f"{what}-done" for what in ("show", "alter", "delete", "create")))
        return result

    return stopping


def _make_places() -> None:
    """Let the code of changes stop at their places."""
    hold = showing.held_ticks

    @asynccontextmanager
    async def held(rows: LaneRows) -> AsyncIterator[None]:
        async with hold(rows):
            await _stop("show-held")
            yield

    def fits(ops: Sequence[Op]) -> bool:
        return _change.get() != "show-stepped" and is_small(ops)

    replaced = (
        (showing, "held_ticks", held),
        (showing, "fits", fits),
        (showing, "_allot", _after(showing._allot, "show-stamped")),
        (Showing, "_show", _between(Showing._show, "stepped")),
        (catalogue, "hold_ticks", _after(hold_ticks, "alter-held", "delete-held")),
        (TopicCatalogue, "_change", _between(TopicCatalogue._change, "stamped")),
    )
    for place, name, work in replaced:
        setattr(place, name, work)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _begin(url: str, kind: str, topic: str) -> None:
    _change.set(kind)
    outcome = "done"
    async with ledger_client.connect(url) as client:
        try:
            await change(client, kind, topic)
        except LedgerError as failure:
            outcome = f"{type(failure).__name__}: {failure}"
    _print(f"{kind} {outcome}")


async def main(url: str, prefix: str) -> None:
    _make_places()
    async with trio.open_nursery() as nursery:
        for kind in CHANGES:
            nursery.start_soon(_begin, url, kind, prefix + kind)
        await trio.to_thread.run_sync(sys.stdin.readline)
        _go.set()


if __name__ == "__main__":
    seed_process(f"{sys.argv[2]} {run_seed()}")
    trio.run(main, sys.argv[1], sys.argv[2])

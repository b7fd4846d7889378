"""Bookies and leaders that are killed, cut off or paused while clients are at work.

Times are printed (see them with `pytest -m slow -s`) and never asserted: a machine may be
busy. Asserted is that what was acknowledged is there, and that somebody takes over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import v2
from checker import check
from fleet import Fleet
from history import History
from never_twice import never_twice
from relay import Relay
from witness import Witness

import ledger_client
from ledger_client import Client, LedgerReader, LedgerWriter
from ledger_client.errors import LedgerError, LedgerFenced, WriterFailed
from metadata.records import COORDINATOR, decode_leader
from metadata.store import Lease, MetadataStore
from metadata.urls import open_store
from native.digest import Digest
from native.frame import Code
from native.link import add_frame

DEADLINE_S = 90.0
POLL_S = 0.02


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 4) as started:
        yield started


class Pace:
    """Appends one entry after the other, and knows the longest wait for an answer."""

    def __init__(self, ledger: LedgerWriter, history: History) -> None:
        self._ledger = ledger
        self._witness = Witness(history, "writer")
        self._witness.created(ledger.metadata)
        self.appended = 0
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            if not await self._witness.append(self._ledger, [b"%d" % self.appended]):
                return
            self.longest_s = max(self.longest_s, time.perf_counter() - before)
            self.appended += 1

    async def go_on(self, count: int) -> None:
        """Return once *count* more entries are acknowledged."""
        goal = self.appended + count
        with trio.fail_after(DEADLINE_S):
            await until(lambda: self.appended >= goal)


async def until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await trio.sleep(POLL_S)


@asynccontextmanager
async def writing(
    client: Client, history: History, *quorums: int
) -> AsyncGenerator[tuple[LedgerWriter, Pace]]:
    """Write a ledger in the background until the block ends, and close it."""
    with suppress(LedgerFenced):  # where bookies are lost for long, repair closes the ledger
        async with client.ledgers.create(*quorums) as ledger, trio.open_nursery() as nursery:
            pace = Pace(ledger, history)
            nursery.start_soon(pace.run)
            await pace.go_on(50)
            pace.longest_s = 0.0
            yield ledger, pace
            nursery.cancel_scope.cancel()


async def read_back(client: Client, ledger_id: int, history: History) -> None:
    """Read all of a ledger, and hold the history to the invariants."""
    Witness(history, "recoverer").recovered(await client.ledgers.recover(ledger_id))
    with never_twice():
        async with client.ledgers.open(ledger_id) as reader:
            await tell_all(reader, history)
        assert check(history) == []


async def tell_all(reader: LedgerReader, history: History) -> None:
    """Read what is confirmed, which is something."""
    assert reader.last_confirmed > 0
    with Witness(history, "reader").reading(reader.id, 0, reader.last_confirmed) as witness:
        async for batch in reader.read_batches(0, reader.last_confirmed):
            witness.read_batch(batch)


def report(what: str, seconds: float) -> None:
    sys.stdout.write(f"\n{what}: {seconds:.3f} s\n")


# --- writers ----------------------------------------------------------------------------


@pytest.mark.real_processes
@pytest.mark.parametrize("quorums", [pytest.param((3, 3, 2), marks=pytest.mark.slow), (3, 3, 3)])
async def test_a_writer_goes_on_after_a_bookie_was_killed(
    fleet: Fleet, quorums: tuple[int, int, int]
) -> None:
    history = History()
    async with ledger_client.connect(fleet.metadata) as client:
        async with writing(client, history, *quorums) as (ledger, pace):
            fleet.kill(fleet.number(ledger.metadata.fragments[-1].bookies[0]))
            await pace.go_on(200)
        report(f"longest append of {quorums} when a bookie is killed", pace.longest_s)
        await read_back(client, ledger.id, history)


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.parametrize("quorums", [pytest.param((3, 3, 2), marks=pytest.mark.long), (3, 3, 3)])
async def test_a_writer_goes_on_after_a_bookie_was_paused(
    fleet: Fleet, quorums: tuple[int, int, int]
) -> None:
    history = History()
    async with ledger_client.connect(fleet.metadata) as client:
        async with writing(client, history, *quorums) as (ledger, pace):
            fleet.pause(fleet.number(ledger.metadata.fragments[-1].bookies[0]))
            await trio.sleep(client._context.options.bookie_timeout_s + 1)
            await pace.go_on(200)
        report(f"longest append of {quorums} when a bookie is paused", pace.longest_s)
        await read_back(client, ledger.id, history)


@pytest.mark.slow
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3)])
async def test_a_writer_goes_on_after_a_connection_was_reset(
    fleet: Fleet, quorums: tuple[int, int, int], nursery: trio.Nursery
) -> None:
    history = History()
    relay = Relay(nursery)
    async with ledger_client.connect(fleet.metadata, open_stream=relay.open_stream) as client:
        async with writing(client, history, *quorums) as (ledger, pace):
            relay.reset(fleet.port(fleet.number(ledger.metadata.fragments[-1].bookies[0])))
            await pace.go_on(200)
        report(f"longest append of {quorums} when a connection is reset", pace.longest_s)
        await read_back(client, ledger.id, history)


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.parametrize("quorums", [(3, 3, 2), pytest.param((4, 4, 3), marks=pytest.mark.long)])
async def test_killing_as_many_bookies_as_an_acknowledgement_outlives_loses_nothing(
    fleet: Fleet, quorums: tuple[int, int, int]
) -> None:
    """What is confirmed is read while they are away; too few of four are left to recover."""
    history = History()
    _, _, ack_quorum = quorums
    async with ledger_client.connect(fleet.metadata) as client:
        async with writing(client, history, *quorums) as (ledger, _):
            for name in ledger.metadata.fragments[-1].bookies[: ack_quorum - 1]:
                fleet.kill(fleet.number(name))
            await trio.sleep(0.5)
            with never_twice():
                async with client.ledgers.open(ledger.id, recover=False) as reader:
                    await tell_all(reader, history)
        await trio.to_thread.run_sync(fleet.start_all)
        await read_back(client, ledger.id, history)


# --- fences -----------------------------------------------------------------------------


@pytest.mark.real_processes
async def test_a_fence_outlives_the_kill_of_all_bookies(fleet: Fleet) -> None:
    async with (
        ledger_client.connect(fleet.metadata) as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"one")
        await client.ledgers.recover(ledger.id)
        for number in fleet.numbers:
            fleet.kill(number)
        await trio.to_thread.run_sync(fleet.start_all)
        for name in ledger.metadata.fragments[-1].bookies:
            with never_twice():
                assert await add(fleet.port(fleet.number(name)), ledger.id) == Code.FENCED
        with pytest.raises(WriterFailed):
            await append_now(ledger)


async def append_now(ledger: LedgerWriter) -> None:
    try:
        await ledger.append(b"late")
    except LedgerError as failure:
        raise failure.__cause__ or failure from failure


async def add(port: int, ledger_id: int) -> int:
    """Add the next entry as the old writer would; return the bookie's answer."""
    late = add_frame(Digest(), ledger_id, 1, 0, 7, b"late")
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(late)
        return v2.parse(bytes(await stream.receive_some(4096))).code


# --- leaders ----------------------------------------------------------------------------


async def leader(store: MetadataStore, *, not_epoch: int = -1) -> Lease:
    """Wait until somebody leads, of another epoch than *not_epoch*, and return the lease."""
    with trio.fail_after(DEADLINE_S):
        while True:
            leases = await store.leases(COORDINATOR)
            if leases and leases[0].epoch != not_epoch:
                return leases[0]
            await trio.sleep(POLL_S)


def number_of(lease: Lease, fleet: Fleet) -> int:
    return fleet.number(decode_leader(lease.name, lease.value).bookie_id)


@pytest.mark.slow
@pytest.mark.real_processes
async def test_another_bookie_leads_after_the_leader_was_killed(fleet: Fleet) -> None:
    async with open_store(fleet.metadata) as store:
        first = await leader(store)
        fleet.kill(number_of(first, fleet))
        killed_at = time.perf_counter()
        second = await leader(store, not_epoch=first.epoch)
        report("until another leads after the leader was killed", time.perf_counter() - killed_at)
        assert number_of(second, fleet) != number_of(first, fleet)


@pytest.mark.slow
@pytest.mark.real_processes
async def test_a_leader_that_was_paused_changes_nothing_when_it_wakes(fleet: Fleet) -> None:
    async with open_store(fleet.metadata) as store:
        first = await leader(store)
        fleet.pause(number_of(first, fleet))
        paused_at = time.perf_counter()
        second = await leader(store, not_epoch=first.epoch)
        report("until another leads after the leader was paused", time.perf_counter() - paused_at)
        fleet.resume(number_of(first, fleet))
        await trio.sleep(3)
        assert (await leader(store)).epoch == second.epoch
        assert all(fleet.runs(number) for number in fleet.numbers)

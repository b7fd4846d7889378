"""Bookies and a store in memory, and a client connected to them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
import trio
import trio.testing
from memory_bookie import MemoryBookie
from memory_store import MemoryStore

from ledger_client import Client, Options
from ledger_client.background import Background
from ledger_client.cluster.observer import TickFigures
from ledger_client.cluster.ticking import TickService
from ledger_client.topics.context import TopicContext
from metadata.clock import host_wall_ms
from metadata.groups.coordinator import Coordinator
from metadata.leadership import Leadership, Term
from metadata.records import (
    COORDINATOR,
    BookieRecord,
    Leader,
    LedgerRecord,
    decode_ledger,
    encode_record,
    ledger_key,
)
from metadata.time.timekeeper import Timekeeper

GIB = 1 << 30


class MemoryCluster:
    """Bookies b1, b2, ... on host "memory", ports 1, 2, ..."""

    def __init__(self, nursery: trio.Nursery, bookies: int, *, seed: int = 0) -> None:
        self.store = MemoryStore()
        self.chance = random.Random(seed)
        self.bookies: dict[str, MemoryBookie] = {}
        self.down: set[str] = set()
        self.stalled: dict[str, trio.Event] = {}
        """bookies that take no bytes until the event is set"""
        self.dialled: list[str] = []
        self.nursery = nursery
        for number in range(1, bookies + 1):
            self.add_bookie(number)

    def add_bookie(self, number: int, *, read_only: bool = False) -> None:
        name = f"b{number}"
        self.bookies[name] = MemoryBookie(name, chance=self.chance)
        self.store.bookies[name] = BookieRecord(
            bookie_id=name,
            address=f"memory:{number}",
            capacity=100 * GIB,
            free=50 * GIB,
            read_only=read_only,
        )

    def state_racks(self, racks: Mapping[str, str]) -> None:
        """Have each bookie's registration state its rack."""
        for name, rack in racks.items():
            known = self.store.bookies[name]
            self.store.bookies[name] = msgspec.structs.replace(known, rack=rack)

    def kill(self, name: str) -> None:
        """End the bookie's connections and accept none."""
        self.down.add(name)
        self.bookies[name].drop_connections()

    def revive(self, name: str) -> None:
        self.down.discard(name)

    def record(self, ledger_id: int) -> LedgerRecord:
        key = ledger_key(ledger_id)
        return decode_ledger(key, self.store.values[key].value)

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        assert host == "memory"
        name = f"b{port}"
        self.dialled.append(name)
        await trio.lowlevel.checkpoint()
        if name in self.down:
            raise OSError(f"{name} is down")
        ours, theirs = trio.testing.memory_stream_pair()

        pump, pump_rest = ours.send_stream.send_all_hook, ours.send_stream.close_hook
        assert pump is not None
        assert pump_rest is not None

        async def stall() -> None:
            if name in self.stalled:
                await self.stalled[name].wait()
            await pump()

        def close() -> None:
            with suppress(trio.BrokenResourceError):  # a socket does not mind a peer that is gone
                pump_rest()

        ours.send_stream.close_hook = close
        ours.send_stream.send_all_hook = stall
        self.nursery.start_soon(self.bookies[name].serve, theirs)
        return ours

    def lead(
        self,
        name: str,
        *,
        has_ticks: bool = False,
        wall_ms: Callable[[], int] = host_wall_ms,
        figures: TickFigures | None = None,
    ) -> trio.CancelScope:
        """Let this bookie stand for election; while it leads, it has groups and timestamps.

        With *has_ticks* it makes ticks, too. *wall_ms* is its clock. Cancel the scope to end that.
        """
        bookie = self.bookies[name]
        coordinator = bookie.coordinator = Coordinator(self.store)
        timekeeper = bookie.timekeeper = Timekeeper(self.store, wall_ms=wall_ms)
        value = encode_record(Leader(name, self.store.bookies[name].address, 0))
        candidate = Leadership(self.store, COORDINATOR, name, value=lambda: value)
        scope = trio.CancelScope()

        async def stand() -> None:
            with scope:
                await candidate.run(lead)

        async def lead(term: Term) -> None:
            async with trio.open_nursery() as works:
                works.start_soon(timekeeper.lead, term)
                works.start_soon(coordinator.lead, term)
                if has_ticks:
                    async with self.context() as context:
                        await TickService(context, timekeeper, figures=figures).lead(term)

        self.nursery.start_soon(stand)
        return scope

    @asynccontextmanager
    async def client(self, options: Options | None = None) -> AsyncIterator[Client]:
        async with self.context(options) as context:
            yield Client(context)

    @asynccontextmanager
    async def context(self, options: Options | None = None) -> AsyncIterator[TopicContext]:
        async with Background() as nursery:
            yield TopicContext(
                self.store,
                nursery,
                options=options or Options(),
                open_stream=self.open_stream,
                chance=self.chance,
            )


@asynccontextmanager
async def memory_cluster(bookies: int = 3, *, seed: int = 0) -> AsyncIterator[MemoryCluster]:
    """Run a cluster for the block."""
    async with Background() as nursery:
        yield MemoryCluster(nursery, bookies, seed=seed)

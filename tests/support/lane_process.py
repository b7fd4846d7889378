"""A process that writes lanes: its ways to the store and to the bookies can be cut."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from memory_cluster import MemoryCluster

from ledger_client import Client, Options
from ledger_client.background import Background
from ledger_client.topics.context import TopicContext
from metadata.errors import MetadataError, MetadataUnavailable
from metadata.store import Op, Versions

HASTY = Options(
    append_timeout_s=6.0,
    bookie_timeout_s=1.0,
    replace_timeout_s=2.0,
    metadata_timeout_s=2.0,
    connect_timeout_s=0.5,
    request_timeout_s=2.0,
    quarantine_s=0.5,
    quarantine_max_s=2.0,
)


def shuffle_by(seed: int) -> None:
    """Make trio shuffle its tasks in the same way each time."""
    trio._core._run._r.seed(seed)  # there is no other way


class Line:
    """A way to the store that may be cut, and loses answers at the rate of *losses*."""

    def __init__(self, cluster: MemoryCluster, losses: float) -> None:
        self.is_cut = False
        self.losses = losses
        self._store = cluster.store
        self._chance = random.Random(cluster.chance.random())
        self._nursery = cluster.nursery

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a store has
        found = getattr(self._store, name)
        if name in {"watch", "watches"}:
            return found

        async def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - the same
            self._pass()
            return await found(*args, **options)

        return call

    async def transact(self, ops: Sequence[Op]) -> Versions:
        self._pass()
        fate = self._chance.random()
        if fate >= self.losses:
            return await self._store.transact(ops)
        if fate < self.losses / 3:
            await self._store.transact(ops)
        elif fate < self.losses * 2 / 3:
            self._nursery.start_soon(self._later, ops)
        raise MetadataUnavailable("no answer", outcome_unknown=True)

    async def _later(self, ops: Sequence[Op]) -> None:
        await trio.sleep(self._chance.uniform(0.01, 5.0))
        with suppress(MetadataError):
            await self._store.transact(ops)

    def _pass(self) -> None:
        if self.is_cut:
            raise MetadataUnavailable("the line is cut")


async def _broken() -> None:
    raise trio.BrokenResourceError("the line is cut")


class Process:
    """One run of a program. kill() leaves it running, without a way to anybody."""

    def __init__(self, cluster: MemoryCluster, *, losses: float = 0.0) -> None:
        self.line = Line(cluster, losses)
        self._cluster = cluster
        self._streams: list[trio.StapledStream[Any, Any]] = []

    def kill(self) -> None:
        """Nothing that it does has an effect any more, as after SIGKILL."""
        self.line.is_cut = True
        for stream in self._streams:
            with suppress(trio.ClosedResourceError):
                stream.receive_stream.put_eof()
            stream.send_stream.send_all_hook = _broken
        self._streams.clear()

    def heal(self) -> None:
        """It was only the network."""
        self.line.is_cut = False

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        if self.line.is_cut:
            raise OSError("the line is cut")
        stream = await self._cluster.open_stream(host, port)
        assert isinstance(stream, trio.StapledStream)
        self._streams.append(stream)
        return stream

    @asynccontextmanager
    async def client(self, options: Options = HASTY) -> AsyncIterator[Client]:
        async with Background() as nursery:
            yield Client(
                TopicContext(
                    self.line,
                    nursery,
                    options=options,
                    open_stream=self.open_stream,
                    chance=self._cluster.chance,
                )
            )

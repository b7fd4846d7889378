"""A bookie's storage and server without metadata, and peers to talk with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing
import v2

from bookie import reads
from bookie.config import BookieConfig
from bookie.outbox import CallRoom
from bookie.security import Security
from bookie.server import OPEN, Server
from bookie.storage import Storage

MIB = 1 << 20
Streams = Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]]


def settings(folder: Path, **changed: object) -> BookieConfig:
    """A small bookie in *folder*, whose disk is never full."""
    values: dict[str, object] = {
        "data_folder": str(folder),
        "journal_folder": str(folder / "journal"),
        "ledger_folder": str(folder / "ledgers"),
        "metadata": f"sqlite://{folder / 'metadata.db'}",
        "port": 0,
        "memtable_size": 12 * MIB,
        "journal_size_max": 4 * MIB,
        "log_size_max": 4 * MIB,
        "index_cache_size": MIB,
        "disk_full_ratio": 1.0,
        "disk_warn_ratio": 1.0,
        "disk_reserve": 0,
    }
    return BookieConfig(**(values | changed))  # type: ignore[arg-type]  # checked by tests


class Peer:
    """The client's end of a connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._received = b""

    async def ask(self, request: bytes) -> v2.Response:
        """Send a request and return its response."""
        await self.stream.send_all(request)
        return await self.response()

    async def response(self) -> v2.Response:
        return v2.parse(await self.frame())

    async def frame(self) -> bytes:
        """The next whole frame."""
        while len(self._received) < 4 or len(self._received) < self._frame_size():
            chunk = await self.stream.receive_some(65536)
            assert chunk, "closed in the middle of a frame"
            self._received += chunk
        size = self._frame_size()
        whole, self._received = self._received[:size], self._received[size:]
        return whole

    async def closed(self) -> bool:
        """True if the bookie closes without another byte."""
        try:
            return self._received == b"" and not await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            return True

    def _frame_size(self) -> int:
        return 4 + int.from_bytes(self._received[:4], "big")


class Rig:
    """A bookie's storage and its server, under test."""

    def __init__(self, storage: Storage, server: Server, nursery: trio.Nursery) -> None:
        self.storage = storage
        self.server = server
        self._nursery = nursery

    def connect(self, streams: Streams = trio.testing.memory_stream_pair) -> Peer:
        ours, theirs = streams()
        self._nursery.start_soon(self.server.serve, theirs)
        return Peer(ours)

    async def commit(self) -> None:
        """Sync a bookie that has no journal thread, and signal the event."""
        self.storage.engine.commit()
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def serving(
    config: BookieConfig,
    *,
    threaded: bool = True,
    quiet: bool = False,
    security: Security = OPEN,
) -> AsyncIterator[Rig]:
    """Storage and server over *config*; *quiet*: without timers, for a virtual clock."""
    storage = await Storage.open(config, threaded=threaded)
    server = Server(storage.engine, storage.events, config, _echo, security)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(storage.run)
            yield Rig(storage, server, nursery)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            if not threaded:
                storage.engine.commit()
            await storage.stop()


async def _echo(body: bytes, room: CallRoom) -> bytes:
    await room.hold(len(body))
    return body


def read_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the disk without threads.

    A thread goes on while a virtual clock, and with it all tasks, believe that nothing runs: what
    it reads comes too late for a deadline.
    """

    async def inline(work: Callable[..., object], *args: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return work(*args)

    threads = SimpleNamespace(run_sync=inline)
    monkeypatch.setattr(reads, "trio", SimpleNamespace(lowlevel=trio.lowlevel, to_thread=threads))


async def until(happened: Callable[[], bool]) -> None:
    """Wait for what a thread brings about; fail after some seconds."""
    with trio.fail_after(30):
        while not happened():  # noqa: ASYNC110 - a thread sets no event of the loop
            await trio.sleep(0.001)


async def needs_no_default_thread(work: Callable[[], Awaitable[object]]) -> bool:
    """Whether *work* finishes while look-ups of names, say, hold all of trio's default threads."""
    limiter = trio.to_thread.current_default_thread_limiter()
    holders = [object() for _ in range(int(limiter.available_tokens))]
    for holder in holders:
        limiter.acquire_on_behalf_of_nowait(holder)
    done = trio.Event()

    async def do() -> None:
        await work()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(do)
        await until(lambda: done.is_set() or limiter.statistics().tasks_waiting > 0)
        is_done = done.is_set()
        for holder in holders:
            limiter.release_on_behalf_of(holder)
    return is_done

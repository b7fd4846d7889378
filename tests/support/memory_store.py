"""A metadata store in memory, with outages on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from metadata.errors import MetadataUnavailable, VersionConflict
from metadata.records import BOOKIES, BookieRecord, bookie_lease, encode_record
from metadata.store import ABSENT, Changes, Item, Lease, Leases, Op, Page, Versioned, Versions


class MemoryStore:
    """Keys and leases of bookies; only what a ledger client calls is there."""

    def __init__(self) -> None:
        self.values: dict[str, Versioned] = {}
        self.bookies: dict[str, BookieRecord] = {}
        self.available = True
        self.before_put: Callable[[str], None] = lambda _key: None
        """Called before a put looks at the key: where a rival slips in."""
        self._revision = 0
        self._ids = 0
        self._watchers: list[tuple[str, trio.MemorySendChannel[str]]] = []

    async def get(self, key: str) -> Versioned | None:
        await self._reach()
        return self.values.get(key)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        await self._reach()
        self.before_put(key)
        return self.change(key, value, expected=expected)

    def change(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Put at once."""
        self._check(key, expected)
        self._revision += 1
        self.values[key] = Versioned(value, self._revision)
        self._tell(key)
        return self._revision

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        await self._reach()
        self._check(key, expected)
        self.values.pop(key, None)
        self._tell(key)

    async def transact(self, ops: Sequence[Op]) -> Versions:
        raise AssertionError("a ledger client does not ask for this")

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        await self._reach()
        found: list[Item] = [
            (key, value)
            for key, value in sorted(self.values.items())
            if key.startswith(prefix) and key > after
        ]
        return found[:limit]

    async def next_id(self, counter: str, count: int = 1) -> int:
        await self._reach()
        first = self._ids + 1
        self._ids += count
        return first

    async def grant(self, name: str, owner: str, *, ttl_s: float, value: bytes = b"") -> Lease:
        raise AssertionError("a ledger client does not ask for this")

    async def renew(self, lease: Lease, *, value: bytes | None = None) -> Lease:
        raise AssertionError("a ledger client does not ask for this")

    async def release(self, lease: Lease) -> None:
        raise AssertionError("a ledger client does not ask for this")

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        await self._reach()
        assert prefix == BOOKIES
        return [
            Lease(bookie_lease(name), name, 1, encode_record(record), 10.0)
            for name, record in sorted(self.bookies.items())
            if bookie_lease(name) > after
        ]

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        raise AssertionError("a ledger client does not ask for this")

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[trio.MemoryReceiveChannel[str]]:
        await self._reach()
        send, receive = trio.open_memory_channel[str](1)
        self._watchers.append((prefix, send))
        with send, receive:
            yield receive

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.available:
            raise MetadataUnavailable("the store is away")

    def _check(self, key: str, expected: int | None) -> None:
        found = self.values[key].version if key in self.values else ABSENT
        if expected is not None and found != expected:
            raise VersionConflict(key=key, expected=expected, found=found)

    def _tell(self, key: str) -> None:
        for prefix, channel in self._watchers:
            if key.startswith(prefix):
                try:
                    channel.send_nowait(key)
                except (trio.WouldBlock, trio.ClosedResourceError):
                    continue  # a hint is under way, or nobody listens

"""Losing bookies in memory: what tests of a writer's ensemble share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio
from memory_cluster import MemoryCluster

from ledger_client import Client, LedgerWriter
from metadata.errors import MetadataUnavailable
from metadata.records import (
    LedgerRecord,
    LedgerState,
    encode_record,
    ledger_key,
)
from native.frame import Opcode, Request


class Gate:
    """Holds the next change of a ledger's record back until it is opened."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.reached = trio.Event()
        self.opened = trio.Event()
        self._value = b""
        self._key = ""
        store, put_now = cluster.store, cluster.store.put

        async def held(key: str, value: bytes, *, expected: int | None = None) -> int:
            if not self.reached.is_set():
                self._key, self._value = key, value
                self.reached.set()
                await self.opened.wait()
            return await put_now(key, value, expected=expected)

        store.put = held  # type: ignore[method-assign]  # for the life of this store

    def record(self) -> LedgerRecord:
        """The record that is to be stored."""
        return msgspec.json.decode(self._value, type=LedgerRecord)


def chosen(ledger: LedgerWriter) -> list[str]:
    return ledger.metadata.fragments[-1].bookies


def spares(cluster: MemoryCluster, ledger: LedgerWriter) -> list[str]:
    return sorted(set(cluster.bookies) - set(chosen(ledger)))


def hold_all(cluster: MemoryCluster) -> None:
    for bookie in cluster.bookies.values():
        bookie.holding = True


async def release_all(cluster: MemoryCluster) -> None:
    for bookie in cluster.bookies.values():
        bookie.holding = False
        if bookie.answering:
            await bookie.release()


def once(cluster: MemoryCluster, act: Callable[[], None]) -> None:
    """Run *act* right before the next put reads its key."""

    def before_put(_key: str) -> None:
        cluster.store.before_put = lambda _key: None
        act()

    cluster.store.before_put = before_put


def outage(cluster: MemoryCluster) -> None:
    cluster.store.available = False
    raise MetadataUnavailable("gone", outcome_unknown=True)


def put(cluster: MemoryCluster, record: LedgerRecord) -> None:
    cluster.store.change(ledger_key(record.ledger_id), encode_record(record))


def rival(cluster: MemoryCluster, ledger_id: int, state: LedgerState | None) -> None:
    """Do to the ledger what another client may do."""
    record = cluster.record(ledger_id)
    if state is None:
        del cluster.store.values[ledger_key(ledger_id)]
    elif state is LedgerState.CLOSED:
        put(cluster, msgspec.structs.replace(record, state=state, last_entry=5, length=99))
    else:
        put(cluster, msgspec.structs.replace(record, state=state))


async def check_readable(
    client: Client, cluster: MemoryCluster, ledger_id: int, count: int
) -> None:
    """The ledger is closed, holds *count* entries, and each can be read."""
    record = cluster.record(ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, count - 1)
    async with client.ledgers.open(ledger_id) as reader:
        entries = await reader.read(0, count - 1)
        assert [entry.entry_id for entry in entries] == list(range(count))


def adds(cluster: MemoryCluster, name: str) -> list[Request]:
    return [r for r in cluster.bookies[name].requests if r.opcode == Opcode.ADD]

"""A whole bookie in the test's process, and ways to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio
import v2
from rig import Peer

from bookie.config import BookieConfig
from bookie.daemon import Ready, run_bookie
from bookie.host import Roles
from metadata import calls
from metadata.records import (
    BOOKIES,
    BookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    decode_bookie,
    encode_record,
    ledger_key,
)
from metadata.store import MetadataStore


@asynccontextmanager
async def running(
    config: BookieConfig, store: MetadataStore, roles: Roles | None = None
) -> AsyncIterator[Ready]:
    """A whole bookie in this process, until the end of the block."""
    async with trio.open_nursery() as nursery:
        ready = await nursery.start(partial(run_bookie, roles=roles), config, store)
        yield ready
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Peer]:
    """A connection to the bookie at *address*."""
    host, _, port = address.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield Peer(stream)


async def known(store: MetadataStore, *ledger_ids: int) -> None:
    """Put records of ledgers as BookKeeper's own client makes them: any bookie takes entries."""
    for ledger_id in ledger_ids:
        record = LedgerRecord(ledger_id, 1, 1, 1, LedgerState.OPEN, [Fragment(0, ["elsewhere"])])
        await store.put(ledger_key(ledger_id), encode_record(record))


async def registered(store: MetadataStore) -> list[BookieRecord]:
    """The announcements of serving bookies."""
    return [decode_bookie(lease.name, lease.value) for lease in await store.leases(BOOKIES)]


async def page(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a page of the bookie."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = b""
        while chunk := await stream.receive_some():
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def ask(peer: Peer, request: calls.Request) -> calls.Reply:
    """The reply to a CALL."""
    answer = await peer.ask(v2.call(calls.encode_request(request)))
    assert answer.code == 0
    return calls.decode_reply(answer.rest[8:])

"""A live bookie among peers that are broken, silent or slow, while others go on writing."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import v2
from processes import DEADLINE_S
from sandboxes import open_sandbox

import ledger_client
from ledger_client import Client, Options
from ledger_client.commands.bench import usage
from ledger_client.commands.sandbox import Bookie, Sandbox
from ledger_client.errors import LedgerError, LedgerExists
from metadata.address import parse_address

MIB = 1 << 20
PAYLOADS = [b"%d" % number * 20 for number in range(200)]


async def dial(bookie: Bookie) -> trio.SocketStream:
    address = parse_address(bookie.address)
    return await trio.open_tcp_stream(address.host, address.port)


PATIENT = Options(metadata_timeout_s=DEADLINE_S, bookie_timeout_s=DEADLINE_S)
"""Of a client that goes on behind others: after how many seconds is the machine's affair."""


class Writing:
    """Appends all the time, on a connection of its own."""

    def __init__(self) -> None:
        self._acknowledged = trio.Event()

    async def run(self, client: Client) -> None:
        async with client.ledgers.create(1, 1, 1) as ledger:
            while True:
                await ledger.append_many(PAYLOADS)
                self._acknowledged.set()
                self._acknowledged = trio.Event()

    async def goes_on(self) -> None:
        """Return when entries that were sent after this call are acknowledged."""
        with trio.fail_after(DEADLINE_S):
            for _ in range(3):
                await self._acknowledged.wait()


@asynccontextmanager
async def writing(client: Client) -> AsyncGenerator[Writing]:
    """Append during the block."""
    others = Writing()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others.run, client)
        yield others
        nursery.cancel_scope.cancel()


async def send_broken_frames(sandbox: Sandbox) -> None:
    add = v2.add(4711, 0)
    broken = [
        v2.int32(6 * MIB) + add[4:],  # longer than a frame may be
        v2.int32(2) + add[4:6],  # shorter than its header
        v2.int32(-1) + add[4:],
        v2.frame(99, b"?" * 40),  # an opcode that nobody knows
        v2.frame(v2.ADD, b"short"),
        v2.frame(v2.ADD, add[8:], version=3),
        v2.frame(v2.CALL, b"not msgpack"),
    ]
    chance = random.Random(1)
    broken += [chance.randbytes(chance.randrange(1, 3000)) for _ in range(100)]
    for data in broken:
        await send_and_see_it_closed(sandbox.bookies[0], data)


async def send_and_see_it_closed(bookie: Bookie, data: bytes) -> None:
    async with await dial(bookie) as stream:
        with trio.fail_after(10):
            try:
                await stream.send_all(data)
                await stream.send_eof()
                while await stream.receive_some(65536):
                    pass
            except trio.BrokenResourceError:
                return  # closed with bytes of ours unread


async def drop_at_every_byte(sandbox: Sandbox) -> None:
    data = v2.add(4711, 0) + v2.read(4711, 0)
    for end in range(len(data)):
        async with await dial(sandbox.bookies[0]) as stream:
            await stream.send_all(data[:end])


@pytest.mark.parametrize("misbehave", [send_broken_frames, drop_at_every_byte])
async def test_a_broken_peer_harms_nobody_else(
    tmp_path: Path, misbehave: Callable[[Sandbox], Awaitable[None]]
) -> None:
    async with (
        open_sandbox(1, parent=tmp_path) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
        writing(client) as others,
    ):
        process_id = sandbox.bookies[0].process_id
        await others.goes_on()
        before = usage.rss(process_id)
        await misbehave(sandbox)
        await others.goes_on()
        # The memtable fills meanwhile, and nothing else may.
        assert usage.rss(process_id) - before < 160 * MIB


async def test_idle_and_half_open_peers_pin_no_memory(tmp_path: Path) -> None:
    async with open_sandbox(1, parent=tmp_path) as sandbox:
        (bookie,) = sandbox.bookies
        before = usage.rss(bookie.process_id)
        async with AsyncExitStack() as stack:
            for number in range(500):
                stream = await stack.enter_async_context(await dial(bookie))
                if number % 2:
                    await stream.send_all(v2.int32(5 * MIB) + b"\2\1\0\0" + bytes(1000))
            await send_and_see_it_closed(bookie, b"")
            grown = usage.rss(bookie.process_id) - before
            assert grown < 50 * MIB
        assert usage.rss(bookie.process_id) < 150 * MIB


async def test_peers_that_do_not_read_pin_no_memory(tmp_path: Path) -> None:
    async with (
        open_sandbox(1, parent=tmp_path) as sandbox,
        ledger_client.connect(sandbox.cluster, options=PATIENT) as client,
    ):
        (bookie,) = sandbox.bookies
        async with client.ledgers.create(1, 1, 1) as ledger:
            await ledger.append_many([bytes(100_000)] * 300)
        before = usage.rss(bookie.process_id)
        async with AsyncExitStack() as stack:
            for _ in range(20):
                stream = await stack.enter_async_context(await dial(bookie))
                with trio.move_on_after(0.05):
                    await stream.send_all(v2.batch_read(ledger.id, 0) * 100)  # 500 MB of answers
            async with writing(client) as others:
                await others.goes_on()
            assert usage.rss(bookie.process_id) - before < 320 * MIB


async def test_of_two_writers_of_one_ledger_id_one_is_told(tmp_path: Path) -> None:
    async with (
        open_sandbox(1, parent=tmp_path) as sandbox,
        ledger_client.connect(sandbox.cluster) as client,
        ledger_client.connect(sandbox.cluster) as other,
    ):
        async with client.ledgers.create(1, 1, 1, ledger_id=77) as ledger:
            await ledger.append(b"mine")
            with pytest.raises(LedgerExists) as caught:
                async with other.ledgers.create(1, 1, 1, ledger_id=77):
                    pass
            assert caught.value.ledger_id == 77
        with pytest.raises(LedgerError, match="ledger 77: closed"):
            await ledger.append(b"too late")

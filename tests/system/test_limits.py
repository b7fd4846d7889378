"""A live bookie at its limits: of descriptors, and of memory for the answers to calls."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import trio
import v2
from daemons import Daemon
from rig import MIB, Peer
from running import ask, connected, page

from bookie.commands.run import BookieStarted
from bookie.foreign import FREE_FROM
from ledger_client.commands.bench import usage
from metadata import calls
from metadata.store import VALUE_SIZE_MAX, Put

pytestmark = pytest.mark.slow

SOME_SETTINGS = ("--port", 0, "--metrics-port", -1, "--json", "--set", "autorecovery=false")


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Let this process have more connections than the bookie takes."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def stranger(stack: AsyncExitStack, address: str, data: bytes) -> None:
    """Connect from another address of this host, send *data*, and stay."""
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port), local_address="127.0.0.2")
    await stack.enter_async_context(stream)
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)


async def metric(ready: BookieStarted, name: str) -> float:
    """The value of a metric without labels."""
    _, text = await page(ready.metrics_port, "/metrics")
    (line,) = [each for each in text.decode().splitlines() if each.startswith(f"{name} ")]
    return float(line.split()[1])


@pytest.mark.parametrize("limits", ["ulimit -n 512", "ulimit -Sn 64; ulimit -Hn 512"])
async def test_idle_strangers_neither_stop_a_flush_nor_keep_clients_out(
    tmp_path: Path, limits: str
) -> None:
    """More of them than the process may open files."""
    words = ("run", "--data", tmp_path / "data", *SOME_SETTINGS)
    with Daemon(*words, log=tmp_path / "log", shell=limits) as daemon:
        ready = daemon.ready(BookieStarted)
        assert "may open 512 files: it serves 90 connections" in daemon.log
        async with AsyncExitStack() as stack, connected(ready.address) as client:
            assert (await client.ask(v2.add(FREE_FROM, 0))).code == 0
            for data in (b"", v2.ADD_HELLO[:40], v2.READ_HELLO):
                for _ in range(200):
                    await stranger(stack, ready.address, data)
            assert (await client.ask(v2.add(FREE_FROM, 1, bytes(MIB)))).code == 0
            flushed = await ask(client, calls.FlushNow())
            assert isinstance(flushed, calls.JournalState), flushed
            async with connected(ready.address) as other:
                assert (await other.ask(v2.read(FREE_FROM, 1))).code == 0
                assert isinstance(await ask(other, calls.ScrubNow()), calls.ScrubReport)
            assert await metric(ready, "quire_bookie_connections") <= 90
        assert daemon.stop() == 0, daemon.log


async def ask_and_read_nothing(stack: AsyncExitStack, ready: BookieStarted) -> None:
    request = v2.call(calls.encode_request(calls.ListKeys("large/")))
    peer = await stack.enter_async_context(connected(ready.address))
    with trio.move_on_after(0.2):
        await peer.stream.send_all(request * 2000)


async def test_answers_to_calls_that_nobody_reads_take_no_more_than_their_part(
    tmp_path: Path,
) -> None:
    """Six connections made 833 MiB of them."""
    words = ("run", "--data", tmp_path / "data", *SOME_SETTINGS)
    with Daemon(*words, log=tmp_path / "log") as daemon:
        ready = daemon.ready(BookieStarted)
        async with connected(ready.address) as client, AsyncExitStack() as stack:
            for number in range(4):
                put = Put(f"large/{number}", bytes(VALUE_SIZE_MAX))
                assert isinstance(await ask(client, put), calls.Done)
            before = usage.rss(ready.process_id)
            for _ in range(6):
                await ask_and_read_nothing(stack, ready)
            await serves(client)
            # 1/4 and 1/8 of bytes_in_flight_max, half of that for one address.
            assert await metric(ready, "quire_bookie_held_bytes") < 48 * MIB + 8 * MIB
            assert usage.rss(ready.process_id) - before < 160 * MIB
        assert daemon.stop() == 0, daemon.log


async def serves(client: Peer) -> None:
    """A client that reads is served beside those that do not."""
    with trio.fail_after(60):
        for entry_id in range(20):
            assert (await client.ask(v2.add(FREE_FROM, entry_id))).code == 0
            assert (await client.ask(v2.read(FREE_FROM, entry_id))).code == 0
        assert isinstance(await ask(client, calls.Get("small")), calls.Missing)

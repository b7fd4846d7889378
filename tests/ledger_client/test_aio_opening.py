"""What asyncio programs open without a block, and who closes it."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from loop_rig import Program, run

from ledger_client import aio
from ledger_client.aio import AioClient
from ledger_client.errors import ClientClosed, MetadataUnavailable, NotOpen, ReaderClosed
from ledger_client.surfaces.loops import start_portal
from metadata.records import LedgerState

TOPIC = "shop/orders"
__all__ = ["run"]  # a fixture


def test_a_client_without_a_block_is_open_until_close(tmp_path: Path) -> None:
    async def main() -> None:
        client = await asyncio.wait_for(aio.connect(f"sqlite://{tmp_path}/metadata.db"), 10)
        assert await client.topics.list() == []
        await client.close()
        await client.close()  # harmless
        with pytest.raises(ClientClosed, match="connect again"):
            await client.topics.list()

    asyncio.run(main())


def test_what_was_opened_without_a_block_is_closed_with_its_client(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        producer = await client.producer(TOPIC, linger_ms=60_000)
        ticket = producer.send_nowait(b"one")
        left_open = await client.producer(TOPIC)
        await producer.close()
        await producer.close()  # harmless
        assert ticket.done
        reader = await client.reader(TOPIC)
        assert [message.value async for message in reader] == [b"one"]
        await reader.close()
        with pytest.raises(ReaderClosed, match="open another"):
            await anext(reader)
        late = left_open.send_nowait(b"two")
        await client.close()
        await left_open.close()  # harmless, too
        assert late.done
        with pytest.raises(ClientClosed):
            await left_open.send(b"three")

    run(program)


def test_a_forgotten_await_or_block_gets_a_sentence(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        with pytest.raises(NotOpen, match=r"`client = await aio\.connect\(\.\.\.\)`"):
            _ = aio.connect("bookie://127.0.0.1:1").topics  # type: ignore[attr-defined]
        with pytest.raises(NotOpen, match=r"`async with client\.reader\(\.\.\.\) as reader:`"):
            async for _ in client.reader(TOPIC):  # type: ignore[attr-defined]
                pass

    run(program)


def test_a_producer_that_is_dropped_warns_and_frees_its_lane(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        producer = await client.producer(TOPIC, access="exclusive")
        await producer.send(b"one")
        with pytest.warns(ResourceWarning, match="the producer was not closed"):
            del producer
            gc.collect()
        async with client.producer(TOPIC, access="wait") as producer:
            await producer.send(b"two")

    run(program)


def test_connecting_that_is_cancelled_leaves_no_thread() -> None:
    steps: list[str] = []
    opening = threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        steps.append("opening")
        opening.set()
        try:
            await trio.sleep(math.inf)
        finally:
            steps.append("left")
        yield

    async def main() -> None:
        task = asyncio.create_task(start_portal(slow))
        assert await asyncio.to_thread(opening.wait, 60)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert steps == ["opening", "left"]


def test_a_client_that_is_closed_in_another_loop_says_so_and_ends_its_thread(
    tmp_path: Path,
) -> None:
    client = asyncio.run(connect_only(f"sqlite://{tmp_path}/metadata.db"))
    with pytest.raises(RuntimeError, match="connected in another event loop"):
        asyncio.run(client.close())
    thread = client._portal.portal.thread
    thread.join(60)
    assert not thread.is_alive()


async def connect_only(url: str) -> AioClient:
    return await aio.connect(url)


def test_what_comes_one_by_one_keeps_its_reader_open(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
        batches = (await client.reader(TOPIC)).read_batches()
        gc.collect()
        assert [batch.num_rows async for batch in batches] == [1]
        async with client.ledgers.create() as ledger:
            await ledger.append(b"an entry")
        follower = (await client.ledgers.open(ledger.id)).follow()
        gc.collect()
        assert [entry.payload async for entry in follower] == [b"an entry"]
        with pytest.warns(ResourceWarning, match="the reader was not closed") as warned:
            del batches, follower
            gc.collect()
        assert len(warned) == 2

    run(program)


def test_a_ledger_that_could_not_be_sealed_may_be_closed_again(
    run: Callable[[Program], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program(client: AioClient) -> None:
        ledger = await client.ledgers.create()
        await ledger.append(b"an entry")
        driver = ledger._inner._driver

        async def fail() -> None:
            raise MetadataUnavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(driver, "close", fail)
            with pytest.raises(MetadataUnavailable):
                await ledger.close()
        assert (await client.ledgers.info(ledger.id)).state is LedgerState.OPEN
        await ledger.close()
        assert (await client.ledgers.info(ledger.id)).last_entry == 0
        await ledger.close()  # harmless
        unsealed = await client.ledgers.create()
        await unsealed.close(wait=False)
        assert (await client.ledgers.info(unsealed.id)).last_entry == -1

    run(program)

"""Programs of asyncio with a client, over a real thread that runs a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import pytest
import uvloop
from memory_cluster import memory_cluster

from ledger_client import Client
from ledger_client.aio import AioClient
from ledger_client.surfaces.loops import LoopPortal, start_portal

T = TypeVar("T")
Program = Callable[[AioClient], Awaitable[None]]


@asynccontextmanager
async def client_and_cluster() -> AsyncIterator[Client]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        yield client


@asynccontextmanager
async def open_portal(
    open_resource: Callable[[], AbstractAsyncContextManager[T]],
) -> AsyncIterator[LoopPortal[T]]:
    """Run trio in a thread for the block, around a resource. Raises as opening it does."""
    portal = await start_portal(open_resource)
    try:
        yield portal
    finally:
        await portal.close()


@asynccontextmanager
async def connected() -> AsyncIterator[AioClient]:
    async with open_portal(client_and_cluster) as portal:
        yield AioClient(portal, portal.value)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Program], None]:
    """Runs a program with a client, under each loop."""
    runner = asyncio.run if request.param == "asyncio" else uvloop.run

    def run_with_client(program: Program) -> None:
        async def main() -> None:
            async with connected() as client:
                await program(client)

        runner(main())

    return run_with_client

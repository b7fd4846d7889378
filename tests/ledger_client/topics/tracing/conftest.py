"""A cluster of two bookies, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from memory_cluster import MemoryCluster, memory_cluster
from traced import QUICK

from ledger_client import Client


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(2) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client(QUICK) as connected:
        yield connected

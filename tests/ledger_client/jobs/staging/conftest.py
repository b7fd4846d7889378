"""Three bookies in memory, and a client of theirs: where jobs are tested."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from memory_cluster import MemoryCluster, memory_cluster

from ledger_client import Client


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected

"""Writing over bookies in memory: order, quorums, back-pressure, failures, closing."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from memory_cluster import memory_cluster

from ledger_client import Options
from metadata.records import LedgerState

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def test_what_is_appended_is_read_back_and_the_ledger_is_closed_at_its_end() -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.create_ledger() as ledger:
            assert await ledger.append(b"one") == 0
            assert await ledger.append_many([b"two", b"three"]) == range(1, 3)
            assert ledger.last_confirmed == 2
        record = cluster.record(ledger.id)
        assert (record.state, record.last_entry, record.length) == (LedgerState.CLOSED, 2, 11)
        async with client.open_ledger(ledger.id) as reader:
            entries = await reader.read(0, reader.last_confirmed)
            assert [entry.payload for entry in entries] == [b"one", b"two", b"three"]
            assert [entry async for entry in reader.follow(0)] == list(entries)

"""Results of many ledgers: each transaction keeps the limits, and readers see all or nothing.

docs/limits.md names 100 000 ledgers; the search tries as many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from memory_cluster import MemoryCluster, memory_cluster
from staged_rig import NAME, made
from topic_rig import stored
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.jobs.compaction.job import publish
from ledger_client.jobs.staging.job import Job, SealedLedger, open_job
from ledger_client.jobs.staging.showing import Showing
from ledger_client.topics.lanes.lane_state import Figures
from ledger_client.topics.retention.holdings import read_holdings, read_set, remove_set
from ledger_client.topics.retention.job_rows import discard, read_pins
from metadata.compaction import COMPACTED, CompactedLedger, CompactedSet, Horizon, MessageOrigin
from metadata.jobs import PINS, POINTERS, STAGED, StagedLedger, encode_job_row, staged_key
from metadata.paged import PAGES
from metadata.records import (
    LEDGERS,
    Fragment,
    LedgerRecord,
    LedgerState,
    encode_record,
    ledger_key,
)
from metadata.store import OPS_MAX, OPS_SIZE_MAX, Op, Put
from metadata.topics import LANE_LEDGERS, TopicRecord, topic_prefix

PARTITIONS = 40
LANES = 2000
LOOKED_EVERY = 50
MANY = pytest.mark.parametrize("many", [5_000, pytest.param(100_000, marks=pytest.mark.long)])


class Watched:
    """Counts the transactions of a store, and looks at a topic between some of them."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.count = 0
        self.seen: set[int] = set()
        self.topic: TopicRecord | None = None
        self._store = cluster.store
        self._transact = cluster.store.transact

    async def transact(self, ops: Sequence[Op]) -> list[int]:
        assert len(ops) <= OPS_MAX
        assert sum(len(op.value) for op in ops if isinstance(op, Put)) <= OPS_SIZE_MAX
        self.count += 1
        if self.topic is not None and self.count % LOOKED_EVERY == 0:
            await self.look()
        return await self._transact(ops)

    async def look(self) -> None:
        assert self.topic is not None
        lanes = await read_holdings(self._store, self.topic)
        self.seen.add(sum(len(lane.closed) for lane in lanes))


@asynccontextmanager
async def crowded(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[MemoryCluster, Client, TopicRecord, Watched]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = await made(client, partitions=PARTITIONS)
        watched = Watched(cluster)
        monkeypatch.setattr(cluster.store, "transact", watched.transact)
        yield cluster, client, topic, watched


def stage(cluster: MemoryCluster, topic: TopicRecord, job: Job, many: int) -> list[SealedLedger]:
    """Put the rows of closed ledgers that the job has staged, in order of partitions."""
    found = []
    for ledger_id in range(1000, 1000 + many):
        record = LedgerRecord(
            ledger_id=ledger_id,
            state=LedgerState.CLOSED,
            ensemble_size=2,
            write_quorum=2,
            ack_quorum=2,
            last_entry=4,
            length=10,
            incarnation=7,
            fragments=[Fragment(0, ["b1", "b2"])],
        )
        partition = (ledger_id - 1000) * PARTITIONS // many
        staged = StagedLedger(ledger_id=ledger_id, partition=partition)
        cluster.store.change(ledger_key(ledger_id), encode_record(record))
        cluster.store.change(staged_key(topic.uid, job.id, ledger_id), encode_job_row(staged))
        found.append(
            SealedLedger(
                ledger_id=ledger_id,
                partition=partition,
                entries=5,
                size=10,
                created_ms=1,
                figures=Figures(messages=5),
            )
        )
    return found


@pytest.mark.slow
@MANY
async def test_many_ledgers_are_shown_by_one_change(
    many: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crowded(monkeypatch) as (cluster, client, topic, watched):
        async with open_job(client._context.ledgers, topic, "write") as job:
            sealed = stage(cluster, topic, job, many)
            watched.topic = topic
            assert await Showing(client._context.ledgers, job.stage, sealed).run()
            assert watched.count > many * 2 // OPS_MAX
            await watched.look()
            assert watched.seen == {0, many}
            assert stored(cluster.store, STAGED) == stored(cluster.store, POINTERS) == []
        watched.topic = None
        assert len(stored(cluster.store, LANE_LEDGERS)) == many
        await client.topics.delete(NAME)
        assert stored(cluster.store, topic_prefix(LANE_LEDGERS, topic.uid)) == []
        assert len(stored(cluster.store, LEDGERS)) <= 1  # with the event


@pytest.mark.slow
@MANY
async def test_many_ledgers_of_survivors_are_published_and_removed(
    many: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a set that replaces another one; the rest of what was staged goes."""
    async with crowded(monkeypatch) as (cluster, client, topic, _):
        pins = [(partition, lane, 0) for partition in range(PARTITIONS) for lane in range(LANES)]
        async with open_job(client._context.ledgers, topic, "compaction", pins=pins) as job:
            assert len(await read_pins(cluster.store, topic)) == len(pins)
            assert stored(cluster.store, PAGES) != []
            sealed = stage(cluster, topic, job, many)
            after = survivors(sealed[:-10])
            await publish(client._context, job, None, after)
            assert len(stored(cluster.store, STAGED)) == 10
        assert stored(cluster.store, STAGED) == stored(cluster.store, PINS) == []
        assert all(COMPACTED in key for key in stored(cluster.store, PAGES))
        found = await read_set(cluster.store, topic.uid)
        assert found is not None
        assert found.set == after
        assert len(stored(cluster.store, LEDGERS)) == many - 10
        assert await remove_set(cluster.store, topic.uid) == after
        assert stored(cluster.store, LEDGERS) == stored(cluster.store, PAGES) == []


def survivors(sealed: Sequence[SealedLedger]) -> CompactedSet:
    horizons, ledgers, last = [], [], -1
    for number, each in enumerate(sealed):
        at = MessageOrigin(number, each.ledger_id, 0, number)
        if each.partition != last:
            last = each.partition
            horizons.append(
                Horizon(partition=last, lane=0, number=1 << 40, ledger_id=1, version=1 << 40)
            )
        ledgers.append(
            CompactedLedger(
                partition=last,
                lane=0,
                ledger_id=each.ledger_id,
                first=at,
                last=at,
                entries=5,
                messages=5,
                size=10,
            )
        )
    return CompactedSet(generation=1, horizons=horizons, ledgers=ledgers)


@pytest.mark.slow
@MANY
async def test_many_staged_ledgers_are_discarded(
    many: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crowded(monkeypatch) as (cluster, client, topic, _):
        async with open_job(client._context.ledgers, topic, "write") as job:
            stage(cluster, topic, job, many)
            assert await discard(cluster.store, STAGED) == many
        assert stored(cluster.store, LEDGERS) == []

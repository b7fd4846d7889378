from __future__ import annotations

import msgspec
import trio
from memory_cluster import memory_cluster
from repair_rig import lose
from trio.testing import MockClock

from ledger_client.marks import new_mark
from ledger_client.observation.cluster import REASONS, ClusterFigures, Waiting
from ledger_client.repair.marking import add_mark
from metadata.records import REPAIRS, RepairProgress, encode_record


async def test_bookies_count_in_every_state_they_are_in(autojump_clock: MockClock) -> None:
    async with memory_cluster(4) as cluster:
        figures = ClusterFigures(cluster.store, lost_after_s=5)
        leases = cluster.store.bookies
        leases["b1"] = msgspec.structs.replace(leases["b1"], read_only=True, limbo=True)
        leases["b2"] = msgspec.structs.replace(leases["b2"], draining=True)
        await figures.look()
        lose(cluster, "b4")
        await figures.look()
        assert figures.seen is not None
        assert figures.seen.bookies["lost"] == 0  # it may be about to come back
        await trio.sleep(6)
        await figures.look()
    states = {"registered": 3, "read_only": 1, "limbo": 1, "draining": 1, "lost": 1}
    assert figures.seen.bookies == states


async def test_ledgers_that_want_repair_count_by_reason_with_their_bytes() -> None:
    async with memory_cluster(1) as cluster:
        for ledger_id, size in ((1, 100), (2, 50)):
            mark = new_mark(ledger_id, "bookie lost", ["b9"], [])
            await add_mark(cluster.store, msgspec.structs.replace(mark, size=size))
        await add_mark(cluster.store, new_mark(3, "damaged", ["b1"], []))
        repair = encode_record(RepairProgress(1, "b1/x", 1, size=100, copied_size=40))
        await cluster.store.grant(f"{REPAIRS}{1:020d}", "b1/x", ttl_s=60, value=repair)
        figures = ClusterFigures(cluster.store, lost_after_s=5)
        await figures.look()
    seen = figures.seen
    assert seen is not None
    assert seen.waiting["bookie lost"] == Waiting(2, 150)
    assert seen.waiting["damaged"] == Waiting(1, 0)
    assert set(seen.waiting) == set(REASONS)
    assert (seen.repairs, seen.repair_size, seen.repair_done) == (1, 100, 40)

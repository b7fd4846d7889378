from __future__ import annotations

import msgspec
import trio
from leases import grant
from memory_cluster import memory_cluster
from repair_rig import lose
from trio.testing import MockClock

from ledger_client.cluster.observer import (
    REASONS,
    REPORTS_MAX,
    ClusterFigures,
    JobFigures,
    JobReport,
    RunningJobs,
    WaitingLedgers,
)
from ledger_client.cluster.repair.marks import add_mark
from ledger_client.ledgers.records import new_mark
from metadata.compaction import CompactedSet, CompactionReport, compacted_key, encode_set
from metadata.jobs import JobOwner, encode_job_row, job_lease
from metadata.records import REPAIRS, RepairProgress, encode_record
from metadata.replays import ReplayRecord, SentChecksum, encode_replay, replay_key
from metadata.topics import TopicRecord, encode_row, topic_key


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
        await grant(cluster.store, f"{REPAIRS}{1:020d}", "b1/x", ttl_s=60, value=repair)
        figures = ClusterFigures(cluster.store, lost_after_s=5)
        await figures.look()
    seen = figures.seen
    assert seen is not None
    assert seen.waiting["bookie lost"] == WaitingLedgers(2, 150)
    assert seen.waiting["damaged"] == WaitingLedgers(1, 0)
    assert set(seen.waiting) == set(REASONS)
    assert (seen.repairs, seen.repair_size, seen.repair_done) == (1, 100, 40)


SET = CompactedSet(
    generation=3,
    report=CompactionReport(
        at_ms=5000, seconds=2.5, keys=7, messages_in=100, messages_out=9, bytes_out=900
    ),
)


async def test_running_jobs_count_by_kind_from_the_first_on() -> None:
    async with memory_cluster(1) as cluster:
        store = cluster.store
        for job_id, kind, since_ms in (("a", "replay", 9), ("b", "replay", 4), ("c", "write", 6)):
            owner = JobOwner(kind=kind, topic="s/t", since_ms=since_ms)  # type: ignore[arg-type]
            await grant(store, job_lease(1, job_id), job_id, ttl_s=60, value=encode_job_row(owner))
        await grant(store, job_lease(1, "bad"), "bad", ttl_s=60, value=b"{}")
        figures = JobFigures(store)
        await figures.look()
    assert figures.running["replay"] == RunningJobs(2, 4)
    assert figures.running["write"] == RunningJobs(1, 6)
    assert figures.running["compaction"] == RunningJobs(0, 0)


async def test_the_last_compaction_and_replay_are_reported_by_name() -> None:
    async with memory_cluster(1) as cluster:
        store = cluster.store
        await store.put(topic_key("s/t"), encode_row(TopicRecord(name="s/t", uid=7)))
        await store.put(compacted_key(7), encode_set(SET))
        await store.put(compacted_key(8), encode_set(SET))  # its topic is being deleted
        await store.put(replay_key("night"), encode_replay(replay(state="done")))
        await store.put(replay_key("day"), encode_replay(replay(state="running")))
        figures = JobFigures(store)
        await figures.look()
    compaction = JobReport(
        kind="compaction",
        name="s/t",
        at_s=5.0,
        seconds=2.5,
        keys=7,
        messages_in=100,
        messages_out=9,
        size=900,
    )
    night = JobReport(
        kind="replay",
        name="night",
        at_s=9.0,
        seconds=8.0,
        messages_in=30,
        messages_out=30,
        size=77,
    )
    assert figures.reports == [compaction, night]
    figures.clear()
    assert (figures.running, figures.reports) == ({}, [])


async def test_of_many_compactions_those_of_long_ago_are_reported() -> None:
    """An alert looks for a topic that is compacted no more."""
    async with memory_cluster(1) as cluster:
        for uid in range(1, REPORTS_MAX + 11):
            name = f"s/{uid}"
            await cluster.store.put(topic_key(name), encode_row(TopicRecord(name=name, uid=uid)))
            report = msgspec.structs.replace(SET.report, at_ms=uid)
            value = encode_set(msgspec.structs.replace(SET, report=report))
            await cluster.store.put(compacted_key(uid), value)
        figures = JobFigures(cluster.store)
        await figures.look()
    assert [each.name for each in figures.reports] == [f"s/{n + 1}" for n in range(REPORTS_MAX)]


def replay(*, state: str) -> ReplayRecord:
    return ReplayRecord(
        name="night",
        run="1",
        sources=[],
        order="arrival",
        range_text="",
        target="",
        end=[],
        reached=[],
        sent=[SentChecksum(0, 10), SentChecksum(1, 20)],
        bytes=77,
        state=state,  # type: ignore[arg-type]
        started_ms=1000,
        updated_ms=9000,
    )

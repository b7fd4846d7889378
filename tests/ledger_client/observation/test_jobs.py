from __future__ import annotations

from memory_cluster import memory_cluster

from ledger_client.observation.jobs import JobFigures, JobReport, Running
from metadata.compaction import CompactedSet, Report, compacted_key, encode_set
from metadata.jobs import JobOwner, encode_job_row, job_lease
from metadata.replays import ReplayRecord, Sent, encode_replay, replay_key
from metadata.topics import TopicRecord, encode_row, topic_key

SET = CompactedSet(
    generation=3,
    report=Report(at_ms=5000, seconds=2.5, keys=7, messages_in=100, messages_out=9, bytes_out=900),
)


async def test_running_jobs_count_by_kind_from_the_first_on() -> None:
    async with memory_cluster(1) as cluster:
        store = cluster.store
        for job_id, kind, since_ms in (("a", "replay", 9), ("b", "replay", 4), ("c", "write", 6)):
            owner = JobOwner(kind=kind, topic="s/t", since_ms=since_ms)  # type: ignore[arg-type]
            await store.grant(job_lease(1, job_id), job_id, ttl_s=60, value=encode_job_row(owner))
        await store.grant(job_lease(1, "bad"), "bad", ttl_s=60, value=b"{}")
        figures = JobFigures(store)
        await figures.look()
    assert figures.running["replay"] == Running(2, 4)
    assert figures.running["write"] == Running(1, 6)
    assert figures.running["compaction"] == Running(0, 0)


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


def replay(*, state: str) -> ReplayRecord:
    return ReplayRecord(
        name="night",
        run="1",
        sources=[],
        order="arrival",
        asked="",
        target="",
        end=[],
        reached=[],
        sent=[Sent(0, 10), Sent(1, 20)],
        bytes=77,
        state=state,  # type: ignore[arg-type]
        started_ms=1000,
        updated_ms=9000,
    )

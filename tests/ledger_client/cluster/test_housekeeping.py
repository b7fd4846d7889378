from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from memory_store import CHANGES_MAX
from topic_rig import HOUR_MS, begun, lay_lane, ledger_ids, row
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.cluster.lane_survey import SWEEP_S
from ledger_client.cluster.observer import Removals, TopicFigures, TopicSnapshot
from ledger_client.errors import LedgerError
from ledger_client.ledgers.ledgers import Ledgers
from metadata.errors import LeaseLost
from metadata.jobs import JobPins, PinnedLane, encode_job_row, job_lease, pins_key
from metadata.leadership import Term
from metadata.store import Leases, Page
from metadata.topics import (
    LANE_LEDGERS,
    WRITERS,
    Retention,
    RollPolicy,
    TopicRecord,
    encode_row,
    lane_ledger_key,
    topic_key,
)

OPTIONS = HousekeepingOptions(interval_s=10, poll_s=1)
NOW_MS = 100 * HOUR_MS
DAY = Retention(age_s=86400)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(1) as running:
        running.store.wall_ms = lambda: NOW_MS
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


class Rig:
    """A housekeeper of a store whose clock says NOW_MS, and what it asked to have closed."""

    def __init__(self, client: Client) -> None:
        self.figures = TopicFigures()
        self.closed: list[tuple[str, int, int]] = []
        self.failing: set[int] = set()
        self.keeper = Housekeeper(
            client._context,
            OPTIONS,
            figures=self.figures,
            close_lane=self.close_lane,
        )

    async def close_lane(
        self, _client: Ledgers, topic: TopicRecord, partition: int, lane: int
    ) -> None:
        await trio.lowlevel.checkpoint()
        if lane in self.failing:
            raise LedgerError("no bookie answers")
        self.closed.append((topic.name, partition, lane))


@pytest.fixture
def rig(client: Client) -> Rig:
    return Rig(client)


async def elected(cluster: MemoryCluster, owner: str = "me") -> Term:
    return Term(await grant(cluster.store, "coordinator", owner, ttl_s=3600))


@asynccontextmanager
async def leading(cluster: MemoryCluster, rig: Rig) -> AsyncIterator[None]:
    term = await elected(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.lead, term)
        yield
        nursery.cancel_scope.cancel()


async def made(client: Client, name: str = "s/t", **fields: object) -> TopicRecord:
    return await client._context.catalogue.create(TopicRecord(name=name, uid=0, **fields))  # type: ignore[arg-type]


async def test_what_is_over_its_limits_goes_by_itself(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    """PS-35, TD-07: nobody does anything for it."""
    old = await made(client, "s/old", retention=DAY)
    kept = await made(client, "s/kept", retention=Retention(age_s=-1))
    small = await made(client, "s/small", retention=Retention(age_s=-1, size=1500))
    await lay_lane(cluster.store, old, [row(0), row(98), begun(99)])
    await lay_lane(cluster.store, kept, [row(100), begun(101)])
    await lay_lane(cluster.store, small, [row(110), row(111), begun(112)])
    async with leading(cluster, rig):
        await trio.sleep(1)
        assert ledger_ids(cluster.store) == [198, 199, 200, 201, 211, 212]


async def test_what_topics_hold_and_what_retention_took_is_told(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(98), begun(99)])
    term = await elected(cluster)
    await rig.keeper.look_after_all(term)
    assert rig.figures.seen["s/t"].ledgers["closed"] == 1
    await lay_lane(cluster.store, topic, [row(0), row(98), begun(99)])
    await rig.keeper.look_after_all(term)
    assert rig.figures.removed["s/t"] == Removals(1, 1000)


async def test_a_lane_that_nobody_writes_is_closed(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    """PS-07: however young it is, so that what a writer that is gone left can be read, and go."""
    topic = await made(client, roll=RollPolicy(age_s=0), retention=Retention(age_s=-1))
    await lay_lane(cluster.store, topic, [begun(99)], lane=0)
    await lay_lane(cluster.store, topic, [begun(98)], lane=1, written=True)
    await lay_lane(cluster.store, topic, [row(1)], lane=2)
    term = await elected(cluster)
    await rig.keeper.look_after_all(term)
    assert rig.closed == []  # its writer may be about to take its lease again
    await rig.keeper.look_after_all(term)
    assert rig.closed == [("s/t", -1, 0)]


async def test_a_lane_that_cannot_be_closed_does_not_keep_the_others(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client)
    for lane in range(3):
        await lay_lane(cluster.store, topic, [begun(lane)], lane=lane)
    rig.failing = {1}
    term = await elected(cluster)
    for _ in range(2):
        await rig.keeper.look_after_all(term)
    assert [lane for _, _, lane in rig.closed] == [0, 2]


async def test_a_deletion_that_was_left_half_is_ended(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client)
    await lay_lane(cluster.store, topic, [row(0), row(1)])
    await client._context.catalogue.mark_deleting("s/t")
    async with leading(cluster, rig):
        await trio.sleep(5)
        assert len(ledger_ids(cluster.store)) == 2  # whoever began it may be at it
        await trio.sleep(10)
    assert ledger_ids(cluster.store) == []
    assert await client._context.catalogue.find("s/t") is None


async def test_a_damaged_row_or_topic_keeps_no_other_topic(
    cluster: MemoryCluster, client: Client, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    bad = await made(client, "s/a", retention=DAY)
    good = await made(client, "s/c", retention=DAY)
    await lay_lane(cluster.store, bad, [row(0)])
    await lay_lane(cluster.store, good, [row(1)])
    cluster.store.change(lane_ledger_key(bad.uid, -1, 0, 0), b"{")
    cluster.store.change(topic_key("s/b"), b"{")
    term = await elected(cluster)
    for _ in range(3):
        await rig.keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [100]
    assert len(caplog.messages) == 2  # each is told once


async def test_a_leader_whose_time_is_over_removes_nothing(
    cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(0)])
    term = await elected(cluster)
    await cluster.store.release(term.lease)
    with pytest.raises(LeaseLost):
        await rig.keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [100]


async def test_while_the_store_is_away_it_waits(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, rig: Rig
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(0)])
    term = await elected(cluster)
    cluster.store.available = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.lead, term)
        await trio.sleep(60)
        cluster.store.available = True
        await trio.sleep(11)
        assert ledger_ids(cluster.store) == []
        nursery.cancel_scope.cancel()


# --- topics at rest ----------------------------------------------------------------------


@pytest.fixture
def lists(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the prefixes that are listed from now on."""
    listed: list[str] = []
    real_list = cluster.store.list

    async def counted(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        listed.append(prefix)
        return await real_list(prefix, after=after, limit=limit)

    monkeypatch.setattr(cluster.store, "list", counted)
    return listed


def read_again(listed: list[str]) -> bool:
    """Return True if the ledgers of a lane were listed since the last call."""
    found = any(prefix.startswith(LANE_LEDGERS) for prefix in listed)
    listed.clear()
    return found


async def test_what_a_round_costs_does_not_go_with_the_topics(
    cluster: MemoryCluster, client: Client, rig: Rig, lists: list[str]
) -> None:
    for number in range(20):
        topic = await made(client, f"s/t{number}", retention=DAY)
        await lay_lane(cluster.store, topic, [row(98), begun(99)], written=True)
    term = await elected(cluster)
    await rig.keeper.look_after_all(term)
    first = len(lists)
    lists.clear()
    await rig.keeper.look_after_all(term)
    assert len(lists) <= 15 < 20 * 2 < first
    assert len(rig.figures.seen) == 20  # they are shown all the same
    assert rig.figures.seen["s/t7"].ledgers["closed"] == 1


async def test_a_topic_that_changed_is_read_again(
    cluster: MemoryCluster, client: Client, rig: Rig, lists: list[str]
) -> None:
    topic = await made(client, retention=Retention(age_s=7200))
    await lay_lane(cluster.store, topic, [row(97), begun(99)], written=True)
    job = await grant(cluster.store, job_lease(topic.uid, "j"), "j", ttl_s=3600)
    pins, pinned = pins_key(topic.uid, "j"), JobPins(kind="write", lanes=[PinnedLane(-1, 0, 0)])
    cluster.store.change(pins, encode_job_row(pinned))
    term = await elected(cluster)
    for _ in range(2):
        await rig.keeper.look_after_all(term)
    read_again(lists)
    for key in (lane_ledger_key(topic.uid, -1, 0, 7), pins, job.name, topic_key("s/t")):
        await rig.keeper.look_after_all(term)
        assert not read_again(lists)
        if key == topic_key("s/t"):
            changed = msgspec.structs.replace(topic, retention=Retention(age_s=7))
            cluster.store.change(key, encode_row(changed))
        elif key == job.name:
            await cluster.store.release(job)
            closed = encode_row(row(98, ledger_id=199))
            cluster.store.change(lane_ledger_key(topic.uid, -1, 0, 1), closed)
        elif key == pins:
            cluster.store.change(key, encode_job_row(pinned))
        else:
            await cluster.store.delete(key)
            cluster.store.change(key, b"{")
            await cluster.store.delete(key)
        await rig.keeper.look_after_all(term)
        assert read_again(lists)
    assert ledger_ids(cluster.store) == []


async def test_a_change_during_a_round_is_seen_in_the_next(
    cluster: MemoryCluster, client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(98), begun(99)], written=True)
    term = await elected(cluster)
    expired = lane_ledger_key(topic.uid, -1, 0, 0)
    real_note = rig.figures.note

    def note(name: str, found: TopicSnapshot) -> None:
        cluster.store.change(expired, encode_row(row(0)))
        real_note(name, found)

    monkeypatch.setattr(rig.figures, "note", note)
    await rig.keeper.look_after_all(term)
    monkeypatch.undo()
    assert expired in cluster.store.values
    await rig.keeper.publish_events(term)  # takes from the log too
    await rig.keeper.look_after_all(term)
    assert expired not in cluster.store.values


async def test_a_ledger_goes_when_it_is_due_though_nothing_changed(
    cluster: MemoryCluster, client: Client, rig: Rig, lists: list[str]
) -> None:
    topic = await made(client, retention=DAY)
    await lay_lane(cluster.store, topic, [row(98), begun(99)], written=True)
    term = await elected(cluster)
    await rig.keeper.look_after_all(term)
    due = rig.keeper._survey.index.topics[topic.uid].lanes[-1, 0].due_ms
    cluster.store.wall_ms = lambda: due - 1
    read_again(lists)
    await rig.keeper.look_after_all(term)
    assert not read_again(lists)
    cluster.store.wall_ms = lambda: due
    await rig.keeper.look_after_all(term)
    assert ledger_ids(cluster.store) == [199]


async def test_a_lane_whose_writer_is_gone_is_closed_though_no_change_was_logged(
    cluster: MemoryCluster, client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await made(client, retention=Retention(age_s=-1))
    await lay_lane(cluster.store, topic, [begun(99)], written=True)
    term = await elected(cluster)
    await rig.keeper.look_after_all(term)
    real_leases = cluster.store.leases

    async def leases(prefix: str, *, after: str = "") -> Leases:
        return [] if prefix.startswith(WRITERS) else await real_leases(prefix, after=after)

    monkeypatch.setattr(cluster.store, "leases", leases)
    for _ in range(2):
        await rig.keeper.look_after_all(term)
    assert rig.closed == [("s/t", -1, 0)]


async def test_every_topic_is_read_again_after_an_hour_or_if_the_log_is_too_short(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, rig: Rig, lists: list[str]
) -> None:
    topic = await made(client, retention=Retention(age_s=-1))
    await lay_lane(cluster.store, topic, [row(98)])
    term = await elected(cluster)
    for _ in range(2):
        await rig.keeper.look_after_all(term)
    read_again(lists)
    await rig.keeper.look_after_all(term)
    assert not read_again(lists)
    for number in range(CHANGES_MAX + 1):
        cluster.store.change("other", b"%d" % number)
    await rig.keeper.look_after_all(term)
    assert read_again(lists)
    await trio.sleep(SWEEP_S)
    await rig.keeper.look_after_all(term)
    assert read_again(lists)

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from prometheus_client import CollectorRegistry
from repair_rig import QUICK, check_whole, lay_out, lose, mark, mark_of, unmarked
from topic_rig import lay_lane, ledger_ids, row
from trio.testing import MockClock

from ledger_client.cluster.repair.host import RepairOptions
from ledger_client.cluster.roles import run_roles
from metadata.groups.coordinator import Coordinator
from metadata.listings import leader, list_marks
from metadata.records import LedgerState
from metadata.time.timekeeper import Timekeeper
from metadata.topics import Retention

ALL = [(0, 9)]


class MemoryFigures:
    leads = False
    marks = 0
    repaired = 0
    failed = 0
    copied_size = 0


class MemoryHost:
    """A bookie in memory, as the host of roles."""

    def __init__(self, cluster: MemoryCluster, bookie_id: str) -> None:
        self._cluster = cluster
        self.bookie_id = bookie_id
        self.address = f"memory:{bookie_id[1:]}"
        self.figures = MemoryFigures()
        self.registry = CollectorRegistry()
        self.doubts = 0
        self.coordinator = Coordinator(cluster.store)
        self.timekeeper = Timekeeper(cluster.store)

    @property
    def limbo(self) -> bool:
        return self._cluster.bookies[self.bookie_id].limbo

    def enter_limbo(self, *, told: bool = True) -> None:
        self.doubts += 1
        self._cluster.bookies[self.bookie_id].limbo = True
        if told:
            self.tell()

    def tell(self) -> None:
        lease = self._cluster.store.bookies[self.bookie_id]
        told = msgspec.structs.replace(lease, limbo=self.limbo)
        self._cluster.store.bookies[self.bookie_id] = told

    async def leave_limbo(self, *, doubts: int | None = None) -> bool:
        await trio.lowlevel.checkpoint()
        if doubts is not None and doubts != self.doubts:
            return False
        self._cluster.bookies[self.bookie_id].limbo = False
        self.tell()
        return True


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(4) as running:
        yield running


@asynccontextmanager
async def roles(cluster: MemoryCluster, *names: str) -> AsyncIterator[dict[str, MemoryHost]]:
    """Run the roles of these bookies for the block."""
    hosts = {name: MemoryHost(cluster, name) for name in names or cluster.bookies}

    async def run(host: MemoryHost) -> None:
        async with cluster.client() as client:
            await run_roles(client._context, cluster.store, host, QUICK, registry=host.registry)

    async with trio.open_nursery() as nursery:
        for host in hosts.values():
            nursery.start_soon(run, host)
        yield hosts
        nursery.cancel_scope.cancel()


async def test_after_a_loss_everything_has_its_copies_again_without_anybody_doing_anything(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    """TB-42, TB-43: the data outlive a lost member, and the cluster is used on."""
    for ledger_id in range(1, 21):
        lay_out(
            cluster,
            [(0, "b1 b2 b3")],
            dict.fromkeys(["b1", "b2", "b3"], ALL),
            ledger_id=ledger_id,
        )
    async with roles(cluster, "b1", "b3", "b4") as hosts:
        await trio.sleep(3)
        assert [host.figures.leads for host in hosts.values()].count(True) == 1
        found = await leader(cluster.store)
        assert found is not None
        assert hosts[found.bookie_id].figures.leads
        lose(cluster, "b2")
        await trio.sleep(30)
        assert await list_marks(cluster.store) == []
        assert sum(host.figures.repaired for host in hosts.values()) == 20
        assert sum(host.figures.copied_size for host in hosts.values()) == 20 * 10 * 100
    for ledger_id in range(1, 21):
        check_whole(cluster, ledger_id)


async def test_who_leads_tells_of_the_cluster_and_the_others_do_not(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with roles(cluster, "b1", "b2") as hosts:
        await trio.sleep(20)
        told = {
            host.figures.leads: host.registry.get_sample_value(
                "quire_cluster_bookies", {"state": "registered"}
            )
            for host in hosts.values()
        }
        assert told == {True: 4, False: None}
    assert not any(list(host.registry.collect()) for host in hosts.values())


async def test_a_bookie_leaves_limbo_once_it_holds_again_what_it_should(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    three = ["b1", "b2", "b3"]
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": [(0, 4)]}, ledger_id=1)
    lay_out(cluster, [(0, "b1 b2 b3")], dict.fromkeys(three, ALL), ledger_id=2)
    held = {"b1": ALL, "b2": ALL}
    lay_out(cluster, [(0, "b1 b2 b3")], held, ledger_id=3, state=LedgerState.OPEN)
    async with roles(cluster, *three) as hosts:
        hosts["b3"].enter_limbo()
        await trio.sleep(20)
        assert not hosts["b3"].limbo
    for ledger_id in (1, 2, 3):
        check_whole(cluster, ledger_id)
        assert cluster.bookies["b3"].entries(ledger_id).keys() == set(range(10))


async def test_a_bookie_stays_in_limbo_while_anything_of_it_is_missing(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    lay_out(cluster, [(0, "b1 b3")], {"b1": ALL, "b3": []})
    cluster.bookies["b1"].damage(1, 5)
    async with roles(cluster, "b3") as hosts:
        hosts["b3"].enter_limbo()
        await trio.sleep(600)
        assert hosts["b3"].limbo
        found = mark_of(cluster)
        assert found is not None
        assert "entry 5" in found.last_failure


async def test_a_bookie_leaves_limbo_though_its_ledgers_wait_for_another_one(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    """One is lost, and no other can take its place. What was found before the limbo is no proof."""
    lay_out(cluster, [(0, "b1 b2 b3")], {"b1": ALL, "b2": ALL, "b3": ALL})
    lose(cluster, "b2", "b4")
    await mark(cluster, reason="bookie lost")
    async with roles(cluster, "b1", "b3") as hosts:
        await trio.sleep(60)
        found = mark_of(cluster)
        assert found is not None
        assert found.whole == ["b1", "b3"]
        for entry_id in range(5):
            del cluster.bookies["b3"].entries(1)[entry_id]
        hosts["b3"].enter_limbo()
        held = set[int]()
        while hosts["b3"].limbo:
            assert mark_of(cluster) is not None
            held = set(cluster.bookies["b3"].entries(1))
            await trio.sleep(0.1)
        assert held == set(range(10))
        assert mark_of(cluster) is not None


async def test_a_new_doubt_begins_the_comparison_again(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    lay_out(cluster, [(0, "b1 b3")], {"b1": ALL, "b3": []})
    cluster.bookies["b1"].delay_s = lambda _: 1.0
    async with roles(cluster, "b3") as hosts:
        hosts["b3"].enter_limbo()
        await trio.sleep(1.2)
        hosts["b3"].enter_limbo()
        await unmarked(cluster)
        await trio.sleep(5)
        assert not hosts["b3"].limbo
    check_whole(cluster)


async def test_nothing_is_compared_before_others_can_see_the_limbo(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    held = {"b1": ALL, "b3": [(0, 3)]}
    lay_out(cluster, [(0, "b1 b3")], held, state=LedgerState.OPEN)
    async with roles(cluster, "b3") as hosts:
        hosts["b3"].enter_limbo(told=False)
        await trio.sleep(20)
        assert hosts["b3"].limbo
        assert mark_of(cluster) is None


@pytest.mark.parametrize("while_copying", [True, False])
async def test_who_looked_at_an_open_ledger_before_the_limbo_does_not_speak_for_it(
    autojump_clock: MockClock, cluster: MemoryCluster, while_copying: bool
) -> None:
    """Entry 9 is acknowledged by b1 and b3. Should b3 deny it like b2, it would be cut off."""
    lay_out(
        cluster,
        [(0, "b1 b2 b4"), (5, "b1 b2 b3")],
        {"b1": ALL, "b2": [(0, 8)], "b3": [(5, 9)]},
        state=LedgerState.OPEN,
    )
    await mark(cluster)
    late = "b4" if while_copying else "b1"
    cluster.bookies[late].delay_s = lambda _: 1.5  # a worker is at it when b3 enters limbo
    async with roles(cluster, "b1", "b3") as hosts:
        await trio.sleep(1)
        del cluster.bookies["b3"].entries(1)[9]
        hosts["b3"].enter_limbo()
        await trio.sleep(60)
        assert not hosts["b3"].limbo
    assert cluster.record(1).last_entry == 9
    check_whole(cluster)


async def test_who_leads_looks_after_topics_too(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    """PS-35: retention goes on when the leader is lost; the next one takes it up."""
    async with cluster.client() as client:
        topic = await client.topics.create("s/t", retention=Retention(age_s=3600))
    await lay_lane(cluster.store, topic, [row(0)])
    async with roles(cluster, "b1"):
        await trio.sleep(5)
    assert ledger_ids(cluster.store) == []
    await lay_lane(cluster.store, topic, [row(1)])
    async with roles(cluster, "b2", "b3"):
        await trio.sleep(10)
    assert ledger_ids(cluster.store) == []


async def test_the_roles_of_an_idle_cluster_seldom_ask_the_store(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a bookie does each second costs as much as all else in an idle cluster."""
    seconds = 120
    async with memory_cluster(3) as running:
        asked: list[str] = []
        real_reach = running.store._reach

        async def counted() -> None:
            asked.append("call")
            await real_reach()

        hosts = [MemoryHost(running, name) for name in running.bookies]
        async with trio.open_nursery() as nursery:
            for host in hosts:
                nursery.start_soon(idle_roles, running, host)
            await trio.sleep(60)
            monkeypatch.setattr(running.store, "_reach", counted)
            await trio.sleep(seconds)
            assert sum(host.figures.leads for host in hosts) == 1
            nursery.cancel_scope.cancel()
    # Each: marks 1, leadership 1, census 1. The leader, too: bookies 5, ledgers 1, figures 2,
    # events 1, and the change log 1.
    assert 10 * seconds < len(asked) <= 20 * seconds


async def idle_roles(cluster: MemoryCluster, host: MemoryHost) -> None:
    async with cluster.client() as client:
        options = RepairOptions()
        await run_roles(client._context, cluster.store, host, options, registry=host.registry)

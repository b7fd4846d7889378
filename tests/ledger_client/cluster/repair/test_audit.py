from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from repair_rig import QUICK, lay_out, lose, mark_of
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.repair.audit import Auditor
from ledger_client.cluster.repair.host import RepairOptions
from metadata.errors import LeaseLost
from metadata.leadership import Term
from metadata.records import (
    COORDINATOR,
    CookieRecord,
    Draining,
    LedgerState,
    bookie_lease,
    cookie_key,
    draining_key,
    encode_record,
    ledger_key,
    underreplicated_key,
)

ALL = [(0, 9)]
OPTIONS = msgspec.structs.replace(QUICK, lost_after_s=10.0, audit_interval_s=2400.0)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Five bookies and three ledgers; one is still written."""
    async with memory_cluster(5) as running:
        for name in running.bookies:
            cookie = CookieRecord(name, "instance", "/journal", "/ledgers", "cookie")
            await running.store.put(cookie_key(name), encode_record(cookie))
        lay_out(running, [(0, "b1 b2")], {"b1": ALL, "b2": ALL}, ledger_id=1)
        lay_out(running, [(0, "b3 b4"), (5, "b3 b2")], {"b3": ALL}, ledger_id=2)
        held = {"b3": ALL, "b4": ALL}
        lay_out(running, [(0, "b3 b4")], held, ledger_id=3, state=LedgerState.OPEN)
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


@asynccontextmanager
async def leading(
    cluster: MemoryCluster, client: Client, options: RepairOptions = OPTIONS
) -> AsyncIterator[Term]:
    term = await new_term(cluster, "leader")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Auditor(client._context.ledgers, cluster.store, options).lead, term)
        yield term
        nursery.cancel_scope.cancel()


async def new_term(cluster: MemoryCluster, owner: str) -> Term:
    return Term(await cluster.store.grant(COORDINATOR, owner, ttl_s=80_000))


def marked(cluster: MemoryCluster) -> dict[int, list[str]]:
    found = {ledger_id: mark_of(cluster, ledger_id) for ledger_id in (1, 2, 3)}
    return {ledger_id: mark.bookies for ledger_id, mark in found.items() if mark is not None}


async def test_the_ledgers_of_a_lost_bookie_are_marked_after_a_while(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BK-21: a lost bookie is noticed at once, and given up after a delay."""
    async with leading(cluster, client):
        lose(cluster, "b2")
        await trio.sleep(9)
        assert marked(cluster) == {}
        await trio.sleep(3)
        assert marked(cluster) == {1: ["b2"], 2: ["b2"]}
        found = mark_of(cluster, 2)
        assert found is not None
        assert (found.reason, found.size) == ("bookie lost", 500)
        lose(cluster, "b4")
        await trio.sleep(12)
        assert marked(cluster) == {1: ["b2"], 2: ["b2", "b4"], 3: ["b4"]}


async def test_what_cannot_be_read_is_passed_over_and_told_once(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A damaged record or mark stops nobody from finding the other ledgers."""
    await cluster.store.put(ledger_key(0), b"nonsense")
    await cluster.store.put(underreplicated_key(1), b"nonsense")
    async with leading(cluster, client):
        lose(cluster, "b2")
        await trio.sleep(12)
        assert marked(cluster) == {1: ["b2"], 2: ["b2"]}
        lose(cluster, "b4")
        await trio.sleep(12)
    told = [r.getMessage() for r in caplog.records if "passed over" in r.getMessage()]
    assert len(told) == 1
    assert ledger_key(0) in told[0]


async def test_a_bookie_that_comes_back_in_time_is_not_lost(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    async with leading(cluster, client):
        lease = cluster.store.bookies.pop("b2")
        await trio.sleep(8)
        cluster.store.bookies["b2"] = lease
        await trio.sleep(2)
        del cluster.store.bookies["b2"]
        await trio.sleep(8)
        assert marked(cluster) == {}


async def test_a_bookie_that_was_lost_before_the_leader_led_is_found_by_its_cookie(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    lose(cluster, "b2")
    async with leading(cluster, client):
        await trio.sleep(12)
        assert set(marked(cluster)) == {1, 2}


async def test_the_ledgers_of_a_bookie_that_is_to_be_emptied_are_marked_at_once(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    async with leading(cluster, client):
        await cluster.store.put(draining_key("b1"), encode_record(Draining("b1", 0)))
        await trio.sleep(1)
        found = mark_of(cluster, 1)
        assert found is not None
        assert (found.reason, found.bookies, found.size) == ("draining", ["b1"], 1000)
        assert set(marked(cluster)) == {1}


async def test_a_name_that_appears_later_is_found_too(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """A client that was slow to notice gives a lost bookie another ledger."""
    async with leading(cluster, client):
        lose(cluster, "b5")
        await trio.sleep(15)
        lay_out(cluster, [(0, "b1 b5")], {"b1": ALL}, ledger_id=1)
        await trio.sleep(65)
        assert marked(cluster) == {1: ["b5"]}


async def test_marking_again_changes_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Two leaders, one after the other or both at once, say the same."""
    lose(cluster, "b2")
    versions: list[int] = []
    for _ in range(2):
        async with leading(cluster, client):
            await trio.sleep(200)
            versions.append(cluster.store.values[underreplicated_key(1)].version)
    assert versions[0] == versions[1]


async def test_a_leader_whose_term_is_over_marks_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-35: the state of servers is what the leader acts on, while it leads."""
    term = await new_term(cluster, "paused")
    await cluster.store.release(term.lease)
    lose(cluster, "b2")
    with pytest.raises(BaseExceptionGroup) as raised:
        await Auditor(client._context.ledgers, cluster.store, OPTIONS).lead(term)
    assert raised.group_contains(LeaseLost)
    assert marked(cluster) == {}


async def test_now_and_then_every_ledger_is_looked_at(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BK-21: the periodic check finds what nobody reported."""
    async with leading(cluster, client):
        await trio.sleep(OPTIONS.audit_interval_s / 24 - 10)
        assert marked(cluster) == {}
        lay_out(cluster, [(0, "b3 b4")], {}, ledger_id=3, state=LedgerState.IN_RECOVERY)
        await trio.sleep(20)
        assert marked(cluster) == {2: [], 3: []}
        found = mark_of(cluster, 2)
        assert found is not None
        assert found.reason == "check"


async def test_the_audit_outlasts_an_absence_of_the_store(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    async with leading(cluster, client):
        await trio.sleep(1)
        cluster.store.available = False
        await trio.sleep(100)
        cluster.store.available = True
        lose(cluster, "b2")
        await trio.sleep(15)
        assert set(marked(cluster)) == {1, 2}


async def test_a_bookie_whose_registration_cannot_be_decoded_is_given_up_like_a_lost_one(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The audit of all others goes on."""
    del cluster.store.bookies["b1"]
    await cluster.store.grant(bookie_lease("b1"), "b1", ttl_s=80_000, value=b"no registration")
    async with leading(cluster, client):
        await trio.sleep(9)
        assert marked(cluster) == {}
        await trio.sleep(3)
        assert marked(cluster) == {1: ["b1"]}
    assert "b1 counts as away" in caplog.text

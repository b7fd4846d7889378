from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from memory_store import CHANGES_MAX
from repair_rig import QUICK, lay_out, lose, mark_of
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.repair.audit import RESCAN_S, Auditor
from ledger_client.cluster.repair.host import RepairOptions
from ledger_client.cluster.repair.marks import add_mark
from ledger_client.ledgers.records import new_mark
from metadata.errors import LeaseLost
from metadata.leadership import Term
from metadata.listings import list_marks, rack_report
from metadata.records import (
    COORDINATOR,
    LEDGERS,
    CookieRecord,
    Draining,
    Fragment,
    LedgerState,
    bookie_lease,
    cookie_key,
    decode_ledger,
    draining_key,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import PAGE_COUNT_MAX, Op, Page, Versioned, Versions

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
    return Term(await grant(cluster.store, COORDINATOR, owner, ttl_s=80_000))


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
    await grant(cluster.store, bookie_lease("b1"), "b1", ttl_s=80_000, value=b"no registration")
    async with leading(cluster, client):
        await trio.sleep(9)
        assert marked(cluster) == {}
        await trio.sleep(3)
        assert marked(cluster) == {1: ["b1"]}
    assert "b1 counts as away" in caplog.text


# --- work that grows with what changes ----------------------------------------------------


def listings(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the prefixes that are listed from now on, one for each page."""
    listed: list[str] = []
    real = cluster.store.list

    async def noted(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        if limit == PAGE_COUNT_MAX:  # a part of some would do with less
            listed.append(prefix)
        return await real(prefix, after=after, limit=limit)

    monkeypatch.setattr(cluster.store, "list", noted)
    return listed


async def test_ledgers_are_listed_once_and_then_only_those_that_change_are_read(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the ledgers of a lost bookie are found without a listing."""
    listed = listings(cluster, monkeypatch)
    options = msgspec.structs.replace(OPTIONS, audit_interval_s=80_000.0)
    async with leading(cluster, client, options):
        await trio.sleep(300)
        assert listed.count(LEDGERS) == 1
        lay_out(cluster, [(0, "b5 b4")], {}, ledger_id=4)
        await trio.sleep(2)
        lose(cluster, "b5")
        await trio.sleep(12)
        assert mark_of(cluster, 4) is not None
        assert marked(cluster) == {}
        assert listed.count(LEDGERS) == 1


async def test_a_ledger_that_the_change_log_does_not_show_is_marked_too(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BookKeeper's clients write to ZooKeeper beside the store."""
    options = msgspec.structs.replace(OPTIONS, audit_interval_s=80_000.0)
    async with leading(cluster, client, options):
        await trio.sleep(2)
        like = decode_ledger(ledger_key(1), cluster.store.values[ledger_key(1)].value)
        record = msgspec.structs.replace(like, ledger_id=7, fragments=[Fragment(0, ["b5", "b1"])])
        cluster.store.values[ledger_key(7)] = Versioned(encode_record(record), 1)
        lose(cluster, "b5")
        await trio.sleep(OPTIONS.lost_after_s + 2 * RESCAN_S)
        assert mark_of(cluster, 7) is not None


async def test_many_ledgers_of_a_lost_bookie_are_marked_together(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another reporter's mark stays, and gets the leader's reason to look, too."""
    for ledger_id in range(10, 260):
        lay_out(cluster, [(0, "b1 b5")], {}, ledger_id=ledger_id)
    transactions: list[int] = []
    real = cluster.store.transact

    async def noted(ops: Sequence[Op]) -> Versions:
        transactions.append(len(ops))
        if transactions.count(101) == 2 and len(ops) == 101:  # a worker marks one meanwhile
            await add_mark(cluster.store, new_mark(120, "check", ["b1"], []))
        return await real(ops)

    async with leading(cluster, client):
        await add_mark(cluster.store, new_mark(20, "check", ["b1"], []))
        monkeypatch.setattr(cluster.store, "transact", noted)
        lose(cluster, "b5")
        await trio.sleep(12)
        marks = {each.ledger_id: each for each in await list_marks(cluster.store)}
    assert set(marks) == set(range(10, 260))
    assert marks[20].bookies == marks[120].bookies == ["b1", "b5"]
    assert sorted(transactions)[-3:] == [50, 101, 101], "a check and a hundred marks"


async def test_a_change_that_arrives_during_the_pass_is_seen(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = cluster.store.list
    changed = False

    async def slow(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        nonlocal changed
        page = await real(prefix, after=after, limit=limit)
        if prefix == LEDGERS and not changed:  # behind the back of the pass
            changed = True
            lay_out(cluster, [(0, "b5 b4")], {}, ledger_id=1)
        return page

    monkeypatch.setattr(cluster.store, "list", slow)
    async with leading(cluster, client):
        await trio.sleep(2)
        assert changed
        lose(cluster, "b5")
        await trio.sleep(12)
        assert set(marked(cluster)) == {1}


async def test_a_log_of_changes_that_was_too_short_means_another_pass(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    async with leading(cluster, client):
        await trio.sleep(2.5)
        lay_out(cluster, [(0, "b5 b4")], {}, ledger_id=1)
        for _ in range(CHANGES_MAX + 1):
            cluster.store.change("topics/any", b"")
        lose(cluster, "b5")
        await trio.sleep(12)
        assert set(marked(cluster)) == {1}


# --- racks --------------------------------------------------------------------------------


async def count_of(cluster: MemoryCluster) -> tuple[int, int, list[int]] | None:
    found = await rack_report(cluster.store)
    return None if found is None else (found.violating, found.fragments, found.examples)


async def test_ledgers_on_fewer_racks_than_could_be_are_counted(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    async with leading(cluster, client):
        await trio.sleep(2)
        assert await count_of(cluster) is None, "no bookie states a rack"
        cluster.state_racks({"b1": "r1", "b2": "r1", "b3": "r2", "b4": "r2", "b5": "r3"})
        await trio.sleep(62)
        assert await count_of(cluster) == (3, 3, [1, 2, 3])
        lay_out(cluster, [(0, "b1 b3")], {}, ledger_id=1)
        lay_out(cluster, [(0, "b1 b3"), (5, "b1 b2"), (7, "b1 b2")], {}, ledger_id=2)
        await cluster.store.delete(ledger_key(3))
        await trio.sleep(2)
        assert await count_of(cluster) == (1, 2, [2])
        cluster.state_racks({"b2": "r9"})
        await trio.sleep(70)
        assert await count_of(cluster) == (0, 0, [])
        cluster.state_racks(dict.fromkeys(cluster.bookies, ""))
        await trio.sleep(70)
        assert await count_of(cluster) is None


async def test_a_ledger_on_the_only_racks_that_take_copies_violates_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    cluster.state_racks({"b1": "r1", "b2": "r1", "b3": "r1", "b4": "r1", "b5": "r2"})
    await cluster.store.put(draining_key("b5"), encode_record(Draining("b5", 0)))
    async with leading(cluster, client):
        await trio.sleep(70)
        assert await count_of(cluster) == (0, 0, [])
        await cluster.store.delete(draining_key("b5"))
        await trio.sleep(70)
        assert await count_of(cluster) == (3, 4, [1, 2, 3])


async def test_a_bookie_that_is_down_counts_where_it_was(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    cluster.state_racks({"b1": "r1", "b2": "r2", "b3": "r3", "b4": "r4", "b5": "r5"})
    async with leading(cluster, client):
        await trio.sleep(2)
        lose(cluster, "b1")
        lay_out(cluster, [(0, "b1 b2")], {}, ledger_id=1)
        await trio.sleep(70)
        assert await count_of(cluster) == (0, 0, [])


async def test_a_deposed_leader_publishes_no_count(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    cluster.state_racks({"b1": "r1", "b2": "r1", "b3": "r2", "b4": "r2"})
    term = await new_term(cluster, "paused")
    await cluster.store.release(term.lease)
    with pytest.raises(BaseExceptionGroup) as raised:
        await Auditor(client._context.ledgers, cluster.store, OPTIONS).lead(term)
    assert raised.group_contains(LeaseLost)
    assert await count_of(cluster) is None


async def test_a_count_of_an_earlier_leader_does_not_outlive_its_ledgers(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    cluster.state_racks({"b1": "r1", "b2": "r1", "b3": "r2", "b4": "r2"})
    async with leading(cluster, client):
        await trio.sleep(5)
        assert await count_of(cluster) is not None
    for ledger_id in (1, 2, 3):
        await cluster.store.delete(ledger_key(ledger_id))
    async with leading(cluster, client):
        await trio.sleep(5)
        assert await count_of(cluster) == (0, 0, [])

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio
from hypothesis import given, strategies as st
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.operations.drain import begin
from ledger_client.cluster.operations.rebalance import (
    TOLERANCE,
    Levels,
    Move,
    Rebalancer,
    Shelf,
    plan_moves,
)
from ledger_client.cluster.operations.verification import verify
from ledger_client.cluster.repair.plan import LedgerShares, shares_of
from ledger_client.errors import BookieUnavailable
from ledger_client.ledgers.racks import best_spread, spread_of
from metadata.records import (
    CookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    cookie_key,
    encode_record,
    ledger_key,
    repair_lease,
    underreplicated_key,
)

PAYLOAD = bytes(1000)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(3) as running:
        yield running


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def write(client: Client, cluster: MemoryCluster, quorum: int = 3) -> int:
    """Write a ledger that nobody asks to be looked at."""
    async with client.ledgers.create(3, quorum, quorum) as ledger:
        await ledger.append_many([PAYLOAD] * 10)
    await cluster.store.delete(underreplicated_key(ledger.id))
    return ledger.id


async def add_bookie(cluster: MemoryCluster, client: Client) -> None:
    cluster.add_bookie(4)
    await client.cluster.bookies()


def listed(record: LedgerRecord) -> set[str]:
    return {name for fragment in record.fragments for name in fragment.bookies}


@pytest.mark.parametrize("quorum", [3, 2])
async def test_a_new_bookie_gets_its_part_and_every_copy_is_whole(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client, quorum: int
) -> None:
    ledger_ids = [await write(client, cluster, quorum) for _ in range(12)]
    cluster.add_bookie(4)
    rebalancer = Rebalancer(client._context.ledgers, cluster.store)
    before = await rebalancer.look()
    assert before.spread > 1
    copied: list[int] = []
    for move in before.moves:
        assert await rebalancer.make(move, on_copied=copied.append)
    assert sum(copied) == pytest.approx(sum(move.size for move in before.moves), rel=0.1)
    after = await rebalancer.look()
    assert after.spread <= 0.1
    assert after.moves == []
    assert (before.levelled, before.levelled_spread) == (after.sizes, after.spread)
    for ledger_id in ledger_ids:
        assert (await verify(client._context.ledgers, cluster.record(ledger_id))).whole
        assert await cluster.store.leases(repair_lease(ledger_id)) == []


async def test_a_ledger_whose_record_cannot_be_read_is_passed_over(
    cluster: MemoryCluster, client: Client
) -> None:
    strange, known = await write(client, cluster), await write(client, cluster)
    await cluster.store.put(ledger_key(strange), b"unreadable: format version 4")
    cluster.add_bookie(4)
    found = await Rebalancer(client._context.ledgers, cluster.store).look()
    assert {move.ledger_id for move in found.moves} <= {known}
    assert sum(found.sizes.values()) > 0


async def test_bookies_that_leave_or_may_lack_entries_are_left_out(
    cluster: MemoryCluster, client: Client
) -> None:
    await write(client, cluster)
    for number, flag in enumerate(("limbo", "draining", "read_only"), 4):
        cluster.add_bookie(number)
        record = cluster.store.bookies[f"b{number}"]
        cluster.store.bookies[f"b{number}"] = msgspec.structs.replace(record, **{flag: True})
    found = await Rebalancer(client._context.ledgers, cluster.store).look()
    assert set(found.sizes) == {"b1", "b2", "b3", "b6"}
    assert found.moves == []


async def test_what_changed_meanwhile_is_not_moved(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await write(client, cluster)
    await add_bookie(cluster, client)
    rebalancer = Rebalancer(client._context.ledgers, cluster.store)
    move = Move(ledger_id, "b1", "b4", 10_000)
    mark = UnderReplicated(ledger_id, "damaged", 1)
    await cluster.store.put(underreplicated_key(ledger_id), encode_record(mark))
    assert not await rebalancer.make(move, on_copied=lambda _size: None)
    await cluster.store.delete(underreplicated_key(ledger_id))
    lease = await grant(cluster.store, repair_lease(ledger_id), "b7/x", ttl_s=1000)
    assert not await rebalancer.make(move, on_copied=lambda _size: None)
    await cluster.store.release(lease)
    assert await rebalancer.make(move, on_copied=lambda _size: None)
    assert not await rebalancer.make(move, on_copied=lambda _size: None)
    await client.ledgers.delete(ledger_id)
    assert not await rebalancer.make(move, on_copied=lambda _size: None)


async def test_a_rival_change_wins(cluster: MemoryCluster, client: Client) -> None:
    ledger_id = await write(client, cluster)
    await add_bookie(cluster, client)
    before = cluster.record(ledger_id)

    def touch(_size: int) -> None:
        cluster.store.change(ledger_key(ledger_id), encode_record(before))

    move = Move(ledger_id, "b1", "b4", 10_000)
    assert not await Rebalancer(client._context.ledgers, cluster.store).make(move, on_copied=touch)
    assert cluster.record(ledger_id) == before


@pytest.mark.parametrize("when", ["before", "during"])
async def test_nothing_moves_to_a_bookie_that_is_decommissioned_meanwhile(
    cluster: MemoryCluster, client: Client, when: str
) -> None:
    """No ledger named it, so nobody waited for the move, and its folders may be deleted."""
    ledger_id = await write(client, cluster)
    await add_bookie(cluster, client)
    cookie = encode_record(CookieRecord("b4", "b4:3181", "/journal", "/ledgers", "x"))
    await cluster.store.put(cookie_key("b4"), cookie)
    before = cluster.record(ledger_id)

    def copied(_size: int) -> None:
        assert when == "during"
        cluster.store.values.pop(cookie_key("b4"), None)

    move = Move(ledger_id, "b1", "b4", 10_000)
    rebalancer = Rebalancer(client._context.ledgers, cluster.store)
    if when == "before":
        await begin(cluster.store, "b4")
    assert not await rebalancer.make(move, on_copied=copied)
    assert cluster.record(ledger_id) == before


@pytest.mark.parametrize("repaired", [True, False])
async def test_nothing_moves_to_a_rack_that_has_another_copy_meanwhile(
    cluster: MemoryCluster, client: Client, repaired: bool
) -> None:
    """Repair moved the other copy there since the plan was made, or bookies stated new racks."""
    async with client.ledgers.create(2, 2, 2) as ledger:
        await ledger.append_many([PAYLOAD] * 10)
    await cluster.store.delete(underreplicated_key(ledger.id))
    for number in (4, 5):
        cluster.add_bookie(number)
    await client.cluster.bookies()
    source, other = cluster.record(ledger.id).fragments[0].bookies
    cluster.state_racks(
        dict.fromkeys(cluster.bookies, "r3") | {source: "r1", "b4": "r2", "b5": "r2"}
    )
    rebalancer = Rebalancer(client._context.ledgers, cluster.store)
    if repaired:
        moved = Move(ledger.id, other, "b5", 10_000)
        assert await rebalancer.make(moved, on_copied=lambda _size: None)
        other = "b5"
    cluster.state_racks({other: "r2"})
    before = cluster.record(ledger.id)
    move = Move(ledger.id, source, "b4", 10_000)
    assert not await rebalancer.make(move, on_copied=lambda _size: None)
    assert cluster.record(ledger.id) == before
    cluster.state_racks({other: "r3"})
    assert await rebalancer.make(move, on_copied=lambda _size: None)


async def test_a_move_that_is_interrupted_or_fails_never_was(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """TB-46: whenever a move ends, the location list is the old one or the new one."""
    ledger_id = await write(client, cluster)
    before = cluster.record(ledger_id)
    await add_bookie(cluster, client)
    rebalancer = Rebalancer(client._context.ledgers, cluster.store)
    move = Move(ledger_id, "b1", "b4", 10_000)
    cluster.bookies["b4"].holding = True
    with trio.move_on_after(1):
        await rebalancer.make(move, on_copied=lambda _size: None)
    assert cluster.record(ledger_id) == before
    assert await cluster.store.leases(repair_lease(ledger_id)) == []
    cluster.kill("b4")
    with pytest.raises(BookieUnavailable):
        await rebalancer.make(move, on_copied=lambda _size: None)
    assert cluster.record(ledger_id) == before
    cluster.revive("b4")
    cluster.bookies["b4"].holding = False
    await trio.sleep(10)
    assert await rebalancer.make(move, on_copied=lambda _size: None)
    assert listed(cluster.record(ledger_id)) == {"b2", "b3", "b4"}
    assert (await verify(client._context.ledgers, cluster.record(ledger_id))).whole


MIB = 1 << 20
NAMES = [f"b{number}" for number in range(1, 7)]

shelves = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        *(st.builds(Shelf, st.just(name), st.sampled_from([True] * 4 + [False])) for name in NAMES)
    ).map(lambda made: list(made[:count]))
)
holders = st.sets(st.sampled_from(NAMES), min_size=1, max_size=3)
ledgers = st.lists(st.tuples(holders, st.integers(0, 1000)), max_size=40).map(
    lambda drawn: [
        LedgerShares(number, dict.fromkeys(sorted(names), size))
        for number, (names, size) in enumerate(drawn)
    ]
)


def closed(*fragments: Fragment, length: int, entries: int, write_quorum: int) -> LedgerRecord:
    return LedgerRecord(
        ledger_id=7,
        ensemble_size=len(fragments[0].bookies),
        write_quorum=write_quorum,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        fragments=list(fragments),
        last_entry=entries - 1,
        length=length,
    )


@given(ledgers, shelves)
def test_copies_are_moved_and_never_two_lie_on_one_bookie(
    drawn: list[LedgerShares], places: list[Shelf]
) -> None:
    held = {ledger.ledger_id: set(ledger.sizes) for ledger in drawn}
    takers = {shelf.bookie_id for shelf in places if shelf.takes}
    for move in plan_moves(drawn, places):
        assert move.source in held[move.ledger_id]
        assert move.target not in held[move.ledger_id]
        assert move.target in takers
        held[move.ledger_id] ^= {move.source, move.target}
    assert {number: len(names) for number, names in held.items()} == {
        ledger.ledger_id: len(ledger.sizes) for ledger in drawn
    }


@given(ledgers, shelves)
def test_in_the_end_bookies_are_level_or_no_move_helps(
    drawn: list[LedgerShares], places: list[Shelf]
) -> None:
    levels = Levels(drawn, places)
    before = levels.spread
    for move in plan_moves(drawn, places):
        squares = sum(size * size for size in levels.sizes.values())
        levels.make(move)
        assert sum(size * size for size in levels.sizes.values()) < squares
    assert levels.spread <= before
    assert levels.spread <= TOLERANCE or levels.best_move() is None


def test_a_new_bookie_gets_its_part() -> None:
    old = [LedgerShares(n, dict.fromkeys(NAMES[:3], MIB)) for n in range(100)]
    moves = plan_moves(old, [Shelf(name) for name in NAMES[:4]])
    levels = Levels(old, [Shelf(name) for name in NAMES[:4]])
    for move in moves:
        levels.make(move)
    assert {move.target for move in moves} == {"b4"}
    assert levels.spread <= TOLERANCE
    assert len(moves) <= 75


def test_level_bookies_are_left_alone() -> None:
    even = [LedgerShares(n, {NAMES[n % 3]: 95 + n % 3 * 5}) for n in range(300)]
    assert plan_moves(even, [Shelf(name) for name in NAMES[:3]]) == []


def test_a_full_bookie_gives_and_takes_nothing() -> None:
    everything = [LedgerShares(n, {"b1": 10}) for n in range(10)]
    places = [Shelf("b1"), Shelf("b2", takes=False), Shelf("b3", free=25)]
    moves = plan_moves(everything, places)
    assert [(move.source, move.target) for move in moves] == [("b1", "b3")] * 2


def test_shares_follow_the_fragments() -> None:
    record = closed(
        Fragment(0, ["b1", "b2"]),
        Fragment(25, ["b1", "b3"]),
        length=1000,
        entries=100,
        write_quorum=2,
    )
    assert shares_of(record).sizes == {"b1": 1000, "b2": 250, "b3": 750}
    striped = closed(Fragment(0, ["b1", "b2", "b3"]), length=900, entries=10, write_quorum=2)
    assert shares_of(striped).sizes == {"b1": 600, "b2": 600, "b3": 600}
    empty = closed(Fragment(0, ["b1"]), length=0, entries=0, write_quorum=1)
    assert shares_of(empty).sizes == {"b1": 0}


# --- racks --------------------------------------------------------------------------------


RACKS = {"b1": "r1", "b2": "r1", "b3": "r2", "b4": "r2", "b5": "r3", "b6": "r3"}
racked = st.lists(
    st.tuples(st.permutations(sorted(RACKS)), st.integers(2, 4), st.integers(1, 4)), max_size=12
)


def spreads(ledgers: list[LedgerShares]) -> dict[int, list[int]]:
    return {
        ledger.ledger_id: [
            spread_of([RACKS[b] for b in names], ledger.write_quorum).least
            for names in ledger.ensembles
        ]
        for ledger in ledgers
    }


@given(racked, st.data())
def test_after_a_rebalance_copies_are_on_as_many_racks_as_could_be(
    drawn: list[tuple[list[str], int, int]], data: st.DataObject
) -> None:
    """And no move puts the copies of any entry on fewer."""
    old = [
        LedgerShares(number, dict.fromkeys(order[:size], 10 * number), [order[:size]], min(q, size))
        for number, (order, size, q) in enumerate(drawn)
    ]
    shelves = [Shelf(name, rack=rack) for name, rack in RACKS.items()]
    known = {ledger.ledger_id: ledger for ledger in old}
    for move in plan_moves(old, shelves):
        before = spreads([known[move.ledger_id]])[move.ledger_id]
        known[move.ledger_id] = moved(known[move.ledger_id], move)
        after = spreads([known[move.ledger_id]])[move.ledger_id]
        assert all(new >= was for new, was in zip(after, before, strict=True))
    for ledger in known.values():
        size, quorum = len(ledger.ensembles[0]), ledger.write_quorum
        assert spreads([ledger])[ledger.ledger_id] == [best_spread([2, 2, 2], size, quorum).least]


def moved(ledger: LedgerShares, move: Move) -> LedgerShares:
    assert move.source in ledger.sizes and move.target not in ledger.sizes
    sizes = {move.target if b == move.source else b: n for b, n in ledger.sizes.items()}
    lists = [[move.target if b == move.source else b for b in e] for e in ledger.ensembles]
    return msgspec.structs.replace(ledger, sizes=sizes, ensembles=lists)


def test_a_copy_goes_to_the_emptiest_bookie_of_a_rack_without_one() -> None:
    old = [
        LedgerShares(1, {"b1": 5, "b2": 5}, [["b1", "b2"]], 2),
        LedgerShares(2, {"b3": 5, "b5": 5}, [["b3", "b5"]], 2),
        LedgerShares(3, {"b4": 1, "b6": 1}, [["b4", "b6"]], 2),
    ]
    shelves = [Shelf(name, rack=rack) for name, rack in RACKS.items()]
    first, *_ = plan_moves(old, shelves)
    assert (first.ledger_id, first.source, first.target) in [(1, "b1", "b4"), (1, "b1", "b6")]

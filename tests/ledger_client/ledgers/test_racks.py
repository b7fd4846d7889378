"""Copies are on as many racks as the bookies allow."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
import trio
from hypothesis import given, settings, strategies as st
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import NotEnoughBookies, Options
from ledger_client.ledgers.placement import choose_ensemble
from ledger_client.ledgers.racks import Spread, best_spread, spread_at, spread_of, spread_out
from metadata.records import BookieRecord

GIB = 1 << 30
layouts = st.lists(st.integers(1, 4), min_size=1, max_size=4)
"""Numbers of bookies on each rack."""


def bookies(sizes: list[int]) -> list[BookieRecord]:
    return [
        BookieRecord(f"b{rack}-{number}", "h:1", 100 * GIB, 50 * GIB, rack=f"r{rack}")
        for rack, size in enumerate(sizes)
        for number in range(size)
    ]


def orders(sizes: list[int], ensemble_size: int) -> Iterator[list[str]]:
    """Yield every way to put racks on the places of an ensemble."""
    for order in itertools.product(range(len(sizes)), repeat=ensemble_size):
        counts = Counter(order)
        if all(counts[rack] <= size for rack, size in enumerate(sizes)):
            yield [f"r{rack}" for rack in order]


@settings(deadline=None)
@given(layouts, st.integers(1, 6), st.data(), st.integers())
def test_no_choice_of_bookies_spreads_the_worst_write_set_over_more_racks(
    sizes: list[int], ensemble_size: int, data: st.DataObject, seed: int
) -> None:
    ensemble_size = min(ensemble_size, sum(sizes))
    write_quorum = data.draw(st.integers(1, ensemble_size))
    found = choose_ensemble(
        bookies(sizes), ensemble_size, chance=random.Random(seed), write_quorum=write_quorum
    )
    assert len(set(found)) == ensemble_size
    racks = [f"r{name[1:].partition('-')[0]}" for name in found]
    best = max(spread_of(o, write_quorum).least for o in orders(sizes, ensemble_size))
    assert spread_of(racks, write_quorum).least == best
    assert best_spread(sizes, ensemble_size, write_quorum).least == best


@given(st.integers(2, 64), st.integers(2, 6), st.integers())
def test_large_ensembles_have_no_rack_twice_in_a_write_set_if_that_is_possible(
    ensemble_size: int, write_quorum: int, seed: int
) -> None:
    write_quorum = min(write_quorum, ensemble_size)
    rounds = ensemble_size // write_quorum
    many = bookies([rounds] * -(-ensemble_size // rounds))
    found = choose_ensemble(
        many, ensemble_size, chance=random.Random(seed), write_quorum=write_quorum
    )
    racks = [name.partition("-")[0] for name in found]
    assert spread_of(racks, write_quorum).least == write_quorum


@settings(deadline=None)
@given(layouts, st.integers(1, 5), st.data())
def test_more_copies_than_racks_are_as_even_as_possible(
    sizes: list[int], copies: int, data: st.DataObject
) -> None:
    copies = min(copies, sum(sizes))
    many = data.draw(st.permutations(bookies(sizes)))
    rack_of = {bookie.bookie_id: bookie.rack for bookie in many}
    found = spread_out([*rack_of], rack_of, copies, copies)
    counts = Counter(rack_of[name] for name in found)
    for rack, size in enumerate(sizes):
        spare = counts[f"r{rack}"] < size
        assert not spare or max(counts.values()) <= counts[f"r{rack}"] + 1


def test_bookies_without_a_rack_share_one() -> None:
    many = [BookieRecord(f"b{i}", "h:1", 1, GIB, rack="r1" if i == 3 else "") for i in range(4)]
    for seed in range(50):
        assert "b3" in choose_ensemble(many, 2, chance=random.Random(seed))


def test_without_racks_the_draw_alone_decides() -> None:
    many = [BookieRecord(f"b{i}", "h:1", 1, (i + 1) * GIB) for i in range(9)]
    alike = [BookieRecord(f"b{i}", "h:1", 1, (i + 1) * GIB, rack="r1") for i in range(9)]
    for seed in range(50):
        drawn = choose_ensemble(many, 9, chance=random.Random(seed))
        for racks in (many, alike):
            chosen = choose_ensemble(racks, 5, chance=random.Random(seed), write_quorum=2)
            assert chosen == drawn[:5]


def test_bookies_of_one_rack_get_shares_by_their_room() -> None:
    many = [
        BookieRecord("small", "h:1", 1, 10 * GIB, rack="r1"),
        BookieRecord("large", "h:1", 1, 30 * GIB, rack="r1"),
        BookieRecord("other", "h:1", 1, 20 * GIB, rack="r2"),
    ]
    chance = random.Random(1)
    counts = Counter(b for _ in range(2000) for b in choose_ensemble(many, 2, chance=chance))
    assert counts["other"] == 2000
    assert 2.4 < counts["large"] / counts["small"] < 3.6


def test_a_required_number_of_racks_is_met_or_the_error_says_what_is_missing() -> None:
    chance = random.Random(1)
    with pytest.raises(NotEnoughBookies, match="would span 2 of 3 racks") as few:
        choose_ensemble(bookies([3, 3]), 3, chance=chance, racks_min=3)
    assert (few.value.racks, few.value.racks_needed) == (2, 3)
    assert len(choose_ensemble(bookies([3, 3]), 3, chance=chance, racks_min=2)) == 3
    one = choose_ensemble(bookies([3]), 3, chance=chance, write_quorum=1, racks_min=3)
    assert len(one) == 3, "one copy is on one rack"


def test_a_place_is_judged_by_the_write_sets_that_it_is_in() -> None:
    racks = ["r1", "r2", "r1", "r2", None]
    assert spread_at(racks, 4, "r3", 2) == Spread(2, 4)
    assert spread_at(racks, 4, "r1", 2) == Spread(1, 3)
    assert spread_of(["r1", None, None], 3).least == 3, "an unknown rack may be another one"


async def test_a_lost_bookie_is_replaced_on_a_rack_without_a_copy(
    autojump_clock: MockClock,
) -> None:
    racks = {f"b{number}": f"r{(number + 1) // 2}" for number in range(1, 7)}
    for seed in range(10):
        async with memory_cluster(6, seed=seed) as cluster, cluster.client() as client:
            cluster.state_racks(racks)
            async with client.ledgers.create(2, 2, 2) as ledger:
                await ledger.append(b"one")
                staying, lost = ledger.metadata.fragments[0].bookies
                assert racks[staying] != racks[lost]
                cluster.kill(lost)
                await ledger.append(b"two")
            first, second = cluster.record(ledger.id).fragments[-1].bookies
            assert (first, second != lost) == (staying, True)
            assert racks[first] != racks[second]


async def test_with_a_required_number_of_racks_none_but_those_replace_a_lost_bookie(
    autojump_clock: MockClock,
) -> None:
    racks = {"b1": "r1", "b2": "r1", "b3": "r1", "b4": "r2"}
    strict = Options(racks_min=2)
    async with memory_cluster(4) as cluster, cluster.client(strict) as client:
        cluster.state_racks(racks)
        async with client.ledgers.create(2, 2, 1) as ledger:
            await ledger.append(b"one")
            cluster.kill("b4")
            await ledger.append(b"two")
            await trio.sleep(5)
            assert len(cluster.record(ledger.id).fragments) == 1
            cluster.revive("b4")
            await trio.sleep(60)
            assert "b4" in cluster.record(ledger.id).fragments[-1].bookies
            assert len(cluster.record(ledger.id).fragments) == 2
        cluster.kill("b4")
        await trio.sleep(1)
        with pytest.raises(NotEnoughBookies, match="would span 1 of 2 racks"):
            async with client.ledgers.create(2, 2, 1):
                pass

"""Which bookies are chosen, and which are passed over for a while."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
import trio
from hypothesis import given, strategies as st
from leases import grant
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import NotEnoughBookies
from ledger_client.ledgers.placement import Quarantine, choose_ensemble
from metadata.records import BookieRecord, bookie_lease

GIB = 1 << 30
records = st.lists(
    st.builds(
        BookieRecord,
        bookie_id=st.sampled_from([f"b{i}" for i in range(40)]),
        address=st.just("h:1"),
        capacity=st.just(1 << 50),
        free=st.integers(0, 1 << 50),
        load=st.floats(0, 1e12),
        read_only=st.booleans(),
        limbo=st.booleans(),
        draining=st.booleans(),
    ),
    unique_by=lambda record: record.bookie_id,
    max_size=40,
)


@given(records, st.integers(1, 8), st.sets(st.sampled_from(["b1", "b2", "b3"])), st.integers())
def test_an_ensemble_has_different_writable_bookies_that_are_not_excluded(
    bookies: list[BookieRecord], size: int, exclude: set[str], seed: int
) -> None:
    able = {b.bookie_id for b in bookies if not (b.read_only or b.draining)} - exclude
    chance = random.Random(seed)
    if len(able) < size:
        with pytest.raises(NotEnoughBookies) as few:
            choose_ensemble(bookies, size, chance=chance, exclude=exclude)
        assert (few.value.healthy, few.value.needed) == (len(able), size)
    else:
        chosen = choose_ensemble(bookies, size, chance=chance, exclude=exclude)
        assert len(set(chosen)) == len(chosen) == size
        assert set(chosen) <= able


def share(bookies: list[BookieRecord], draws: int = 4000) -> Counter[str]:
    chance = random.Random(1)
    return Counter(choose_ensemble(bookies, 1, chance=chance)[0] for _ in range(draws))


def test_equal_bookies_get_equal_shares() -> None:
    counts = share([BookieRecord(f"b{i}", "h:1", 100 * GIB, 50 * GIB) for i in range(4)])
    assert all(850 < count < 1150 for count in counts.values())


def test_room_counts_in_proportion() -> None:
    counts = share(
        [
            BookieRecord("small", "h:1", 100 * GIB, 10 * GIB),
            BookieRecord("large", "h:1", 100 * GIB, 30 * GIB),
        ]
    )
    assert 2.6 < counts["large"] / counts["small"] < 3.4


def test_busy_bookies_get_less_and_full_ones_hardly_anything() -> None:
    counts = share(
        [
            BookieRecord("idle", "h:1", 100 * GIB, 50 * GIB, load=0),
            BookieRecord("busy", "h:1", 100 * GIB, 50 * GIB, load=1e8),
            BookieRecord("full", "h:1", 100 * GIB, 0, load=0),
        ]
    )
    assert counts["idle"] > 2 * counts["busy"] > 20 * counts["full"]


async def test_a_bookie_that_failed_lately_is_chosen_when_no_other_is_left(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        cluster.kill("b2")
        for _ in range(20):  # it is noticed once, and nobody runs into it again
            async with client.ledgers.create(3, 3, 2):
                pass
        assert cluster.dialled.count("b2") == 1
        cluster.revive("b2")
        async with client.ledgers.create(4, 3, 2) as ledger:
            assert "b2" in ledger.metadata.fragments[0].bookies


async def test_a_bookie_in_limbo_is_chosen_for_new_ledgers_when_no_other_is_left(
    autojump_clock: MockClock,
) -> None:
    """It takes no place in an older one: it may have forgotten that this one is fenced."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        told = cluster.store.bookies
        told["b2"] = msgspec.structs.replace(told["b2"], limbo=True)
        for _ in range(20):
            async with client.ledgers.create(3, 3, 2) as ledger:
                assert "b2" not in ledger.metadata.fragments[0].bookies
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            cluster.kill("b4")
            await ledger.append(b"one")
            await trio.sleep(10)
            assert "b2" not in ledger.metadata.fragments[-1].bookies
            async with client.ledgers.create(3, 3, 2) as another:
                await another.append(b"zero")
                assert set(another.metadata.fragments[0].bookies) == {"b1", "b2", "b3"}


async def test_no_ledger_has_more_bookies_in_limbo_than_it_needs_nor_than_recovery_can_do_without(
    autojump_clock: MockClock,
) -> None:
    """They never deny an entry: with too many of them nobody could tell where a ledger ends."""
    async with memory_cluster(5) as cluster, cluster.client() as client:
        told = cluster.store.bookies
        for name in ("b3", "b4", "b5"):
            told[name] = msgspec.structs.replace(told[name], limbo=True)
        for _ in range(20):
            async with client.ledgers.create(3, 3, 2) as ledger:
                assert {"b1", "b2"} < set(ledger.metadata.fragments[0].bookies)
        for quorums in ((3, 3, 1), (4, 4, 2)):
            with pytest.raises(NotEnoughBookies):
                async with client.ledgers.create(*quorums):
                    pass
        async with client.ledgers.create(4, 4, 3):
            pass


async def test_a_registration_that_cannot_be_decoded_stops_no_placement(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        del cluster.store.bookies["b2"]
        await grant(cluster.store, bookie_lease("b2"), "b2", ttl_s=80_000, value=b"no registration")
        for _ in range(3):
            async with client.ledgers.create(3, 3, 2) as ledger:
                await ledger.append(b"one")
            (_, placed), *_ = (await client.ledgers.info(ledger.id)).bookies
            assert set(placed) == {"b1", "b3", "b4"}
        assert caplog.text.count("skipping b2") == 1, "reported once"


async def test_a_bookie_that_failed_stays_out_for_a_while(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    assert "b1" not in quarantine
    quarantine.failed("b1")
    mock_clock.jump(4.9)
    assert "b1" in quarantine and "b2" not in quarantine
    mock_clock.jump(0.2)
    assert "b1" not in quarantine


async def test_who_fails_again_soon_stays_twice_as_long(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    lengths = []
    for _ in range(6):
        quarantine.failed("b1")
        start = trio.current_time()
        while "b1" in quarantine:
            mock_clock.jump(1)
        lengths.append(trio.current_time() - start)
        mock_clock.jump(10)
    assert lengths == [5, 10, 20, 40, 60, 60]


async def test_what_all_writers_report_at_once_is_one_failure(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    for _ in range(100):
        quarantine.failed("b1")
        mock_clock.jump(0.01)
    mock_clock.jump(4.01)
    assert "b1" not in quarantine


async def test_a_quiet_time_is_forgiveness(mock_clock: MockClock) -> None:
    quarantine = Quarantine(first_s=5, longest_s=60)
    quarantine.failed("b1")
    mock_clock.jump(5 + 61)
    quarantine.failed("b1")
    mock_clock.jump(5.1)
    assert "b1" not in quarantine


async def test_registered_bookies_that_were_not_counted_are_named(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.kill("b2")
        with pytest.raises(NotEnoughBookies) as few:
            async with client.ledgers.create(3, 3, 2):
                pass
        assert few.value.healthy == 2
        (note,) = few.value.__notes__
        assert note.startswith("not counted: bookie b2: ")
        assert "b2 is down" in note

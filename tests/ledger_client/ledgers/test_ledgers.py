"""Ledgers made, closed, listed and deleted; rivals and outages of the store."""

from __future__ import annotations

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

import ledger_client
from ledger_client import Options
from ledger_client.errors import (
    BadAddress,
    LedgerClosed,
    LedgerError,
    LedgerExists,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    OutcomeUnknown,
)
from metadata.records import LedgerRecord, LedgerState, encode_record, ledger_key


@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 3, 2), (3, 3, 0), (0, 0, 0), (65, 3, 2)])
async def test_quorums_that_cannot_be_are_refused(
    autojump_clock: MockClock, sizes: tuple[int, int, int]
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with pytest.raises(LedgerError, match=f"ensemble size {sizes[0]}.* must be 1 <= ack"):
            async with client.ledgers.create(*sizes):
                pass
        assert cluster.store.values == {}


async def test_too_few_writable_bookies_are_told_with_numbers(autojump_clock: MockClock) -> None:
    async with memory_cluster(2) as cluster, cluster.client() as client:
        cluster.add_bookie(3, read_only=True)
        with pytest.raises(NotEnoughBookies) as few:
            async with client.ledgers.create(3, 3, 2):
                pass
        assert (few.value.healthy, few.value.needed) == (2, 3)


async def test_a_registered_bookie_that_is_out_of_reach_is_replaced_in_a_new_ensemble(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        cluster.kill("b2")
        for _ in range(5):
            async with client.ledgers.create(3, 3, 3) as ledger:
                await ledger.append(b"x")
            assert sorted(cluster.record(ledger.id).fragments[0].bookies) == ["b1", "b3", "b4"]


async def test_a_ledger_id_is_given_once(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(ledger_id=42, custom={"owner": "me"}) as ledger:
            assert ledger.id == 42
            with pytest.raises(LedgerExists) as exists:
                async with client.ledgers.create(ledger_id=42):
                    pass
            assert exists.value.ledger_id == 42
        assert (await client.ledgers.info(42)).custom == {"owner": "me"}
        with pytest.raises(ValueError, match="ledger id -1"):
            async with client.ledgers.create(ledger_id=-1):
                pass


async def test_a_ledger_deleted_under_its_writer_does_not_let_a_second_one_in_beside_it(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        with pytest.raises(NoSuchLedger):  # the first one: another ledger took its place
            async with client.ledgers.create(1, 1, 1, ledger_id=5) as first:
                await first.append(b"first")
                await client.ledgers.delete(5)
                async with client.ledgers.create(1, 1, 1, ledger_id=5) as second:
                    with pytest.raises(OutcomeUnknown, match="lost the ack quorum"):
                        await second.append(b"second")
                await first.append(b"first still writes")


async def test_ledgers_are_listed_by_id_and_deleted(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        for ledger_id in (7, 3, 100, 20):
            async with client.ledgers.create(ledger_id=ledger_id) as ledger:
                await ledger.append(b"four")
        infos = [info async for info in client.ledgers.list()]
        assert [info.ledger_id for info in infos] == [3, 7, 20, 100]
        assert {(info.state, info.last_entry, info.length) for info in infos} == {
            (LedgerState.CLOSED, 0, 4)
        }
        await client.ledgers.delete(7)
        assert [info.ledger_id async for info in client.ledgers.list()] == [3, 20, 100]
        with pytest.raises(NoSuchLedger):
            await client.ledgers.delete(7)
        with pytest.raises(NoSuchLedger):
            await client.ledgers.info(-5)


async def test_the_blocks_own_error_leaves_unwrapped_and_the_ledger_is_closed(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster:
        with pytest.raises(KeyError):
            async with cluster.client() as client, client.ledgers.create() as ledger:
                await ledger.append(b"x")
                raise KeyError
        assert cluster.record(1).state is LedgerState.CLOSED


async def test_a_cancelled_block_closes_its_ledger_too(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with trio.move_on_after(1):
            async with client.ledgers.create() as ledger:
                await ledger.append(b"x")
                for bookie in cluster.bookies.values():
                    bookie.answering = False
                await ledger.append(b"y")
        record = cluster.record(1)
        assert (record.state, record.last_entry) == (LedgerState.CLOSED, 0)
        assert trio.current_time() < 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"state": LedgerState.CLOSED, "last_entry": 7, "length": 70}, LedgerClosed),
        ({"state": LedgerState.CLOSED, "last_entry": 0, "length": 5}, LedgerClosed),
        ({"state": LedgerState.IN_RECOVERY}, LedgerFenced),
        (None, NoSuchLedger),
    ],
)
async def test_a_rival_who_was_faster_is_told_when_closing(
    autojump_clock: MockClock, change: dict[str, object] | None, error: type[Exception]
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with pytest.raises(error):
            async with client.ledgers.create() as ledger:
                await ledger.append(b"x")
                interfere(cluster, ledger.id, change)


async def test_a_rival_who_closed_at_the_same_end_is_no_conflict(autojump_clock: MockClock) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        client.ledgers.create() as ledger,
    ):
        await ledger.append(b"x")
        interfere(cluster, ledger.id, {"state": LedgerState.CLOSED, "last_entry": 0, "length": 1})


async def test_a_change_of_something_else_in_between_does_not_disturb_closing(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create() as ledger:
            await ledger.append(b"x")
            disturbed: list[bool] = []

            def disturb(_key: str) -> None:
                if not disturbed:
                    disturbed.append(True)
                    interfere(cluster, ledger.id, {"custom": {"by": "another"}})

            cluster.store.before_put = disturb
        record = cluster.record(ledger.id)
        assert (record.state, record.custom) == (LedgerState.CLOSED, {"by": "another"})


async def test_closing_waits_for_entries_under_way_and_then_closes_without_them(
    autojump_clock: MockClock,
) -> None:
    options = Options(close_timeout_s=3, append_timeout_s=60)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        async with trio.open_nursery() as nursery:
            async with client.ledgers.create() as ledger:
                await ledger.append(b"x")
                for bookie in cluster.bookies.values():
                    bookie.holding = True
                nursery.start_soon(append_in_vain, ledger)
                await trio.sleep(1)
            assert trio.current_time() == pytest.approx(4, abs=0.1)
        assert cluster.record(ledger.id).last_entry == 0


async def test_closing_outlasts_an_outage_of_the_store(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with trio.open_nursery() as nursery, client.ledgers.create() as ledger:
            await ledger.append(b"x")
            cluster.store.available = False
            await ledger.append(b"appends go on")
            nursery.start_soon(bring_back, cluster)
        assert cluster.record(ledger.id).last_entry == 1


async def test_a_store_that_stays_away_leaves_the_ledger_open_and_says_so(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client(Options(close_timeout_s=2)) as client:
        with pytest.raises(MetadataUnavailable) as away:
            async with client.ledgers.create() as ledger:
                await ledger.append(b"x")
                cluster.store.available = False
        assert away.value.ledger_id == ledger.id
        cluster.store.available = True
        await ledger.close()
        assert cluster.record(ledger.id).last_entry == 0


async def test_addresses_that_cannot_be_understood_are_named() -> None:
    for url in ("http://x", "bookie://", "bookie://host:port", "nonsense"):
        with pytest.raises(BadAddress):
            async with ledger_client.connect(url):
                pass


def interfere(cluster: MemoryCluster, ledger_id: int, change: dict[str, object] | None) -> None:
    key = ledger_key(ledger_id)
    if change is None:
        del cluster.store.values[key]
        return
    record: LedgerRecord = cluster.record(ledger_id)
    cluster.store.change(key, encode_record(msgspec.structs.replace(record, **change)))


async def append_in_vain(ledger: ledger_client.LedgerWriter) -> None:
    with pytest.raises(OutcomeUnknown):
        await ledger.append(b"y")


async def bring_back(cluster: MemoryCluster) -> None:
    await trio.sleep(5)
    cluster.store.available = True

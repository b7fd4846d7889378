"""Writing with too few bookies, and coming back."""

from __future__ import annotations

import pytest
import trio
from losses import (
    Gate,
    adds,
    check_readable,
    chosen,
    once,
    outage,
    spares,
)
from memory_cluster import memory_cluster
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client import LedgerWriter
from ledger_client.errors import (
    AckQuorumLost,
    NotEnoughBookies,
    OutcomeUnknown,
)
from metadata.records import (
    LedgerState,
    decode_underreplicated,
    underreplicated_key,
)
from native.frame import Code

NONSENSE = bytes([0, 0, 0, 1, 0])
"""A frame that no response is so short as"""

# --- too few bookies ---------------------------------------------------------------------


async def test_without_a_quorum_and_without_bookies_the_writer_fails_and_keeps_what_it_confirmed(
    autojump_clock: MockClock,
) -> None:
    """BK-05: a typed error after replace_timeout_s; everything acknowledged is in the ledger."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append_many([b"0", b"1", b"2"])
            cluster.kill("b1")
            cluster.kill("b2")
            started = trio.current_time()
            with pytest.raises(OutcomeUnknown) as unknown:
                await ledger.append(b"3")
            assert trio.current_time() - started == pytest.approx(10, abs=0.1)
            failure = unknown.value.__cause__
            assert isinstance(failure, AckQuorumLost)
            assert set(failure.lost) == {"b1", "b2"}
            assert isinstance(failure.__cause__, NotEnoughBookies)
            with pytest.raises(AckQuorumLost):
                await ledger.append(b"4")
        record = cluster.record(ledger.id)
        assert (record.state, record.last_entry, record.length) == (LedgerState.CLOSED, 2, 3)
        await check_readable(client, cluster, ledger.id, 3)


async def test_what_is_acknowledged_right_before_the_protocol_is_broken_counts(
    autojump_clock: MockClock,
) -> None:
    """BK-05: the last entry and the length of a closed ledger are of the same moment."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        bookie = cluster.bookies["b1"]
        async with client.ledgers.create(1, 1, 1) as ledger:
            await ledger.append(b"first")
            bookie.holding = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.append, b"other")
                await trio.sleep(0.1)
                await bookie.release(then=NONSENSE)
                cluster.down.add("b1")
        record = cluster.record(ledger.id)
        assert (record.last_entry, record.length) == (1, 10)


async def test_a_writer_without_a_quorum_goes_on_when_a_bookie_comes_in_time(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            await ledger.append(b"zero")
            cluster.kill("b1")
            nursery.start_soon(ledger.append, b"one")
            await trio.sleep(9)
            assert ledger.last_confirmed == 0
            cluster.add_bookie(4)
            await trio.sleep(0.9)
            assert ledger.last_confirmed == 1
        await check_readable(client, cluster, ledger.id, 2)


async def test_a_writer_goes_on_degraded_and_comes_back_to_full_when_a_bookie_registers(
    autojump_clock: MockClock,
) -> None:
    """BK-03, TB-25: the ack quorum stands, and the copy that lacks is made up for later."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            cluster.kill("b2")
            for number in range(1, 60):
                await ledger.append(b"%d" % number)
                await trio.sleep(0.5)
            assert len(ledger.metadata.fragments) == 1
            cluster.add_bookie(4)
            await trio.sleep(3)
            await ledger.append(b"60")
            assert "b4" in chosen(ledger)
        assert cluster.record(ledger.id).fragments[1].first_entry == 60
        assert sorted(cluster.bookies["b4"].entries(ledger.id)) == [60]
        await check_readable(client, cluster, ledger.id, 61)


async def test_the_lost_bookie_itself_may_come_back_after_its_quarantine(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            cluster.kill("b2")
            await ledger.append(b"one")
            cluster.revive("b2")
            await trio.sleep(4.5)
            await ledger.append(b"two")
            assert 2 not in cluster.bookies["b2"].entries(ledger.id)
            await trio.sleep(3)
            await ledger.append(b"three")
            assert 3 in cluster.bookies["b2"].entries(ledger.id)
        first, second = cluster.record(ledger.id).fragments
        assert first.bookies == second.bookies
        assert second.first_entry == 3  # b2 lacks what came in between
        await check_readable(client, cluster, ledger.id, 4)


async def test_with_nobody_else_a_bookie_is_taken_back_from_quarantine(
    autojump_clock: MockClock,
) -> None:
    """A reset of the socket stalls a writer for less than 200 ms even then."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger:
            await ledger.append(b"zero")
            for number in range(1, 4):
                cluster.bookies["b2"].drop_connections()
                started = trio.current_time()
                assert await ledger.append(b"%d" % number) == number
                assert trio.current_time() - started < 0.2
        await check_readable(client, cluster, ledger.id, 4)


async def test_a_flapping_bookie_is_left_alone(autojump_clock: MockClock) -> None:
    """It comes back all the time; after the first failures it is not chosen any more."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            flapping, steady = chosen(ledger)[0], spares(cluster, ledger)[0]
            for number in range(200):
                await ledger.append(b"%d" % number)
                cluster.bookies[flapping].drop_connections()
                if number % 50 == 49:  # somebody else fails once in a while
                    cluster.bookies[steady].drop_connections()
                await trio.sleep(0.1)
            assert len(ledger.metadata.fragments) < 12
        await check_readable(client, cluster, ledger.id, 200)


async def test_a_bookie_that_refuses_everything_is_not_asked_without_pause(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(1) as cluster,
        cluster.client() as client,
        client.ledgers.create(1, 1, 1) as ledger,
    ):
        await ledger.append(b"zero")
        cluster.bookies["b1"].add_code = Code.READ_ONLY
        with pytest.raises(OutcomeUnknown) as unknown:
            await ledger.append(b"one")
        assert isinstance(unknown.value.__cause__, AckQuorumLost)
        assert len(adds(cluster, "b1")) < 40
        cluster.bookies["b1"].add_code = Code.OK


# --- the end -----------------------------------------------------------------------------


async def test_a_ledger_that_lost_a_bookie_is_reported_for_repair(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as whole:
            await whole.append(b"zero")
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            cluster.kill(chosen(ledger)[0])
            await ledger.append(b"one")
        assert underreplicated_key(whole.id) not in cluster.store.values
        key = underreplicated_key(ledger.id)
        mark = decode_underreplicated(key, cluster.store.values[key].value)
        assert (mark.ledger_id, mark.reason) == (ledger.id, "ensemble changed")


async def test_closing_in_the_middle_of_a_change_seals_at_what_is_confirmed(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            await ledger.append(b"zero")
            gate = Gate(cluster)
            cluster.kill(chosen(ledger)[0])
            nursery.start_soon(expect_unknown, ledger, b"one")
            await gate.reached.wait()
            await ledger.close(wait=False)
            gate.opened.set()
        record = cluster.record(ledger.id)
        assert (record.state, record.last_entry, len(record.fragments)) == (
            LedgerState.CLOSED,
            0,
            1,
        )
        assert ledger.closed


async def test_the_time_for_an_append_holds_during_a_change_too(autojump_clock: MockClock) -> None:
    async with (
        memory_cluster(4) as cluster,
        cluster.client() as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"zero")
        once(cluster, lambda: outage(cluster))
        cluster.kill(chosen(ledger)[0])
        await wait_all_tasks_blocked()
        with pytest.raises(OutcomeUnknown) as unknown, trio.fail_after(30.1):
            await ledger.append(b"one")
        assert "was not acknowledged within" in str(unknown.value.__cause__)
        cluster.store.available = True


async def expect_unknown(ledger: LedgerWriter, payload: bytes) -> None:
    with pytest.raises(OutcomeUnknown):
        await ledger.append(payload)


# --- copies that nobody waited for ---------------------------------------------------------


async def test_a_bookie_that_did_without_the_last_entries_is_looked_after(
    autojump_clock: MockClock,
) -> None:
    """TB-44: it was never lost, and yet it may lack what the other two acknowledged."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            cluster.bookies["b1"].holding = True
            await ledger.append(b"one")
            started = trio.current_time()
        assert trio.current_time() - started < 1
        assert cluster.record(ledger.id).state is LedgerState.CLOSED
        mark = cluster.store.values[underreplicated_key(ledger.id)]
        assert decode_underreplicated("", mark.value).reason == "check"


async def test_a_bookie_that_is_only_slower_is_waited_for(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.bookies["b1"].delay_s = lambda _request: 0.1
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"one")
            assert cluster.bookies["b1"].entries(ledger.id) == {}
        assert underreplicated_key(ledger.id) not in cluster.store.values

"""Changes of the ensemble that meet others' changes, or no metadata."""

from __future__ import annotations

import msgspec
import pytest
import trio
from losses import (
    check_readable,
    chosen,
    once,
    outage,
    put,
    rival,
)
from memory_cluster import memory_cluster
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client import LedgerWriter
from ledger_client.errors import (
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    NoSuchLedger,
    OutcomeUnknown,
)
from metadata.errors import MetadataUnavailable
from metadata.records import (
    Fragment,
    LedgerState,
)

# --- rivals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (LedgerState.IN_RECOVERY, LedgerFenced),
        (LedgerState.CLOSED, LedgerClosed),
        (None, NoSuchLedger),
    ],
)
async def test_a_change_that_meets_the_end_of_the_ledger_ends_the_writer(
    autojump_clock: MockClock, state: LedgerState | None, expected: type[LedgerError]
) -> None:
    """BK-06: recovery, close and deletion by another client win over a change."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        with pytest.raises(expected):
            async with client.ledgers.create(3, 3, 2) as ledger:
                await ledger.append(b"zero")
                rival(cluster, ledger.id, state)
                cluster.kill(chosen(ledger)[0])
                await wait_all_tasks_blocked()
                with pytest.raises(expected):
                    await ledger.append(b"one")
        assert ledger.last_confirmed == 0


async def test_a_recovery_between_the_look_and_the_change_wins(autojump_clock: MockClock) -> None:
    """BK-06: the record changed after it was read."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        with pytest.raises(LedgerFenced):
            async with client.ledgers.create(3, 3, 2) as ledger:
                await ledger.append(b"zero")
                once(cluster, lambda: rival(cluster, ledger.id, LedgerState.IN_RECOVERY))
                cluster.kill(chosen(ledger)[0])
                await wait_all_tasks_blocked()
                with pytest.raises(LedgerFenced):
                    await ledger.append(b"one")


async def test_a_repair_of_earlier_fragments_is_kept(autojump_clock: MockClock) -> None:
    """TB-26: the location list changes by compare-and-set, each change on top of the other."""
    async with memory_cluster(6) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            cluster.kill(chosen(ledger)[0])
            await wait_all_tasks_blocked()
            await ledger.append(b"one")
            healed = Fragment(0, ["b4", "b5", "b6"])

            def heal() -> None:
                record = cluster.record(ledger.id)
                put(
                    cluster,
                    msgspec.structs.replace(record, fragments=[healed, *record.fragments[1:]]),
                )

            once(cluster, heal)
            cluster.kill(chosen(ledger)[1])
            await wait_all_tasks_blocked()
            assert await ledger.append(b"two") == 2
        fragments = cluster.record(ledger.id).fragments
        assert fragments[0] == healed
        assert [f.first_entry for f in fragments] == [0, 1, 2]


# --- metadata away -----------------------------------------------------------------------


async def test_appends_wait_while_a_change_cannot_be_recorded_and_go_on_afterwards(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger, trio.open_nursery() as nursery:
            await ledger.append(b"zero")
            once(cluster, lambda: outage(cluster))
            cluster.kill(chosen(ledger)[0])
            nursery.start_soon(ledger.append, b"one")
            await trio.sleep(8)
            assert ledger.last_confirmed == 0
            cluster.store.available = True
            await trio.sleep(1)
            assert ledger.last_confirmed == 1
        await check_readable(client, cluster, ledger.id, 2)


async def test_with_metadata_away_writing_goes_on_with_the_bookies_left(
    autojump_clock: MockClock,
) -> None:
    """BK-03: the quorum stands, and who comes in can wait."""
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 2) as ledger:
            await ledger.append(b"zero")
            cluster.store.available = False
            cluster.kill(chosen(ledger)[0])
            for number in range(1, 20):
                assert await ledger.append(b"%d" % number) == number
                await trio.sleep(1)
            cluster.store.available = True
            await trio.sleep(3)
            assert not set(chosen(ledger)) & cluster.down
        await check_readable(client, cluster, ledger.id, 20)


@pytest.mark.parametrize("done", [False, True])
async def test_a_change_of_unknown_outcome_is_looked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    async with memory_cluster(4) as cluster, cluster.client() as client:
        async with client.ledgers.create(3, 3, 3) as ledger:
            await ledger.append(b"zero")
            puts: list[str] = []
            store_put = cluster.store.put

            async def put_and_lose(key: str, value: bytes, *, expected: int | None = None) -> int:
                puts.append(key)
                if done or len(puts) > 1:
                    version = await store_put(key, value, expected=expected)
                    if len(puts) > 1:
                        return version
                raise MetadataUnavailable("no answer", outcome_unknown=True)

            monkeypatch.setattr(cluster.store, "put", put_and_lose)
            cluster.kill(chosen(ledger)[0])
            assert await ledger.append(b"one") == 1
            assert len(puts) == (1 if done else 2)
        assert len(cluster.record(ledger.id).fragments) == 2
        await check_readable(client, cluster, ledger.id, 2)


async def expect_unknown(ledger: LedgerWriter, payload: bytes) -> None:
    with pytest.raises(OutcomeUnknown):
        await ledger.append(payload)

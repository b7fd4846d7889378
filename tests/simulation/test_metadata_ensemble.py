"""The harness sees what all stores of an ensemble do, and sessions of processes end as they do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import virtual
from leases import grant
from machines import MACHINE, Machine
from metadata_ensemble import MetadataEnsemble, key_of
from network import Network
from plants import read_without_sync
from simulation import simulate
from troubles import ANSWERS_LOST, ENSEMBLE, SESSIONS_EXPIRED

from metadata.errors import LeaseLost, MetadataUnavailable, VersionConflict
from metadata.records import (
    LEDGER_COUNTER,
    CookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    cookie_key,
    encode_record,
    ledger_key,
)
from metadata.store import ABSENT, CheckLease, Delete, Put, Versioned
from metadata.zookeeper.store import ZooKeeperStore

SEED = 224
"""has the trouble, and no other"""
EXPIRED_S = 8.0
RECORD = LedgerRecord(
    ledger_id=7,
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    state=LedgerState.OPEN,
    fragments=[Fragment(first_entry=0, bookies=["b1"])],
    created_ms=5,
)


def in_ensemble(work: Callable[[MetadataEnsemble], Awaitable[None]]) -> None:
    """Run *work* with an ensemble and its observer."""

    async def main() -> None:
        network = Network(random.Random(1), delay_max_s=0.01, split_share=0.0)
        metadata = MetadataEnsemble(["b1", "b2"], network, Counter(), random.Random(2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(metadata.run)
            await work(metadata)
            nursery.cancel_scope.cancel()

    virtual.run(1, main)


@asynccontextmanager
async def process(metadata: MetadataEnsemble, name: str) -> AsyncIterator[ZooKeeperStore]:
    """Open the store of a process of the bookie *name*, which is alive."""
    machine = Machine(name, random.Random(3))
    machine.alive = True
    MACHINE.set(machine)
    async with metadata.at_bookie() as store:
        MACHINE.set(None)
        yield store
        machine.alive = False


def test_each_change_of_any_process_is_seen_once() -> None:
    seen: list[tuple[str, bytes | None]] = []

    async def change(metadata: MetadataEnsemble) -> None:
        metadata.on_change = lambda key, found: seen.append((key, found and found.value))
        async with process(metadata, "b1") as one, process(metadata, "b2") as other:
            await one.put("b", b"1")
            await other.transact([Put("a", b"2"), Put("b", b"3"), Put("b", b"4")])
            with pytest.raises(VersionConflict):
                await one.put("a", b"5", expected=ABSENT)
            await grant(one, "lease", "me", ttl_s=5.0)
            await other.transact([Delete("a")])
        found = await metadata.observer.get("b")
        version = metadata.change("c/1/x", b"6")
        assert metadata.values == {"b": found, "c/1/x": Versioned(b"6", version)}
        assert await metadata.observer.get("c/1/x") == Versioned(b"6", version)

    in_ensemble(change)
    assert seen == [("b", b"1"), ("a", b"2"), ("b", b"4"), ("a", None), ("c/1/x", b"6")]


def test_records_in_the_layout_of_bookkeeper_are_seen_as_ours() -> None:
    key, cookie = ledger_key(7), CookieRecord("b1", "i", "/j", "/l", "c")

    async def write(metadata: MetadataEnsemble) -> None:
        async with process(metadata, "b1") as store:
            version = await store.put(key, encode_record(RECORD))
            await store.put(cookie_key("b1"), encode_record(cookie))
            assert metadata.values[key] == Versioned(encode_record(RECORD), version)
            assert metadata.values.keys() == {key, cookie_key("b1")}
            assert metadata.values == {key: await store.get(key) for key in metadata.values}

    in_ensemble(write)


def test_only_nodes_of_keys_are_taken_for_keys() -> None:
    for path in ("/available/b1", "/00/0000", "/idgen/ID-0000000001", "/quire/keys/a:", "/LAYOUT"):
        assert key_of(path) is None


def test_what_is_set_back_is_lost_and_its_ids_are_given_out_again() -> None:
    async def set_back(metadata: MetadataEnsemble) -> None:
        async with process(metadata, "b1") as store:
            first = await store.next_id(LEDGER_COUNTER, 3)
            for number in (1, 2, 3):
                await store.put(f"row/{number}", b"x")
        metadata.set_back(["row/2", "row/3"], LEDGER_COUNTER, first + 1)
        async with process(metadata, "b1") as store:
            assert await store.get("row/2") is None
            assert await store.next_id(LEDGER_COUNTER) == first + 1
        assert list(metadata.values) == ["row/1"]

    in_ensemble(set_back)


def test_leases_end_with_the_session_of_a_process_that_is_killed_or_cut_off() -> None:
    async def lose(metadata: MetadataEnsemble) -> None:
        async with process(metadata, "b1") as killed:
            await grant(killed, "of b1", "me", ttl_s=60.0)
        async with process(metadata, "b2") as cut, process(metadata, "b3") as other:
            lease = await grant(cut, "of b2", "me", ttl_s=60.0)
            assert [each.name for each in await other.leases("of ")] == ["of b1", "of b2"]
            metadata.away_from.add("b2")
            metadata.cut("b2")
            await trio.sleep(EXPIRED_S)
            assert await other.leases("of ") == []
            metadata.heal()
            with pytest.raises(LeaseLost):
                await cut.transact([CheckLease.of(lease), Put("row", b"x")])
        assert metadata.happened[SESSIONS_EXPIRED] == 2

    in_ensemble(lose)


def test_no_session_expires_while_the_whole_ensemble_is_away() -> None:
    async def go_away(metadata: MetadataEnsemble) -> None:
        async with process(metadata, "b1") as store:
            lease = await grant(store, "lease", "me", ttl_s=60.0)
            metadata.go_away()
            with pytest.raises(MetadataUnavailable):
                await store.get("row")
            await trio.sleep(EXPIRED_S)
            metadata.come_back()
            await store.transact([CheckLease.of(lease), Put("row", b"x")])
        assert not metadata.happened[SESSIONS_EXPIRED]

    in_ensemble(go_away)


def test_a_change_whose_answer_is_lost_is_made_once() -> None:
    async def lose(metadata: MetadataEnsemble) -> None:
        async with process(metadata, "b1") as store:
            metadata.losing.add("b1")
            version = 0
            for number in range(30):
                version = await store.put("row", b"%d" % number, expected=version or ABSENT)
        assert metadata.values == {"row": Versioned(b"29", version)}
        assert metadata.happened[ANSWERS_LOST] > 0

    in_ensemble(lose)


def test_a_read_that_shows_an_old_value_is_noticed() -> None:
    async def read(metadata: MetadataEnsemble) -> None:
        async with process(metadata, "b1") as one, process(metadata, "b2") as late:
            metadata._connections[-1].fall_behind()
            version = await one.put("row", b"x")
            await late.get("row")
            await late.list("")
            assert metadata.reads.old == []
            version = await one.put("row", b"y", expected=version)
            with read_without_sync():
                await late.get("row")
                await late.list("")
        told = f"row had version {version}, and was read in version"
        assert [each.rpartition(" ")[0] for each in metadata.reads.old] == [told, told]

    in_ensemble(read)


def test_clients_of_such_a_seed_ask_bookies() -> None:
    outcome = simulate(SEED)
    assert outcome.plan.troubles.kinds == [ENSEMBLE]
    assert outcome.happened[ENSEMBLE] > 0
    assert not outcome.violations

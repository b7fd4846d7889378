from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from memory_zookeeper import MemoryEnsemble
from zookeeper_rig import opened

from metadata.errors import LeaseLost, MetadataBroken, VersionConflict
from metadata.store import ABSENT, Check, CheckLease, Delete, Op, Put
from metadata.zookeeper import paths
from metadata.zookeeper.znodes import Create, Remove, Set

KEY = paths.leaf_path(paths.KEYS, "a")


def replace_key(ensemble: MemoryEnsemble, sets: int) -> None:
    """Delete and create the key, as another store does, and change it so often."""
    ensemble.make([Remove(KEY), Set(paths.lives_path(KEY), b"")], 0)
    ensemble.make([Create(KEY, b"theirs")], 0)
    for _ in range(sets):
        ensemble.make([Set(KEY, b"theirs")], 0)


@pytest.mark.parametrize("sets", [0, 1, 2])
@pytest.mark.parametrize("kind", [Put, Delete, Check])
async def test_a_key_that_was_deleted_and_made_again_is_another_one(
    sets: int, kind: type[Op], autojump_clock: trio.testing.MockClock
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one:
        version = await one.store.put("a", b"0")
        for _ in range(sets):
            version = await one.store.put("a", b"ours")
        assert ensemble.nodes[KEY].version == sets
        rivals = [lambda: replace_key(ensemble, sets)]

        def slip_in(read: Sequence[str]) -> None:
            if KEY in read and rivals:
                rivals.pop()()

        one.connection.after_read = slip_in
        ops: dict[type[Op], Op] = {
            Put: Put("a", b"late", version),
            Delete: Delete("a", version),
            Check: Check("a", version),
        }
        with pytest.raises(VersionConflict):
            await one.store.transact([ops[kind], Put("b", b"")])
        assert rivals == []
        found = await one.store.get("a")
        assert found is not None and found.value == b"theirs"
        assert ensemble.nodes[KEY].version == sets
        assert await one.store.get("b") is None


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_lease_that_was_granted_anew_meanwhile_lets_nothing_pass(
    is_kept: bool, autojump_clock: trio.testing.MockClock
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        session = await one.store.open_session("me", ttl_s=1000)
        lease = await one.store.grant("l", session)
        again = await one.store.grant("l", session)
        assert again.epoch > lease.epoch
        with pytest.raises(LeaseLost):
            await two.store.transact([CheckLease.of(lease), Put("a", b"")])
        path = paths.leaf_path(paths.LEASES, "l")
        node = ensemble.nodes[path].data

        def slip_in(read: Sequence[str]) -> None:
            if path not in read:
                return
            one.connection.after_read = lambda _read: None
            if is_kept:  # released and granted to the same owner in the same session
                ensemble.make([Remove(path), Set(paths.lives_path(path), b"")], 0)
                ensemble.make([Create(path, node)], 0)
            else:
                ensemble.make([Remove(paths.session_path(session.epoch))], 0)

        one.connection.after_read = slip_in
        with pytest.raises(LeaseLost):
            await one.store.transact([CheckLease.of(again), Put("a", b"")])
        assert await one.store.get("a") is None


async def test_what_must_not_exist_is_looked_at_in_the_change_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one:
        await one.store.put("other", b"")

        def slip_in(read: Sequence[str]) -> None:
            if KEY in read:
                one.connection.after_read = lambda _read: None
                ensemble.make([Create(KEY, b"theirs")], 0)

        one.connection.after_read = slip_in
        with pytest.raises(VersionConflict):
            await one.store.transact([Check("a", ABSENT), Put("b", b"")])
        await one.store.delete("a")
        one.connection.after_read = slip_in
        await one.store.transact([Delete("a"), Put("b", b"")])
        assert await one.store.get("a") is None


async def test_a_transaction_sees_its_own_changes(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(MemoryEnsemble()) as one:
        version = await one.store.put("a", b"0")
        numbers = await one.store.transact(
            [
                Delete("a", version),
                Put("a", b"1", ABSENT),
                Put("a", b"2"),
                Put("c", b""),
                Delete("c"),
            ]
        )
        found = await one.store.get("a")
        assert found is not None
        assert found.value == b"2"
        assert numbers[1] == numbers[2] == found.version > version
        assert await one.store.get("c") is None
        with pytest.raises(VersionConflict):
            await one.store.transact([Put("a", b"3"), Put("a", b"4", found.version)])
        assert await one.store.get("a") == found


async def test_what_zookeeper_would_not_take_is_refused_before_it_is_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(MemoryEnsemble()) as one:
        await one.store.put("a", b"")
        one.connection.multis.clear()
        with pytest.raises(MetadataBroken):
            await one.store.transact([Put(f"{n:03d}" + "é" * 250, bytes(1800)) for n in range(250)])
        assert one.connection.multis == []

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import trio
from memory_zookeeper import Loss, MemoryEnsemble
from zookeeper_rig import losing, opened, reconnect_soon

from metadata.errors import MetadataUnavailable, VersionConflict
from metadata.store import ABSENT, Delete, Put, is_last
from metadata.zookeeper import paths
from metadata.zookeeper.znodes import Op

LOSSES = list(itertools.chain.from_iterable(itertools.product(Loss, repeat=n) for n in (1, 2, 3)))


@pytest.mark.parametrize("losses", LOSSES, ids=str)
async def test_a_change_is_made_once_however_often_its_answer_is_lost(
    losses: tuple[Loss, ...], autojump_clock: trio.testing.MockClock
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        version = await one.store.put("a", b"0", expected=ABSENT)
        start = await two.store.changes("")
        losing(one.connection, *losses)
        changed = await one.store.put("a", b"1", expected=version)
        found = await two.store.get("a")
        assert found is not None
        assert (found.value, found.version) == (b"1", changed)
        assert (await two.store.changes("", since=start.revision)).revision == start.revision + 1
        assert ensemble.nodes[paths.leaf_path(paths.KEYS, "a")].version == 1


async def test_a_create_whose_answer_is_lost_is_no_conflict_with_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(MemoryEnsemble()) as one:
        losing(one.connection, Loss.AFTER)
        version = await one.store.put("a", b"1", expected=ABSENT)
        found = await one.store.get("a")
        assert found is not None and found.version == version


@pytest.mark.parametrize("was_made", [False, True])
async def test_a_change_is_unknown_once_the_session_is_over(
    was_made: bool, autojump_clock: trio.testing.MockClock
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        await one.store.put("before", b"")

        def end(ops: Sequence[Op]) -> Loss | None:
            if not any(op.path.startswith(paths.KEYS) for op in ops):
                return None
            if was_made:
                ensemble.make(ops, one.connection.session_id)
            one.connection.before_multi = lambda _ops: None
            one.connection.expire()
            reconnect_soon(one.connection)
            return Loss.BEFORE

        one.connection.before_multi = end
        with pytest.raises(MetadataUnavailable) as caught:
            await one.store.put("a", b"1")
        assert caught.value.outcome_unknown
        assert (await two.store.get("a") is not None) == was_made
        await one.store.put("b", b"")


async def test_a_change_that_did_not_begin_is_not_unknown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(MemoryEnsemble()) as one:
        await one.store.put("a", b"0")
        one.connection.drop()
        began = trio.current_time()
        with pytest.raises(MetadataUnavailable) as caught:
            await one.store.put("a", b"1")
        assert not caught.value.outcome_unknown
        assert trio.current_time() - began == pytest.approx(10, abs=0.5)
        one.connection.connect()
        await trio.sleep(1)
        found = await one.store.get("a")
        assert found is not None and found.value == b"0"


async def test_a_change_that_was_given_up_before_it_began_is_not_made_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Who was told so may have made it again, or another one that it would undo."""
    async with opened(MemoryEnsemble()) as one:
        await one.store.put("a", b"0")
        one.connection.expire()
        one.connection.connect()

        def lose(ops: Sequence[Op]) -> Loss | None:
            return Loss.BEFORE if ops[0].path.startswith(paths.SLOTS) else None

        one.connection.before_multi = lose  # before the change itself
        with pytest.raises(MetadataUnavailable) as caught:
            await one.store.put("a", b"1")
        assert not caught.value.outcome_unknown
        one.connection.before_multi = lambda _ops: None
        one.connection.connect()
        await trio.sleep(1)
        found = await one.store.get("a")
        assert found is not None and found.value == b"0"
        await one.store.put("a", b"2")


async def test_a_change_whose_answer_never_comes_is_unknown_at_the_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(MemoryEnsemble()) as one:
        await one.store.put("a", b"0")
        one.connection.before_multi = lambda ops: (
            Loss.AFTER if any(op.path.startswith(paths.KEYS) for op in ops) else None
        )
        with pytest.raises(MetadataUnavailable) as caught:
            await one.store.put("a", b"1")
        assert caught.value.outcome_unknown


async def test_changes_that_wait_together_share_a_multi_and_one_refusal_leaves_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(MemoryEnsemble()) as one:
        version = await one.store.put("k0", b"")
        one.connection.multis.clear()
        refused: list[str] = []

        async def put(key: str, expected: int | None) -> None:
            try:
                await one.store.put(key, b"x", expected=expected)
            except VersionConflict as conflict:
                refused.append(conflict.key)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(put, f"k{number}", version if number else version + 1000)
        assert sorted(refused) == sorted(f"k{number}" for number in range(100))
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(put, f"m{number}", ABSENT)
            nursery.start_soon(put, "k0", ABSENT)
        assert refused[100:] == ["k0"]
        assert len(await one.store.list("m")) == 100
        assert len(one.connection.multis) < 40


async def test_two_changes_of_one_key_get_versions_of_their_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(MemoryEnsemble()) as one:
        await one.store.put("a", b"")
        versions: dict[int, bytes] = {}

        async def put(value: bytes) -> None:
            versions[await one.store.put("a", value)] = value

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(put, b"%d" % number)
        assert len(versions) == 20
        found = await one.store.get("a")
        assert found is not None
        assert max(versions) == found.version
        assert versions[found.version] == found.value


async def test_a_transaction_is_all_or_nothing_for_those_who_read_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        await one.store.transact([Put(f"p/{n:03d}", b"0") for n in range(250)])
        async with trio.open_nursery() as nursery:

            async def change() -> None:
                for turn in range(1, 30):
                    await one.store.transact([Put(f"p/{n:03d}", b"%d" % turn) for n in range(250)])
                nursery.cancel_scope.cancel()

            nursery.start_soon(change)
            while True:
                page = await two.store.list("p/")
                assert len({found.value for _, found in page}) == 1
                assert len(page) == 250


async def test_a_page_is_not_the_last_one_because_keys_were_deleted_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ensemble = MemoryEnsemble()
    names = [f"p/{n:03d}" for n in range(240)]
    async with opened(ensemble) as one, opened(ensemble) as two:
        await one.store.transact([Put(name, b"") for name in names])
        async with trio.open_nursery() as nursery:

            async def change() -> None:
                while True:
                    await one.store.transact([Delete(name) for name in names[::2]])
                    await one.store.transact([Put(name, b"") for name in names[::2]])

            nursery.start_soon(change)
            for _ in range(10):
                found: set[str] = set()
                page = await two.store.list("p/", limit=50)
                found.update(key for key, _ in page)
                while not is_last(page, 50):
                    page = await two.store.list("p/", after=page[-1][0], limit=50)
                    found.update(key for key, _ in page)
                assert found.issuperset(names[1::2])
            nursery.cancel_scope.cancel()

"""Folders go once the keys and leases in them are gone, and come again when they are needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio
from ensemble import Ensemble, new_path
from leases import grant
from memory_zookeeper import MemoryConnection, MemoryEnsemble
from trio.testing import MockClock
from zookeeper_rig import opened, reconnect_soon

from metadata.errors import MetadataUnavailable
from metadata.store import ABSENT, Check, MetadataStore, items_under
from metadata.zookeeper import paths, sweeping
from metadata.zookeeper.store import ZooKeeperStore, open_zookeeper_store
from metadata.zookeeper.sweeping import REST_S
from metadata.zookeeper.znodes import Folder

DEPTH = 8
"""Folders above a key, at most; each rests before it goes."""


def folders(ensemble: MemoryEnsemble) -> set[str]:
    """The folders of keys and leases."""
    roots = (f"{paths.KEYS}/", f"{paths.LEASES}/")
    names = {path for path in ensemble.nodes if path.startswith(roots)}
    return {path for path in names if not path.rpartition("/")[2].startswith("=")}


async def rest() -> None:
    """Wait until all is swept."""
    await trio.sleep(DEPTH * (REST_S + 1))


def lane(topic: int, number: int) -> str:
    return f"lanes/{topic:020d}/{number:010d}/{0:010d}"


async def test_nothing_is_left_of_what_is_gone(autojump_clock: MockClock) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one:
        await one.store.put(lane(1, 1), b"stays")
        kept = folders(ensemble)
        for number in range(30):
            await one.store.put(lane(number * 10_007, number), b"")
            lease = await grant(
                one.store, f"writers/{lane(number * 10_007, number)}", "me", ttl_s=60
            )
            await one.store.transact([Check("jobs/000000000007/x", ABSENT)])
            await one.store.release(lease)
        for number in range(30):
            await one.store.delete(lane(number * 10_007, number))
        assert len(folders(ensemble)) > 100
        await rest()
        assert folders(ensemble) == kept
        assert [key for key, _ in await items_under(one.store, "lanes/")] == [lane(1, 1)]


async def test_a_key_comes_again_where_its_folders_went(autojump_clock: MockClock) -> None:
    """Also through a store that knew them."""
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        for store in (one.store, two.store):
            await store.put(lane(7, 7), b"")
        await one.store.delete(lane(7, 7))
        await rest()
        assert folders(ensemble) == set()
        await two.store.put(lane(7, 7), b"again")
        await grant(two.store, "writers/a", "me", ttl_s=60)
        found = await one.store.get(lane(7, 7))
        assert found is not None
        assert found.value == b"again"
        await rest()
        assert await one.store.get(lane(7, 7)) == found, "a folder with a node stays"


@pytest.mark.timeout(60)  # without a pause virtual time stands still
@pytest.mark.parametrize("below", [8, 70_000])
async def test_what_lies_beside_a_folder_that_went_is_created(
    autojump_clock: MockClock, below: int
) -> None:
    """By a store that knew the folders above it, which another one removed; of keys and leases."""
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        await two.store.put(lane(7, 7), b"")
        lease = await grant(two.store, f"writers/{lane(7, 7)}", "me", ttl_s=600)
        await two.store.release(lease)
        await one.store.delete(lane(7, 7))
        assert await one.store.leases("writers/") == []
        await rest()
        await items_under(one.store, "lanes/")
        await one.store.leases("writers/")
        await rest()
        await two.store.put(lane(below, 7), b"beside")
        await grant(two.store, f"writers/{lane(below, 7)}", "me", ttl_s=60)
        found = await one.store.get(lane(below, 7))
        assert found is not None
        assert found.value == b"beside"


async def test_a_walk_finds_what_a_former_store_has_left(autojump_clock: MockClock) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as former:
        await former.store.put(lane(7, 7), b"")
        await former.store.delete(lane(7, 7))
    async with opened(ensemble) as one:
        await rest()
        assert folders(ensemble)
        for _ in range(DEPTH):
            assert await items_under(one.store, "lanes/") == []
        await rest()
        assert folders(ensemble) == set()


async def test_keys_that_come_and_go_meanwhile_are_whole(autojump_clock: MockClock) -> None:
    """Changes of two stores, with pauses in which folders go, and connections that break."""
    chance = random.Random(3)
    ensemble = MemoryEnsemble()
    expected: dict[str, bytes] = {}
    async with opened(ensemble) as one, opened(ensemble) as two:

        async def change(store: MetadataStore, number: int) -> None:
            for step in range(60):
                key = lane(chance.randrange(4) * 10_007, number)
                await trio.sleep(chance.choice([0, 0.1, REST_S - 1, REST_S, REST_S + 1]))
                if key in expected and chance.random() < 0.6:
                    await store.delete(key)
                    del expected[key]
                else:
                    expected[key] = b"%d" % step
                    await store.put(key, expected[key])

        async def disturb() -> None:
            while True:
                await trio.sleep(chance.uniform(1, 2 * REST_S))
                one.connection.drop()
                reconnect_soon(one.connection)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb)
            async with trio.open_nursery() as changes:
                for number, store in enumerate((one.store, two.store, one.store, two.store)):
                    changes.start_soon(change, store, number)
            nursery.cancel_scope.cancel()
        found = {key: item.value for key, item in await items_under(two.store, "lanes/")}
        assert found == expected


@pytest.mark.slow
@pytest.mark.xdist_group("zookeeper")
async def test_zookeeper_itself_keeps_what_has_a_node(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "REST_S", 0.05)
    url = ensemble.url(new_path())
    async with open_zookeeper_store(url, create=True) as store:
        for number in range(20):
            await store.put(lane(number * 10_007, number), b"")
        for number in range(1, 20):
            await store.delete(lane(number * 10_007, number))
        kept = set(paths.parents(paths.leaf_path(paths.KEYS, lane(0, 0))))
        with trio.fail_after(60):
            while True:
                found = await listed(store, paths.KEYS)
                if found <= kept:
                    break
                await trio.sleep(0.05)
        assert [key for key, _ in await items_under(store, "lanes/")] == [lane(0, 0)]


async def listed(store: ZooKeeperStore, folder: str) -> set[str]:
    """The folders from *folder* on."""
    (names,) = await store._connection.children([folder], fresh=True)
    found = {folder}
    for name in names[0] if names else []:
        if not name.startswith("="):
            found |= await listed(store, f"{folder}/{name}")
    return found


async def test_leases_are_listed_though_many_folders_of_them_are_empty(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list takes as long as it takes, if ZooKeeper answers; one that does not is given up."""
    children = MemoryConnection.children

    async def slowly(
        self: MemoryConnection,
        asked: Sequence[str],
        *,
        fresh: bool = False,
        watch: Callable[[], None] | None = None,
    ) -> list[Folder | None]:
        await trio.sleep(pause_s)
        return await children(self, asked, fresh=fresh, watch=watch)

    pause_s = 0.0
    async with opened(MemoryEnsemble()) as one:
        for number in range(40):
            lease = await grant(one.store, f"writers/{lane(number * 10_007, 0)}", "me", ttl_s=60)
            await one.store.release(lease)
        mine = await grant(one.store, f"writers/{lane(999_999, 0)}", "me", ttl_s=600)
        monkeypatch.setattr(MemoryConnection, "children", slowly)
        pause_s, began = 1.0, trio.current_time()
        (found,) = await one.store.leases("writers/")
        assert found.epoch == mine.epoch
        assert trio.current_time() - began > 10, "longer than a call may take"
        pause_s = 11.0
        with pytest.raises(MetadataUnavailable):
            await one.store.leases("writers/")

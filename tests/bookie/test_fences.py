"""A ledger that is fenced stays fenced, whatever happens to the bookie afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import MIB, Rig, serving, settings

from bookie.config import BookieConfig
from bookie.disk import DiskGuard
from bookie.garbage import Collector
from bookie.rebuild import rebuild
from metadata.records import cookie_key, ledger_key
from metadata.urls import open_store
from native.frame import Code, incarnation

FENCED, OTHER = 1, 2
OLD, NEW = 1111, 2222
MEMORY = 1 << 30


async def codes(rig: Rig) -> tuple[int, int]:
    """What a writer of each ledger is answered."""
    peer = rig.connect()
    answers = [await peer.ask(v2.add(ledger_id, 7)) for ledger_id in (FENCED, OTHER)]
    return answers[0].code, answers[1].code


async def fence(rig: Rig) -> None:
    peer = rig.connect()
    for ledger_id in (FENCED, OTHER):
        for entry_id in range(3):
            assert (await peer.ask(v2.add(ledger_id, entry_id, bytes(1000)))).code == 0
    assert (await peer.ask(v2.read(FENCED, -1, fence_key=v2.KEY))).code == 0
    assert await codes(rig) == (104, 0)


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    metadata = f"sqlite://{tmp_path / 'metadata.db'}"
    return settings(tmp_path / "data", log_size_max=MIB, metadata=metadata)


async def crash(config: BookieConfig, folder: Path) -> BookieConfig:
    """Fence, and return settings for what a power loss right after the answer leaves."""
    async with serving(config) as rig:
        await fence(rig)
        await trio.to_thread.run_sync(shutil.copytree, config.data_folder, folder)
    return settings(folder, log_size_max=MIB)


async def test_a_fence_is_there_after_a_crash(tmp_path: Path, config: BookieConfig) -> None:
    """BK-07: it was durable before it was answered."""
    crashed = await crash(config, tmp_path / "crashed")
    for _ in range(2):
        async with serving(crashed) as rig:
            assert await codes(rig) == (104, 0)


async def test_a_fence_is_there_after_checkpoints_and_orderly_stops(config: BookieConfig) -> None:
    """BK-07: it moves from the journal to the ledger table."""
    async with serving(config) as rig:
        await fence(rig)
        for _ in range(3):
            await rig.connect().ask(v2.add(OTHER, 9, bytes(1000)))
            await rig.storage.checkpoint()
        assert await codes(rig) == (104, 0)
    for _ in range(2):
        async with serving(config) as rig:
            assert await codes(rig) == (104, 0)


LOSSES = {
    "nothing": "",
    "the mark": "ledgers/lastMark",
    "the indexes": "ledgers/*.index",
    "the ledger tables": "ledgers/*.table",
}


@pytest.mark.parametrize("lost", LOSSES)
async def test_a_fence_in_the_journal_is_there_after_a_rebuild(
    tmp_path: Path, config: BookieConfig, lost: str
) -> None:
    """BK-07, BK-11: as every fence, since one may be among what was lost."""
    crashed = await crash(config, tmp_path / "crashed")
    assert await codes_after_rebuild(crashed, LOSSES[lost]) == (104, 104)


@pytest.mark.parametrize("lost", [*LOSSES, "the journals"])
async def test_a_fence_in_the_ledger_table_is_there_after_a_rebuild(
    config: BookieConfig, lost: str
) -> None:
    """BK-07, BK-11: as every fence, since one may be among what was lost."""
    async with serving(config) as rig:
        await fence(rig)
    pattern = LOSSES.get(lost, "journal/*.journal")
    assert await codes_after_rebuild(config, pattern) == (104, 104)


async def codes_after_rebuild(config: BookieConfig, lost: str) -> tuple[int, int]:
    await trio.to_thread.run_sync(lose, Path(config.data_folder), lost)
    await trio.to_thread.run_sync(rebuild, config, lambda _: None)
    async with serving(config) as rig:
        return await codes(rig)


def lose(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern) if pattern else ():
        path.unlink()


Upkeep = Callable[[Collector], Awaitable[object]]
COLLECTIONS: dict[str, Upkeep] = {
    "by the timer": lambda collector: collector.collect(),
    "minor": lambda collector: collector.collect(major=False),
    "major": lambda collector: collector.collect(major=True),
}


@pytest.mark.parametrize("kind", COLLECTIONS)
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_fence_is_there_after_garbage_collection(
    config: BookieConfig, kind: str, deleted: bool
) -> None:
    """BK-07: also when the ledger itself was the garbage, and also after a restart."""
    async with open_store(config.metadata) as store:
        await store.put(cookie_key("b1"), b"{}")
        await store.next_id("ledgers", 10)
        async with serving(config) as rig:
            await fence(rig)
            for ledger_id in (FENCED, OTHER):
                await store.put(ledger_key(ledger_id), b"{}")
            if deleted:
                await store.delete(ledger_key(FENCED))
            disk = DiskGuard(rig.storage.engine, config)
            collector = Collector(rig.storage, store, config, disk, bookie_id="b1")
            await COLLECTIONS[kind](collector)
            assert await codes(rig) == (104, 0)
        async with serving(config) as rig:
            assert await codes(rig) == (104, 0)


async def test_a_fence_is_there_when_a_deleted_ledger_comes_back(config: BookieConfig) -> None:
    """BK-07: repair may bring back what moved away; its old writer stays stopped."""
    async with serving(config) as rig:
        await fence(rig)
        rig.storage.engine.delete_ledger(FENCED, 1)
        assert (await rig.connect().ask(v2.add(FENCED, 0, flags=v2.RECOVERY))).code == 0
        assert (await rig.connect().ask(v2.read(FENCED, 0))).code == 0
        assert await codes(rig) == (104, 0)
    async with serving(config) as rig:
        assert (await rig.connect().ask(v2.read(FENCED, 0))).code == 0
        assert await codes(rig) == (104, 0)


@pytest.mark.parametrize(
    ("meant", "key", "code"),
    [(NEW, v2.KEY, Code.UNKNOWN_STATE), (0, v2.OTHER_KEY, Code.UNAUTHORIZED)],
    ids=["another ledger", "another key"],
)
async def test_a_refused_fence_is_not_answered_from_the_ledger_that_came_after_it(
    config: BookieConfig, meant: int, key: bytes, code: Code
) -> None:
    """That one is not fenced, and "no such entry" of it would count as if it were."""
    async with serving(config, threaded=False) as rig:
        await add_synced(rig, incarnation(FENCED, OLD) + v2.add(FENCED, 0))
        budget, peer = rig.server.budget, rig.connect()
        for pool in (budget.unsent, budget.making):
            pool.change("another peer", MEMORY)
        await peer.stream.send_all(incarnation(FENCED, meant) + v2.read(FENCED, 0, fence_key=key))
        await trio.testing.wait_all_tasks_blocked()
        assert rig.storage.engine.renew_ledger(FENCED, OLD, NEW)
        for pool in (budget.unsent, budget.making):
            pool.change("another peer", -MEMORY)
        assert (await peer.response()).code == code


async def test_a_fence_that_cannot_be_set_has_a_code_of_its_reason(config: BookieConfig) -> None:
    """The id of a deleted ledger may be another one's by now, whose key is the one that came."""
    async with serving(config, threaded=False) as rig:
        await add_synced(rig, v2.add(FENCED, 0))
        peer = rig.connect()
        ids = v2.int64(OTHER) + v2.int64(-1)
        keyless = v2.frame(v2.READ, ids, flags=v2.FENCE, version=1)
        for request, code in (
            (v2.read(-1, -1, fence_key=v2.KEY), Code.BAD_REQUEST),
            (v2.read(FENCED, -1, fence_key=v2.OTHER_KEY), Code.UNAUTHORIZED),
            (keyless, Code.UNAUTHORIZED),
        ):
            assert (await peer.ask(request)).code == code
        rig.storage.engine.delete_ledger(FENCED, 1)
        fence = v2.read(FENCED, -1, fence_key=v2.OTHER_KEY)
        assert (await peer.ask(fence)).code == Code.IO_ERROR


async def add_synced(rig: Rig, requests: bytes) -> None:
    peer = rig.connect()
    await peer.stream.send_all(requests)
    await trio.testing.wait_all_tasks_blocked()
    await rig.commit()
    assert (await peer.response()).code == 0

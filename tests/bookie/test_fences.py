"""A ledger that is fenced stays fenced, whatever happens to the bookie afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import v2
from rig import MIB, Rig, serving, settings

from bookie.config import BookieConfig
from bookie.disk import DiskGuard
from bookie.garbage import Collector
from bookie.rebuild import rebuild
from metadata.records import cookie_key, ledger_key
from metadata.urls import open_store

FENCED, OTHER = 1, 2


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

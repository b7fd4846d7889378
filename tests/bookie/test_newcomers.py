"""New ledgers of clients that declare none: what the questions to the metadata cost others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing
import v2
from memory_store import MemoryStore
from rig import Peer, Rig, serving, settings
from running import known
from trio.testing import MockClock

from bookie.incarnations import ASK_S, Incarnations
from metadata.records import cookie_key
from metadata.store import Versioned
from native.frame import Code

STORED = 7
ME = "b1"


class Hesitant(MemoryStore):
    """A store that counts questions, and may need long for an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_after_s = 0.0
        self.gets = 0

    async def get(self, key: str) -> Versioned | None:
        self.gets += 1
        await trio.sleep(self.answers_after_s)
        return await super().get(key)


@asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[tuple[Rig, Hesitant]]:
    """A bookie without threads, for a virtual clock, that stores a ledger of the cluster."""
    store = Hesitant()
    await store.put(cookie_key(ME), b"{}")
    await known(store, STORED)
    async with serving(settings(folder, checkpoint_interval_s=0.0), threaded=False) as rig:
        storage = rig.storage
        rig.server.incarnations = Incarnations(storage.engine, storage.events, store, ME)
        storage.engine.set_guarded(True)
        await add_behind(rig, rig.connect(), 0, b"", refused=[])
        yield rig, store


async def add_behind(
    rig: Rig, peer: Peer, entry_id: int, adds: bytes, *, refused: list[Code]
) -> None:
    """Store an entry whose add arrives with others, which are refused."""
    await peer.stream.send_all(adds + v2.add(STORED, entry_id))
    assert [(await peer.response()).code for _ in refused] == refused
    await trio.testing.wait_all_tasks_blocked()
    await rig.commit()
    assert (await peer.response()).code == 0


async def test_adds_to_new_ledgers_hold_up_others_no_longer_than_one_question(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Their answers may be late else, and the writers of all ledgers give the bookie up."""
    async with asking(tmp_path) as (rig, store):
        store.answers_after_s = 3600
        adds = b"".join(v2.add(100 + i % 50, i // 50) for i in range(100))
        for entry_id in (1, 2):
            began_at = trio.current_time()
            refused = [Code.IO_ERROR] * 100
            await add_behind(rig, rig.connect(), entry_id, adds, refused=refused)
            assert trio.current_time() - began_at < ASK_S * 1.5
        assert store.gets == 1 + 2


async def test_metadata_that_were_silent_are_asked_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with asking(tmp_path) as (rig, store):
        peer = rig.connect()
        store.answers_after_s = 3600
        await add_behind(rig, peer, 1, v2.add(100, 0), refused=[Code.IO_ERROR])
        store.answers_after_s = 0
        await trio.sleep(ASK_S)
        await add_behind(rig, peer, 2, v2.add(100, 0), refused=[Code.NO_LEDGER])


async def test_the_metadata_are_asked_once_for_the_ledgers_of_a_chunk(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with asking(tmp_path) as (rig, store):
        before = store.gets
        adds = b"".join(v2.add(100 + i % 2, i // 2) for i in range(20))
        await add_behind(rig, rig.connect(), 1, adds, refused=[Code.NO_LEDGER] * 20)
        assert store.gets == before + 2 * 2

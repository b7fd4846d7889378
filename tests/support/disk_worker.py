"""A bookie's work, for a process whose disk is recorded (power_cut.py).

    python disk_worker.py ROOT TRACE SEED

It runs storage, server, garbage collection and the metadata store below ROOT, and notes in the
record, as JSON, what was promised:

    {"sent": [ledger, entry]}    before an add goes out; {"kept": ...} once it is acknowledged
    {"fenced": ledger}           once the fence is acknowledged
    {"put": [key, value]}        once the metadata store has it
    {"issued": ledger}           an id that must never be issued again
    {"forget": ledger}           from now on it may be gone

What an earlier life of this process sent without an answer, it sends again first.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import trio
import trio.testing
import v2
from chance import seed_process
from power_cut import Kind, note, read
from rig import MIB, Peer, Rig, serving, settings

from bookie.config import BookieConfig
from bookie.disk import DiskGuard
from bookie.garbage import Collector
from metadata.records import cookie_key, ledger_key
from metadata.store import MetadataStore
from metadata.urls import open_store

ROUNDS = 12
BOOKIE = "b1"


def config_of(root: Path) -> BookieConfig:
    """A bookie that rolls its files often."""
    return settings(
        root,
        memtable_size=12 * MIB,
        journal_size_max=12 << 10,
        journal_spares=1,
        log_size_max=24 << 10,
    )


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Different for each entry, and as long as chance wills, up to three pages."""
    chance = random.Random(f"{ledger_id} {entry_id}")
    return chance.randbytes(chance.choice((5, 700, 3000, 9000, 9000)))


class Life:
    """One run of the process."""

    def __init__(self, rig: Rig, store: MetadataStore, root: Path, trace: Path, seed: int) -> None:
        config = config_of(root)
        self._rig = rig
        self._store = store
        self._trace = trace
        self._chance = random.Random(seed)
        self._peer: Peer = rig.connect()
        self._collector = Collector(
            rig.storage, store, config, DiskGuard(rig.storage.engine, config), bookie_id=BOOKIE
        )
        self._ends: dict[int, int] = {}

    def _note(self, **what: object) -> None:
        note(self._trace, json.dumps(what).encode())

    async def run(self, unanswered: list[tuple[int, int]]) -> None:
        """Do a bit of everything."""
        await self._put(cookie_key(BOOKIE), b"{}")
        for ledger_id, entry_id in unanswered:
            await self._add(ledger_id, entry_id)
        for _ in range(ROUNDS):
            ledger_id = await self._create()
            for each in [*self._ends][-2:]:
                await self._append(each, self._chance.randrange(1, 4))
            step = self._chance.choice(
                (
                    self._fence,
                    self._rig.storage.checkpoint,
                    self._rig.storage.roll_log,
                    self._delete,
                    self._collect,
                )
            )
            await step()
            await self._append(ledger_id, 1)
        await self._collect()

    async def _put(self, key: str, value: bytes) -> None:
        await self._store.put(key, value)
        self._note(put=[key, value.decode()])

    async def _create(self) -> int:
        ledger_id = await self._store.next_id("ledgers")
        self._note(issued=ledger_id)
        await self._put(ledger_key(ledger_id), b"{}")
        self._ends[ledger_id] = 0
        return ledger_id

    async def _append(self, ledger_id: int, count: int) -> None:
        for _ in range(count):
            entry_id = self._ends[ledger_id]
            self._ends[ledger_id] = entry_id + 1
            await self._add(ledger_id, entry_id)

    async def _add(self, ledger_id: int, entry_id: int) -> None:
        self._note(sent=[ledger_id, entry_id])
        frame = v2.add(ledger_id, entry_id, payload(ledger_id, entry_id), flags=v2.RECOVERY)
        if (await self._ask(frame)).code == 0:
            self._note(kept=[ledger_id, entry_id])

    async def _ask(self, frame: bytes) -> v2.Response:
        """Without a journal thread, so that a seed always does the same."""
        await self._peer.stream.send_all(frame)
        await trio.testing.wait_all_tasks_blocked()
        await self._rig.commit()
        return await self._peer.response()

    async def _fence(self) -> None:
        ledger_id = self._chance.choice([*self._ends])
        answer = await self._ask(v2.read(ledger_id, -1, fence_key=v2.KEY))
        assert answer.code == 0, answer
        self._note(fenced=ledger_id)

    async def _delete(self) -> None:
        ledger_id = self._chance.choice([*self._ends][:-1] or [*self._ends])
        if len(self._ends) > 2:
            del self._ends[ledger_id]
            self._note(forget=ledger_id)
            await self._store.delete(ledger_key(ledger_id))

    async def _collect(self) -> None:
        await self._delete()
        await self._collector.collect(major=True)


def unanswered(trace: Path) -> list[tuple[int, int]]:
    """The adds that earlier runs sent without getting an answer."""
    sent: dict[tuple[int, int], None] = {}
    for record in read(trace) if trace.exists() else ():
        if record.kind is Kind.NOTE:
            said = json.loads(record.data)
            if "sent" in said:
                sent[said["sent"][0], said["sent"][1]] = None
            elif "kept" in said:
                sent.pop((said["kept"][0], said["kept"][1]), None)
            elif "forget" in said:
                sent = {place: None for place in sent if place[0] != said["forget"]}
    return [*sent]


async def main(root: Path, trace: Path, seed: int) -> None:
    """Live once, and end as after SIGTERM."""
    left = unanswered(trace)
    config = config_of(root)
    async with (
        open_store(config.metadata) as store,
        serving(config, threaded=False, quiet=True) as rig,
    ):
        await Life(rig, store, root, trace, seed).run(left)


if __name__ == "__main__":
    seed_process(sys.argv[3])
    trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

"""READs of one connection: answered together, from memory and from the disk."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import Peer, Rig, serving, settings, until

from bookie.outbox import Reservation
from native.connection import REQUESTS_MAX
from native.engine import Engine, Reads
from native.frame import Code

COUNT = 3000
"""Of entries in ledger 1; the first half is in a log."""


def payload(entry_id: int) -> bytes:
    return b"%d " % entry_id + bytes(entry_id % 500)


async def fill(rig: Rig, *, flushed: int = COUNT // 2) -> None:
    """Store the entries, the first *flushed* of them in a log."""
    writer = rig.connect()
    for start, end in ((0, flushed), (flushed, COUNT)):
        await writer.stream.send_all(b"".join(v2.add(1, i, payload(i)) for i in range(start, end)))
        for _ in range(start, end):
            assert (await writer.response()).code == 0
        if start == 0:
            await rig.storage.checkpoint()


async def asked(peer: Peer, wanted: list[int]) -> Counter[tuple[int, int, bytes]]:
    """Send READs in one piece; return codes, entry ids and entries of the responses."""
    got: Counter[tuple[int, int, bytes]] = Counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.send_all, b"".join(v2.read(1, i) for i in wanted))
        for _ in wanted:
            response = await peer.response()
            got[response.code, response.entry_id, response.body] += 1
    return got


def expected(wanted: list[int]) -> Iterator[tuple[int, int, bytes]]:
    for i in wanted:
        there = i < COUNT
        yield (
            Code.OK if there else Code.NO_ENTRY,
            i,
            v2.entry(1, i, payload(i)) if there else b"",
        )


@pytest.mark.parametrize("pattern", ["in order", "backwards", "at random"])
async def test_every_read_is_answered_once_wherever_its_entry_is(
    tmp_path: Path, pattern: str
) -> None:
    wanted = list(range(COUNT + 50)) * 2
    if pattern == "backwards":
        wanted.reverse()
    elif pattern == "at random":
        random.Random(1).shuffle(wanted)
    async with serving(settings(tmp_path)) as rig:
        await fill(rig)
        with trio.fail_after(60):
            assert await asked(rig.connect(), wanted) == Counter(expected(wanted))


async def test_adds_between_reads_are_acknowledged(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as rig:
        await fill(rig)
        peer = rig.connect()
        mixed = [v2.read(1, i) + v2.add(2, i) for i in range(500)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.send_all, b"".join(mixed))
            with trio.fail_after(60):
                answers = [await peer.response() for _ in range(1000)]
        assert {each.code for each in answers} == {0}
        assert Counter(each.opcode for each in answers) == {v2.ADD: 500, v2.READ: 500}


async def test_no_python_runs_for_each_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[bool]()
    answer_reads = Engine.answer_reads

    def counted(engine: Engine, reads: Reads, *, use_disk: bool, size_max: int) -> bytes:
        calls[use_disk] += 1
        return answer_reads(engine, reads, use_disk=use_disk, size_max=size_max)

    monkeypatch.setattr(Engine, "answer_reads", counted)
    monkeypatch.delattr(Engine, "answer")
    async with serving(settings(tmp_path)) as rig:
        await fill(rig)
        await asked(rig.connect(), list(range(COUNT)))
    chunks = COUNT // REQUESTS_MAX + 1
    assert calls[False] <= 5 * chunks
    assert 0 < calls[True] <= 2 * chunks


async def test_no_more_is_read_from_a_peer_whose_reads_wait_for_the_disk(tmp_path: Path) -> None:
    """A request takes memory here, however slow the disk is."""
    async with serving(settings(tmp_path)) as rig:
        await fill(rig, flushed=COUNT)
        workers = rig.server.read_workers
        peer = rig.connect(trio.testing.lockstep_stream_pair)
        sent = 0
        async with trio.open_nursery() as nursery:
            for number in range(int(workers.total_tokens)):
                workers.acquire_on_behalf_of_nowait(number)  # as if the disk hung

            async def send() -> None:
                nonlocal sent
                while sent < 12 * REQUESTS_MAX:
                    await peer.stream.send_all(b"".join(v2.read(1, i) for i in range(50)))
                    sent += 50

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            assert sent <= 4 * REQUESTS_MAX
            for number in range(int(workers.total_tokens)):
                workers.release_on_behalf_of(number)
            with trio.fail_after(60):
                for _ in range(10 * REQUESTS_MAX):
                    assert (await peer.response()).code == 0
            nursery.cancel_scope.cancel()


async def test_reads_that_find_no_room_are_answered_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that could not be kept are made again: none is lost, and none comes twice."""
    outcomes: list[bool] = []
    put = Reservation.put

    def noted(room: Reservation, frames: bytes) -> bool:
        outcomes.append(put(room, frames))
        return outcomes[-1]

    monkeypatch.setattr(Reservation, "put", noted)
    large = bytes(100 << 10)
    async with serving(settings(tmp_path)) as rig:
        peer = rig.connect()
        for i in range(8):
            assert (await peer.ask(v2.add(1, i, large))).code == 0
        await rig.storage.checkpoint()
        unsent, held = rig.server.budget.unsent, 1 << 30
        for address in ("a", "b"):
            unsent.change(address, held)
        got: Counter[tuple[int, int, bytes]] = Counter()

        async def ask() -> None:
            got.update(await asked(peer, list(range(8))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: False in outcomes)
            for address in ("a", "b"):
                unsent.change(address, -held)
            nursery.cancel_scope.deadline = trio.current_time() + 10
        assert got == Counter((0, i, v2.entry(1, i, large)) for i in range(8))

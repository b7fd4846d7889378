"""Peers that take memory and hold it: others go on, and those that hold it are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import MIB, Peer, Rig, read_inline, serving, settings

from bookie.budget import PRESSED_S, SMALL_SIZE
from native.engine import Request

HERE, THERE, ELSEWHERE = "10.0.0.1", "10.0.0.2", "10.0.0.3"
PAYLOAD = bytes(900 << 10)


@pytest.fixture(autouse=True)
def _disk_is_read_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    read_inline(monkeypatch)


@asynccontextmanager
async def quiet(folder: Path, **changed: object) -> AsyncIterator[Rig]:
    """A bookie without threads, that gives up on nobody by itself, with entry 0 of ledger 1."""
    config = settings(
        folder,
        peer_timeout_s=0.0,
        checkpoint_interval_s=0.0,
        **({"bytes_in_flight_max": 8 * MIB, "connection_bytes_max": 2 * MIB} | changed),
    )
    async with serving(config, threaded=False) as rig:
        writer = rig.connect()
        await writer.stream.send_all(v2.add(1, 0, PAYLOAD))
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit()
        assert (await writer.response()).code == 0
        yield rig


class Crowd:
    """Peers that send and take nothing, from addresses of our choice."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rig = rig
        self._address = HERE
        monkeypatch.setattr("bookie.server.peer_address", lambda _: self._address)

    async def connect(self, address: str) -> Peer:
        self._address = address
        peer = self._rig.connect(trio.testing.lockstep_stream_pair)
        await trio.testing.wait_all_tasks_blocked()
        return peer

    async def hoard(self, address: str, request: bytes, *, count: int) -> list[Peer]:
        """Connect *count* peers; each sends *request* while the bookie takes it."""
        peers = [await self.connect(address) for _ in range(count)]
        for peer in peers:
            await self.send(peer, request)
        return peers

    async def send(self, peer: Peer, request: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.send_all, request)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


async def is_added_at_once(rig: Rig, peer: Peer, entry_id: int, payload: bytes = b"hello") -> bool:
    """Whether an add is acknowledged as soon as it is synced, with no wait for anybody."""
    codes: list[int] = []

    async def add() -> None:
        codes.append((await peer.ask(v2.add(9, entry_id, payload))).code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add)
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return codes == [0]


async def is_read_at_once(peer: Peer) -> bool:
    """Whether entry 0 of ledger 1 is read with no wait for anybody."""
    bodies: list[bytes] = []

    async def read() -> None:
        bodies.append((await peer.ask(v2.read(1, 0))).body)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return bodies == [v2.entry(1, 0, PAYLOAD)]


async def hoard_adds(crowd: Crowd, addresses: tuple[str, ...], *, first: bytes = b"") -> None:
    """From each address, send two adds that wait for the disk, each behind *first*."""
    for address in addresses:
        for peer in await crowd.hoard(address, first, count=2):
            await crowd.send(peer, v2.add(5, 0, bytes(MIB)))


async def test_sixty_peers_that_read_nothing_hold_up_no_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        writer = await crowd.connect(HERE)
        for address in (HERE, THERE):
            requests = v2.read(1, 0) * 40 + v2.call(bytes(1000)) * 40
            await crowd.hoard(address, requests, count=30)
        unsent = rig.server.budget.unsent
        assert not unsent.has_room(HERE)
        # One answer above the limit, and what a peer may ask before nothing is read from it.
        assert unsent.held < 2 * MIB + len(PAYLOAD) + 60 * (70 << 10)
        for entry_id in range(3):
            assert await is_added_at_once(rig, writer, entry_id, PAYLOAD)


@pytest.mark.parametrize("request_of", [v2.read, v2.batch_read])
async def test_adds_go_on_behind_reads_that_find_no_room(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
    request_of: Callable[[int, int], bytes],
) -> None:
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        client = await crowd.connect(ELSEWHERE)
        for address in (HERE, THERE):
            await crowd.hoard(address, v2.read(1, 0) * 40, count=10)
        await client.stream.send_all(request_of(1, 0))
        assert await is_added_at_once(rig, client, 0)


async def test_no_answer_is_made_on_the_event_loop_while_there_is_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """It would be thrown away, and made again: megabytes for each request, ahead of all others."""
    made: list[object] = []
    async with quiet(tmp_path) as rig:
        answer = rig.server.engine.answer

        def noted(request: Request, *, use_disk: bool, size_max: int) -> bytes | None:
            made.extend([request] * (not use_disk))
            return answer(request, use_disk=use_disk, size_max=size_max)

        crowd = Crowd(rig, monkeypatch)
        for address in (HERE, THERE):
            await crowd.hoard(address, v2.read(1, 0) * 40, count=10)
        assert not rig.server.budget.unsent.has_room(ELSEWHERE)
        monkeypatch.setattr(rig.server.engine, "answer", noted)
        await crowd.hoard(ELSEWHERE, v2.batch_read(1, 0) * 100, count=3)
    assert not made


async def test_a_large_call_is_answered_although_others_hold_all_memory_of_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Nothing else of its connection goes on that could wake it."""

    async def answer(_body: bytes, _room: object) -> bytes:
        return b"done"

    async with quiet(tmp_path) as rig:
        rig.server.answer_call = answer
        crowd = Crowd(rig, monkeypatch)
        client = await crowd.connect(ELSEWHERE)
        for address in (HERE, THERE):
            await crowd.hoard(address, v2.read(1, 0) * 40, count=10)
        assert not rig.server.budget.unsent.has_room(ELSEWHERE)
        answers = []

        async def ask() -> None:
            answers.append((await client.ask(v2.call(bytes(200_000)))).rest[8:])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert answers == [b"done"]


async def test_a_peer_whose_calls_wait_for_a_change_is_read_from_once_there_is_memory_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Nothing else of its connection goes on that could wake it."""

    async def answer(body: bytes, _room: object) -> bytes:
        if len(body) > 1000:
            await trio.sleep_forever()
        return body

    async with quiet(tmp_path) as rig:
        rig.server.answer_call = answer
        crowd = Crowd(rig, monkeypatch)
        client = await crowd.connect(ELSEWHERE)
        hoards = [
            await crowd.hoard(address, v2.read(1, 0) * 40, count=10) for address in (HERE, THERE)
        ]
        assert not rig.server.budget.unsent.has_room(ELSEWHERE)
        await client.stream.send_all(v2.call(bytes(100_000)))
        await trio.testing.wait_all_tasks_blocked()
        for peer in [*hoards[0], *hoards[1]]:
            await peer.stream.aclose()
        mock_clock.rate = 20.0
        with trio.fail_after(1000):
            assert (await client.ask(v2.call(b"small"))).rest[8:] == b"small"


@pytest.mark.parametrize("size", [MIB, 5 * MIB])
async def test_peers_in_the_middle_of_a_frame_hold_up_no_adds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
    size: int,
) -> None:
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        writer = await crowd.connect(HERE)
        for address in (HERE, THERE):
            await crowd.hoard(address, v2.add(5, 0, bytes(size - 100))[:-1], count=10)
        assert not rig.server.budget.unfinished.has_room(HERE)
        for entry_id in range(3):
            assert await is_added_at_once(rig, writer, entry_id)


async def test_a_reader_waits_no_longer_than_those_that_stand_still_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    async with quiet(tmp_path, bytes_in_flight_max=96 * MIB) as rig:
        crowd = Crowd(rig, monkeypatch)
        reader = await crowd.connect(ELSEWHERE)
        for address in (HERE, THERE):
            await crowd.hoard(address, v2.read(1, 0) * 40, count=15)
        assert not rig.server.budget.unsent.has_room(ELSEWHERE)
        mock_clock.rate = 20.0
        with trio.fail_after(3000):
            assert (await reader.ask(v2.read(1, 0))).body == v2.entry(1, 0, PAYLOAD)
        assert rig.server.dropped > 0
        # They come back and do it again: this time their addresses have a small share only.
        mock_clock.rate = 0.0
        for address in (HERE, THERE):
            await crowd.hoard(address, v2.read(1, 0) * 40, count=15)
        mock_clock.rate = 0.2
        with trio.fail_after(0.9 * PRESSED_S):
            assert (await reader.ask(v2.read(1, 0))).body == v2.entry(1, 0, PAYLOAD)


async def test_a_large_frame_waits_no_longer_than_those_that_stand_still_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        writer = await crowd.connect(ELSEWHERE)
        for address in (HERE, THERE):
            await crowd.hoard(address, v2.add(5, 0, bytes(MIB))[:-1], count=2)
        mock_clock.rate = 100.0
        with trio.fail_after(3000):
            await writer.stream.send_all(v2.add(9, 0, bytes(2 * MIB)))
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit()
        assert (await writer.response()).code == 0


async def test_a_peer_that_reads_slowly_is_kept_while_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    async with quiet(tmp_path) as rig:
        (peer,) = await Crowd(rig, monkeypatch).hoard(HERE, v2.read(1, 0) * 20, count=1)
        for _ in range(5):
            mock_clock.jump(10 * PRESSED_S)
            await trio.testing.wait_all_tasks_blocked()
            assert (await peer.response()).body == v2.entry(1, 0, PAYLOAD)
        assert rig.server.dropped == 0


async def test_what_was_held_is_given_back_when_the_peers_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        peers = await crowd.hoard(HERE, v2.read(1, 0) * 40 + v2.call(b"x") * 40, count=5)
        peers += await crowd.hoard(THERE, v2.add(5, 0, bytes(MIB))[:-1], count=5)
        for peer in peers:
            await trio.aclose_forcefully(peer.stream)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.server.connections == 1
        assert rig.server.budget.held == 0


async def test_synced_adds_of_peers_that_read_nothing_hold_up_no_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Their acknowledgements wait behind answers that nobody takes, and so did the account."""
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        writer = await crowd.connect(ELSEWHERE)
        received = rig.server.budget.received
        await hoard_adds(crowd, (HERE, THERE), first=v2.read(1, 1))
        assert not received.has_room(ELSEWHERE)
        await rig.commit()
        rig.server.pulse(flushes=True)
        assert received.held == 0
        for entry_id in range(3):
            assert await is_added_at_once(rig, writer, entry_id, PAYLOAD)


async def test_reads_go_on_while_adds_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        reader = await crowd.connect(HERE)
        await hoard_adds(crowd, (HERE, THERE))
        assert not rig.server.budget.received.has_room(HERE)
        assert not rig.server.budget.received.has_room(ELSEWHERE)
        assert [await is_read_at_once(reader) for _ in range(3)] == [True] * 3


async def test_small_peers_take_little_of_the_memory_of_adds_that_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    async with quiet(tmp_path) as rig:
        crowd = Crowd(rig, monkeypatch)
        await hoard_adds(crowd, (HERE, THERE))
        received, unfinished = rig.server.budget.received, rig.server.budget.unfinished
        before, count = received.held, 5
        large, small = v2.add(6, 0, bytes(MIB // 2)), v2.add(6, 1, bytes(1000)) * 1000
        for requests in (large, small, large[:50_000] + small):
            await crowd.hoard(ELSEWHERE, requests, count=count)
        assert received.held + unfinished.held - before <= 3 * count * 2 * SMALL_SIZE

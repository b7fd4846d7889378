from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import Peer, Rig, read_inline, serving, settings, until

from metadata.access import PLUGIN, auth_frame

Serving = AbstractAsyncContextManager[Rig]


@pytest.fixture
def bookie(tmp_path: Path) -> Serving:
    return serving(settings(tmp_path))


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    """Without threads: for the virtual clock. It syncs when told to."""
    read_inline(monkeypatch)
    config = settings(
        tmp_path,
        peer_timeout_s=5.0,
        idle_timeout_s=100.0,
        checkpoint_interval_s=0.0,
    )
    return serving(config, threaded=False)


# --- protocol v2 -------------------------------------------------------------------------


async def test_the_first_add_creates_an_unknown_ledger(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        await peer.stream.send_all(v2.ADD_HELLO)
        assert (await peer.frame()).hex() == (
            "00000018020100000000000000000000000000010000000000000000"
        )


async def test_a_read_returns_the_stored_bytes_and_echoes_the_ids(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        await peer.ask(v2.ADD_HELLO)
        await peer.stream.send_all(v2.READ_HELLO)
        expected = "020200000000000000000000000000010000000000000000"
        assert (await peer.frame()).hex() == "00000041" + expected + v2.ENTRY_HELLO.hex()


async def test_a_read_of_minus_one_gives_the_last_entry_and_echoes_minus_one(
    bookie: Serving,
) -> None:
    async with bookie as rig:
        peer = rig.connect()
        for entry_id in range(3):
            await peer.ask(v2.add(5, entry_id, b"%d" % entry_id))
        answer = await peer.ask(v2.read(5, -1))
        assert (answer.code, answer.entry_id) == (0, -1)
        assert answer.body == v2.entry(5, 2, b"2")


async def test_what_is_not_here_is_answered_with_its_code(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        assert (await peer.ask(v2.read(9, 0))).code == 1
        await peer.ask(v2.ADD_HELLO)
        answer = await peer.ask(v2.read(1, 1))
        assert (answer.code, answer.ledger_id, answer.entry_id, answer.body) == (2, 1, 1, b"")


async def test_a_wrong_key_is_refused(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        await peer.ask(v2.ADD_HELLO)
        answer = await peer.ask(v2.add(1, 1, key=v2.OTHER_KEY))
        assert (answer.opcode, answer.code, answer.entry_id) == (v2.ADD, 102, 1)
        fence = await peer.ask(v2.read(1, -1, fence_key=v2.OTHER_KEY))
        assert (fence.code, fence.body) == (102, b"")
        assert (await peer.ask(v2.add(1, 1))).code == 0


async def test_a_fencing_read_stops_the_writer_but_not_a_recovery(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        await peer.ask(v2.ADD_HELLO)
        fence = await peer.ask(v2.FENCE_HELLO)
        assert (fence.code, fence.entry_id, fence.body) == (0, -1, v2.ENTRY_HELLO)
        assert (await peer.ask(v2.add(1, 1))).code == 104
        assert (await peer.ask(v2.add(1, 1, flags=v2.RECOVERY))).code == 0


async def test_fencing_an_unknown_ledger_creates_it_fenced(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        assert (await peer.ask(v2.read(3, -1, fence_key=v2.KEY))).code in (1, 2)
        assert (await peer.ask(v2.add(3, 0))).code == 104


async def test_a_fence_is_answered_only_when_it_is_durable(quiet: Serving) -> None:
    async with quiet as rig:
        peer = rig.connect()
        await peer.stream.send_all(v2.FENCE_HELLO)
        with trio.move_on_after(0.5) as early:
            await peer.frame()
        assert early.cancelled_caught
        await rig.commit()
        assert (await peer.response()).code in (1, 2)


async def test_a_batch_read_stops_at_a_hole_without_an_error(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        for entry_id in (0, 1, 2, 4):
            await peer.ask(v2.add(1, entry_id, b"%d" % entry_id))
        answer = await peer.ask(v2.batch_read(1, 0))
        assert answer.entries == [v2.entry(1, each, b"%d" % each) for each in (0, 1, 2)]
        assert (await peer.ask(v2.batch_read(1, 3))).code == 2
        assert len((await peer.ask(v2.batch_read(1, 1, count=1))).entries) == 1


async def test_a_batch_read_gives_the_first_entry_whatever_its_size(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        for entry_id in range(4):
            await peer.ask(v2.add(1, entry_id, bytes(1000)))
        assert len((await peer.ask(v2.batch_read(1, 0, size=1))).entries) == 1
        # 36 bytes for the response and 1036 for each entry.
        assert len((await peer.ask(v2.batch_read(1, 0, size=36 + 2 * 1036))).entries) == 2
        assert len((await peer.ask(v2.batch_read(1, 0, size=36 + 2 * 1036 - 1))).entries) == 1


async def test_auth_is_answered_with_authentication_disabled(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        await peer.stream.send_all(v2.frame(v2.AUTH, b"\x0a\x01x\x12\x00"))
        body = b"\x0a\x12AuthDisabledPlugin\x12\x00"
        assert await peer.frame() == v2.frame(v2.AUTH, body)


async def test_a_login_that_nobody_checks_is_logged_once_for_its_address(
    bookie: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async with bookie as rig:
        for user in ("x", "ann", "bob"):
            peer = rig.connect()
            plugin = "other" if user == "x" else PLUGIN
            for _ in range(2):
                await peer.stream.send_all(auth_frame(plugin, f"\0{user}\0secret".encode()))
                await peer.frame()
    warned = [each.getMessage() for each in caplog.records if "not checked" in each.getMessage()]
    assert len(warned) == 2, "in memory, each connection is its address"
    assert "ann" in warned[0]
    assert "bob" in warned[1]
    assert "secret" not in caplog.text


async def test_a_call_is_answered_with_its_request_id(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        answer = await peer.ask(v2.call(b"what"))
        assert answer == (v2.CALL, 0, v2.int64(80) + b"what")


# --- peers at fault ----------------------------------------------------------------------


async def test_a_version_above_two_is_told_so_and_closed(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        ids = v2.int64(1) + v2.int64(0)
        answer = await peer.ask(v2.frame(v2.READ, ids, version=3))
        assert answer.code == 103
        assert await peer.closed()


@pytest.mark.parametrize(
    "broken",
    [
        v2.frame(8, bytes(16)),
        v2.frame(66, bytes(16)),
        v2.frame(255, b""),
        (5 * (1 << 20) + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        v2.int32(3) + bytes(3),
        v2.frame(v2.READ, bytes(15)),
        v2.frame(v2.READ, bytes(17)),
        v2.frame(v2.ADD, bytes(20)),
        bytes(reversed(range(256))),
    ],
    ids=["8", "66", "255", "long", "negative", "short", "cut", "longer", "no-entry", "noise"],
)
async def test_a_frame_that_breaks_the_protocol_closes_its_connection_only(
    autojump_clock: trio.testing.MockClock, quiet: Serving, broken: bytes
) -> None:
    async with quiet as rig:
        other = rig.connect()
        await other.stream.send_all(v2.ADD_HELLO)
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit()
        assert (await other.response()).code == 0
        peer = rig.connect()
        await peer.stream.send_all(broken)
        assert await peer.closed()
        assert (await other.ask(v2.READ_HELLO)).code == 0
        assert rig.server.budget.held == 0


CONVERSATION = (
    v2.ADD_HELLO
    + v2.READ_HELLO
    + v2.add(1, 1, bytes(3000))
    + v2.batch_read(1, 0)
    + v2.write_lac(1, 1)
    + v2.call(b"body")
    + v2.read_wait(1, 0, known_lac=-1, wait_ms=60_000)
    + v2.FENCE_HELLO
)


async def test_a_connection_dropped_at_any_byte_leaves_nothing_behind(bookie: Serving) -> None:
    async with bookie as rig:
        for size in range(0, len(CONVERSATION) + 1, 7):
            peer = rig.connect()
            await peer.stream.send_all(CONVERSATION[:size])
            await peer.stream.aclose()
        await until(lambda: rig.server.connections == 0)
        assert rig.server.budget.held == 0
        assert rig.server.parked_reads.parked == 0
        stats = rig.storage.engine.stats()
        assert (stats.connections, stats.partial_bytes) == (0, 0)
        assert (await rig.connect().ask(v2.READ_HELLO)).code == 0


async def test_what_comes_byte_by_byte_is_answered_as_in_one_piece(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        for each in v2.ADD_HELLO + v2.READ_HELLO:
            await peer.stream.send_all(bytes([each]))
        answers = {(await peer.response()).opcode for _ in range(2)}
        assert answers == {v2.ADD, v2.READ}


async def test_a_peer_that_ends_its_side_gets_what_it_is_owed(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as rig:
        listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, rig.server.serve, listener)
            async with await trio.testing.open_stream_to_socket_listener(listener[0]) as stream:
                await stream.send_all(b"".join(v2.add(2, each) for each in range(1000)))
                await stream.send_eof()
                peer = Peer(stream)
                codes = [(await peer.response()).code for _ in range(1000)]
                assert codes == [0] * 1000
                assert await peer.closed()
            nursery.cancel_scope.cancel()


# --- limits ------------------------------------------------------------------------------


async def test_a_connection_over_the_limit_is_closed_at_once(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, connections_max=2)) as rig:
        first, second = rig.connect(), rig.connect()
        assert (await first.ask(v2.ADD_HELLO)).code == 0
        assert (await second.ask(v2.READ_HELLO)).code == 0
        assert await rig.connect().closed()
        assert rig.server.refused == 1


async def test_a_dribbler_is_closed_when_its_frame_takes_too_long(
    quiet: Serving, autojump_clock: trio.testing.MockClock
) -> None:
    async with quiet as rig:
        peer = rig.connect()
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            for each in v2.ADD_HELLO:
                await peer.stream.send_all(bytes([each]))
                await trio.sleep(1)
        assert 5 <= trio.current_time() - started <= 7
        assert rig.server.dropped == 1


async def test_a_peer_that_stops_within_a_frame_is_closed_in_time(
    quiet: Serving, autojump_clock: trio.testing.MockClock
) -> None:
    async with quiet as rig:
        peer = rig.connect()
        await peer.stream.send_all(v2.ADD_HELLO[:20])
        started = trio.current_time()
        assert await peer.closed()
        assert trio.current_time() - started == pytest.approx(5)


async def test_a_slow_peer_that_finishes_its_frames_is_kept(
    quiet: Serving, autojump_clock: trio.testing.MockClock
) -> None:
    async with quiet as rig:
        peer = rig.connect()
        for _ in range(5):
            await peer.stream.send_all(v2.READ_HELLO[:10])
            await trio.sleep(4)
            await peer.stream.send_all(v2.READ_HELLO[10:])
            assert (await peer.response()).code == 1


@pytest.mark.parametrize("hears", [True, False], ids=["bytes", "nothing"])
async def test_a_pause_of_the_bookie_takes_no_time_from_a_frame(
    quiet: Serving, mock_clock: trio.testing.MockClock, hears: bool
) -> None:
    """A process that was stopped for a minute finds a minute gone, and its peers still sending."""
    async with quiet as rig:
        peer = rig.connect()
        await peer.stream.send_all(v2.ADD_HELLO[:20])
        await trio.testing.wait_all_tasks_blocked()
        if hears:
            await peer.stream.send_all(v2.ADD_HELLO[20:30])
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.send_all(v2.ADD_HELLO[20 + 10 * hears :])
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit()
        assert (await peer.response()).code == 0
        assert rig.server.faults == 0


async def test_an_idle_peer_is_closed_after_the_idle_timeout(
    quiet: Serving, autojump_clock: trio.testing.MockClock
) -> None:
    async with quiet as rig:
        peer = rig.connect()
        started = trio.current_time()
        assert await peer.closed()
        assert trio.current_time() - started == pytest.approx(100)


async def test_a_peer_that_does_not_read_is_closed_and_its_memory_freed(
    quiet: Serving, autojump_clock: trio.testing.MockClock
) -> None:
    async with quiet as rig:
        peer = rig.connect(trio.testing.lockstep_stream_pair)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.send_all, v2.add(1, 0, bytes(1 << 20)))
            await trio.testing.wait_all_tasks_blocked()
            await rig.commit()
            assert (await peer.response()).code == 0
            nursery.cancel_scope.deadline = trio.current_time() + 20
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    await peer.stream.send_all(v2.read(1, 0))
        assert rig.server.connections == 0
        assert rig.server.budget.held == 0


async def test_nothing_is_read_from_a_connection_with_too_much_unsynced(tmp_path: Path) -> None:
    config = settings(tmp_path, connection_bytes_max=1 << 20, checkpoint_interval_s=0.0)
    async with serving(config, threaded=False) as rig:
        peer = rig.connect(trio.testing.lockstep_stream_pair)
        taken = 0
        with trio.move_on_after(0.5):
            for entry_id in range(20):
                await peer.stream.send_all(v2.add(1, entry_id, bytes(256 << 10)))
                taken += 1
        # The one that passes the limit, and what the parser and the stream hold.
        assert 4 <= taken <= 6
        await rig.commit()
        assert (await peer.response()).code == 0


async def test_a_frame_larger_than_the_limit_of_a_connection_is_taken(tmp_path: Path) -> None:
    config = settings(tmp_path, connection_bytes_max=1 << 20, bytes_in_flight_max=1 << 20)
    async with serving(config) as rig:
        peer = rig.connect()
        payload = bytes((5 << 20) - 100)
        assert (await peer.ask(v2.add(1, 0, payload))).code == 0
        assert (await peer.ask(v2.read(1, 0))).body == v2.entry(1, 0, payload)


async def test_a_full_memtable_holds_adds_back_until_there_is_space(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as rig:
        peer = rig.connect()
        total = 60
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for entry_id in range(total):
                    await peer.stream.send_all(v2.add(1, entry_id, bytes(1 << 20)))

            nursery.start_soon(send)
            answers = [await peer.response() for _ in range(total)]
        assert [answer.code for answer in answers] == [0] * total
        assert [answer.entry_id for answer in answers] == list(range(total))
        for entry_id in (0, total // 2, total - 1):
            assert len((await peer.ask(v2.read(1, entry_id))).body) == 32 + (1 << 20)


# --- reading with wait ---------------------------------------------------------------------


async def test_a_parked_read_is_woken_by_the_lac(bookie: Serving) -> None:
    async with bookie as rig:
        reader, writer = rig.connect(), rig.connect()
        await writer.ask(v2.add(4, 0))
        await reader.stream.send_all(v2.read_wait(4, 0, known_lac=-1, wait_ms=30_000))
        await until(lambda: rig.server.parked_reads.parked == 1)
        assert (await writer.ask(v2.write_lac(4, 0))).code == 0
        with trio.fail_after(30):
            answer = await reader.response()
        assert (answer.opcode, answer.code) == (v2.READ_WAIT, 0)
        assert v2.from_int64(answer.rest[24:32]) == 0
        assert answer.entries == [v2.entry(4, 0)]
        assert rig.server.parked_reads.parked == 0


async def test_a_parked_read_is_woken_by_a_fence(bookie: Serving) -> None:
    async with bookie as rig:
        reader, writer = rig.connect(), rig.connect()
        await writer.ask(v2.add(4, 0))
        await reader.stream.send_all(v2.read_wait(4, 0, known_lac=0, wait_ms=30_000))
        await writer.ask(v2.read(4, -1, fence_key=v2.KEY))
        with trio.fail_after(30):
            answer = await reader.response()
        assert int.from_bytes(answer.rest[32:36], "big") == 1


async def test_a_parked_read_ends_with_its_wait(
    quiet: Serving, autojump_clock: trio.testing.MockClock
) -> None:
    async with quiet as rig:
        peer = rig.connect()
        await peer.stream.send_all(v2.add(4, 0))
        await trio.testing.wait_all_tasks_blocked()
        await rig.commit()
        assert (await peer.response()).code == 0
        started = trio.current_time()
        answer = await peer.ask(v2.read_wait(4, 0, known_lac=0, wait_ms=1500))
        assert (answer.code, answer.entries) == (0, [])
        assert trio.current_time() - started == pytest.approx(1.5)


async def test_a_wait_on_a_ledger_that_is_not_known_is_answered_at_once(bookie: Serving) -> None:
    async with bookie as rig:
        with trio.fail_after(30):
            answer = await rig.connect().ask(v2.read_wait(4, 0, known_lac=-1, wait_ms=60_000))
        assert answer.code == 1


async def test_too_many_parked_reads_of_one_connection_are_refused(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        await peer.ask(v2.add(4, 0))
        await peer.stream.send_all(
            b"".join(v2.read_wait(4, 0, known_lac=0, wait_ms=60_000) for _ in range(300))
        )
        codes = [(await peer.response()).code for _ in range(300 - 256)]
        assert codes == [106] * 44


# --- read-only ------------------------------------------------------------------------------


async def test_a_read_only_bookie_reads_fences_and_takes_recovery_adds(bookie: Serving) -> None:
    async with bookie as rig:
        peer = rig.connect()
        await peer.ask(v2.ADD_HELLO)
        rig.storage.engine.set_read_only(read_only=True, priority_allowed=True)
        assert (await peer.ask(v2.add(1, 1))).code == 105
        assert (await peer.ask(v2.write_lac(1, 0))).code == 105
        assert (await peer.ask(v2.READ_HELLO)).code == 0
        assert (await peer.ask(v2.FENCE_HELLO)).code == 0
        recovery = v2.add(1, 1, flags=v2.RECOVERY | v2.PRIORITY)
        assert (await peer.ask(recovery)).code == 0
        rig.storage.engine.set_read_only(read_only=True, priority_allowed=False)
        recovery = v2.add(1, 2, flags=v2.RECOVERY | v2.PRIORITY)
        assert (await peer.ask(recovery)).code == 105

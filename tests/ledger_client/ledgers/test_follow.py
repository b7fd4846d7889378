"""Following over bookies in memory: latency, endings, bookies that fall behind."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import LedgerReader, Options
from ledger_client.errors import Busy, NoSuchEntry, NoSuchLedger, ReplicasUnavailable
from ledger_client.ledgers.records import sealed
from ledger_client.wire.followed import FollowedLedgers
from metadata.errors import MetadataUnavailable
from metadata.records import encode_record, ledger_key
from metadata.store import Versioned
from native.frame import Opcode, Request


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (1, 1, 1)])
async def test_a_follower_sees_an_entry_within_50_ms_of_its_acknowledgement(
    autojump_clock: MockClock, quorums: tuple[int, int, int]
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda request: 0.001 if request.opcode == Opcode.ADD else 0.0
        seen: dict[int, float] = {}
        acknowledged: dict[int, float] = {}
        async with (
            trio.open_nursery() as nursery,
            client.ledgers.create(*quorums) as ledger,
            client.ledgers.open(ledger.id, recover=False) as reader,
        ):
            nursery.start_soon(note_times, reader, seen)
            for pause_s in (0.5, 0.001, 3.0, 0.008, 0.02, 0.011, 6.0):
                acknowledged[await ledger.append(b"x")] = trio.current_time()
                await trio.sleep(pause_s)
        assert seen.keys() == acknowledged.keys()
        assert all(seen[i] - acknowledged[i] <= 0.05 for i in seen)


@pytest.mark.parametrize("hints", [True, False])
async def test_following_ends_after_the_ledger_is_closed_with_and_without_hints_of_the_store(
    autojump_clock: MockClock, hints: bool
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client(Options(poll_s=2)) as client,
        client.ledgers.create() as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_times, reader, {})
            await ledger.append(b"x")
            await trio.sleep(30)
            if not hints:
                cluster.store.hints = False
            await ledger.close()
            closed_at = trio.current_time()
        assert trio.current_time() - closed_at < (0.1 if hints else 5)


async def test_a_hint_is_kept_while_the_store_does_not_answer(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bookie has news of the end, so only the record says so."""
    monkeypatch.setattr(FollowedLedgers, "takes", True)
    monkeypatch.setattr(FollowedLedgers, "follow", lambda *_: None)
    monkeypatch.setattr(FollowedLedgers, "leave", lambda *_: None)
    async with (
        memory_cluster(3) as cluster,
        cluster.client(Options(metadata_timeout_s=1)) as client,
        client.ledgers.create() as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
        trio.open_nursery() as nursery,
    ):
        ended = trio.Event()

        async def follow() -> None:
            await note_times(reader, {})
            ended.set()

        nursery.start_soon(follow)
        await ledger.append(b"x")
        await trio.sleep(300)
        get = cluster.store.get

        async def refuse(key: str) -> Versioned | None:
            raise MetadataUnavailable(f"no bookie answers for {key}")

        cluster.store.get = refuse  # type: ignore[method-assign]
        closed = sealed(ledger.metadata, 0, 1)
        await cluster.store.put(ledger_key(ledger.id), encode_record(closed))
        await trio.sleep(5)
        cluster.store.get = get  # type: ignore[method-assign]
        with trio.fail_after(5):
            await ended.wait()


async def test_following_a_ledger_of_another_program_ends_without_hints(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BookKeeper's client closes its ledger in ZooKeeper, beside our store."""
    # Bookies that take what rests and never have news of it.
    monkeypatch.setattr(FollowedLedgers, "takes", True)
    monkeypatch.setattr(FollowedLedgers, "follow", lambda *_: None)
    monkeypatch.setattr(FollowedLedgers, "leave", lambda *_: None)
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        client.ledgers.create() as ledger,
    ):
        theirs = msgspec.structs.replace(ledger.metadata, incarnation=0)
        await cluster.store.put(ledger_key(ledger.id), encode_record(theirs))
        async with (
            client.ledgers.open(ledger.id, recover=False) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(note_times, reader, {})
            await ledger.append(b"x")
            await trio.sleep(300)
            closed = sealed(theirs, 0, 1)
            cluster.store.values[ledger_key(ledger.id)] = Versioned(encode_record(closed), 1 << 40)
            closed_at = trio.current_time()
        assert trio.current_time() - closed_at < 5


async def test_following_from_the_middle_and_from_beyond_the_end(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create() as ledger:
            await ledger.append_many([b"%d" % i for i in range(5000)])
        async with client.ledgers.open(ledger.id) as reader:
            assert [e.entry_id async for e in reader.follow(4990)] == list(range(4990, 5000))
            assert [e.entry_id async for e in reader.follow(6000)] == []
            with pytest.raises(NoSuchEntry):
                reader.follow(-1)


async def test_a_bookie_that_the_writer_gave_up_does_not_hold_followers_back(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client(Options(poll_s=2)) as client,
        client.ledgers.create(3, 3, 2) as ledger,
    ):
        await ledger.append(b"x")
        first_asked = ledger.metadata.fragments[0].bookies[-1]
        cluster.kill(first_asked)
        await ledger.append(b"x")
        cluster.revive(first_asked)
        async with client.ledgers.open(ledger.id, recover=False) as reader:
            follower = reader.follow(0)
            for expected in range(10):
                with trio.fail_after(5):
                    assert (await anext(follower)).entry_id == expected
                await ledger.append(b"x")


async def test_a_bookie_that_dies_under_a_long_poll_is_replaced_at_once(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        trio.open_nursery() as nursery,
        client.ledgers.create(3, 3, 2) as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
    ):
        await ledger.append(b"x")
        seen: dict[int, float] = {}
        nursery.start_soon(note_times, reader, seen)
        await trio.sleep(1)
        cluster.kill(ledger.metadata.fragments[0].bookies[-1])
        await trio.sleep(1)
        await ledger.append(b"x")
        await trio.sleep(0.05)
        assert sorted(seen) == [0, 1]


async def test_a_follower_without_any_bookie_fails_in_the_time_allowed_and_can_go_on(
    autojump_clock: MockClock,
) -> None:
    options = Options(poll_s=1, read_timeout_s=5)
    async with (
        memory_cluster(1) as cluster,
        cluster.client(options) as client,
        client.ledgers.create(1, 1, 1) as ledger,
    ):
        await ledger.append(b"x")
        async with client.ledgers.open(ledger.id, recover=False) as reader:
            follower = reader.follow(0)
            assert (await anext(follower)).entry_id == 0
            cluster.kill("b1")
            start = trio.current_time()
            with pytest.raises(ReplicasUnavailable):
                await anext(follower)
            assert 4 < trio.current_time() - start < 8
            cluster.revive("b1")
            await ledger.close()
            with pytest.raises(StopAsyncIteration):
                await anext(follower)


async def test_a_silent_bookie_is_left_by_its_follower_and_not_waited_for_again(
    autojump_clock: MockClock,
) -> None:
    """Its connection looks alive at first; later attempts to connect take their time."""
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        trio.open_nursery() as nursery,
        client.ledgers.create(3, 3, 2) as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
    ):
        await ledger.append(b"x")
        sent, seen = {0: trio.current_time()}, dict[int, float]()
        nursery.start_soon(note_times, reader, seen)
        await trio.sleep(1)
        cluster.bookies[ledger.metadata.fragments[0].bookies[-1]].answering = False
        for entry_id in range(1, 61):
            sent[entry_id] = trio.current_time()
            await ledger.append(b"x")
            await trio.sleep(1)
        late_s = [seen[entry_id] - sent[entry_id] for entry_id in range(61)]
        assert max(late_s) < 5
        assert max(late_s[10:]) < 0.5
        nursery.cancel_scope.cancel()


async def test_following_goes_on_while_the_store_is_away(autojump_clock: MockClock) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client(Options(poll_s=1)) as client,
        client.ledgers.create() as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
    ):
        cluster.store.available = False
        follower = reader.follow(0)
        for expected in range(3):
            await ledger.append(b"x")
            assert (await anext(follower)).entry_id == expected
            await trio.sleep(5)
        cluster.store.available = True


async def test_following_a_ledger_that_is_deleted_says_so(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        with pytest.raises(NoSuchLedger):
            async with (
                client.ledgers.create() as ledger,
                client.ledgers.open(ledger.id, recover=False) as reader,
            ):
                await ledger.append(b"x")
                follower = reader.follow(0)
                await anext(follower)
                await client.ledgers.delete(ledger.id)
                with trio.fail_after(5):
                    await anext(follower)


async def test_cancelling_a_follower_loses_no_entry(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.ledgers.create() as ledger:
            await ledger.append_many([b"x"] * 100)
        for bookie in cluster.bookies.values():
            bookie.delay_s = half_second_reads
        async with client.ledgers.open(ledger.id) as reader:
            follower = reader.follow(0)
            seen: list[int] = []
            while len(seen) < 100:
                with trio.move_on_after(0.3 * cluster.chance.randint(1, 3)):
                    seen.append((await anext(follower)).entry_id)
            assert seen == list(range(100))


async def test_an_empty_ledger_is_polled_gently_and_its_first_entry_comes_soon(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        trio.open_nursery() as nursery,
        client.ledgers.create() as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
    ):
        seen: dict[int, float] = {}
        nursery.start_soon(note_times, reader, seen)
        await trio.sleep(10)
        assert sum(len(bookie.requests) for bookie in cluster.bookies.values()) < 1000
        await ledger.append(b"x")
        acknowledged = trio.current_time()
        await trio.sleep(0.05)
        assert seen[0] - acknowledged <= 0.05


async def note_times(reader: LedgerReader, seen: dict[int, float]) -> None:
    async for entry in reader.follow(0):
        seen[entry.entry_id] = trio.current_time()


def half_second_reads(request: Request) -> float:
    return 0.5 if request.opcode == Opcode.BATCH_READ else 0.0


async def test_a_second_task_that_follows_or_reads_with_the_same_iterator_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        client.ledgers.create() as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
        trio.open_nursery() as nursery,
    ):
        seen: dict[int, float] = {}
        follower = reader.follow()

        async def note_first() -> None:
            seen[(await anext(follower)).entry_id] = trio.current_time()

        nursery.start_soon(note_first)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy, match="this follower"):
            await anext(follower)
        await ledger.append(b"x")
        await trio.sleep(1)
        assert seen.keys() == {0}
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda _request: 0.01
        batches = reader.read_batches(0, 0)

        async def note_batch() -> None:
            seen[len(await anext(batches))] = trio.current_time()

        nursery.start_soon(note_batch)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy):
            await anext(batches)
        await trio.sleep(1)
        assert seen.keys() == {0, 1}

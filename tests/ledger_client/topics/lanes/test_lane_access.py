"""Who may write which lane."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial

import msgspec
import pytest
import trio
from lane_process import Process
from lane_rig import batch, lane_record, make_topic, messages
from memory_cluster import memory_cluster
from trio.testing import MockClock, wait_all_tasks_blocked

import metadata.errors
from ledger_client.errors import (
    MetadataUnavailable,
    NoSuchTopic,
    NotEnoughBookies,
    ProducerBusy,
    ProducerFenced,
    SendUnknown,
    TopicError,
)
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.lanes.lane_lease import Access, LaneLease, hold_lane
from metadata.sessions import SESSION_S, ProcessSession
from metadata.store import Lease, Leases, StoreSession
from metadata.topics import WRITERS, encode_row, last_number, topic_key


async def test_of_two_exclusive_writers_one_is_told_at_once(autojump_clock: MockClock) -> None:
    """TB-02: at most one writer of a partition."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        async with open_lane(ours._context.ledgers, topic, -1, producer="a") as lane:
            for access in ("exclusive", "shared"):
                with pytest.raises(ProducerBusy, match="lane 0 is written by producer a") as busy:
                    async with open_lane(theirs._context.ledgers, topic, -1, access=access):
                        pass
                assert str(busy.value).endswith(
                    '; wait for it (access="wait"), or take it over ("take-over")'
                )
            await lane.append([batch("a")])
        async with open_lane(theirs._context.ledgers, topic, -1) as next_lane:
            assert next_lane.epoch == 2
            await next_lane.append([batch("b")])
        assert await messages(ours, cluster) == [b"a", b"b"]


async def test_one_who_waits_gets_the_lane_when_it_is_free(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        got: list[str] = []

        async def wait() -> None:
            async with open_lane(theirs._context.ledgers, topic, -1, access="wait") as lane:
                got.append("theirs")
                await lane.append([batch("b")])

        async with (
            trio.open_nursery() as nursery,
            open_lane(ours._context.ledgers, topic, -1) as lane,
        ):
            nursery.start_soon(wait)
            await trio.sleep(60)
            assert not got
            await lane.append([batch("a")])
        assert await messages(ours, cluster) == [b"a", b"b"]


async def test_one_who_was_killed_is_followed_when_its_lease_is_over(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as theirs:
        topic = make_topic(cluster)
        process = Process(cluster)
        with pytest.raises(MetadataUnavailable):
            async with (
                process.client() as client,
                open_lane(client._context.ledgers, topic, -1) as lane,
            ):
                await lane.append([batch("a")])
                process.kill()
                killed_at = trio.current_time()
                async with open_lane(
                    theirs._context.ledgers, topic, -1, access="wait"
                ) as next_lane:
                    assert trio.current_time() - killed_at < SESSION_S + 1
                    await next_lane.append([batch("b")])
        assert await messages(theirs, cluster) == [b"a", b"b"]


async def test_the_lane_taken_over_is_lost_at_the_next_append(autojump_clock: MockClock) -> None:
    """The old one learns it from the bookies, and acknowledges nothing any more."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        cluster.store.hints = False
        with pytest.raises(ProducerFenced):
            async with open_lane(ours._context.ledgers, topic, -1) as lane:
                await lane.append([batch("a")])
                async with open_lane(
                    theirs._context.ledgers, topic, -1, access="take-over"
                ) as next_lane:
                    await next_lane.append([batch("b")])
                    with pytest.raises(SendUnknown) as unknown:
                        await lane.append([batch("c"), batch("d")])
                    assert isinstance(unknown.value.__cause__, ProducerFenced)
                    assert unknown.value.count == 2
                    with pytest.raises(ProducerFenced):
                        await lane.append([batch("e")])
                    await next_lane.append([batch("f")])
        assert await messages(ours, cluster) == [b"a", b"b", b"f"]


async def test_no_writer_is_fenced_for_one_that_would_find_no_bookies(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        async with open_lane(ours._context.ledgers, topic, -1) as lane:
            await lane.append([batch("a")])
            cluster.kill("b3")
            with pytest.raises(NotEnoughBookies):
                async with open_lane(theirs._context.ledgers, topic, -1, access="take-over"):
                    pass
            await lane.append([batch("b")])
            cluster.revive("b3")
        assert await messages(ours, cluster) == [b"a", b"b"]


async def test_a_take_over_finds_bookies_for_the_topic_as_it_is_now(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        async with open_lane(ours._context.ledgers, topic, -1) as lane:
            await lane.append([batch("a")])
        cluster.kill("b3")
        await ours.topics.alter(topic.name, replication=2)
        async with open_lane(theirs._context.ledgers, topic, -1, access="take-over") as lane:
            await lane.append([batch("b")])
        assert await messages(ours, cluster) == [b"a", b"b"]


@pytest.mark.parametrize("access", ["exclusive", "shared"])
async def test_who_took_a_lane_over_is_seen_at_once_and_when_the_old_one_ends(
    autojump_clock: MockClock, access: Access
) -> None:
    """Else a third one finds the lane free, and fences a writer that is well."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        taken, ended = trio.Event(), trio.Event()

        async def write(*, task_status: trio.TaskStatus[None]) -> None:
            with pytest.raises(ProducerFenced):
                async with open_lane(ours._context.ledgers, topic, -1) as lane:
                    task_status.started()
                    await taken.wait()
                    with pytest.raises(SendUnknown):
                        await lane.append([batch("a")])
            ended.set()

        async def is_refused() -> None:
            with pytest.raises(ProducerBusy, match="producer next"):
                async with open_lane(ours._context.ledgers, topic, -1, access=access):
                    pass

        async with trio.open_nursery() as nursery:
            await nursery.start(write)
            async with open_lane(
                theirs._context.ledgers, topic, -1, access="take-over", producer="next"
            ) as lane:
                await is_refused()
                taken.set()
                await ended.wait()
                await is_refused()
                await lane.append([batch("b")])
        assert await messages(ours, cluster) == [b"b"]


async def test_an_idle_writer_learns_that_its_lane_was_taken_over(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        with pytest.raises(ProducerFenced):
            async with (
                open_lane(ours._context.ledgers, topic, -1) as lane,
                open_lane(theirs._context.ledgers, topic, -1, access="take-over"),
            ):
                await trio.sleep(SESSION_S / 3 + 0.1)
                with pytest.raises(ProducerFenced):
                    await lane.append([batch("a")])
        # The lease went with it, so the next one need not take anything.
        async with open_lane(theirs._context.ledgers, topic, -1) as lane:
            assert lane.epoch == 3


async def test_writers_share_a_partition_each_on_a_lane_of_its_own(
    autojump_clock: MockClock,
) -> None:
    """TB-36: the lowest free lane; a named producer keeps its own."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with AsyncExitStack() as stack:

            async def open_shared(producer: str = "") -> int:
                opening = open_lane(
                    client._context.ledgers, topic, -1, access="shared", producer=producer
                )
                lane = await stack.enter_async_context(opening)
                await lane.append([batch(f"{producer}{lane.lane}")])
                return lane.lane

            assert [await open_shared() for _ in range(2)] == [0, 1]
            assert await open_shared("p") == 2
            assert await open_shared() == 3
            with pytest.raises(ProducerBusy, match="producer p"):
                await open_shared("p")
            with pytest.raises(ProducerBusy):
                async with open_lane(client._context.ledgers, topic, -1):
                    pass
        async with AsyncExitStack() as stack:
            assert await open_shared("q") == 4
            assert await open_shared("p") == 2
            assert [await open_shared() for _ in range(3)] == [0, 1, 3]
        assert await messages(client, cluster, 2) == [b"p2", b"p2"]


async def test_a_producer_without_a_name_looks_at_no_other_if_it_shares_and_lane_0_is_free(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that has the partition alone has that lane."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        looks, leases = list[str](), cluster.store.leases

        async def counted(prefix: str, *, after: str = "") -> Leases:
            looks.extend([prefix] * prefix.startswith(WRITERS))
            return await leases(prefix, after=after)

        monkeypatch.setattr(cluster.store, "leases", counted)
        async with open_lane(ours._context.ledgers, topic, -1, access="shared") as lane:
            assert (lane.lane, looks) == (0, [])
            async with open_lane(theirs._context.ledgers, topic, -1, access="shared") as other:
                assert (other.lane, len(looks)) == (1, 2)
            with pytest.raises(ProducerBusy):
                async with open_lane(theirs._context.ledgers, topic, -1):
                    pass


@pytest.mark.parametrize("late", ["q", ""])
async def test_a_lane_that_got_a_name_meanwhile_is_left_to_it(
    autojump_clock: MockClock, late: str
) -> None:
    """PS-39: else the numbers of one producer would be looked for in the lane of another."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        grant = cluster.store.grant
        granted: list[str] = []

        async def grant_late(
            name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
        ) -> Lease:
            if name.endswith("1") and owner.startswith(late or "producer") and not granted:
                granted.append(name)
                async with open_lane(
                    ours._context.ledgers, topic, -1, access="shared", producer="p"
                ) as lane:
                    assert lane.lane == 1
            return await grant(name, session, owner=owner, value=value)

        cluster.store.grant = grant_late  # type: ignore[method-assign]
        async with (
            open_lane(theirs._context.ledgers, topic, -1, access="shared"),
            open_lane(theirs._context.ledgers, topic, -1, access="shared", producer=late) as lane,
        ):
            assert granted
            assert lane.lane == 2
            assert lane_record(cluster, 2).producer == late
            async with open_lane(
                ours._context.ledgers, topic, -1, access="shared", producer="p"
            ) as own:
                assert own.lane == 1


async def test_who_shares_does_not_come_back_beside_one_who_has_all(
    autojump_clock: MockClock,
) -> None:
    """TB-02: also when its lease had run out before the other came."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        async with open_lane(ours._context.ledgers, topic, -1):
            with pytest.raises(ProducerBusy, match="lane 0"):
                async with open_lane(theirs._context.ledgers, topic, -1, access="shared", lane=1):
                    pass
        async with open_lane(theirs._context.ledgers, topic, -1, access="shared", lane=1) as lane:
            assert lane.lane == 1


@pytest.mark.parametrize("access", ["exclusive", "shared"])
async def test_a_lease_is_released_when_nobody_can_look_after_it_was_taken(
    autojump_clock: MockClock, access: Access
) -> None:
    """Else a lane that nobody writes is another's for as long as a lease lasts."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        grant, leases = cluster.store.grant, cluster.store.leases

        async def fail(*_: object, **__: object) -> list[Lease]:
            raise metadata.errors.MetadataUnavailable("no answer")

        async def grant_once(
            name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
        ) -> Lease:
            cluster.store.leases = fail  # type: ignore[method-assign]
            return await grant(name, session, owner=owner, value=value)

        cluster.store.grant = grant_once  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable):
            async with open_lane(ours._context.ledgers, topic, -1, access=access):
                pass
        cluster.store.grant, cluster.store.leases = grant, leases  # type: ignore[method-assign]
        async with open_lane(theirs._context.ledgers, topic, -1) as lane:
            assert lane.epoch == 1


async def test_one_who_closes_a_lane_that_was_left_keeps_nobody_out(
    autojump_clock: MockClock,
) -> None:
    """As the leader does: it has the lease for a moment only."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        for bookie in cluster.bookies.values():
            bookie.delay_s = lambda _request: 0.1
        process = Process(cluster)
        with pytest.raises(TopicError, match=r"taken over|in its writer's absence"):
            async with (
                process.client() as client,
                open_lane(client._context.ledgers, topic, -1) as lane,
            ):
                await lane.append([batch("a")])
                process.kill()
                await trio.sleep(SESSION_S + 1)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(close_lane, theirs._context.ledgers, topic, -1, 0)
                    await trio.sleep(0.05)
                    async with open_lane(ours._context.ledgers, topic, -1) as next_lane:
                        await next_lane.append([batch("b")])
                process.heal()
                await trio.sleep(SESSION_S)
        assert await messages(ours, cluster) == [b"a", b"b"]


@pytest.mark.parametrize("access", ["exclusive", "wait", "take-over"])
async def test_who_shared_and_lost_its_lease_is_not_acknowledged_beside_one_who_has_all(
    autojump_clock: MockClock, access: Access
) -> None:
    """TB-02: the way to the store was cut, the way to the bookies was not."""
    async with memory_cluster(3) as cluster, cluster.client() as theirs:
        topic = make_topic(cluster)
        process = Process(cluster)
        with pytest.raises(TopicError, match=r"taken over|in its writer's absence"):
            async with (
                process.client() as client,
                open_lane(
                    client._context.ledgers, topic, -1, access="shared", producer="p"
                ) as lane,
            ):
                assert lane.lane == 1
                await lane.append([batch("a")])
                process.line.is_cut = True
                await trio.sleep(SESSION_S + 1)
                await lane.append([batch("b")])
                async with open_lane(theirs._context.ledgers, topic, -1, access=access) as whole:
                    await whole.append([batch("c")])
                    process.heal()
                    with pytest.raises(SendUnknown):
                        await lane.append([batch("d")])
                    await trio.sleep(SESSION_S)
                    assert [last_number(it.name) for it in await cluster.store.leases(WRITERS)] == [
                        0
                    ]
                    with pytest.raises(ProducerBusy):
                        async with open_lane(
                            theirs._context.ledgers, topic, -1, access="shared", lane=1
                        ):
                            pass
        assert await messages(theirs, cluster, 1) == [b"a", b"b"]
        assert await messages(theirs, cluster) == [b"c"]


async def test_one_who_takes_over_fences_those_who_share(autojump_clock: MockClock) -> None:
    """TB-02: for good, though their leases are live."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        with pytest.raises(ProducerFenced):
            async with open_lane(
                ours._context.ledgers, topic, -1, access="shared", producer="p"
            ) as lane:
                await lane.append([batch("a")])
                async with open_lane(theirs._context.ledgers, topic, -1, access="take-over"):
                    with pytest.raises(SendUnknown) as unknown:
                        await lane.append([batch("b")])
                    assert isinstance(unknown.value.__cause__, ProducerFenced)
        assert await messages(ours, cluster, 1) == [b"a"]


@pytest.mark.parametrize("access", ["exclusive", "take-over"])
async def test_numbers_of_a_name_count_when_it_has_the_partition_alone(
    autojump_clock: MockClock, access: Access
) -> None:
    """PS-39: and they stay known in lane 0, whichever of the two lanes has the greater."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(
            client._context.ledgers, topic, -1, access="shared", producer="p"
        ) as lane:
            await lane.append([batch("a", "b", producer="p", sequence=3)])
        async with open_lane(
            client._context.ledgers, topic, -1, access=access, producer="p"
        ) as lane:
            assert (lane.lane, lane.last_sequence("p")) == (0, 4)
            assert lane.last_sequence("q") == -1
            await lane.append([batch("c", producer="p", sequence=5)])
        for producer in ("q", "p"):
            async with open_lane(client._context.ledgers, topic, -1, producer=producer) as lane:
                assert lane.last_sequence("p") == 5


async def test_a_lease_that_was_left_behind_is_its_own(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        opening = open_lane(client._context.ledgers, topic, -1, owner="me")
        await opening.__aenter__()
        async with open_lane(client._context.ledgers, topic, -1, owner="me") as lane:
            assert lane.epoch == 2
        with pytest.raises(TopicError, match="in its writer's absence"):
            await opening.__aexit__(None, None, None)


async def test_who_comes_back_after_another_is_fenced(autojump_clock: MockClock) -> None:
    """TB-02: also when the other has left the lane; one who merely closed it does no harm."""
    async with memory_cluster(3) as cluster, cluster.client() as ours, cluster.client() as theirs:
        topic = make_topic(cluster)
        async with open_lane(ours._context.ledgers, topic, -1, owner="me") as lane:
            await lane.append([batch("a")])
        await close_lane(theirs._context.ledgers, topic, -1, 0)
        async with open_lane(ours._context.ledgers, topic, -1, owner="me", is_back=True) as lane:
            await lane.append([batch("b")])
        async with open_lane(theirs._context.ledgers, topic, -1):
            pass
        with pytest.raises(ProducerFenced):
            async with open_lane(ours._context.ledgers, topic, -1, owner="me", is_back=True):
                pass
        assert await messages(ours, cluster) == [b"a", b"b"]


async def test_losing_the_lease_alone_does_not_stop_the_writer(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            cluster.store.available = False
            await trio.sleep(3 * SESSION_S)
            await lane.append([batch("a")])
            cluster.store.available = True
            await trio.sleep(SESSION_S)
            with pytest.raises(ProducerBusy):  # it was granted again
                async with open_lane(client._context.ledgers, topic, -1):
                    pass
        assert await messages(client, cluster) == [b"a"]


@pytest.mark.parametrize("access", ["shared", "exclusive"])
async def test_a_producer_does_not_wait_for_a_lease_that_its_process_left(
    autojump_clock: MockClock, access: Access
) -> None:
    """The release had no answer, as while the network is cut; the session lives on."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic, ledgers = make_topic(cluster), client._context.ledgers
        open_own = partial(open_lane, ledgers, topic, -1, access=access, producer="p")
        async with open_own() as other:
            pass
        async with hold_lane(
            ledgers.session, topic, -1, access=access, producer="p", lane=None, limit_s=1
        ):
            cluster.store.available = False
        cluster.store.available = True
        began = trio.current_time()
        async with open_own() as lane:
            assert lane.lane == other.lane
            await lane.append([batch("a", producer="p", sequence=0)])
        assert trio.current_time() - began < 1


async def test_a_topic_that_is_deleted_has_no_lanes(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        gone = msgspec.structs.replace(topic, state="deleting")
        with pytest.raises(NoSuchTopic):
            async with open_lane(client._context.ledgers, topic, -1) as lane:
                await lane.append([batch("a")])
                cluster.store.change(topic_key(topic.name), encode_row(gone))
                for key in [k for k in cluster.store.values if k.startswith("lanes/")]:
                    await cluster.store.delete(key)
                await trio.sleep(SESSION_S)
                with pytest.raises(NoSuchTopic):
                    await lane.append([batch("b")])
        with pytest.raises(NoSuchTopic):
            async with open_lane(client._context.ledgers, topic, -1):
                pass
        await wait_all_tasks_blocked()


async def test_sessions_of_one_name_that_begin_at_once_do_not_take_two_lanes(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """PS-39: else numbers are looked for in another lane than the one that has them."""
    async with memory_cluster(1) as cluster:
        topic = make_topic(cluster)

        def hold(producer: str) -> AbstractAsyncContextManager[LaneLease]:
            # No lane has a record yet, as between the lease of a session and its claim.
            session = ProcessSession(cluster.store, nursery)
            return hold_lane(
                session, topic, -1, access="shared", producer=producer, lane=None, limit_s=1
            )

        async with hold("p") as first:
            assert first.lane == 1
            with pytest.raises(ProducerBusy, match="producer p"):
                async with hold("p"):
                    pass
            async with hold("q") as other, hold("") as unnamed:
                assert (other.lane, unnamed.lane) == (2, 0)
        async with hold("p") as again:
            assert again.lane == 1

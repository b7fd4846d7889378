from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import trio
import trio.lowlevel
from memory_zookeeper import MemoryEnsemble
from zookeeper_rig import Sponsor, opened

from metadata.errors import LeaseHeld, LeaseLost, MetadataUnavailable, SessionOver
from metadata.records import BookieRecord, bookie_lease, encode_record
from metadata.sessions import SESSION_S, ProcessSession
from metadata.store import CheckLease, Lease, Put, StoreSession
from metadata.zookeeper import paths
from metadata.zookeeper.store import SESSION_S as ZOOKEEPER_S
from metadata.zookeeper.znodes import Stat

Clock = trio.testing.MockClock


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
async def one(ensemble: MemoryEnsemble) -> AsyncIterator[Sponsor]:
    async with opened(ensemble) as sponsor:
        yield sponsor


@pytest.fixture
async def two(ensemble: MemoryEnsemble, one: Sponsor) -> AsyncIterator[Sponsor]:
    """Another store of the ensemble, opened after the first."""
    async with opened(ensemble) as sponsor:
        yield sponsor


async def leased(sponsor: Sponsor, ttl_s: float) -> tuple[StoreSession, Lease]:
    """Open a session that holds the lease "l"."""
    session = await sponsor.store.open_session("me", ttl_s=ttl_s)
    return session, await sponsor.store.grant("l", session)


async def test_keeping_a_session_where_it_is_costs_no_change(
    one: Sponsor, autojump_clock: Clock
) -> None:
    session, lease = await leased(one, ttl_s=3)
    one.connection.multis.clear()
    for _ in range(20):
        await trio.sleep(1)
        await one.store.keep_session(session)
    assert one.connection.multis == []
    await one.store.transact([CheckLease.of(lease), Put("a", b"")])


async def test_a_session_moves_to_the_store_that_keeps_it(
    one: Sponsor, two: Sponsor, autojump_clock: Clock
) -> None:
    session, lease = await leased(one, ttl_s=3)
    start = await two.store.changes("l")
    one.connection.drop()
    with pytest.raises(MetadataUnavailable):
        await one.store.keep_session(session)
    for _ in range(10):
        await trio.sleep(1)
        await two.store.keep_session(session)
    one.connection.expire()
    await trio.sleep(1)
    await two.store.keep_session(session)
    await two.store.transact([CheckLease.of(lease), Put("a", b"")])
    assert (await two.store.changes("l", since=start.revision)).keys == []


async def test_a_session_that_goes_to_and_fro_lives_on(
    one: Sponsor, two: Sponsor, autojump_clock: Clock
) -> None:
    session, lease = await leased(one, ttl_s=2)
    for store in (two.store, one.store, two.store, two.store, one.store, one.store) * 3:
        await trio.sleep(1.5)
        await store.keep_session(session)
    for store in (two.store, *[one.store] * 8):  # soon after it has gone away from it
        await trio.sleep(0.4)
        await store.keep_session(session)
    await two.store.transact([CheckLease.of(lease), Put("a", b"")])
    await trio.sleep(3)
    for store in (one.store, two.store):
        with pytest.raises(SessionOver):
            await store.keep_session(session)


async def test_a_store_that_could_not_look_keeps_no_session_that_another_one_had_and_ended(
    one: Sponsor, two: Sponsor, autojump_clock: Clock
) -> None:
    """Its look was cut off, so no watch tells it that the session moved on."""
    session, _ = await leased(one, ttl_s=10)
    one.connection.drop()  # its watch fires
    one.connection.connect()
    stat = one.connection.stat

    async def look(
        paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Stat | None]:
        if watch is not None:
            await trio.sleep_forever()
        return await stat(paths, fresh=fresh)

    one.connection.stat = look  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        await one.store.keep_session(session)
    one.connection.stat = stat  # type: ignore[method-assign]
    await two.store.keep_session(session)
    await trio.sleep(1)
    two.connection.expire()
    with pytest.raises(SessionOver):
        await one.store.keep_session(session)


async def test_a_silent_session_is_over_for_everybody_and_each_of_its_leases_is_a_hint(
    ensemble: MemoryEnsemble,
    one: Sponsor,
    two: Sponsor,
    autojump_clock: Clock,
) -> None:
    session = await one.store.open_session("me", ttl_s=3)
    names = [f"l/{number:03d}" for number in range(120)]
    leases = [await one.store.grant(name, session) for name in names]
    start = await two.store.changes("l/")
    await trio.sleep(2.9)
    assert len(await two.store.leases("l/")) == 120
    await trio.sleep(0.3)
    assert await two.store.leases("l/") == []
    with pytest.raises(LeaseLost):
        await two.store.transact([CheckLease.of(leases[0])])
    with trio.fail_after(1):
        changed: set[str] = set()
        revision = start.revision
        while len(changed) < 120:
            found = await two.store.changes("l/", since=revision, wait_s=1)
            assert not found.everything
            changed |= set(found.keys)
            revision = found.revision
    assert changed == set(names)
    assert not [path for path in ensemble.nodes if path.startswith(paths.held_path(1))]


async def test_sessions_end_with_their_sponsor_and_another_store_clears_up(
    one: Sponsor,
    two: Sponsor,
    autojump_clock: Clock,
) -> None:
    await trio.sleep(10)  # nobody looks after former stores any more
    session, lease = await leased(one, ttl_s=1000)
    start = await two.store.changes("l")
    one.connection.expire()
    assert await two.store.leases("l") == []
    with pytest.raises(LeaseLost):
        await two.store.transact([CheckLease.of(lease), Put("a", b"")])
    found = await two.store.changes("l", since=start.revision, wait_s=5)
    assert found.keys == ["l"]
    with pytest.raises(SessionOver):
        await two.store.keep_session(session)
    one.connection.connect()
    await trio.sleep(1)
    with pytest.raises(SessionOver):
        await one.store.keep_session(session)
    with pytest.raises(SessionOver):
        await one.store.grant("l", session)


@pytest.mark.parametrize("ttl_s", [SESSION_S, 60.0])
async def test_no_holder_is_sure_of_a_lease_once_zookeeper_may_give_it_away(
    autojump_clock: Clock, ttl_s: float
) -> None:
    """Its ZooKeeper vanishes at any moment between two times that the session is kept."""
    for number in range(40):
        async with opened(MemoryEnsemble()) as one, trio.open_nursery() as nursery:
            one.connection.session_timeout_s = ZOOKEEPER_S
            process = ProcessSession(one.store, nursery, ttl_s=ttl_s)
            held = await process.grant("l")
            scope = trio.CancelScope()
            held.limit(scope)
            await trio.sleep(SESSION_S / 3 + number / 10)
            sure = [held.is_certain]
            one.connection.fall_silent()
            await trio.sleep(ZOOKEEPER_S - 0.001)
            sure.append(held.is_certain)
            assert sure == [True, False]
            with scope:
                await trio.lowlevel.checkpoint()
            assert scope.cancelled_caught
            nursery.cancel_scope.cancel()


async def test_a_lease_of_a_session_that_is_over_is_free_before_it_is_cleared_away(
    one: Sponsor,
    two: Sponsor,
    autojump_clock: Clock,
) -> None:
    _, lease = await leased(one, ttl_s=1000)
    rival = await two.store.open_session("other", ttl_s=1000)
    with pytest.raises(LeaseHeld):
        await two.store.grant("l", rival)
    one.connection.expire()
    taken = await two.store.grant("l", rival)
    assert taken.epoch > lease.epoch
    await trio.sleep(10)  # what looks after the session must leave the new grant alone
    assert [each.epoch for each in await two.store.leases("")] == [taken.epoch]
    await two.store.transact([CheckLease.of(taken), Put("a", b"")])


async def test_a_store_that_was_cut_off_ends_no_session_that_has_moved(
    one: Sponsor,
    two: Sponsor,
    autojump_clock: Clock,
) -> None:
    session, lease = await leased(one, ttl_s=2)
    one.connection.drop()
    await trio.sleep(1)
    await two.store.keep_session(session)
    await trio.sleep(1.5)
    await two.store.keep_session(session)
    one.connection.connect()  # its timer ran out meanwhile
    await trio.sleep(1)
    await two.store.keep_session(session)
    await two.store.transact([CheckLease.of(lease), Put("a", b"")])


async def test_a_bookie_is_registered_where_bookkeeper_looks_for_it_while_its_lease_lives(
    ensemble: MemoryEnsemble,
    one: Sponsor,
    two: Sponsor,
    autojump_clock: Clock,
) -> None:
    bookie = BookieRecord("b:3181", "b:3181", 10, 5)
    name = bookie_lease("b:3181")
    session = await one.store.open_session("b", ttl_s=3)
    lease = await one.store.grant(name, session, value=encode_record(bookie))
    node = ensemble.nodes["/available/b:3181"]
    assert node.owner == one.connection.session_id
    read_only = BookieRecord("b:3181", "b:3181", 10, 5, read_only=True)
    lease = await one.store.update(lease, encode_record(read_only))
    assert "/available/b:3181" not in ensemble.nodes
    assert "/available/readonly/b:3181" in ensemble.nodes
    again = await one.store.grant(name, session, value=encode_record(bookie))
    assert "/available/b:3181" in ensemble.nodes
    await one.store.release(lease)  # over already
    assert "/available/b:3181" in ensemble.nodes
    await one.store.release(again)
    assert "/available/b:3181" not in ensemble.nodes
    await one.store.grant(name, session, value=encode_record(bookie))
    await trio.sleep(4)
    assert await two.store.leases("") == []
    assert "/available/b:3181" not in ensemble.nodes


async def test_a_bookie_that_starts_again_takes_its_registration_over(
    ensemble: MemoryEnsemble,
    one: Sponsor,
    two: Sponsor,
    autojump_clock: Clock,
) -> None:
    value = encode_record(BookieRecord("b:1", "b:1", 10, 5))
    former = await one.store.open_session("run 1", ttl_s=3)
    await one.store.grant(bookie_lease("b:1"), former, value=value)
    one.connection.drop()  # killed; ZooKeeper does not know it yet
    session = await two.store.open_session("run 2", ttl_s=100)
    with pytest.raises(LeaseHeld):
        await two.store.grant(bookie_lease("b:1"), session, value=value)
    one.connection.expire()
    await two.store.grant(bookie_lease("b:1"), session, value=value)
    await trio.sleep(10)
    assert ensemble.nodes["/available/b:1"].owner == two.connection.session_id

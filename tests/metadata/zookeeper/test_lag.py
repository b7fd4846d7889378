"""What a store promises holds although the server that answers it is behind the leader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from memory_zookeeper import MemoryEnsemble
from zookeeper_rig import Sponsor, opened

from metadata.errors import LeaseHeld, LeaseLost, SessionOver, VersionConflict
from metadata.records import LEDGER_COUNTER
from metadata.store import ABSENT, Check, CheckLease, Delete, Put
from metadata.zookeeper import paths

Clock = trio.testing.MockClock


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
async def one(ensemble: MemoryEnsemble) -> AsyncIterator[Sponsor]:
    async with opened(ensemble) as sponsor:
        yield sponsor


@pytest.fixture
async def late(
    ensemble: MemoryEnsemble, one: Sponsor, autojump_clock: Clock
) -> AsyncIterator[Sponsor]:
    """Another store, whose server shows nothing new of its own accord."""
    async with opened(ensemble) as sponsor:
        await trio.sleep(10)  # nobody looks after former stores any more
        sponsor.connection.fall_behind()
        yield sponsor


# --- the server ----------------------------------------------------------------------------


async def test_a_server_that_lags_shows_one_state_until_it_catches_up(
    ensemble: MemoryEnsemble, one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    version = await one.store.put("a", b"1")
    at, folder = paths.leaf_path(paths.KEYS, "a"), paths.KEYS
    await late.connection.stat([at], fresh=True)
    version = await one.store.put("a", b"2", expected=version)
    await one.store.put("b", b"1")
    rang: list[str] = []
    (node,) = await late.connection.get([at])
    (stat,) = await late.connection.stat([at], watch=lambda: rang.append("changed"))
    (listed,) = await late.connection.children([folder])
    assert node is not None
    assert node == (b"1", stat)
    assert listed is not None
    assert (listed[0], listed[1].children) == (["=a"], 1)
    await one.store.delete("a")
    assert await late.connection.get([at]) == [node]
    assert rang == []
    late.connection.catch_up()
    assert rang == ["changed"]
    assert await late.connection.get([at]) == [None]
    late.connection.keep_up()
    await one.store.put("a", b"3")
    assert await late.connection.get([at]) != [None]


async def test_a_session_sees_what_it_did_and_never_less(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    await one.store.put("a", b"1")
    at = paths.leaf_path(paths.KEYS, "a")
    assert await late.connection.get([at]) == [None]
    await late.store.put("b", b"1")
    (found,) = await late.connection.get([at])
    assert found is not None
    await one.store.put("a", b"2")
    late.connection.drop()
    late.connection.connect()  # of another server, which has seen as much
    assert await late.connection.get([at]) == [found]
    late.connection.expire()
    late.connection.connect()
    (newest,) = await late.connection.get([at])  # the new session began after it
    assert newest is not None
    assert newest[0] == b"2"


# --- keys ----------------------------------------------------------------------------------


async def test_a_key_is_read_as_it_is_wherever_it_was_changed(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    version = await one.store.put("a", b"1")
    assert await late.store.get("a") == (b"1", version)
    await one.store.delete("a")
    assert await late.store.get("a") is None


async def test_a_list_has_what_was_changed_wherever_that_was(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    await one.store.put("a/1", b"1")
    assert [key for key, _ in await late.store.list("")] == ["a/1"]
    await one.store.transact([Delete("a/1"), Put("a/2", b"2"), Put("b", b"3")])
    assert [key for key, _ in await late.store.list("")] == ["a/2", "b"]


async def test_a_list_has_what_lies_where_bookkeeper_has_it_wherever_that_was_changed(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    await one.store.put("instance", b"1")
    late.connection.catch_up()
    await one.store.put("instance", b"2")
    assert [found.value for _, found in await late.store.list("instance")] == [b"2"]


async def test_a_change_is_refused_only_for_what_is(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    version = await one.store.put("a", b"1")
    assert await late.store.transact([Check("a", version)]) == [version]
    version = await one.store.put("a", b"2")
    version = await late.store.put("a", b"3", expected=version)
    await one.store.delete("a")
    with pytest.raises(VersionConflict) as conflict:
        await late.store.put("a", b"4", expected=version)
    assert conflict.value.found == ABSENT


async def test_a_check_of_what_was_changed_meanwhile_does_not_hold(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    await one.store.put("a", b"1")
    with pytest.raises(VersionConflict):
        await late.store.transact([Check("a", ABSENT)])


async def test_a_key_that_was_just_made_is_deleted(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    await one.store.put("a", b"1")
    await late.store.delete("a")
    assert await one.store.get("a") is None


async def test_ids_and_times_go_on_where_others_came_to(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    for counter in ("c", LEDGER_COUNTER):
        first = await one.store.next_id(counter, 10)
        assert await late.store.next_id(counter) == first + 10
    now_ms = await one.store.now_ms()
    assert await late.store.now_ms() >= now_ms
    await one.store.next_id("c", 10)
    await one.store.next_id("new")
    assert (await late.store.floors()).counters == (await one.store.floors()).counters


async def test_a_client_that_comes_from_another_bookie_misses_nothing(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    await one.store.put("a", b"")
    seen = await one.store.changes("")
    await one.store.put("b", b"")
    found = await late.store.changes("", since=seen.revision)
    assert (found.keys, found.everything) == (["b"], False)


# --- sessions and leases -------------------------------------------------------------------


async def test_a_session_is_known_wherever_it_was_opened(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    session = await one.store.open_session("me", ttl_s=3)
    lease = await late.store.grant("l", session)
    await one.store.transact([CheckLease.of(lease), Put("a", b"")])
    another = await one.store.open_session("me", ttl_s=3)
    await late.store.keep_session(another)
    ended = await one.store.open_session("me", ttl_s=100)
    lease = await one.store.grant("m", ended)
    await late.store.end_session(ended)
    with pytest.raises(LeaseLost):
        await one.store.transact([CheckLease.of(lease)])
    with pytest.raises(SessionOver):
        await one.store.keep_session(ended)


async def test_what_is_left_of_a_session_is_removed_by_whoever_ends_it(
    ensemble: MemoryEnsemble, one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    session = await one.store.open_session("me", ttl_s=100)
    await one.store.grant("l", session)
    await late.store.end_session(session)
    assert paths.held_path(session.epoch) not in ensemble.nodes
    assert paths.leaf_path(paths.LEASES, "l") not in ensemble.nodes


async def test_a_lease_is_held_or_free_as_it_is_wherever_it_was_granted(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    mine = await one.store.open_session("me", ttl_s=100)
    other = await late.store.open_session("other", ttl_s=100)
    lease = await one.store.grant("l", mine)
    assert await late.store.leases("") == [lease]
    lease = await late.store.update(lease, b"new")
    lease = await one.store.update(lease, b"newer")
    assert [each.value for each in await late.store.leases("")] == [b"newer"]
    with pytest.raises(LeaseHeld):
        await late.store.grant("l", other)
    await one.store.release(lease)
    lease = await late.store.grant("l", other)
    await late.store.release(lease)
    lease = await one.store.grant("l", mine)
    await late.store.release(lease)
    assert await one.store.leases("") == []


async def test_a_lease_that_is_over_does_not_pass_a_check(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    session = await one.store.open_session("me", ttl_s=100)
    lease = await one.store.grant("l", session)
    await late.store.transact([CheckLease.of(lease)])
    await one.store.end_session(session)
    with pytest.raises(LeaseLost):
        await late.store.transact([CheckLease.of(lease)])
    assert await late.store.leases("") == []


async def test_a_session_that_comes_back_lives_although_its_store_has_not_seen_it_leave(
    one: Sponsor, late: Sponsor, autojump_clock: Clock
) -> None:
    session = await late.store.open_session("me", ttl_s=3)
    lease = await late.store.grant("l", session)
    await one.store.keep_session(session)
    for _ in range(10):
        await trio.sleep(1)
        await late.store.keep_session(session)
    await one.store.transact([CheckLease.of(lease), Put("a", b"")])
    await late.store.end_session(session)

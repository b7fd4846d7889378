from __future__ import annotations

from functools import partial

import pytest
import trio
from leases import end_leases, grant
from memory_store import MemoryStore
from trio.testing import MockClock, wait_all_tasks_blocked

from metadata import sessions
from metadata.errors import LeaseHeld, LeaseLost, MetadataUnavailable, SessionOver
from metadata.sessions import SESSION_S, HeldLease, ProcessSession
from metadata.store import Lease, Leases, Put, StoreSession


class CountingStore(MemoryStore):
    """Counts the calls that sessions and leases make."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[StoreSession] = []
        self.kept = 0
        self.late_s = 0.0
        self.gate = trio.Event()
        self.gate.set()

    async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
        session = await super().open_session(owner, ttl_s=ttl_s)
        self.opened.append(session)
        return session

    async def grant(
        self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
    ) -> Lease:
        await self.gate.wait()
        return await super().grant(name, session, owner=owner, value=value)

    async def keep_session(self, session: StoreSession) -> None:
        self.kept += 1
        await trio.sleep(self.late_s)
        await super().keep_session(session)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def session(store: CountingStore, nursery: trio.Nursery) -> ProcessSession:
    return ProcessSession(store, nursery)


async def test_a_process_without_leases_sends_nothing(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    await trio.sleep(10 * SESSION_S)
    await session.confirm()
    await session.aclose()
    assert (store.opened, store.kept) == ([], 0)


async def test_a_thousand_leases_cost_what_one_costs(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(session.grant, f"lanes/{number}")
    await trio.sleep(10 * SESSION_S)
    assert len(store.opened) == 1
    assert store.kept <= 30
    assert len(await store.leases("lanes/")) == 1000


async def test_after_a_long_pause_all_leases_are_over_and_each_holder_is_told(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    told: list[str] = []
    held = [await session.grant(name, on_over=partial(told.append, name)) for name in "abc"]
    released = await session.grant("d", on_over=lambda: told.append("d"))
    await released.release()
    store.available = False
    await trio.sleep(SESSION_S + 1)
    assert told == []  # nobody knows yet
    assert not any(each.is_certain for each in held)
    store.available = True
    await trio.sleep(SESSION_S / 3)
    assert told == ["a", "b", "c"]
    assert all(each.is_over for each in held)
    with pytest.raises(LeaseLost):
        await store.transact([held[0].check])
    with pytest.raises(LeaseLost):
        await held[0].update(b"late")
    assert (await session.grant("a")).is_certain
    assert len(store.opened) == 2


async def test_what_is_limited_to_the_lease_ends_before_others_can_have_it(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held = await session.grant("a")
    with trio.CancelScope() as scope:
        held.limit(scope)
        await trio.sleep(5 * SESSION_S)
        store.available = False
        cut_at = trio.current_time()
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert SESSION_S / 2 < trio.current_time() - cut_at < SESSION_S
    store.available = True
    with pytest.raises(LeaseHeld):
        await grant(store, "a", "other", ttl_s=1)


async def test_time_is_counted_from_before_the_call(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    """A slow answer says nothing about the time since it was given."""
    held = await session.grant("a")
    store.late_s = SESSION_S / 4
    await trio.sleep(SESSION_S / 3 + SESSION_S / 4 + 0.1)
    assert store.kept == 1
    assert session.until == pytest.approx(SESSION_S / 3 + SESSION_S * sessions.PART_USED)
    assert held.is_certain


async def test_a_host_that_slept_is_certain_of_nothing(
    autojump_clock: MockClock, session: ProcessSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trio's clock stands still while a host sleeps, the store's does not."""
    held = await session.grant("a")
    monkeypatch.setattr(sessions, "asleep_s", lambda: 3600.0)
    assert not held.is_certain
    await session.confirm()
    assert held.is_certain


async def test_a_session_that_ended_in_the_store_is_noticed_by_the_next_grant(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held = await session.grant("a")
    await store.end_session(store.opened[0])
    other = await session.grant("b")
    assert held.is_over
    assert not other.is_over
    assert [lease.name for lease in await store.leases("")] == ["b"]


async def test_to_confirm_finds_out_what_is_not_certain(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held = await session.grant("a")
    await session.confirm()
    assert store.kept == 0
    store.late_s = 3600
    await trio.sleep(SESSION_S)
    store.late_s = 0
    await session.confirm()
    assert held.is_over


async def test_a_store_that_ends_every_session_at_once_is_given_up(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    grant = store.grant

    async def late(name: str, of: StoreSession, *, owner: str = "", value: bytes = b"") -> object:
        await store.end_session(of)
        return await grant(name, of, owner=owner, value=value)

    store.grant = late  # type: ignore[method-assign, assignment]
    with pytest.raises(MetadataUnavailable, match="no session of"):
        await session.grant("a")
    assert len(store.opened) == sessions.ATTEMPTS_MAX


async def test_a_lease_taken_twice_is_the_second_holder_s(
    autojump_clock: MockClock, session: ProcessSession
) -> None:
    first = await session.grant("a")
    second = await session.grant("a")
    assert first.is_over
    await first.release()
    assert not second.is_over
    await session.store.transact([second.check])


async def test_an_update_of_a_lost_lease_tells_its_holder(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held = await session.grant("a")
    await end_leases(store, "")
    with pytest.raises(LeaseLost):
        await held.update(b"new")
    assert held.is_over


async def test_the_end_of_the_session_frees_everything_at_once(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    told: list[str] = []
    for name in "abc":
        await session.grant(name, on_over=partial(told.append, name))
    with trio.CancelScope() as scope:
        scope.cancel()
        await session.aclose()
    assert await store.leases("") == []
    assert told == []
    with pytest.raises(MetadataUnavailable, match="closed"):
        await session.grant("a")
    assert len(store.opened) == 1


async def test_leases_are_released_when_cancelled_and_while_the_store_is_away(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held, other = await session.grant("a"), await session.grant("b")
    with trio.CancelScope() as scope:
        scope.cancel()
        await held.release()
    assert [lease.name for lease in await store.leases("")] == ["b"]
    store.available = False
    began_at = trio.current_time()
    await other.release()
    assert trio.current_time() - began_at <= sessions.RELEASE_S
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("is_made", [False, True])
async def test_a_lease_whose_release_had_no_answer_is_released_later(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession, is_made: bool
) -> None:
    """Else it would live as long as the process, and nobody would hold it."""
    held = await session.grant("a")
    if is_made:
        await store.release(held.lease)
    store.available = False
    await held.release()
    store.available = True
    await trio.sleep(SESSION_S / 2)
    assert await store.leases("a") == []
    assert not (await session.grant("a")).is_over


async def test_only_what_nobody_here_holds_or_asks_for_is_freed(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held, left = await session.grant("held"), await session.grant("left")
    await grant(store, "theirs", "another", ttl_s=60)
    store.available = False
    await left.release()
    store.available = True
    leases = {lease.name: lease for lease in await store.leases("")}
    assert not await session.free(leases["held"])
    assert not await session.free(leases["theirs"])
    async with trio.open_nursery() as nursery:
        store.gate = trio.Event()
        nursery.start_soon(session.grant, "left")
        await wait_all_tasks_blocked()
        assert not await session.free(leases["left"])
        store.gate.set()
    asked_for = next(lease for lease in await store.leases("left"))
    assert not await session.free(asked_for)
    assert await session.free(leases["left"])  # that grant is over: it frees nothing else
    assert [lease.name for lease in await store.leases("")] == ["held", "left", "theirs"]
    await store.transact([held.check])


async def test_a_lease_that_was_granted_to_nobody_is_released(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    """The caller was cancelled before the answer came, and the change was made later."""
    await session.grant("other")
    grant = store.grant

    async def late(name: str, of: StoreSession, *, owner: str = "", value: bytes = b"") -> Lease:
        try:
            await trio.sleep_forever()
        finally:
            nursery.start_soon(make_later, name, of)
        raise AssertionError

    async def make_later(name: str, of: StoreSession) -> None:
        await trio.sleep(SESSION_S / 2)
        await grant(name, of)

    async with trio.open_nursery() as nursery:
        store.grant = late  # type: ignore[method-assign, assignment]
        with trio.move_on_after(1):
            await session.grant("a")
        store.grant = grant  # type: ignore[method-assign]
    assert len(await store.leases("a")) == 1
    await trio.sleep(SESSION_S / 2)
    assert await store.leases("a") == []
    assert len(await store.leases("other")) == 1


@pytest.mark.parametrize("is_noticed", [False, True])
async def test_a_lease_that_was_granted_again_after_the_answer_is_released(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession, is_noticed: bool
) -> None:
    """A client that asks two bookies for one grant may have both make it."""
    held = await session.grant("a")
    await store.grant("a", store.opened[0], owner=held.lease.owner)
    if is_noticed:
        with pytest.raises(LeaseLost):
            await held.update(b"new")
    await held.release()
    assert len(await store.leases("a")) == 1
    await trio.sleep(SESSION_S / 2)
    assert await store.leases("a") == []


async def test_looking_up_many_leases_does_not_keep_the_session_from_being_kept(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held = await session.grant("kept")
    released = [await session.grant(f"{number}") for number in range(20)]
    leases = store.leases

    async def slow(prefix: str, *, after: str = "") -> Leases:
        await trio.sleep(0.9 * sessions.RELEASE_S)
        return await leases(prefix, after=after)

    store.leases = slow  # type: ignore[method-assign]
    for each in released:
        await each.release()
    await trio.sleep(3 * SESSION_S)
    assert held.is_certain
    await store.transact([held.check])


async def test_a_doubted_lease_that_is_taken_again_stays(
    autojump_clock: MockClock, store: CountingStore, session: ProcessSession
) -> None:
    held = await session.grant("a")
    store.available = False
    await held.release()
    store.available = True
    again = await session.grant("a")
    await trio.sleep(3 * SESSION_S)
    assert not again.is_over
    await store.transact([again.check])


async def test_a_session_that_is_opened_while_its_process_closes_it_ends(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    class Late(CountingStore):
        async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
            session = await super().open_session(owner, ttl_s=ttl_s)
            await trio.sleep(1)
            return session

    store = Late()
    session = ProcessSession(store, nursery)

    async def grant_late() -> None:
        with pytest.raises(MetadataUnavailable):
            await session.grant("a")

    async with trio.open_nursery() as granting:
        granting.start_soon(grant_late)
        await trio.sleep(0.5)
        await session.aclose()
    with pytest.raises(SessionOver):
        await store.keep_session(store.opened[0])
    kept = store.kept
    await trio.sleep(10 * SESSION_S)
    assert store.kept == kept


async def test_of_two_grants_answered_in_the_wrong_order_the_later_one_holds(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    class Swapping(CountingStore):
        delay_s = 1.0

        async def grant(
            self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
        ) -> Lease:
            lease = await super().grant(name, session, owner=owner, value=value)
            delay_s, self.delay_s = self.delay_s, 0.0
            await trio.sleep(delay_s)
            return lease

    store = Swapping()
    session = ProcessSession(store, nursery)
    over: list[str] = []
    held: dict[str, HeldLease] = {}

    async def take(name: str) -> None:
        held[name] = await session.grant("a", owner="me", on_over=partial(over.append, name))

    async with trio.open_nursery() as granting:
        granting.start_soon(take, "earlier")
        await wait_all_tasks_blocked()
        granting.start_soon(take, "later")
    assert over == ["earlier"]
    assert held["earlier"].is_over
    await store.transact([held["later"].check, Put("b", b"")])

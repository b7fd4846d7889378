from __future__ import annotations

import pytest
import trio
import trio.lowlevel
from leases import grant
from memory_store import MemoryStore
from trio.testing import MockClock

from metadata.clock import asleep_s
from metadata.errors import LeaseLost
from metadata.leadership import Leadership, Term, holder
from metadata.store import Put, StoreSession

NAME = "coordinator"


class DeafStore(MemoryStore):
    """A store that one candidate shares with others, and that it cannot reach at times."""

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__()
        self.shared = shared
        self.silent = False

    async def keep_session(self, session: StoreSession) -> None:
        if self.silent:
            await trio.sleep_forever()
        await self.shared.keep_session(session)


def candidate(store: MemoryStore, owner: str) -> Leadership:
    return Leadership(store, NAME, owner, value=owner.encode)


class Reigns:
    """Who led, from when to when."""

    def __init__(self) -> None:
        self.leading: dict[str, int] = {}
        self.began: list[tuple[str, float]] = []

    async def lead(self, owner: str, term: Term) -> None:
        assert not self.leading, "two lead at once"
        self.leading[owner] = term.lease.epoch
        self.began.append((owner, trio.current_time()))
        try:
            await trio.sleep_forever()
        finally:
            del self.leading[owner]


async def test_one_of_many_leads_and_its_lease_says_so(autojump_clock: MockClock) -> None:
    store, reigns = MemoryStore(), Reigns()
    async with trio.open_nursery() as nursery:
        for owner in ("a", "b", "c"):

            async def lead(term: Term, owner: str = owner) -> None:
                await reigns.lead(owner, term)

            nursery.start_soon(candidate(store, owner).run, lead)
        await trio.sleep(100)
        assert len(reigns.began) == 1
        lease = await holder(store, NAME)
        assert lease is not None
        assert lease.value == reigns.began[0][0].encode()
        nursery.cancel_scope.cancel()
    assert await holder(store, NAME) is None, "it is given back at the end"


async def test_a_leader_that_was_killed_is_replaced_within_five_seconds(
    autojump_clock: MockClock,
) -> None:
    """TB-31: the leader is one of the members, and its loss is made good by another."""
    store, reigns = MemoryStore(), Reigns()
    await grant(store, NAME, "killed", ttl_s=3.0)
    async with trio.open_nursery() as nursery:
        for owner in ("b", "c"):

            async def lead(term: Term, owner: str = owner) -> None:
                await reigns.lead(owner, term)

            nursery.start_soon(candidate(store, owner).run, lead)
        await trio.sleep(5)
        assert len(reigns.began) == 1
        nursery.cancel_scope.cancel()


async def test_a_leader_that_is_stopped_is_replaced_sooner(autojump_clock: MockClock) -> None:
    store, reigns = MemoryStore(), Reigns()
    first = trio.CancelScope()

    async def run(owner: str, scope: trio.CancelScope) -> None:
        with scope:
            await candidate(store, owner).run(lambda term: reigns.lead(owner, term))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "a", first)
        await trio.sleep(1)
        nursery.start_soon(run, "b", trio.CancelScope())
        await trio.sleep(10)
        stopped_at = trio.current_time()
        first.cancel()
        await trio.sleep(2)
        assert reigns.began[1][0] == "b"
        assert reigns.began[1][1] < stopped_at + 1.1
        nursery.cancel_scope.cancel()


async def test_a_leader_that_cannot_renew_ends_before_another_begins(
    autojump_clock: MockClock,
) -> None:
    shared = MemoryStore()
    deaf, reigns = DeafStore(shared), Reigns()
    deaf.grant = shared.grant  # type: ignore[method-assign]
    deaf.leases = shared.leases  # type: ignore[method-assign]
    deaf.open_session = shared.open_session  # type: ignore[method-assign]
    deaf.end_session = shared.end_session  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate(deaf, "a").run, lambda term: reigns.lead("a", term))
        await trio.sleep(2)
        assert "a" in reigns.leading
        nursery.start_soon(candidate(shared, "b").run, lambda term: reigns.lead("b", term))
        deaf.silent = True
        await trio.sleep(5)
        assert len(reigns.began) >= 2, "and lead() saw no two at once"
        nursery.cancel_scope.cancel()


async def test_a_leader_that_wakes_up_late_changes_nothing(autojump_clock: MockClock) -> None:
    """TB-34: what it does goes through a transaction that checks its term."""
    store = MemoryStore()
    woke = trio.Event()

    async def paused(term: Term) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)  # as a process that was stopped: it hears of nothing
            with pytest.raises(LeaseLost):
                await store.transact([term.check, Put("key", b"old")])
            woke.set()
        await trio.lowlevel.checkpoint()

    async def other(term: Term) -> None:
        await store.transact([term.check, Put("key", b"new")])
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        frozen = DeafStore(store)
        frozen.silent = True
        frozen.grant = store.grant  # type: ignore[method-assign]
        frozen.leases = store.leases  # type: ignore[method-assign]
        frozen.open_session = store.open_session  # type: ignore[method-assign]
        frozen.end_session = store.end_session  # type: ignore[method-assign]
        nursery.start_soon(candidate(frozen, "a").run, paused)
        await trio.sleep(1)
        nursery.start_soon(candidate(store, "b").run, other)
        await woke.wait()
        found = await store.get("key")
        assert found is not None
        assert found.value == b"new"
        nursery.cancel_scope.cancel()


async def test_the_loss_of_its_lease_ends_a_term_and_not_the_campaign(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    terms: list[int] = []

    async def lead(term: Term) -> None:
        terms.append(term.lease.epoch)
        raise LeaseLost(name=NAME, owner="a", epoch=term.lease.epoch)

    with trio.move_on_after(10):
        await candidate(store, "a").run(lead)
    assert len(terms) > 2
    assert terms == sorted(set(terms))


async def test_what_else_goes_wrong_ends_the_campaign(autojump_clock: MockClock) -> None:
    store = MemoryStore()

    async def lead(_: Term) -> None:
        raise ValueError("a bug")

    with pytest.raises(BaseExceptionGroup) as raised:
        await candidate(store, "a").run(lead)
    assert raised.group_contains(ValueError)
    assert await holder(store, NAME) is None


async def test_while_the_store_is_away_nobody_leads_and_afterwards_somebody_does(
    autojump_clock: MockClock,
) -> None:
    store, reigns = MemoryStore(), Reigns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate(store, "a").run, lambda term: reigns.lead("a", term))
        await trio.sleep(1)
        store.available = False
        await trio.sleep(3)
        assert not reigns.leading
        store.available = True
        await trio.sleep(5)
        assert reigns.leading
        nursery.cancel_scope.cancel()


async def test_a_term_is_not_certain_after_its_host_slept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trio's clock stops while the host sleeps, but the lease goes on."""
    term = Term(await grant(MemoryStore(), NAME, "a", ttl_s=3.0), until=trio.current_time() + 2)
    assert term.left_s == pytest.approx(2)
    slept_s = asleep_s() + 5
    monkeypatch.setattr("metadata.leadership.asleep_s", lambda: slept_s)
    assert (term.left_s, term.is_certain) == (0, False)
    term.extend(trio.current_time() + 2, slept_s)
    assert (round(term.left_s), term.is_certain) == (2, True)

"""What every driver must do with sessions and leases, run against each of them."""

from __future__ import annotations

import pytest
import trio
from lease_clock import LeaseClock
from leases import grant, keep

from metadata.errors import (
    LeaseHeld,
    LeaseLost,
    SessionOver,
)
from metadata.store import (
    ABSENT,
    CheckLease,
    Lease,
    MetadataStore,
    StoreSession,
    pages,
)


async def keys_under(store: MetadataStore, prefix: str) -> list[str]:
    return [key async for page in pages(store, prefix) for key, _found in page]


async def test_a_lease_is_held_against_others(store: MetadataStore) -> None:
    lease = await grant(store, "leader", "one", ttl_s=30, value=b"here")
    assert (lease.name, lease.owner, lease.value) == ("leader", "one", b"here")
    assert lease.epoch >= 1
    with pytest.raises(LeaseHeld) as caught:
        await grant(store, "leader", "two", ttl_s=30)
    assert (caught.value.name, caught.value.owner) == ("leader", "one")
    assert caught.value.expires_in_s == 30


async def test_a_lease_is_taken_over_when_its_time_is_over(
    store: MetadataStore, clock: LeaseClock
) -> None:
    old = await grant(store, "leader", "one", ttl_s=0.1)
    clock.advance(0.15)
    new = await grant(store, "leader", "two", ttl_s=30)
    assert new.epoch > old.epoch
    with pytest.raises(SessionOver) as caught:
        await keep(store, old, ttl_s=0.1)
    assert (caught.value.owner, caught.value.epoch) == ("one", old.session)
    with pytest.raises(LeaseLost) as lost:
        await store.transact([CheckLease.of(old)])
    assert (lost.value.owner, lost.value.epoch) == ("one", old.epoch)


async def test_a_lease_that_ran_out_is_over_even_if_nobody_wants_it(
    store: MetadataStore, clock: LeaseClock
) -> None:
    lease = await grant(store, "leader", "one", ttl_s=0.1)
    clock.advance(0.15)
    assert await store.leases("") == []
    with pytest.raises(LeaseLost):
        await store.transact([CheckLease.of(lease)])
    with pytest.raises(LeaseLost):
        await store.update(lease, b"late")
    with pytest.raises(SessionOver):
        await keep(store, lease, ttl_s=0.1)


async def test_leases_live_as_long_as_their_session_is_kept(
    store: MetadataStore, clock: LeaseClock
) -> None:
    session = await store.open_session("one", ttl_s=0.3)
    first = await store.grant("a", session, value=b"first")
    clock.advance(0.1)
    later = await store.grant("b", session)
    for _ in range(3):
        clock.advance(0.15)
        await store.keep_session(session)
    assert await store.transact([CheckLease.of(first), CheckLease.of(later)])
    changed = await store.update(first, b"second")
    assert (changed.value, changed.epoch) == (b"second", first.epoch)
    assert [found.value for found in await store.leases("a")] == [b"second"]
    assert {found.session for found in await store.leases("")} == {session.epoch}
    clock.advance(0.35)
    assert await store.leases("") == []
    for lease in (first, later):
        with pytest.raises(LeaseLost):
            await store.transact([CheckLease.of(lease)])
        with pytest.raises(LeaseLost):
            await store.update(lease, b"")
    with pytest.raises(SessionOver):
        await store.keep_session(session)
    with pytest.raises(SessionOver):
        await store.grant("c", session)


async def test_all_leases_of_a_session_end_with_it_and_no_others(store: MetadataStore) -> None:
    ours, theirs = [await store.open_session("one", ttl_s=30) for _ in range(2)]
    assert ours.epoch != theirs.epoch
    for name in ("a", "b"):
        await store.grant(name, ours)
    other = await store.grant("c", theirs)
    released = await store.grant("d", ours)
    await store.release(released)
    again = await store.grant("d", theirs)
    await store.end_session(ours)
    await store.end_session(ours)
    assert [lease.name for lease in await store.leases("")] == ["c", "d"]
    await store.transact([CheckLease.of(other), CheckLease.of(again)])
    await store.keep_session(theirs)
    for use in (store.keep_session(ours), store.grant("e", ours)):
        with pytest.raises(SessionOver):
            await use


async def test_a_session_is_known_by_its_epoch_and_its_owner(store: MetadataStore) -> None:
    session = await store.open_session("one", ttl_s=30)
    for wrong in (
        StoreSession("two", session.epoch, 30),
        StoreSession("one", session.epoch + 1, 30),
    ):
        with pytest.raises(SessionOver):
            await store.keep_session(wrong)
        with pytest.raises(SessionOver):
            await store.grant("a", wrong)
        await store.end_session(wrong)
    await store.keep_session(session)


async def test_a_lease_has_an_owner_of_its_own(store: MetadataStore) -> None:
    session = await store.open_session("process", ttl_s=30)
    lease = await store.grant("lane", session, owner="producer")
    assert lease.owner == "producer"
    rival = await store.open_session("process", ttl_s=30)
    with pytest.raises(LeaseHeld):
        await store.grant("lane", rival)
    taken = await store.grant("lane", rival, owner="producer")
    await store.end_session(session)
    assert [found.epoch for found in await store.leases("")] == [taken.epoch]


async def test_the_same_owner_may_take_its_lease_again(store: MetadataStore) -> None:
    old = await grant(store, "leader", "one", ttl_s=30)
    new = await grant(store, "leader", "one", ttl_s=30)
    assert new.epoch > old.epoch
    with pytest.raises(LeaseLost):
        await store.update(old, b"")
    await store.release(old)
    assert (await store.update(new, b"")).epoch == new.epoch


async def test_a_released_lease_is_free_at_once_and_its_epoch_never_comes_again(
    store: MetadataStore,
) -> None:
    old = await grant(store, "leader", "one", ttl_s=30)
    await store.release(old)
    await store.release(old)
    new = await grant(store, "leader", "two", ttl_s=30)
    assert new.epoch > old.epoch


async def test_only_live_leases_under_the_prefix_are_listed(
    store: MetadataStore, clock: LeaseClock
) -> None:
    for name in ("bookies/b", "bookies/a", "bookiesX", "other"):
        await grant(store, name, "me", ttl_s=30, value=name.encode())
    await grant(store, "bookies/short", "me", ttl_s=0.05)
    clock.advance(0.1)
    assert [lease.name for lease in await store.leases("bookies/")] == ["bookies/a", "bookies/b"]
    (after,) = await store.leases("bookies/", after="bookies/a")
    assert after.value == b"bookies/b"
    assert 29.9 <= after.expires_in_s <= 30, "a driver that is not sure says how long at most"


async def test_of_many_that_want_a_lease_one_gets_it(store: MetadataStore) -> None:
    holders: list[Lease] = []

    async def contend(owner: str) -> None:
        try:
            holders.append(await grant(store, "leader", owner, ttl_s=30))
        except LeaseHeld:
            return

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(contend, f"owner {number}")
    assert await store.leases("") == holders
    assert len(holders) == 1


async def test_leases_and_keys_do_not_meet(store: MetadataStore) -> None:
    await grant(store, "a", "me", ttl_s=30)
    assert await store.get("a") is None
    await store.put("a", b"1", expected=ABSENT)
    assert len(await store.leases("a")) == 1

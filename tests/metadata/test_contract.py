"""What every driver must do, run against each of them."""

from __future__ import annotations

import math
from functools import partial

import pytest
import trio
from lease_clock import LeaseClock
from leases import grant

from metadata.errors import (
    LeaseLost,
    MetadataBroken,
    MetadataUnavailable,
    VersionConflict,
)
from metadata.store import (
    ABSENT,
    OPS_MAX,
    OPS_SIZE_MAX,
    PAGE_SIZE_MAX,
    VALUE_SIZE_MAX,
    Check,
    CheckLease,
    Delete,
    Lease,
    MetadataStore,
    Op,
    Put,
    Versioned,
    is_last,
    pages,
    together,
)


async def keys_under(store: MetadataStore, prefix: str) -> list[str]:
    return [key async for page in pages(store, prefix) for key, _found in page]


# --- keys --------------------------------------------------------------------------------


async def test_a_key_that_was_never_put_is_none(store: MetadataStore) -> None:
    assert await store.get("nothing") is None


async def test_a_value_comes_back_with_the_version_that_put_returned(store: MetadataStore) -> None:
    version = await store.put("a", b"\x00\xffbytes")
    assert version >= 1
    assert await store.get("a") == Versioned(b"\x00\xffbytes", version)


async def test_versions_rise_with_each_change(store: MetadataStore) -> None:
    first = await store.put("a", b"1")
    second = await store.put("a", b"1")
    assert second > first


async def test_a_put_expecting_absence_fails_once_the_key_exists(store: MetadataStore) -> None:
    version = await store.put("a", b"1", expected=ABSENT)
    with pytest.raises(VersionConflict) as caught:
        await store.put("a", b"2", expected=ABSENT)
    conflict = caught.value
    assert (conflict.key, conflict.expected, conflict.found) == ("a", ABSENT, version)
    assert await store.get("a") == Versioned(b"1", version)


async def test_a_put_with_an_old_version_changes_nothing(store: MetadataStore) -> None:
    old = await store.put("a", b"1")
    new = await store.put("a", b"2", expected=old)
    with pytest.raises(VersionConflict) as caught:
        await store.put("a", b"3", expected=old)
    assert caught.value.found == new
    assert await store.get("a") == Versioned(b"2", new)


async def test_a_put_expecting_a_version_fails_when_the_key_is_gone(store: MetadataStore) -> None:
    version = await store.put("a", b"1")
    await store.delete("a", expected=version)
    with pytest.raises(VersionConflict) as caught:
        await store.put("a", b"2", expected=version)
    assert caught.value.found == ABSENT


async def test_delete_minds_the_version(store: MetadataStore) -> None:
    old = await store.put("a", b"1")
    await store.put("a", b"2")
    with pytest.raises(VersionConflict):
        await store.delete("a", expected=old)
    assert await store.get("a") is not None
    await store.delete("a")
    assert await store.get("a") is None


async def test_deleting_what_is_not_there_is_fine_unless_expected(store: MetadataStore) -> None:
    await store.delete("a")
    with pytest.raises(VersionConflict):
        await store.delete("a", expected=7)


async def test_of_many_racing_puts_with_one_version_one_wins(store: MetadataStore) -> None:
    version = await store.put("a", b"start")
    won: list[int] = []

    async def contend(number: int) -> None:
        try:
            await store.put("a", b"%d" % number, expected=version)
        except VersionConflict:
            return
        won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(contend, number)
    found = await store.get("a")
    assert found is not None
    assert [b"%d" % number for number in won] == [found.value]


async def test_a_value_and_a_transaction_may_be_of_the_largest_size(store: MetadataStore) -> None:
    await store.put("empty", b"")
    await store.put("large", bytes(VALUE_SIZE_MAX))
    found = [found.value for key in ("empty", "large") if (found := await store.get(key))]
    assert found == [b"", bytes(VALUE_SIZE_MAX)]
    await store.transact([Put(f"{n}", bytes(OPS_SIZE_MAX // OPS_MAX)) for n in range(OPS_MAX)])


# --- transactions --------------------------------------------------------------------------


async def test_a_transaction_does_all_in_order(store: MetadataStore) -> None:
    version = await store.put("old", b"x")
    numbers = await store.transact(
        [Check("old", version), Put("new", b"y", ABSENT), Delete("old", version), Check("old", 0)]
    )
    found = await store.get("new")
    assert found is not None
    assert numbers == [version, found.version, ABSENT, ABSENT]
    assert await store.get("old") is None


@pytest.mark.parametrize(
    "failing", [Put("b", b"", 99), Delete("b", 99), Check("b", 99), CheckLease("l", "o", 99)]
)
async def test_a_transaction_that_fails_does_nothing(store: MetadataStore, failing: Op) -> None:
    with pytest.raises((VersionConflict, LeaseLost)):
        await store.transact([Put("a", b"1"), failing, Put("c", b"3")])
    assert await keys_under(store, "") == []


async def test_an_empty_transaction_is_nothing(store: MetadataStore) -> None:
    assert await store.transact([]) == []


async def test_a_transaction_goes_on_only_under_a_live_lease(store: MetadataStore) -> None:
    lease = await grant(store, "leader", "one", ttl_s=30)
    numbers = await store.transact([CheckLease.of(lease), Put("a", b"1")])
    assert numbers[0] == lease.epoch
    await store.release(lease)
    with pytest.raises(LeaseLost) as caught:
        await store.transact([CheckLease.of(lease), Put("a", b"2")])
    assert (caught.value.name, caught.value.epoch) == ("leader", lease.epoch)
    found = await store.get("a")
    assert found is not None and found.value == b"1"


# --- listing -------------------------------------------------------------------------------


async def test_a_prefix_takes_only_what_starts_with_it(store: MetadataStore) -> None:
    names = ["ledger", "ledgers", "ledgers/", "ledgers/1", "ledgers/é", "ledgers0", "ledgersX"]
    for name in reversed(names):
        await store.put(name, b"")
    assert await keys_under(store, "ledgers/") == ["ledgers/", "ledgers/1", "ledgers/é"]
    assert await keys_under(store, "") == names
    assert await keys_under(store, "ledgers_") == []
    assert await keys_under(store, "%") == []


async def test_pages_follow_one_another(store: MetadataStore) -> None:
    names = [f"k/{number:03d}" for number in range(25)]
    await store.transact([Put(name, b"") for name in names])
    first = await store.list("k/", limit=10)
    second = await store.list("k/", after=first[-1][0], limit=10)
    third = await store.list("k/", after=second[-1][0], limit=10)
    assert [len(page) for page in (first, second, third)] == [10, 10, 5]
    assert [key for key, _ in first + second + third] == names
    assert [is_last(page, 10) for page in (first, second, third)] == [False, False, True]
    assert await store.list("k/", after=names[-1]) == []


async def test_going_on_after_a_key_before_the_prefix_starts_at_the_prefix(
    store: MetadataStore,
) -> None:
    await store.put("b/1", b"")
    assert [key for key, _ in await store.list("b/", after="a")] == ["b/1"]
    assert await store.list("b/", after="c") == []


async def test_a_page_of_large_values_ends_early(store: MetadataStore) -> None:
    count = PAGE_SIZE_MAX // VALUE_SIZE_MAX
    for number in range(count + 1):
        await store.put(f"k{number}", bytes(VALUE_SIZE_MAX))
    page = await store.list("k")
    assert len(page) == count
    assert not is_last(page)
    assert is_last(await store.list("k", after=page[-1][0]))
    assert await keys_under(store, "k") == [f"k{number}" for number in range(count + 1)]


# --- ids -----------------------------------------------------------------------------------


async def test_ids_start_at_one_and_rise(store: MetadataStore) -> None:
    assert await store.next_id("ledgers") == 1
    assert await store.next_id("ledgers", 10) == 2
    assert await store.next_id("ledgers") == 12
    assert await store.next_id("others") == 1


async def test_no_id_is_given_twice(store: MetadataStore) -> None:
    given: list[int] = []

    async def take(count: int) -> None:
        first = await store.next_id("ledgers", count)
        given.extend(range(first, first + count))

    async with trio.open_nursery() as nursery:
        for count in range(1, 21):
            nursery.start_soon(take, count)
    assert len(given) == len(set(given)) == 210


# --- watches -------------------------------------------------------------------------------


async def test_a_watch_tells_of_puts_deletes_and_leases_under_its_prefix(
    store: MetadataStore,
) -> None:
    await store.put("w/before", b"")
    async with store.watch("w/") as hints:
        await store.put("elsewhere", b"")
        await store.put("w/a", b"")
        with trio.fail_after(30):
            assert await hints.receive() == "w/a"
            lease = await grant(store, "w/lease", "me", ttl_s=30)
            assert await hints.receive() == "w/lease"
            await store.delete("w/a")
            assert await hints.receive() == "w/a"
            await store.release(lease)
            assert await hints.receive() == "w/lease"


async def test_a_waiting_watch_wakes_within_half_a_second(store: MetadataStore) -> None:
    async with store.watch("w/") as hints, trio.open_nursery() as nursery:

        async def change() -> None:
            await trio.sleep(0.1)
            await store.put("w/a", b"")

        nursery.start_soon(change)
        with trio.fail_after(0.6):
            assert await hints.receive() == "w/a"


@pytest.mark.parametrize("how", ["ran out", "ended"])
async def test_a_watch_tells_of_each_lease_of_a_session_that_is_over(
    store: MetadataStore, clock: LeaseClock, how: str
) -> None:
    session = await store.open_session("me", ttl_s=0.2)
    names = ["w/one", "w/two"]
    for name in names:
        await store.grant(name, session)
    async with store.watch("w/") as hints:
        if how == "ended":
            await store.end_session(session)
        else:
            clock.advance(0.2)
        with trio.fail_after(30):
            assert sorted([await hints.receive(), await hints.receive()]) == names
        assert await store.leases("w/") == []


async def test_every_watch_hears_of_a_change(store: MetadataStore) -> None:
    heard: list[str] = []

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        async with store.watch("w/") as hints:
            task_status.started()
            heard.append(await hints.receive())

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                await nursery.start(listen)
            await store.put("w/a", b"")
    assert heard == ["w/a"] * 5


class Noted:
    """A listener that keeps the hints of each prefix."""

    def __init__(self) -> None:
        self.hints: dict[str, list[str]] = {}
        self.news = trio.lowlevel.ParkingLot()

    def notify(self, prefix: str, hint: str) -> None:
        self.hints.setdefault(prefix, []).append(hint)
        self.news.unpark_all()

    async def until(self, hints: dict[str, list[str]]) -> None:
        while self.hints != hints:
            await self.news.park()


async def test_one_task_serves_many_listeners(store: MetadataStore, nursery: trio.Nursery) -> None:
    noted = Noted()
    nursery.start_soon(store.watches.run)
    prefixes = [f"w/{number:03}" for number in range(500)]
    tasks = trio.lowlevel.current_statistics().tasks_living
    with trio.fail_after(30):
        for prefix in prefixes:
            store.watches.subscribe(prefix, noted)
        await noted.until({prefix: [prefix] for prefix in prefixes})
        assert trio.lowlevel.current_statistics().tasks_living <= tasks + 10
        noted.hints.clear()
        await store.put("w/007", b"")
        await store.put("w/008/longer", b"")
        await store.put("elsewhere", b"")
        await noted.until({"w/007": ["w/007"], "w/008": ["w/008/longer"]})
        for prefix in prefixes:
            store.watches.unsubscribe(prefix, noted)
        noted.hints.clear()
        async with store.watch("w/") as hints:
            await store.put("w/007", b"")
            assert await hints.receive() == "w/007"
    assert noted.hints == {}


async def test_a_watch_goes_on_when_the_task_that_asked_for_all_left(store: MetadataStore) -> None:
    async with store.watch("w/") as hints, store.watch("w/") as others:
        with trio.move_on_after(0.3):
            await others.receive()
        with trio.fail_after(30):
            await store.put("w/a", b"")
            assert await hints.receive() == "w/a"
            assert await others.receive() == "w/a"


async def test_many_changes_come_as_one_hint_for_everything(store: MetadataStore) -> None:
    async with store.watch("w/") as hints:
        for start in range(0, 1100, 100):
            await store.transact([Put(f"w/{start + n}", b"") for n in range(100)])
        with trio.fail_after(30):
            assert await hints.receive() == "w/"


async def test_changes_since_the_present_take_as_long_as_asked(store: MetadataStore) -> None:
    start = await store.changes("")
    assert await store.changes("", since=start.revision, wait_s=0.1) == start
    await store.put("a", b"")
    changes = await store.changes("", since=start.revision)
    assert changes.keys == ["a"]


async def test_a_revision_from_the_future_means_everything(store: MetadataStore) -> None:
    assert (await store.changes("", since=10**9)).everything


# --- limits and ends -----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "k" * 513, "é" * 257, "new\nline", "nul\0", "\ud800"])
async def test_a_bad_key_is_refused(store: MetadataStore, key: str) -> None:
    with pytest.raises(MetadataBroken):
        await store.get(key)
    with pytest.raises(MetadataBroken):
        await store.put(key, b"")
    with pytest.raises(MetadataBroken):
        await grant(store, key, "me", ttl_s=1)
    with pytest.raises(MetadataBroken):
        await store.next_id(key)


async def test_what_is_beyond_the_limits_is_refused(store: MetadataStore) -> None:
    lease = Lease("l", "me", 1, b"", 1.0)
    with pytest.raises(MetadataBroken):
        await store.put("a", bytes(VALUE_SIZE_MAX + 1))
    with pytest.raises(MetadataBroken):
        await store.put("a", b"", expected=-1)
    with pytest.raises(MetadataBroken):
        await store.transact([Check("a", 0)] * (OPS_MAX + 1))
    with pytest.raises(MetadataBroken):
        await store.transact([Put(f"{n}", bytes(OPS_SIZE_MAX // 4)) for n in range(5)])
    for limit in (0, 1001):
        with pytest.raises(MetadataBroken):
            await store.list("", limit=limit)
    for ttl_s in (0.0, math.nan, math.inf, 1e6):
        with pytest.raises(MetadataBroken):
            await grant(store, "l", "me", ttl_s=ttl_s)
    with pytest.raises(MetadataBroken):
        await store.update(lease, bytes(4097))
    with pytest.raises(MetadataBroken):
        await store.next_id("a", 0)
    with pytest.raises(MetadataBroken):
        await store.changes("", wait_s=61)
    assert await keys_under(store, "") == []


async def test_keys_of_the_largest_size_are_taken(store: MetadataStore) -> None:
    await store.put("k" * 512, b"1")
    assert await keys_under(store, "k" * 512) == ["k" * 512]


async def test_a_closed_store_says_so(store: MetadataStore) -> None:
    await store.aclose()
    await store.aclose()
    with pytest.raises(MetadataUnavailable, match="closed"):
        await store.get("a")


async def test_reads_that_are_made_together_keep_their_order_and_all_end(
    store: MetadataStore,
) -> None:
    await store.transact([Put(f"k{number}", b"%d" % number) for number in range(20)])
    found = await together([partial(store.get, f"k{number}") for number in range(21)])
    assert [each and each.value for each in found] == [*(b"%d" % n for n in range(20)), None]
    ended: list[int] = []

    async def read(number: int) -> None:
        await store.get(f"k{number}")
        ended.append(number)
        if number == 3:
            raise MetadataUnavailable("no answer")

    with pytest.raises(MetadataUnavailable, match="no answer"):
        await together([partial(read, number) for number in range(10)])
    assert sorted(ended) == list(range(10))

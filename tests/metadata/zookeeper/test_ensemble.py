"""The driver over three ZooKeepers that are killed, paused and started again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
import trio
from ensemble import Ensemble, new_path
from never_twice import never_twice

from metadata.errors import LeaseLost, MetadataUnavailable, SessionOver, VersionConflict
from metadata.store import CheckLease, MetadataStore, Put
from metadata.zookeeper.store import open_zookeeper_store

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper")]
MORE = 100
"""Changes before and after each kill, by twelve tasks."""


@pytest.fixture
def whole(shaken_ensemble: Ensemble) -> Iterator[Ensemble]:
    """Yield the ensemble, and start again what a test has stopped."""
    yield shaken_ensemble
    shaken_ensemble.renew()


async def failure_of(call: Callable[[], Awaitable[object]]) -> MetadataUnavailable:
    """Make a call that must fail in time, and return its failure."""
    with trio.fail_after(5), pytest.raises(MetadataUnavailable) as failed:
        await call()
    return failed.value


@pytest.mark.real_processes
async def test_changes_fail_without_a_quorum_and_go_on_with_it(whole: Ensemble) -> None:
    path = new_path()
    async with (
        open_zookeeper_store(whole.url(path), create=True, timeout_s=3) as one,
        open_zookeeper_store(whole.url(path), timeout_s=3) as two,
        one.watch("a") as hints,
    ):
        version = await two.put("a", b"0")
        assert await hints.receive() == "a"
        said = [one.is_cut_off]
        await trio.to_thread.run_sync(whole.kill, 0, 1)
        await failure_of(partial(one.put, "b", b""))  # until then the third may answer reads
        async with trio.open_nursery() as nursery:
            for call in (partial(one.get, "a"), partial(two.list, ""), partial(two.next_id, "n")):
                nursery.start_soon(failure_of, call)
            down = await failure_of(partial(two.put, "a", b"1", expected=version))
        assert not down.outcome_unknown, "no server was there to take it"
        said.append(one.is_cut_off)
        await trio.to_thread.run_sync(whole.renew)
        unknown = 0
        with trio.fail_after(60):
            while True:
                try:
                    await two.put("a", b"1", expected=version)
                    break
                except MetadataUnavailable as failure:
                    unknown += failure.outcome_unknown
                except VersionConflict:
                    with never_twice():
                        assert unknown, "a change that was refused was made"
                    break
            assert await hints.receive() == "a"
        said.append(one.is_cut_off)
        assert said == [False, True, False]
        found = await one.get("a")
        with never_twice():
            assert found is not None and found.value == b"1"


@pytest.mark.real_processes
async def test_no_change_is_made_twice_or_lost_while_the_leader_is_killed(whole: Ensemble) -> None:
    path = new_path()
    done = unknown = 0
    all_killed = False

    async def count_up(store: MetadataStore, key: str) -> None:
        nonlocal done, unknown
        while not (all_killed and done > 50):
            try:
                found = await store.get(key)
                number = int(found.value) if found else 0
                version = found.version if found else 0
                await store.put(key, b"%d" % (number + 1), expected=version)
                done += 1
            except MetadataUnavailable as failure:
                unknown += failure.outcome_unknown
            except VersionConflict:
                await trio.sleep(0.001)

    async def more_done() -> None:
        enough = done + MORE
        while done < enough:  # noqa: ASYNC110 - by many tasks
            await trio.sleep(0.02)

    async with (
        open_zookeeper_store(whole.url(path), create=True, timeout_s=3) as one,
        open_zookeeper_store(whole.url(path), timeout_s=3) as two,
    ):
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(count_up, one, f"k{number}")
                    nursery.start_soon(count_up, two, f"k{number}")
                for _ in range(2):
                    await more_done()
                    leader = await trio.to_thread.run_sync(whole.leader)
                    await trio.to_thread.run_sync(whole.kill, leader)
                    await more_done()
                    await trio.to_thread.run_sync(whole.start, leader)
                    await trio.to_thread.run_sync(whole.wait)
                await more_done()
                all_killed = True
        counted = sum([int(found.value) for _, found in await one.list("k")])
        with never_twice():
            assert done <= counted <= done + unknown


async def test_a_store_that_closes_ends_the_sessions_that_it_sponsors(whole: Ensemble) -> None:
    path = new_path()
    async with (
        open_zookeeper_store(whole.url(path), create=True, session_s=2, timeout_s=3) as one,
        open_zookeeper_store(whole.url(path), session_s=2, timeout_s=20) as two,
    ):
        session = await one.open_session("me", ttl_s=60)
        lease = await one.grant("l", session)
        lost = await one.open_session("lost", ttl_s=60)
        moved = await one.grant("m", await one.open_session("other", ttl_s=60))
        assert len(await two.leases("")) == 2
        await one.aclose()
        assert await two.leases("l") == []
        for old in (session, lost):
            with pytest.raises(SessionOver):
                await two.keep_session(old)
        for over in (lease, moved):
            with pytest.raises(LeaseLost):
                await two.transact([CheckLease.of(over), Put("a", b"")])


@pytest.mark.real_processes
async def test_a_session_outlives_its_bookie_if_its_client_goes_to_another_one(
    whole: Ensemble,
) -> None:
    path = new_path()
    async with open_zookeeper_store(whole.url(path), create=True, session_s=2) as two:
        async with open_zookeeper_store(whole.url(path), session_s=2) as one:
            session = await one.open_session("me", ttl_s=5)
            lease = await one.grant("l", session)
            await two.keep_session(session)
        for _ in range(4):
            await trio.sleep(1)
            await two.keep_session(session)
        await two.transact([CheckLease.of(lease), Put("a", b"")])
        await two.end_session(session)
        assert await two.leases("") == []


async def test_every_server_shows_what_was_changed_through_another_one(whole: Ensemble) -> None:
    path = new_path()
    async with open_zookeeper_store(whole.url(path), create=True) as one:
        others = [f"zk://127.0.0.1:{port}{path}" for port in whole.client_ports]
        async with (
            open_zookeeper_store(others[0]) as a,
            open_zookeeper_store(others[1]) as b,
            open_zookeeper_store(others[2]) as c,
        ):
            for number in range(50):
                await one.put("a", b"%d" % number)
                for store in (a, b, c):
                    found = await store.get("a")
                    assert found is not None and found.value == b"%d" % number


async def test_a_wide_folder_is_listed_as_a_whole(whole: Ensemble) -> None:
    """All names of a folder come in one reply, which may be larger than a request may be."""
    path = new_path()
    async with open_zookeeper_store(whole.url(path), create=True, timeout_s=30) as store:
        names = [f"topics/shop/a-rather-long-name-{n:04d}-of-many" for n in range(5000)]
        async with trio.open_nursery() as nursery:
            for start in range(0, len(names), 250):
                puts = [Put(name, b"") for name in names[start : start + 250]]
                nursery.start_soon(store.transact, puts)
        page = await store.list("topics/shop/", after=names[3999], limit=1000)
        assert [key for key, _ in page] == names[4000:]

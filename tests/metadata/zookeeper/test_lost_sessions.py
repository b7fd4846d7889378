"""Sessions of real processes when ZooKeeper falls silent, and when the processes are paused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from daemons import Daemon
from ensemble import Ensemble, new_path
from never_twice import never_twice

from metadata.errors import LeaseHeld, MetadataUnavailable
from metadata.sessions import SESSION_S, ProcessSession
from metadata.store import CheckLease, Put, StoreSession
from metadata.zookeeper.store import SESSION_S as ZOOKEEPER_S, ZooKeeperStore, open_zookeeper_store

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("zookeeper")]
PROGRAM = str(Path(__file__).parents[2] / "support" / "lease_process.py")
TICK_S = 2.0
BUSY_S = 10.0
"""For a busy machine."""


@pytest.fixture
def whole(shaken_ensemble: Ensemble) -> Iterator[Ensemble]:
    """Yield the ensemble, and start again what a test has paused."""
    yield shaken_ensemble
    shaken_ensemble.renew()


async def test_a_zookeeper_that_falls_silent_costs_no_lease(whole: Ensemble) -> None:
    """Its kernel still accepts connections, and nothing ends the one that there is."""
    url = whole.url(new_path())
    leader = await trio.to_thread.run_sync(whole.leader)
    is_done = False
    while not is_done:
        async with open_zookeeper_store(url, create=True) as store, trio.open_nursery() as nursery:
            number = await trio.to_thread.run_sync(_server_of, whole, store)
            if number != leader:  # the loss of that one is an election, which may last longer
                await _lose(whole, number, store, nursery)
                is_done = True
            nursery.cancel_scope.cancel()


async def _lose(
    ensemble: Ensemble, number: int, store: ZooKeeperStore, nursery: trio.Nursery
) -> None:
    held = await ProcessSession(store, nursery).grant("l")
    ensemble.pause(number)
    paused_at = trio.current_time()
    with trio.fail_after(ZOOKEEPER_S):
        while True:
            try:
                await store.transact([held.check, Put("a", b"1")])
                break
            except MetadataUnavailable:
                continue
    while trio.current_time() < paused_at + SESSION_S:  # it would be over by then
        assert held.is_certain
        await trio.sleep(SESSION_S / 100)
    assert await trio.to_thread.run_sync(_server_of, ensemble, store) != number


def _server_of(ensemble: Ensemble, store: ZooKeeperStore) -> int:
    """Return the number of the ZooKeeper that the store is connected to."""
    mark = f"sid=0x{store.zookeeper_session:x}"
    for number in range(3):
        if mark in ensemble.command(number, b"cons"):
            return number
    raise AssertionError("not connected")


@pytest.mark.long
async def test_without_any_zookeeper_a_holder_stops_before_another_one_may_begin(
    whole: Ensemble,
) -> None:
    url = whole.url(new_path())
    async with (
        open_zookeeper_store(url, create=True) as store,
        trio.open_nursery() as nursery,
    ):
        held = await ProcessSession(store, nursery).grant("l")
        scope = trio.CancelScope()
        held.limit(scope)
        await trio.sleep(SESSION_S / 2)
        for number in range(3):
            whole.pause(number)
        silent_at = trio.current_time()
        with scope:
            await trio.sleep_forever()
        assert trio.current_time() < silent_at + ZOOKEEPER_S
        assert not held.is_certain
        for number in range(3):
            whole.resume(number)
        nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_a_process_that_was_paused_for_too_long_loses_its_leases_at_once(
    whole: Ensemble, tmp_path: Path
) -> None:
    url = whole.url(new_path())
    async with open_zookeeper_store(url, create=True) as store:
        with Daemon(url, "l", program=[PROGRAM], log=tmp_path / "log") as paused:
            epoch = _epoch(await trio.to_thread.run_sync(paused.line))
            os.kill(paused.process.pid, signal.SIGSTOP)
            mine = await store.open_session("me", ttl_s=60)
            with trio.fail_after(ZOOKEEPER_S + TICK_S + BUSY_S):
                lease = await _take(store, mine)
            with never_twice():
                assert lease.epoch > epoch
            os.kill(paused.process.pid, signal.SIGCONT)
            with trio.fail_after(BUSY_S):
                assert await trio.to_thread.run_sync(paused.line) == "over LeaseLost"
                assert await trio.to_thread.run_sync(paused.line) == "LeaseHeld"
            await store.transact([lease, Put("acted", b"mine")])
            await store.end_session(mine)
            with trio.fail_after(BUSY_S):
                line = "LeaseHeld"
                while line == "LeaseHeld":
                    line = await trio.to_thread.run_sync(paused.line)
            found = await store.get("acted")
            with never_twice():
                assert _epoch(line) > lease.epoch
                assert found is not None and found.value == b"mine"
        assert "Traceback" not in paused.log


async def _take(store: ZooKeeperStore, session: StoreSession) -> CheckLease:
    while True:
        try:
            return CheckLease.of(await store.grant("l", session))
        except LeaseHeld:
            await trio.sleep(0.2)


def _epoch(line: str) -> int:
    word, epoch = line.split()
    assert word == "held"
    return int(epoch)

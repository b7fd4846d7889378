"""A bookie that is stopped for longer than its session, and goes on by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from daemons import Daemon
from ensemble import Ensemble, new_path, one_zookeeper
from never_twice import never_twice

from bookie.commands.run import BookieStarted
from metadata.errors import LeaseLost
from metadata.records import bookie_lease
from metadata.sessions import GONE_S
from metadata.store import CheckLease, Lease, Put
from metadata.zookeeper.store import ZooKeeperStore, open_zookeeper_store

__all__ = ["one_zookeeper"]

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("zookeeper")]
BUSY_S = 20.0


async def test_it_registers_again_under_its_cookie_and_its_old_epoch_is_over(
    one_zookeeper: Ensemble, tmp_path: Path
) -> None:
    url = one_zookeeper.url(new_path())
    words = ("run", "--data", tmp_path / "bookie", "--metadata", url, "--port", 0, "--json")
    with Daemon(*words, log=tmp_path / "log") as bookie:
        name = bookie_lease((await trio.to_thread.run_sync(bookie.ready, BookieStarted)).bookie_id)
        async with open_zookeeper_store(url) as store:
            cookies = await store.list("cookies/")
            before = await _registration(store, name, lambda found: found is not None)
            bookie.process.send_signal(signal.SIGSTOP)
            try:
                with trio.fail_after(GONE_S + BUSY_S):
                    await _registration(store, name, lambda found: found is None)
            finally:
                bookie.process.send_signal(signal.SIGCONT)
            with trio.fail_after(BUSY_S):
                after = await _registration(store, name, lambda found: found is not None)
            assert before is not None and after is not None
            with never_twice():
                assert after.epoch > before.epoch
                assert await _is_refused(store, before)
                assert await store.list("cookies/") == cookies
        assert bookie.process.poll() is None
        assert "Traceback" not in bookie.log
        assert bookie.stop() == 0


async def _is_refused(store: ZooKeeperStore, lease: Lease) -> bool:
    """Whether a change that carries a lease is refused."""
    try:
        await store.transact([CheckLease.of(lease), Put("acted", b"")])
    except LeaseLost:
        return True
    return False


async def _registration(
    store: ZooKeeperStore, name: str, is_wanted: Callable[[Lease | None], bool]
) -> Lease | None:
    """Return the bookie's lease, once it is as wanted."""
    until = time.monotonic() + 60
    while True:
        found = next((each for each in await store.leases(name) if each.name == name), None)
        if is_wanted(found):
            return found
        assert time.monotonic() < until
        await trio.sleep(0.1)

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import settings
from running import connected, page, running

from bookie.host import RESTART_S, Host, RoleFigures, keep_roles
from metadata.urls import open_store


async def test_a_bookie_outlives_its_roles(tmp_path: Path) -> None:
    config = settings(tmp_path, bookie_id="b1", metrics_port=-1)
    hosts: list[Host] = []

    async def fail(host: Host) -> None:
        hosts.append(host)
        host.figures.leads = True
        raise ZeroDivisionError("a bug")

    async with open_store(config.metadata) as store, running(config, store, fail) as ready:
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with connected(ready.address) as peer:
            assert (await peer.ask(v2.ADD_HELLO)).code == 0
        (host,) = hosts
        assert (host.bookie_id, host.address) == ("b1", ready.address)
        assert (host.limbo, host.draining) == (False, False)
        _, metrics = await page(ready.metrics_port, "/metrics")
        assert b"quire_bookie_role_restarts_total 1.0" in metrics
        assert b"quire_bookie_leads 1.0" in metrics


class Idle:
    """A host that only has figures."""

    def __init__(self) -> None:
        self.figures = RoleFigures()


async def test_roles_that_ended_are_started_again_after_a_pause(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[float] = []

    async def roles(_: Host) -> None:
        started.append(trio.current_time())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            if len(started) == 2:
                raise OSError("gone")

    with trio.move_on_after(15):
        await keep_roles(Idle(), roles)  # type: ignore[arg-type]  # a fake
    assert [at - started[0] for at in started] == [0, 1 + RESTART_S, 1 + 2 * RESTART_S]
    assert [line for line in caplog.messages if "roles of this bookie failed" in line]


async def test_roles_that_fail_while_their_bookie_stops_do_not_fail_it(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_late() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ZeroDivisionError("a bug")

    async def roles(_: Host) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_late)
            nursery.start_soon(trio.sleep_forever)

    with trio.move_on_after(1) as stopped:
        await keep_roles(Idle(), roles)  # type: ignore[arg-type]  # a fake
    assert stopped.cancelled_caught
    assert [line for line in caplog.messages if "roles of this bookie failed" in line]


async def test_roles_end_with_their_bookie(autojump_clock: trio.testing.MockClock) -> None:
    ended = []

    async def roles(_: Host) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(1)

    with trio.move_on_after(1):
        await keep_roles(Idle(), roles)  # type: ignore[arg-type]  # a fake
    assert ended == [1]

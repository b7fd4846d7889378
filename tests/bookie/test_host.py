from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from rig import settings
from running import connected, known, page, running

from bookie.commands.roles import roles_of
from bookie.config import BookieConfig
from bookie.host import RESTART_S, Host, RoleFigures, keep_roles
from ledger_client import DrainRefused, connect
from metadata.store import MetadataStore, Put
from metadata.urls import open_store


async def test_a_bookie_outlives_its_roles(tmp_path: Path) -> None:
    """TB-34."""
    config = settings(tmp_path, bookie_id="b1", metrics_port=-1)
    hosts: list[Host] = []

    async def fail(host: Host) -> None:
        hosts.append(host)
        host.figures.leads = True
        raise ZeroDivisionError("a bug")

    async with open_store(config.metadata) as store, running(config, store, fail) as ready:
        await trio.testing.wait_all_tasks_blocked(0.01)
        await known(store, 1)
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


async def test_what_takes_part_in_the_cluster_is_apart_from_the_data(tmp_path: Path) -> None:
    """TB-34: roles see the store and a few facts of their bookie, never its entries or files."""
    config = settings(tmp_path, bookie_id="b1")
    hosts: list[Host] = []
    written = trio.Event()
    row = b"a row of the cluster"

    async def write(host: Host) -> None:
        for number in range(50):
            await store.transact([Put(f"test/{number}", row)])
        hosts.append(host)
        written.set()
        raise OSError("the roles fail, and nothing else does")

    async with (
        open_store(config.metadata) as store,
        running(config, store, write) as ready,
        connected(ready.address) as peer,
    ):
        await written.wait()
        await known(store, 1)
        assert (await peer.ask(v2.ADD_HELLO)).code == 0
        answer = await peer.ask(v2.READ_HELLO)
        assert (answer.code, answer.rest[-5:]) == (0, b"hello")
        folders = (Path(config.journal_folder), Path(config.ledger_folder))
        files = [path for each in folders for path in each.rglob("*") if path.is_file()]
        assert any(b"hello" in path.read_bytes() for path in files)
        assert not any(row in path.read_bytes() for path in files)
    public = {name for name in dir(hosts[0]) if not name.startswith("_")}
    facts = {"bookie_id", "address", "limbo", "draining", "doubts", "leave_limbo"}
    assert public == facts | {"figures", "registry", "coordinator", "timekeeper"}


@asynccontextmanager
async def members(tmp_path: Path, count: int) -> AsyncIterator[tuple[MetadataStore, list[str]]]:
    """Bookies with the roles that they have in earnest, and their addresses."""

    def config(number: int) -> BookieConfig:
        metadata = f"sqlite://{tmp_path / 'metadata.db'}"
        (tmp_path / f"b{number}").mkdir(exist_ok=True)
        return settings(tmp_path / f"b{number}", bookie_id=f"b{number}", metadata=metadata)

    async with open_store(config(1).metadata) as store, trio.open_nursery() as nursery:
        addresses: list[str] = []
        done = trio.Event()

        async def serve(number: int, task_status: trio.TaskStatus[None]) -> None:
            here = config(number)
            async with running(here, store, roles_of(here, store)) as ready:
                addresses.append(ready.address)
                task_status.started()
                await done.wait()

        for number in range(1, count + 1):
            await nursery.start(serve, number)
        yield store, addresses
        done.set()


async def test_each_server_is_a_member_that_has_a_part_in_the_cluster_and_stores_entries(
    tmp_path: Path,
) -> None:
    """TB-31, TB-38: the leader is one of those that hold the data; there is no other process."""
    async with (
        members(tmp_path, 2) as (_, addresses),
        connect(f"bookie://{addresses[1]}") as client,
    ):
        with trio.fail_after(30):
            await client.timestamps.allocate()  # by the leader
            async with client.ledgers.create(2, 2, 2) as ledger:
                await ledger.append(b"hello")
        status = await client.cluster.status()
        assert status.leader is not None
        assert status.leader.address in addresses
        assert [each.bookie_id for each in status.bookies if each.registered] == ["b1", "b2"]
        usage = await client.cluster.usage()
        assert {each.bookie_id for each in usage.bookies} == {"b1", "b2"}
        ((_, bookies),) = (await client.ledgers.info(ledger.id)).bookies
        assert sorted(bookies) == ["b1", "b2"]


async def test_any_member_answers_what_the_cluster_is_like_and_changes_it(tmp_path: Path) -> None:
    """TB-39: the cluster's state is one, whichever member is asked."""
    async with (
        members(tmp_path, 2) as (_, addresses),
        connect(f"bookie://{addresses[0]}") as one,
        connect(f"bookie://{addresses[1]}") as other,
    ):
        with trio.fail_after(30):
            async with one.ledgers.create(1, 1, 1) as ledger:
                await ledger.append(b"hello")
            ((_, (here,)),) = (await one.ledgers.info(ledger.id)).bookies
            await one.cluster.decommission(here)
            seen = {each.bookie_id: each for each in (await other.cluster.status()).bookies}
            assert seen[here].state == "decommissioned"
            ((_, moved),) = (await other.ledgers.info(ledger.id)).bookies
            assert here not in moved
            assert (await other.cluster.verify(ledger.id)).whole
            with pytest.raises(DrainRefused):
                await other.cluster.decommission("b7")

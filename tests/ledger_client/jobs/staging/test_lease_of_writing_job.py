"""How long a writing job lives, and what is left of it when nobody works for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster
from staged_rig import NAME, ledgers_count, made, read_all, rows, write_part
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.errors import JobLost
from ledger_client.jobs.staging.writing_job import (
    KEEP_S,
    WRITE_S,
    WritePlan,
    abort_write,
    commit_write,
    join_write,
    keep_write,
    plan_write,
)
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.retention.job_rows import live_jobs
from metadata.leadership import Term
from metadata.store import Leases


async def test_a_job_lives_while_somebody_works_for_it(
    autojump_clock: MockClock, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_write, client._context.ledgers, plan)
        await trio.sleep(3 * WRITE_S)
        assert len(await live_jobs(client._context.store)) == 1
        nursery.cancel_scope.cancel()
    await trio.sleep(WRITE_S - 2 * KEEP_S)
    assert len(await live_jobs(client._context.store)) == 1
    await trio.sleep(3 * KEEP_S)
    assert await live_jobs(client._context.store) == set()


@pytest.mark.parametrize("end", [abort_write, partial(commit_write, sealed=[])])
async def test_a_worker_that_begins_or_goes_on_later_does_not_revive_a_job(
    autojump_clock: MockClock,
    client: Client,
    end: Callable[[Ledgers, WritePlan], Awaitable[object]],
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    await join_write(client._context.ledgers, plan)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_write, client._context.ledgers, plan)
        await trio.sleep(1.5 * KEEP_S)
        assert len(await live_jobs(client._context.store)) == 1
        await end(client._context.ledgers, plan)
        await trio.sleep(2 * KEEP_S)
        assert not nursery.child_tasks
    with pytest.raises(JobLost, match="it has ended"):
        await join_write(client._context.ledgers, plan)
    assert await live_jobs(client._context.store) == set()


async def test_a_worker_that_looks_while_a_job_ends_does_not_revive_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    leases = client._context.store.leases

    async def look_and_end(prefix: str, *, after: str = "") -> Leases:
        found = await leases(prefix, after=after)
        monkeypatch.undo()
        await abort_write(client._context.ledgers, plan)
        return found

    monkeypatch.setattr(client._context.store, "leases", look_and_end)
    with pytest.raises(JobLost, match="it has ended"):
        await join_write(client._context.ledgers, plan)
    assert await live_jobs(client._context.store) == set()


async def test_a_worker_that_begins_after_the_lease_ran_out_takes_it_again(
    autojump_clock: MockClock, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    await trio.sleep(WRITE_S + 1)
    assert await live_jobs(client._context.store) == set()
    await join_write(client._context.ledgers, plan)
    assert len(await live_jobs(client._context.store)) == 1


async def test_a_job_that_was_taken_for_dead_shows_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: rows("a")})
    await trio.sleep(WRITE_S + 1)
    keeper = Housekeeper(client._context, HousekeepingOptions())
    term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=3600))
    await keeper.look_after_all(term)
    await keeper.look_after_all(term)
    assert ledgers_count(cluster) == 0
    with pytest.raises(JobLost, match="discarded"):
        await commit_write(client._context.ledgers, plan, ledgers)
    assert await read_all(client, NAME) == []


async def test_a_job_whose_lease_ran_out_unnoticed_shows_all(
    autojump_clock: MockClock, client: Client
) -> None:
    await made(client)
    plan = await plan_write(client._context.ledgers, NAME)
    ledgers = await write_part(client._context.ledgers, plan, 0, {-1: rows("a")})
    await trio.sleep(2 * WRITE_S)
    assert await commit_write(client._context.ledgers, plan, ledgers)
    assert await read_all(client, NAME) == ["a"]

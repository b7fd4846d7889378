"""Processes that are killed while they change topics with timesync, and leaders killed beside them.

MV-02, MV-03, MV-07, MV-38: ticks go on within a bounded time, and each change is done or not done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import held_changes
import pytest
import trio
from fleet import Fleet
from held_changes import CHANGES, PARTITIONS, change
from never_twice import check_end, never_twice

import ledger_client
from ledger_client import Client, LedgerError, NoSuchTopic, TopicExists
from ledger_client.topics.tick_follower import TickFollower
from metadata.listings import leader
from metadata.sessions import SESSION_S

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0
GO_ON_S = SESSION_S + 15.0
"""Ticks go on once the session of a dead client is over and its lane is closed; more, as machines
are busy."""
HELD_S = 0.5
HELD = ("show-held", "show-stamped", "show-stepped", "alter-held", "alter-stamped", "alter-done")
KILLED, GOING_ON = "killed/", "going-on/"
WHOLE = ["a", "b", "c", "d", "e"]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 3) as started:
        yield started


@contextmanager
def changing(fleet: Fleet, prefix: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that stops in the midst of all changes."""
    roots = [str(Path(held_changes.__file__).parent), *filter(None, sys.path)]
    command = [sys.executable, held_changes.__file__, fleet.cluster, prefix]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
    )
    try:
        yield process
    finally:
        code = process.poll()
        process.kill()
        process.communicate()
        check_end(code, "")


async def prepare(client: Client) -> None:
    """Make the topics that are to be changed; each has a message."""
    async with trio.open_nursery() as nursery:
        for kind in CHANGES:
            if not kind.startswith("create"):
                nursery.start_soon(_prepare, client, KILLED + kind)
                nursery.start_soon(_prepare, client, GOING_ON + kind)


async def _prepare(client: Client, topic: str) -> None:
    await change(client, "create", topic)
    await send(client, topic, "before")


async def send(client: Client, topic: str, value: str) -> None:
    async with client.producer(topic) as producer:
        await producer.send(value.encode())


async def held(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    with trio.fail_after(DEADLINE_S):
        assert await trio.to_thread.run_sync(process.stdout.readline) == "held\n"


async def check_held(client: Client, topic: str) -> None:
    assert not await tick_after(client, topic, HELD_S)


async def tick_after(client: Client, topic: str, limit_s: float) -> bool:
    """Whether there is a tick later than now within *limit_s*."""
    with trio.move_on_after(limit_s):
        record = (await client._context.catalogue.get(topic))[0]
        ticks = TickFollower(client._context, record)
        while True:
            try:
                now = await client.timestamps.allocate()
                await ticks.newest(now.first)
            except NoSuchTopic:
                raise
            except LedgerError:
                await trio.sleep(0.1)
            else:
                return True
    return False


async def check_killed(client: Client, kind: str, topic: str) -> None:
    """Let the topic have ticks again, look whether the change was made, and make it once more."""
    what, place = kind.split("-")
    is_done = place == "done"
    if kind in {"delete-done", "create-stamped"}:
        with pytest.raises(NoSuchTopic):
            await client.topics.info(topic)
    else:
        await send(client, topic, "after")
        assert await tick_after(client, topic, GO_ON_S), kind
    if what == "show":
        shown = WHOLE if is_done else []
        with never_twice():
            assert await by_timestamp(client, topic) == ["before", *shown, "after"]
    elif what == "alter":
        with never_twice():
            assert (await client.topics.info(topic)).partitions == (PARTITIONS if is_done else 2)
    await repeat(client, kind, topic)
    if what == "show":
        order = [*WHOLE, "after"] if is_done else ["after", *WHOLE]
        with never_twice():
            assert await by_timestamp(client, topic) == ["before", *order]


async def check_gone_on(client: Client, kind: str, topic: str, outcome: str) -> None:
    """Look whether a change that went on was made, all of it, then make it once more."""
    if not kind.startswith("delete"):
        await send(client, topic, "after")
        assert await tick_after(client, topic, GO_ON_S), kind
    if kind.startswith("show"):
        with never_twice():
            shown = await by_timestamp(client, topic)
            is_all = shown == ["before", *WHOLE, "after"]
            assert is_all or (shown == ["before", "after"] and outcome), shown
    await repeat(client, kind, topic)
    if kind.startswith("show"):
        with never_twice():
            shown = await by_timestamp(client, topic)
            assert shown in (["before", *WHOLE, "after"], ["before", "after", *WHOLE])


async def repeat(client: Client, kind: str, topic: str) -> None:
    """Make a change once more."""
    what = kind.partition("-")[0]
    with suppress(NoSuchTopic, TopicExists):
        await change(client, kind, topic)
    if what == "delete":
        with pytest.raises(NoSuchTopic):
            await client.topics.info(topic)
        return
    await send(client, topic, "last")
    assert await tick_after(client, topic, GO_ON_S), kind
    if what == "alter":
        with never_twice():
            assert (await client.topics.info(topic)).partitions == PARTITIONS


async def by_timestamp(client: Client, topic: str) -> list[str]:
    """Return the values in their order, without "last"; all that a job wrote has one timestamp."""
    async with client.reader(topic, order="timestamp") as reader:
        messages = [message async for message in reader]
    found = [(each.timestamp, (each.value or b"").decode()) for each in messages]
    assert [stamp for stamp, _ in found] == sorted(stamp for stamp, _ in found)
    assert len({stamp for stamp, value in found if value in WHOLE}) <= 1
    return [value for _, value in sorted(found) if value != "last"]


async def leading(client: Client, fleet: Fleet) -> int:
    with trio.fail_after(DEADLINE_S):
        while (found := await leader(client._context.store)) is None:  # noqa: ASYNC110
            await trio.sleep(0.02)
    return fleet.number(found.bookie_id)


@pytest.mark.real_processes
async def test_changes_cut_midway_are_made_or_not_and_hold_ticks_for_a_bounded_time(
    fleet: Fleet,
) -> None:
    """One process is killed together with the leader; another one goes on without that leader."""
    async with ledger_client.connect(fleet.metadata) as client:
        await prepare(client)
        with changing(fleet, KILLED) as killed, changing(fleet, GOING_ON) as going_on:
            await held(killed)
            await held(going_on)
            async with trio.open_nursery() as nursery:
                for kind in HELD:
                    nursery.start_soon(check_held, client, KILLED + kind)
            killed.kill()
            fleet.kill(await leading(client, fleet))
            with trio.fail_after(DEADLINE_S):
                told, _ = await trio.to_thread.run_sync(going_on.communicate, "go on\n")
        outcomes = dict(line.split(" ", 1) for line in told.splitlines())
        assert outcomes.keys() == CHANGES.keys()
        async with trio.open_nursery() as nursery:
            for kind in CHANGES:
                nursery.start_soon(check_killed, client, kind, KILLED + kind)
                outcome = outcomes[kind].replace("done", "")
                nursery.start_soon(check_gone_on, client, kind, GOING_ON + kind, outcome)

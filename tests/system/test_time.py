"""Timestamps from real bookies whose leaders are killed and stopped."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hosts
import pytest
import trio
from fleet import Fleet
from never_twice import never_twice
from processes import quire

import ledger_client
from ledger_client import Client, TimestampRange
from metadata.errors import NotLeader
from metadata.listings import leader
from metadata.time.calls import AllotTimestamps, TimestampsAllotted
from metadata.time.timestamps import split, utc_of

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 2) as started:
        yield started


class Taker:
    """Takes timestamps without a rest, and holds each against all before."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.last = -1
        self.taken = 0

    async def run(self) -> None:
        while True:
            with trio.fail_after(DEADLINE_S):
                found = await self.take(7)
            with never_twice():
                assert found.first > self.last
            self.last = found.last
            self.taken += 1

    async def take(self, count: int) -> TimestampRange:
        while True:
            try:
                return await self._client.timestamps.allocate(count)
            except ledger_client.MetadataUnavailable:
                await trio.sleep(0.1)

    async def go_on(self) -> None:
        """Return once ten more ranges are taken."""
        goal = self.taken + 10
        with trio.fail_after(DEADLINE_S):
            while self.taken < goal:  # noqa: ASYNC110 - as cheap as an event
                await trio.sleep(0.02)


async def leading(client: Client, fleet: Fleet) -> int:
    with trio.fail_after(DEADLINE_S):
        while (found := await leader(client._context.store)) is None:  # noqa: ASYNC110
            await trio.sleep(0.02)
    return fleet.number(found.bookie_id)


@pytest.mark.real_processes
async def test_a_leader_that_was_stopped_for_longer_than_its_lease_hands_out_nothing(
    fleet: Fleet,
) -> None:
    """MV-29, MV-31: requests that wait in its socket are refused when it goes on."""
    async with (
        ledger_client.connect(fleet.metadata) as client,
        ledger_client.connect(fleet.metadata) as patient,
        trio.open_nursery() as nursery,
    ):
        taker = Taker(client)
        nursery.start_soon(taker.run)
        await taker.go_on()
        await patient.timestamps.allocate()
        former = await leading(client, fleet)
        fleet.pause(former)
        connection = patient._context.ledgers.bookies.connections[fleet.name(former)]
        answers: list[object] = []

        async def ask() -> None:
            try:
                answers.append(await connection.call(AllotTimestamps(), timeout_s=DEADLINE_S))
            except NotLeader as refusal:
                answers.append(refusal)

        for _ in range(20):
            nursery.start_soon(ask)
        with trio.fail_after(DEADLINE_S):
            while await leading(client, fleet) == former:  # noqa: ASYNC110 - in the store
                await trio.sleep(0.1)
        await taker.go_on()
        fleet.resume(former)
        with trio.fail_after(DEADLINE_S):
            while len(answers) < 20:  # noqa: ASYNC110 - as cheap as an event
                await trio.sleep(0.02)
        with never_twice():
            assert not any(isinstance(each, TimestampsAllotted) for each in answers)
        await taker.go_on()
        nursery.cancel_scope.cancel()


@pytest.mark.real_processes
async def test_timestamps_go_on_rising_when_leaders_are_killed(fleet: Fleet) -> None:
    """MV-26, MV-27, MV-29."""
    async with ledger_client.connect(fleet.metadata) as client, trio.open_nursery() as nursery:
        taker = Taker(client)
        nursery.start_soon(taker.run)
        for _ in range(2):
            await taker.go_on()
            killed = await leading(client, fleet)
            fleet.kill(killed)
            await taker.go_on()
            fleet.start(killed)
            fleet.wait_until_served(killed)
        nursery.cancel_scope.cancel()


@pytest.fixture
def set_clock(tmp_path: Path) -> Callable[[timedelta], None]:
    """Sets the wall clock of all bookies that are started with the environment below."""
    library, offset = tmp_path / "wall_clock.so", tmp_path / "offset"
    source = Path(hosts.__file__).with_name("wall_clock.c")
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)

    def set_to(ahead: timedelta) -> None:
        with offset.open("r+b") as file:  # in place, because bookies have mapped it
            file.write(int(ahead.total_seconds() * 1e9).to_bytes(8, "little", signed=True))

    offset.write_bytes(bytes(8))
    return set_to


async def test_the_clock_of_the_leader_may_be_set_by_hours_and_that_of_a_client_does_not_count(
    tmp_path: Path, set_clock: Callable[[timedelta], None]
) -> None:
    """MV-07, MV-29: 24 hours forward, then an hour back."""
    preload = {
        "LD_PRELOAD": str(tmp_path / "wall_clock.so"),
        "QUIRE_WALL_CLOCK": str(tmp_path / "offset"),
    }
    with Fleet(tmp_path, 1, environment={**os.environ, **preload}) as fleet:
        async with ledger_client.connect(fleet.metadata) as client, trio.open_nursery() as nursery:
            taker = Taker(client)
            nursery.start_soon(taker.run)
            await taker.go_on()
            set_clock(timedelta(hours=24))
            ahead = datetime.now(UTC) + timedelta(hours=23)
            with trio.fail_after(DEADLINE_S):
                while utc_of(taker.last) < ahead:  # noqa: ASYNC110 - as cheap as an event
                    await trio.sleep(0.02)
            set_clock(timedelta(hours=-1))
            before = taker.last
            await taker.go_on()
            assert taker.last > before
            nursery.cancel_scope.cancel()


def run(fleet: Fleet, *words: str, code: int = 0) -> str:
    done = quire("tso", *words, "--cluster", fleet.cluster)
    assert done.returncode == code, done.stderr
    return (done.stderr if code else done.stdout).decode()


def test_the_commands_take_reset_and_measure_timestamps(fleet: Fleet) -> None:
    """MV-08, MV-10, MV-32."""
    taken = json.loads(run(fleet, "get", "--count", "5", "--json"))
    first, last = taken["first"]["timestamp"], taken["last"]["timestamp"]
    assert last - first == 4
    assert abs(utc_of(first) - datetime.now(UTC)) < timedelta(minutes=1)
    after = run(fleet, "get").split()
    assert int(after[0]) > last
    later = utc_of(first) + timedelta(hours=23)
    assert later.isoformat()[:19] in run(fleet, "reset", "--to", later.isoformat(), "--yes")
    assert split(int(run(fleet, "get").split()[0])).physical_ms >= later.timestamp() * 1000
    back = run(fleet, "reset", "--to", "2020-01-01", "--yes", code=1)
    assert "time only moves forward" in back
    figures = json.loads(run(fleet, "bench", "--seconds", "0.5", "--tasks", "10", "--json"))
    assert figures["merged"]["timestamps_per_s"] > figures["single"]["timestamps_per_s"] > 0

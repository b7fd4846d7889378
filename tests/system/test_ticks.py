"""Ticks of real bookies while a producer and leaders are killed and stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from fleet import Fleet
from never_twice import check_end, never_twice
from processes import quire

import ledger_client
from ledger_client import Client, LedgerError
from ledger_client.topics.tick_follower import TickFollower
from ledger_client.topics.ticks import Tick
from metadata.listings import leader

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0
ON_S = 10.0
"""Ticks go on within this time after a fault."""
BUSY_S = 10.0
"""More, on a busy machine."""
TICKS_MIN, MESSAGES_MIN = 11, 101
"""A storm on a slow machine goes on until there are so many."""
ORDERS = "shop/orders"
PRODUCING = """
import sys, trio, ledger_client
async def main():
    async with ledger_client.connect(sys.argv[1]) as client:
        async with client.producer("shop/orders", access="shared") as producer:
            while True:
                await producer.send(b"theirs")
                print("sent", flush=True)
trio.run(main)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 3) as started:
        yield started


class Witness:
    """Follows the ticks, stored and idle, and keeps all that it saw."""

    def __init__(self, client: Client, ticks: TickFollower) -> None:
        self.stored: list[Tick] = []
        self.seen: list[Tick] = []
        self._client = client
        self._ticks = ticks

    async def run(self) -> None:
        while True:
            try:
                self.stored += await self._ticks.read()
            except LedgerError:
                await trio.sleep(0.1)

    async def go_on(self) -> None:
        """Return once there is a tick later than now."""
        with trio.fail_after(ON_S + BUSY_S):
            while True:
                try:
                    now = await self._client.timestamps.allocate()
                    self.seen.append(await self._ticks.newest(now.first))
                except LedgerError:
                    await trio.sleep(0.1)
                else:
                    return

    async def see_many(self) -> None:
        """Return once so many ticks are stored that the messages are between several of them."""
        with trio.fail_after(DEADLINE_S):
            while len(self.stored) < TICKS_MIN:  # noqa: ASYNC110 - as cheap as an event
                await trio.sleep(0.02)

    async def check(self) -> int:
        """Hold every tick against all messages; return how many there are."""
        async with self._client.reader(ORDERS) as reader:
            messages = [(m.timestamp, (m.id.partition, m.lane), m.version) async for m in reader]
        rising = [tick.timestamp for tick in self.stored]
        with never_twice():
            assert rising == sorted(set(rising))
            for tick in (*self.stored, *self.seen):
                for timestamp, lane, version in messages:
                    if timestamp <= tick.timestamp:
                        assert version < tick.covers.get(lane, 0), (tick, timestamp, lane)
                        assert timestamp <= tick.stored
        return len(messages)


def start_producer(url: str) -> subprocess.Popen[bytes]:
    """Start another process that produces without a rest."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PRODUCING, url],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


async def produce(client: Client, enough: trio.Event) -> None:
    """Send a message now and then, whatever fails; tell when there are enough."""
    sent = 0
    while True:
        try:
            async with client.producer(ORDERS, access="shared") as producer:
                while True:
                    await producer.send(b"ours")
                    sent += 1
                    if sent == MESSAGES_MIN:
                        enough.set()
                    await trio.sleep(0.01)
        except LedgerError:
            await trio.sleep(0.1)


async def leading(client: Client, fleet: Fleet) -> int:
    with trio.fail_after(DEADLINE_S):
        while (found := await leader(client._context.store)) is None:  # noqa: ASYNC110
            await trio.sleep(0.02)
    return fleet.number(found.bookie_id)


@pytest.mark.long
@pytest.mark.real_processes
async def test_ticks_tell_the_truth_and_go_on_after_every_fault(fleet: Fleet) -> None:
    """MV-20, MV-36, MV-43: a producer is killed; leaders are killed and stopped."""
    async with (
        ledger_client.connect(fleet.metadata) as client,
        ledger_client.connect(fleet.metadata) as observer,
    ):
        await client.topics.create(ORDERS, 0, timesync=True, replication=2, ack_quorum=2)
        record = (await observer._context.catalogue.get(ORDERS))[0]
        witness = Witness(observer, TickFollower(observer._context, record))
        other, enough = start_producer(fleet.metadata), trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(witness.run)
                nursery.start_soon(produce, client, enough)
                assert other.stdout is not None
                with trio.fail_after(DEADLINE_S):
                    await trio.to_thread.run_sync(other.stdout.readline)
                await witness.go_on()
                other.send_signal(signal.SIGKILL)
                await witness.go_on()
                stopped = await leading(observer, fleet)
                fleet.pause(stopped)
                with trio.fail_after(DEADLINE_S):
                    while await leading(observer, fleet) == stopped:  # noqa: ASYNC110 - in the store
                        await trio.sleep(0.1)
                await witness.go_on()
                fleet.resume(stopped)
                await witness.go_on()
                fleet.kill(await leading(observer, fleet))
                await witness.go_on()
                await witness.see_many()
                with trio.fail_after(DEADLINE_S):
                    await enough.wait()
                nursery.cancel_scope.cancel()
        finally:
            other.kill()
            other.communicate()
            check_end(other.returncode, "")
        await witness.go_on()
        assert await witness.check() >= MESSAGES_MIN
        words = ("topic", "describe", ORDERS, "--cluster", fleet.metadata)
        described = await trio.to_thread.run_sync(quire, *words)
        assert b"ticks           up to " in described.stdout, described

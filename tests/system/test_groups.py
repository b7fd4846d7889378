"""Groups for real: processes that share a topic, are killed, paused, and replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from daemons import Daemon

from bookie.commands.standalone import ClusterStarted
from ledger_client import BadGroup, GroupConsumer, Options, blocking, connect
from metadata.groups.calls import GroupState

SMALL = ["memtable_size=10MiB", "journal_spares=0", "disk_reserve=0", "lease_ttl_s=2"]
DEADLINE_S = 90.0
ORDERS = "shop/orders"


class Shop:
    """A cluster, and processes that consume its topic."""

    def __init__(self, folder: Path, started: ClusterStarted) -> None:
        self.folder = folder
        self.started = started
        self.url = started.ready.removeprefix("ready ")
        self.consumers: list[Daemon] = []
        self._sent = 0

    def send(self, count: int) -> list[int]:
        """Send so many messages, and return their numbers."""
        numbers = range(self._sent, self._sent + count)
        with blocking.connect(self.url) as client, client.producer(ORDERS) as producer:
            for number in numbers:
                producer.send(b"%d" % number, key=b"%d" % number)
        self._sent += count
        return list(numbers)

    def consume(self, *words: str) -> Path:
        """Start a consumer, and return the file that it prints to."""
        output = self.folder / f"consumer-{len(self.consumers)}"
        command = ["consume", ORDERS, "--group", "billing", "--start", "earliest", *words]
        self.consumers.append(
            Daemon(
                *command,
                "--cluster",
                self.url,
                log=output.with_suffix(".log"),
                program=("-m", "ledger_client"),
                shell=f"exec > {output}",
            )
        )
        return output

    def state(self) -> GroupState:
        with blocking.connect(self.url) as client:
            return client.groups.describe("billing")

    def shared_by(self, count: int) -> Callable[[], bool]:
        def is_shared() -> bool:
            try:
                found = self.state()
            except BadGroup:
                return False
            parts = [sum(r.last - r.first + 1 for r in m.record.parts) for m in found.members]
            return found.state == "ready" and len(parts) == count and sum(parts) == 4

        return is_shared


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    folder = tmp_path / "cluster"
    options: list[str | Path | int] = ["--data", folder, "--port", 0, "--bookies", 3, "--json"]
    with Daemon("standalone", *options, *settings, log=tmp_path / "log") as daemon:
        shop = Shop(tmp_path, daemon.ready(ClusterStarted))
        with blocking.connect(shop.url) as client:
            client.topics.create(ORDERS, 4)
        try:
            yield shop
        finally:
            for consumer in shop.consumers:
                with consumer:
                    pass
        daemon.stop()


def numbers(output: Path) -> list[int]:
    """Return the messages that a consumer printed, without a line that is not complete."""
    return [int(line) for line in output.read_text().split("\n")[:-1]]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.real_processes
def test_processes_share_a_topic_and_take_over_from_those_that_are_killed_or_paused(
    shop: Shop,
) -> None:
    """TD-14, TD-15, TD-17, TD-30: everything comes, most of it once.

    A process that was paused beyond its session is a member again.
    """
    outputs = [shop.consume() for _ in range(3)]
    until(shop.shared_by(3))
    sent = shop.send(400)
    until(lambda: sorted(n for output in outputs for n in numbers(output)) == sent)
    assert all(numbers(output) for output in outputs)
    killed, paused = (shop.consumers[number].process for number in range(2))
    killed.kill()
    os.kill(paused.pid, signal.SIGSTOP)
    late = shop.send(400)
    sent += late
    until(lambda: {*numbers(outputs[2])} >= {*late})
    until(shop.shared_by(1))
    os.kill(paused.pid, signal.SIGCONT)
    until(shop.shared_by(2))
    sent += shop.send(200)
    until(lambda: {n for output in outputs for n in numbers(output)} == {*sent})


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.real_processes
def test_a_group_goes_on_after_its_leader_was_killed(shop: Shop) -> None:
    output = shop.consume()
    sent = shop.send(100)
    until(lambda: sorted(numbers(output)) == sent)
    with blocking.connect(shop.url) as client:
        led_by = client.cluster.status().leader
    assert led_by is not None
    leader = next(b for b in shop.started.bookies if b.bookie_id == led_by.bookie_id)
    os.kill(leader.process_id, signal.SIGKILL)
    sent += shop.send(100)
    until(lambda: {*numbers(output)} == {*sent})
    until(shop.shared_by(1))


@pytest.mark.slow
def test_an_interrupted_consumer_leaves_and_the_next_one_goes_on(shop: Shop) -> None:
    """TD-29, TD-41, TD-60: nothing is printed twice."""
    first = shop.consume()
    sent = shop.send(100)
    until(lambda: sorted(numbers(first)) == sent)
    shop.consumers[0].process.send_signal(signal.SIGINT)
    assert shop.consumers[0].process.wait(DEADLINE_S) == 130
    assert shop.state().members == []
    second = shop.consume("--limit", "50")
    sent = shop.send(50)
    assert shop.consumers[1].process.wait(DEADLINE_S) == 0
    assert sorted(numbers(second)) == sent
    state = msgspec.to_builtins(shop.state())
    assert (state["state"], state["mode"]) == ("empty", "exclusive")


def compute(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.slow
async def test_a_handler_may_block_the_event_loop_for_longer_than_requests_may_take(
    shop: Shop,
) -> None:
    """And for longer than a session. No request counts as unanswered, and nothing moves."""
    sent = shop.send(100)
    hasty = Options(request_timeout_s=3, read_timeout_s=3, metadata_timeout_s=3)
    async with connect(shop.url, options=hasty) as client:
        consumer = client.consumer(
            ORDERS, group="billing", start="earliest", session_s=6.0, beat_s=2.0
        )
        for opened in (client.reader(ORDERS, follow=True), consumer):
            found: list[int] = []
            async with opened as source:
                async for message in source:
                    found.append(int(message.value or b""))
                    if len(found) in {1, 90}:
                        compute(7 if len(found) == 1 else 4)
                    if len(found) == len(sent):
                        break
                if isinstance(source, GroupConsumer):
                    state = await client.groups.describe("billing")
                    assert (state.rebalances, len(state.members)) == (1, 1)
            assert sorted(found) == sent

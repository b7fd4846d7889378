"""A cluster whose metadata is in ZooKeeper, and what goes on while that is away."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from daemons import DEADLINE_S, Daemon
from ensemble import Ensemble, ensemble, new_path
from never_twice import never_twice

import ledger_client
from bookie.commands.standalone import ClusterStarted
from ledger_client import blocking
from ledger_client.errors import BadCut, LedgerError, MetadataUnavailable
from metadata.errors import VersionConflict
from metadata.store import ABSENT, Check
from metadata.topics import RollPolicy, topic_key

__all__ = ["ensemble"]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper")]
AWAY_S = 10.0
"""Longer than a session."""
T = TypeVar("T")
SESSIONS = 10
CHANGES = 3
CUTS = 3
ORDERS, RETURNS = "shop/orders", "shop/returns"


@pytest.fixture
def url(ensemble: Ensemble) -> Iterator[str]:
    """Yield the URL of a path in an ensemble that serves again afterwards."""
    yield ensemble.url(new_path())
    ensemble.start()
    ensemble.wait()


@pytest.fixture
def started(url: str, tmp_path: Path) -> Iterator[ClusterStarted]:
    words = ("standalone", "--data", tmp_path / "cluster", "--metadata", url)
    with Daemon(*words, "--port", 0, "--json", log=tmp_path / "log") as daemon:
        yield daemon.ready(ClusterStarted)


@pytest.mark.real_processes
async def test_open_ledgers_are_written_and_read_without_zookeeper_and_all_goes_on_with_it(
    ensemble: Ensemble, started: ClusterStarted
) -> None:
    async with ledger_client.connect(started.ready) as client:
        await client.topics.create("shop/orders")
        async with (
            client.producer("shop/orders") as producer,
            client.ledgers.create(ensemble_size=3) as ledger,
            client.ledgers.open(ledger.id, recover=False) as known,
            client.reader("shop/orders", follow=True) as follower,
        ):
            await producer.send(b"before")
            assert (await anext(follower)).value == b"before"
            await ledger.append(b"0")
            while known.last_confirmed < 0:  # the bookies hear of it a moment later
                await known.refresh()
            await trio.to_thread.run_sync(ensemble.kill, 0, 1)  # one is left, without a quorum
            until, is_alone = trio.current_time() + 2 * AWAY_S, True
            count = 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused, client)
                while trio.current_time() < until:
                    if is_alone and trio.current_time() > until - AWAY_S:
                        await trio.to_thread.run_sync(ensemble.kill)
                        is_alone = False
                    assert await ledger.append(b"%d" % count) == count
                    await producer.send(b"meanwhile")
                    assert (await anext(follower)).value == b"meanwhile"
                    assert (await known.read(0, 0))[0].payload == b"0"
                    count += 1
                    await trio.sleep(0.05)
            await trio.to_thread.run_sync(ensemble.start)
            await trio.to_thread.run_sync(ensemble.wait)
            with trio.fail_after(30):
                await resumed(client)
            await producer.send(b"after")
            assert await ledger.append(b"last") == count
        with never_twice():
            async with client.ledgers.open(ledger.id) as read:
                found = [bytes(entry.payload) for entry in await read.read(0, count)]
            assert found == [*(b"%d" % number for number in range(count)), b"last"]


async def refused(client: ledger_client.Client) -> None:
    with pytest.raises(LedgerError):
        await client.topics.create("shop/others")


async def resumed(client: ledger_client.Client) -> None:
    """Return once topics can be created again."""
    number = 0
    while True:
        try:
            await client.topics.create(f"shop/again-{number}")
        except LedgerError:
            number += 1
            await trio.sleep(0.5)
        else:
            return


async def test_a_client_finds_the_bookies_in_zookeeper(url: str, started: ClusterStarted) -> None:
    async with ledger_client.connect(url) as client:
        await client.topics.create("shop/orders")
        async with client.producer("shop/orders") as producer:
            await producer.send(b"direct")
        status = await client.cluster.status()
        assert len(status.bookies) == 3
    async with ledger_client.connect(started.ready) as client:
        assert [topic.name for topic in await client.topics.list()] == ["shop/orders"]


def test_a_zookeeper_that_is_away_or_has_no_cluster_is_told_by_every_command(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    """In one line, with what to look at; nothing is made."""
    away = "zk://127.0.0.1:1/none"
    empty = ensemble.url(new_path())
    archive = tmp_path / "house.jsonl"
    quire, bookie = ("-m", "ledger_client"), ("-m", "bookie")
    commands: dict[tuple[str | Path, ...], tuple[int, str]] = {
        (*quire, "topic", "list", "--cluster", away): (3, "no ZooKeeper answers in 10 s"),
        (*quire, "cluster", "status", "--cluster", away): (3, "no ZooKeeper answers in 10 s"),
        (*bookie, "standalone", "--data", tmp_path / "x", "--metadata", away): (
            3,
            "no ZooKeeper answers in 10 s",
        ),
        (*bookie, "metadata", "check", "--metadata", away): (3, "no ZooKeeper answers in 10 s"),
        (*bookie, "metadata", "export", archive, "--metadata", away): (
            3,
            "no ZooKeeper answers in 10 s",
        ),
        (*quire, "topic", "list", "--cluster", empty): (1, "holds no cluster: check the path"),
        (*bookie, "metadata", "check", "--metadata", empty): (1, "holds no cluster"),
        (*bookie, "metadata", "export", archive, "--metadata", empty): (1, "holds no cluster"),
    }
    running = {
        words: subprocess.Popen(
            [sys.executable, "-P", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for words in commands
    }
    for words, process in running.items():
        out, told = process.communicate(timeout=DEADLINE_S)
        code, why = commands[words]
        assert why in told.decode(), words
        assert told.decode().count("\n") == 1, told
        assert process.returncode == code, told
        assert out == b"", words
    assert not archive.exists()
    assert not list((tmp_path / "x").iterdir())


async def test_messages_have_one_order_with_zookeeper(started: ClusterStarted) -> None:
    """MV-20: a round of ticks makes sure of the lanes by a transaction, so none is missed.

    Lanes open and close all the time, while each acknowledged message is looked for at once.
    """
    async with (
        ledger_client.connect(started.ready) as one,
        ledger_client.connect(started.ready) as other,
    ):
        await one.topics.create("shop/orders", 2, timesync=True)
        sent: list[bytes] = []
        for number in range(SESSIONS):
            client = (one, other)[number % 2]
            async with client.producer("shop/orders") as producer:
                for part in range(2):
                    key = b"%d" % (2 * number + part)
                    await producer.send(b"x", key=key, partition=part)
                    sent.append(key)
                state = await other.topics.state("shop/orders", consistency="strong")
                assert sorted(state.messages) == sorted(sent)
        orders = []
        for client in (one, other):
            async with client.reader("shop/orders", order="timestamp") as reader:
                orders.append([message.key async for message in reader])
        assert orders == [sent, sent]


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that does no harm twice, on a machine that may be too busy for it."""
    with trio.fail_after(60):
        while True:
            with suppress(MetadataUnavailable):
                return await call()
            await trio.sleep(0.2)


async def test_ticks_wait_for_changes_of_the_topic_with_zookeeper(
    url: str, started: ClusterStarted
) -> None:
    """MV-02, MV-07: once a tick is there, no change with a timestamp up to it shows later."""
    seen: list[tuple[int, int]] = []
    changed: list[int] = []
    async with (
        ledger_client.connect(url) as watching,
        ledger_client.connect(started.ready) as changing,
    ):
        await changing.topics.create(ORDERS, 1, timesync=True)

        async def watch() -> None:
            while True:
                with suppress(LedgerError):  # the machine is busy
                    state = await watching.topics.state(ORDERS, consistency="eventual")
                    # A read of one server may be behind; that a key is absent is asked of all.
                    with suppress(VersionConflict):
                        await watching._context.store.transact([Check(topic_key(ORDERS), ABSENT)])
                    info = await watching.topics.info(ORDERS)
                    seen.append((state.timestamp.value, info.altered_timestamp))

        async with changing.producer(ORDERS) as producer, trio.open_nursery() as nursery:
            await producer.send(b"x", key=b"0")
            for _ in range(2):
                nursery.start_soon(watch)
            for number in range(CHANGES):
                made = await patiently(
                    partial(changing.topics.alter, ORDERS, partitions=number + 2)
                )
                changed.append(made.altered_timestamp)
                await patiently(partial(producer.send, b"x", key=b"%d" % number))
            await patiently(partial(changing.topics.state, ORDERS, consistency="strong"))
            with trio.fail_after(60):
                while not any(tick > changed[0] for tick, _ in seen):  # noqa: ASYNC110 - by tasks
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    assert changed == sorted(set(changed))
    late = [(tick, known) for tick, known in seen if any(known < at <= tick for at in changed)]
    assert late == []


async def test_what_a_cut_has_stays_while_others_remove_messages_with_zookeeper(
    url: str, started: ClusterStarted
) -> None:
    """D-02: cuts are made and deleted, and the ledgers purged, from three places at once."""
    async with (
        ledger_client.connect(url) as one,
        ledger_client.connect(started.ready) as other,
    ):
        for topic in (ORDERS, RETURNS):
            await one.topics.create(topic, timesync=True, roll=RollPolicy(entries=3))
        purged = 0

        async def purge(client: ledger_client.Client, topic: str) -> None:
            nonlocal purged
            while True:
                with suppress(MetadataUnavailable):  # the machine is busy
                    purged += len((await client.topics.purge(topic)).removed)
                await trio.sleep(0.05)

        async def send() -> None:
            async with one.producer(ORDERS) as orders, other.producer(RETURNS) as returns:
                for number in itertools.count():
                    for producer in (orders, returns):
                        await patiently(partial(producer.send, b"%d" % number))
                    await trio.sleep(0.03)  # what reads a cut has it all to read

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for client, topic in ((one, RETURNS), (other, ORDERS), (other, RETURNS)):
                nursery.start_soon(purge, client, topic)
            for number in range(CUTS):
                client, name = (one, other)[number % 2], f"cut-{number}"
                with suppress(BadCut):  # it is there, although the answer was late
                    await patiently(partial(client.cuts.create, name, [ORDERS, RETURNS]))
                first = await patiently(partial(rows_of, other, name))
                last = {topic: max(rows, default=-1) for topic, rows in first.items()}
                assert last[RETURNS] <= last[ORDERS] <= last[RETURNS] + 1
                await trio.sleep(0.3)
                assert await patiently(partial(rows_of, one, name)) == first
                with suppress(BadCut):
                    await patiently(partial(other.cuts.delete, name))
            with trio.fail_after(60):
                while not purged:  # noqa: ASYNC110 - by several tasks
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()


async def rows_of(client: ledger_client.Client, cut: str) -> dict[str, list[int]]:
    """Return the numbers that a cut has of both topics."""
    found: dict[str, list[int]] = {}
    for topic in (ORDERS, RETURNS):
        async with client.reader(topic, ending_cut=cut) as reader:
            found[topic] = [int(message.value or b"") async for message in reader]
    return found


def bookie(*words: str | Path) -> str:
    """Return what a command printed that succeeded."""
    done = subprocess.run(
        [sys.executable, "-m", "bookie", *map(str, words)],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cluster_moves_to_zookeeper_and_back(url: str, tmp_path: Path) -> None:
    """Its bookies keep their folders, and everything goes on: messages, numbers, ledger ids."""
    stores = [f"sqlite://{tmp_path}/old.db", url, f"sqlite://{tmp_path}/new.db"]
    sent: list[bytes] = []
    ledger_ids: list[int] = []
    for number, store in enumerate(stores):
        if number:
            path = tmp_path / f"house-{number}.jsonl"
            bookie("metadata", "export", path, "--metadata", stores[number - 1])
            bookie("metadata", "import", path, "--metadata", store)
            bookie("metadata", "check", "--metadata", store)
        words = ("standalone", "--data", tmp_path / "cluster", "--metadata", store)
        with Daemon(*words, "--port", 0, "--json", log=tmp_path / "log") as daemon:
            with blocking.connect(daemon.ready(ClusterStarted).ready) as client:
                sent.append(b"%d" % number)
                with client.producer(ORDERS, producer_name="one", create=True) as producer:
                    producer.send(sent[0], sequence=0)  # again, wherever it is
                    producer.send(sent[-1], sequence=number)
                with client.ledgers.create() as ledger:
                    ledger.append(sent[-1])
                ledger_ids.append(ledger.id)
                with client.reader(ORDERS) as reader:
                    assert [message.value for message in reader] == sent
                if store == url:
                    assert len(bookie("gc", "--cluster", url, "--json").splitlines()) == 3
                for ledger_id, payload in zip(ledger_ids, sent, strict=True):
                    with client.ledgers.open(ledger_id) as read:
                        assert [entry.payload for entry in read.read(0, 0)] == [payload]
            assert daemon.stop() == 0
    assert ledger_ids == sorted(set(ledger_ids))

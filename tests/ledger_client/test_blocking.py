"""The blocking calls, over a real thread that runs a cluster in memory."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from operator import length_hint
from pathlib import Path

import pytest
import trio
from ctrl_c import ctrl_c_when
from memory_cluster import memory_cluster
from prometheus_client import CollectorRegistry

from ledger_client import Client, EventTime, Message, Retention, Timestamp, blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import (
    BadAddress,
    ClientClosed,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchTopic,
    ProducerClosed,
    ReaderClosed,
)
from ledger_client.portal import Portal, _end_all
from metadata.records import LedgerState


@asynccontextmanager
async def client_and_cluster() -> AsyncIterator[Client]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        yield client


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    portal = Portal(client_and_cluster)
    yield BlockingClient(portal, portal.value)
    portal.close()


def test_what_a_client_counts_can_be_scraped(client: BlockingClient) -> None:
    registry = CollectorRegistry()
    registry.register(client.metrics)
    client.topics.create("s/t", replication=1)
    with client.producer("s/t") as producer:
        producer.send_many([b"one", b"two"])
    with client.reader("s/t") as reader:
        assert len(list(reader)) == 2
    for name in ("sent", "read"):
        value = registry.get_sample_value(f"quire_client_{name}_messages_total", {"topic": "s/t"})
        assert value == 2


def test_the_whole_life_of_a_ledger(client: BlockingClient) -> None:
    with client.ledgers.create(3, 3, 2) as ledger:
        assert ledger.append(b"one") == 0
        assert ledger.append_many(b"%d" % i for i in range(3)) == range(1, 4)
    with pytest.raises(LedgerClosed):
        ledger.append(b"late")
    with client.ledgers.open(ledger.id) as reader:
        assert reader.closed
        assert [e.payload for e in reader.read(0, 3)] == [b"one", b"0", b"1", b"2"]
        assert sum(len(batch) for batch in reader.read_batches(0, 3)) == 4
        assert [e.entry_id for e in reader.follow(1)] == [1, 2, 3]
        with pytest.raises(NoSuchEntry):
            reader.read(0, 4)
    assert [info.ledger_id for info in client.ledgers.list()] == [ledger.id]
    assert len(client.cluster.bookies()) == 3
    client.ledgers.delete(ledger.id)
    with pytest.raises(NoSuchLedger):
        client.ledgers.info(ledger.id)


def test_the_whole_life_of_a_topic(client: BlockingClient) -> None:
    made = client.topics.create("shop/orders", partitions=2, compression="zstd")
    assert client.topics.info("shop/orders") == made
    changed = client.topics.alter("shop/orders", partitions=3, retention=Retention(age_s=60))
    assert (changed.partitions, changed.retention.age_s) == (3, 60)
    assert client.topics.list("shop") == [changed]
    assert client.topics.explain("shop/orders").lanes == []
    assert client.topics.purge("shop/orders", before=EventTime(0)).removed == []
    client.topics.delete("shop/orders")
    with pytest.raises(NoSuchTopic):
        client.topics.info("shop/orders")


def test_a_forked_process_is_told_to_connect_again(client: BlockingClient) -> None:
    def fork_and_misuse() -> int:
        """Return the child's process id in the parent; in the child 0 if all was refused."""
        with client.ledgers.create() as ledger, client.producer("s/t") as producer:
            if child := os.fork():
                return child
            calls: list[Callable[[], object]] = [
                *(client.cluster.bookies, producer.flush, lambda: ledger.append(b"x")),
                *[lambda: producer.send(b"x")] * 2,
            ]
            for call in calls:
                try:
                    call()
                except RuntimeError as wrong:
                    assert "connect()" in str(wrong)
                else:
                    return -1
        client._portal.close()
        return 0

    client.topics.create("s/t", replication=1)
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork, the very point
        try:
            result = fork_and_misuse()
        except BaseException:
            if os.getpid() != parent:
                os._exit(2)
            raise
    if os.getpid() != parent:
        os._exit(0 if result == 0 else 1)
    assert exit_code_of(result) == 0
    assert len(client.cluster.bookies()) == 3, "the parent goes on"


def exit_code_of(child: int) -> int:
    """Wait for a child of this process; it is killed when it hangs."""
    alarm = threading.Timer(30, os.kill, (child, signal.SIGKILL))
    alarm.start()
    _, status = os.waitpid(child, 0)
    alarm.cancel()
    return os.waitstatus_to_exitcode(status)


def test_several_threads_share_a_client(client: BlockingClient) -> None:
    with client.ledgers.create() as ledger, ThreadPoolExecutor(8) as pool:
        ids = sorted(pool.map(ledger.append, [b"x"] * 200))
    assert ids == list(range(200))


def test_a_follower_in_one_thread_sees_what_another_writes(client: BlockingClient) -> None:
    with (
        client.ledgers.create() as ledger,
        client.ledgers.open(ledger.id, recover=False) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        seen = pool.submit(lambda: [entry.payload for entry in reader.follow(0)])
        for i in range(5):
            ledger.append(b"%d" % i)
        ledger.close()
        assert seen.result(timeout=10) == [b"0", b"1", b"2", b"3", b"4"]


def test_ctrl_c_ends_a_call_and_leaves_the_client_usable(client: BlockingClient) -> None:
    with client.ledgers.create() as ledger, client.ledgers.open(ledger.id, recover=False) as reader:
        # Nothing says that a call waits, so some time must do.
        with ctrl_c_when(partial(time.sleep, 0.2)), pytest.raises(KeyboardInterrupt):
            list(reader.follow(0))
        assert ledger.append(b"still there") == 0


def test_an_error_in_the_block_closes_the_ledger_and_comes_out_as_it_is(
    client: BlockingClient,
) -> None:
    with pytest.raises(KeyError), client.ledgers.create() as ledger:
        ledger.append(b"x")
        raise KeyError
    assert client.ledgers.info(ledger.id).last_entry == 0


def test_a_closed_client_refuses_calls_and_ends_those_under_way() -> None:
    portal = Portal(client_and_cluster)
    client = BlockingClient(portal, portal.value)
    with client.ledgers.create() as ledger:
        pass
    portal.close()
    with pytest.raises(ClientClosed, match="connect again"):
        client.ledgers.info(ledger.id)


def test_a_producer_of_a_closed_client_refuses_every_send() -> None:
    portal = Portal(client_and_cluster)
    client = BlockingClient(portal, portal.value)
    client.topics.create("s/t", replication=1)
    with client.producer("s/t") as producer:
        pass
    portal.close()
    with ThreadPoolExecutor(4) as pool:
        sends = [pool.submit(producer.send, b"late") for _ in range(20)]
        for send in sends:
            with pytest.raises(ClientClosed, match="connect again"):
                send.result(timeout=5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_are_refused_while_a_crashed_client_still_cleans_up() -> None:
    cleaning = threading.Event()

    async def crash() -> None:
        raise KeyError("a bug")

    @asynccontextmanager
    async def crashing() -> AsyncIterator[trio.Nursery]:
        try:
            async with trio.open_nursery() as nursery:
                yield nursery
        finally:
            cleaning.set()
            with trio.CancelScope(shield=True):
                await trio.sleep(0.5)

    portal = Portal(crashing)
    portal.call_sync(portal.value.start_soon, crash)
    assert cleaning.wait(5)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(portal.call, trio.sleep, 0)
        with pytest.raises(RuntimeError, match="closed"):
            call.result(timeout=5)
    portal.close()


def test_what_fails_on_opening_is_raised() -> None:
    with pytest.raises(BadAddress), blocking.connect("nonsense://"):
        pass


# --- without a block --------------------------------------------------------------------


def test_a_client_without_a_block_is_open_until_close(tmp_path: Path) -> None:
    client = blocking.connect(f"sqlite://{tmp_path}/metadata.db")
    assert client.topics.list() == []
    client.close()
    client.close()  # harmless
    with pytest.raises(ClientClosed, match="connect again"):
        client.topics.list()


def test_what_was_opened_without_a_block_is_closed_with_its_client() -> None:
    portal = Portal(client_and_cluster)
    client = BlockingClient(portal, portal.value)
    client.topics.create("s/t", replication=1)
    producer = client.producer("s/t", linger_ms=60_000)
    ticket = producer.send_nowait(b"one")
    left_open = client.producer("s/t")
    producer.close()
    producer.close()  # harmless
    assert ticket.done
    with pytest.raises(ProducerClosed, match="open another"):
        producer.send(b"two")
    reader = client.reader("s/t")
    assert [message.value for message in reader] == [b"one"]
    reader.close()
    with pytest.raises(ReaderClosed, match="open another"):
        next(reader)
    late = left_open.send_nowait(b"three")
    client.close()
    left_open.close()  # harmless, too
    assert late.done
    with pytest.raises(ClientClosed):
        left_open.send(b"four")


def test_a_producer_that_is_dropped_warns_and_frees_its_lane(client: BlockingClient) -> None:
    client.topics.create("s/t", replication=1)
    producer = client.producer("s/t", access="exclusive")
    producer.send(b"one")
    with pytest.warns(ResourceWarning, match="the producer was not closed"):
        del producer
        gc.collect()
    with client.producer("s/t", access="wait") as producer:
        producer.send(b"two")


def test_a_client_that_is_dropped_warns_and_ends_its_thread(tmp_path: Path) -> None:
    client = blocking.connect(f"sqlite://{tmp_path}/metadata.db")
    topics, thread = client.topics, client._portal.thread
    del client
    assert topics.list() == []  # still in use
    with pytest.warns(ResourceWarning, match="the client was not closed"):
        del topics
        gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_the_end_of_a_program_closes_what_was_not_closed(tmp_path: Path) -> None:
    client = blocking.connect(f"sqlite://{tmp_path}/metadata.db")
    with pytest.warns(ResourceWarning, match="the client was not closed"):
        _end_all()
    client._portal.thread.join(5)
    with pytest.raises(ClientClosed):
        client.topics.list()


class SlowToOpen:
    """A resource that never opens. It says which thread tried, and whether it was left."""

    def __init__(self) -> None:
        self.opening, self.is_left = threading.Event(), False
        self.thread: threading.Thread | None = None

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        self.thread = threading.current_thread()
        self.opening.set()
        try:
            await trio.sleep(math.inf)
        finally:
            self.is_left = True
        yield

    def check_over(self) -> None:
        assert self.thread is not None
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.is_left


def test_ctrl_c_while_a_client_opens_leaves_no_thread() -> None:
    slow = SlowToOpen()
    with ctrl_c_when(partial(slow.opening.wait, 60)), pytest.raises(KeyboardInterrupt):
        Portal(slow)
    slow.check_over()


def test_ctrl_c_while_the_thread_of_a_client_starts_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowToOpen()
    start = threading.Thread.start

    def start_and_be_interrupted(thread: threading.Thread) -> None:
        start(thread)
        assert slow.opening.wait(60)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            Portal(slow)
    slow.check_over()


def test_what_comes_one_by_one_keeps_its_reader_open(client: BlockingClient) -> None:
    client.topics.create("s/t", replication=1)
    with client.producer("s/t") as producer:
        producer.send(b"one")
    batches = client.reader("s/t").read_batches()
    gc.collect()
    assert [batch.num_rows for batch in batches] == [1]
    with client.ledgers.create() as ledger:
        ledger.append(b"an entry")
    follower = client.ledgers.open(ledger.id).follow()
    gc.collect()
    assert [entry.payload for entry in follower] == [b"an entry"]
    with pytest.warns(ResourceWarning, match="the reader was not closed") as warned:
        del batches, follower
        gc.collect()
    assert len(warned) == 2


def test_a_ledger_that_could_not_be_sealed_may_be_closed_again(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = client.ledgers.create()
    ledger.append(b"an entry")

    async def fail() -> None:
        raise MetadataUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._inner._driver, "close", fail)
        with pytest.raises(MetadataUnavailable):
            ledger.close()
    assert client.ledgers.info(ledger.id).state is LedgerState.OPEN
    ledger.close()
    assert client.ledgers.info(ledger.id).last_entry == 0
    ledger.close()  # harmless
    unsealed = client.ledgers.create()
    unsealed.close(wait=False)
    assert client.ledgers.info(unsealed.id).state is LedgerState.CLOSED


def test_closing_a_client_ends_what_another_thread_opens() -> None:
    portal = Portal(client_and_cluster)
    client = BlockingClient(portal, portal.value)
    client.topics.create("s/t", replication=1)
    other = client.producer("s/t", access="exclusive")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.producer, "s/t", access="wait")
        while len(portal.value._opened._held) < 2:
            time.sleep(0.01)
        client.close()
        with pytest.raises(ClientClosed):
            waiting.result(timeout=60)
    other.close()  # harmless


@pytest.mark.parametrize("call", ["position", "lag", "pause", "read_batches"])
def test_no_message_is_passed_over_that_a_thread_fetches_during_a_call(
    call: str, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not returned is given back in one step with the call."""
    client.topics.create("s/t")
    values = [b"%d" % number for number in range(9)]
    with client.producer("s/t", batch_messages=3) as producer:
        producer.send_many(values)
    with client.reader("s/t") as reader:
        assert next(reader).value == b"0"
        portal, trips = reader._portal, 0

        def fetch_between() -> None:
            """Do what a thread does that finds nothing at hand."""
            nonlocal trips
            trips += 1
            if trips > 1:
                Portal.call(portal, reader._fetch)

        def call_async(*args: object) -> object:
            fetch_between()
            return Portal.call(portal, *args)  # type: ignore[arg-type]

        def call_sync(*args: object) -> object:
            fetch_between()
            return Portal.call_sync(portal, *args)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(portal, "call", call_async)
            patch.setattr(portal, "call_sync", call_sync)
            found = getattr(reader, call)()
        if call == "position":
            with client.reader("s/t", start=found) as again:
                assert [message.value for message in again] == values[1:]
        if call == "lag":
            assert found[0].messages == 8
        reader.resume()
        assert [message.value for message in reader] == values[1:]


def test_a_message_that_a_thread_takes_during_a_call_does_not_come_again(
    client: BlockingClient,
) -> None:
    client.topics.create("s/t")
    with client.producer("s/t") as producer:
        producer.send_many([b"0", b"1", b"2"])
    taken: list[bytes | None] = []
    with client.reader("s/t") as reader:
        taken.append(next(reader).value)

        class Racing:
            """The messages at hand, of which a thread takes one just before they are counted."""

            def __init__(self, ready: Iterator[Message]) -> None:
                self._ready = ready

            def __iter__(self) -> Iterator[Message]:
                return self

            def __next__(self) -> Message:
                return next(self._ready)

            def __length_hint__(self) -> int:
                left = length_hint(self._ready)
                taken.extend(message.value for message in islice(self._ready, 1))
                return left

        reader._ready = Racing(reader._ready)
        reader.position()
        taken += [message.value for message in reader]
    assert taken == [b"0", b"1", b"2"]


def test_what_is_left_of_a_pull_is_not_merged_again(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topics.create("s/t")
    with client.producer("s/t") as producer:
        producer.send_many([b"%d" % number for number in range(10)])
    with client.reader("s/t") as reader:
        given_back: list[int] = []
        monkeypatch.setattr(
            reader._inner._merged, "give_back", lambda _, count, **__: given_back.append(count)
        )
        found = [message.value for _ in range(4) for message in reader.next_messages(3)]
    assert found == [b"%d" % number for number in range(10)]
    assert given_back == []


def test_the_tick_is_that_before_messages_that_were_not_returned(client: BlockingClient) -> None:
    client.topics.create("s/t")
    with client.producer("s/t") as producer:
        producer.send_many([b"one", b"two"])
    with client.reader("s/t") as reader:
        next(reader)
        batch = reader._inner._batch
        assert batch is not None
        reader._inner._batch = batch._replace(tick=9, tick_before=4)
        reader._inner._merged.order.tick = 9
        assert reader.tick == Timestamp(4)
        next(reader)
        assert reader.tick == Timestamp(9)


def test_a_call_with_tasks_of_its_own_learns_that_its_client_was_closed(
    client: BlockingClient,
) -> None:
    """Its nursery ends with a group of cancellations."""

    async def wait_in_tasks() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client._portal.call, wait_in_tasks)
        time.sleep(0.1)
        client.close()
        with pytest.raises(ClientClosed):
            call.result(60)

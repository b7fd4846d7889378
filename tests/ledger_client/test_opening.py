"""What is opened without a block: held until close(), in a home that crashes nothing."""

from __future__ import annotations

import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import pytest
import trio
import trio.testing
from memory_cluster import memory_cluster
from trio.testing import MockClock

import ledger_client
from ledger_client import Client, MessageId
from ledger_client.errors import (
    ClientClosed,
    Gap,
    LedgerError,
    MemberRemoved,
    NoSuchLedger,
    NoSuchTopic,
    NotOpen,
    ProducerClosed,
    ReaderClosed,
)
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.opening import Held, Opened, Opening, SystemTasks
from ledger_client.topics.reading.reader import TopicReader

TOPIC = "shop/orders"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A cluster without bookies."""
    return f"sqlite://{tmp_path}/metadata.db"


class Steps(list[str]):
    """Notes when a block is entered and how it is left."""

    @asynccontextmanager
    async def block(self, name: str, *, enters: bool = True) -> AsyncIterator[str]:
        try:
            if not enters:
                await trio.sleep_forever()
            self.append(f"enter {name}")
            yield name
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.append(f"cancel {name}")
            raise
        self.append(f"leave {name}")


async def test_a_client_is_open_from_await_to_close(url: str) -> None:
    client = await ledger_client.connect(url)
    topics = client.topics
    assert await topics.list() == []
    await client.close()
    await client.close()  # harmless
    with pytest.raises(ClientClosed, match="the client is closed; connect again") as closed:
        _ = client.topics
    assert isinstance(closed.value, LedgerError)
    with pytest.raises(ClientClosed):
        client.producer(TOPIC)
    with pytest.raises(LedgerError, match="closed"):
        await topics.list()


async def test_a_client_of_a_block_refuses_calls_after_it(url: str) -> None:
    async with ledger_client.connect(url) as client:
        assert await client.topics.list() == []
    with pytest.raises(ClientClosed):
        await client.cluster.bookies()


async def test_what_was_opened_without_a_block_is_closed_with_its_client() -> None:
    async with memory_cluster(3) as cluster, cluster.client() as reading:
        async with cluster.client() as client:
            await client.topics.create(TOPIC)
            producer = await client.producer(TOPIC, linger_ms=60_000)
            ledger = await client.ledgers.create()
            await ledger.append(b"an entry")
            producer.send_nowait(b"one")
            await client.close()
            with pytest.raises(ProducerClosed, match="open another"):
                await producer.send(b"two")
            await producer.close()  # harmless
        async with reading.reader(TOPIC) as reader:
            assert [message.value async for message in reader] == [b"one"]
        assert (await reading.ledgers.info(ledger.id)).last_entry == 0


async def test_a_producer_and_a_reader_are_closed_on_their_own() -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        producer = await client.producer(TOPIC)
        await producer.send(b"one")
        await producer.close()
        await producer.close()
        reader = await client.reader(TOPIC)
        assert [message.value async for message in reader] == [b"one"]
        await reader.close()
        await reader.close()
        for call in (reader.next_messages, lambda: reader.seek("earliest"), reader.wait_caught_up):
            with pytest.raises(ReaderClosed, match="open another"):
                await call()
        assert client._opened._held == {}


async def test_a_task_that_waits_learns_that_its_reader_or_consumer_is_closed(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(TOPIC)
        reader = await client.reader(TOPIC, follow=True)
        consumer = await client.consumer(TOPIC, group="g")
        learnt: list[type[Exception]] = []

        async def take(anything: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises((ReaderClosed, MemberRemoved), match="open another") as closed:
                await anything()
            learnt.append(type(closed.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, reader.__anext__)
            nursery.start_soon(take, consumer.__anext__)
            await trio.sleep(1)
            await reader.close()
            await consumer.close()
        assert set(learnt) == {ReaderClosed, MemberRemoved}


async def test_a_reader_of_a_block_is_closed_after_it() -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.reader(TOPIC, follow=True) as reader:
            pass
        with pytest.raises(ReaderClosed):
            await anext(reader)


# --- what is not open yet ---------------------------------------------------------------


async def test_a_forgotten_await_or_block_gets_a_sentence(url: str) -> None:
    forgotten: Opening[Client] = ledger_client.connect(url)
    sentence = (
        r"the client is not open yet: write `client = await connect\(\.\.\.\)`, "
        r"or `async with connect\(\.\.\.\) as client:`"
    )
    with pytest.raises(NotOpen, match=sentence):
        _ = forgotten.topics  # type: ignore[attr-defined]
    with pytest.raises(NotOpen, match=sentence), forgotten:  # type: ignore[attr-defined]
        pass
    assert not hasattr(forgotten, "topics")
    async with ledger_client.connect(url) as client:
        reader: Opening[TopicReader] = client.reader(TOPIC)
        with pytest.raises(NotOpen, match=r"reader = await client\.reader\(\.\.\.\)"):
            async for _ in reader:  # type: ignore[attr-defined]
                pass


async def test_what_was_opened_cannot_be_opened_again(url: str) -> None:
    opening = ledger_client.connect(url)
    async with opening:
        pass
    with pytest.raises(NotOpen, match="opened before"):
        await opening


# --- cancellations and errors -----------------------------------------------------------


async def test_a_cancelled_opening_leaves_nothing_open() -> None:
    steps = Steps()
    async with trio.open_nursery() as nursery, Opened(nursery) as opened:
        held = Held(steps.block("slow", enters=False), opened)
        with trio.CancelScope() as scope:
            scope.cancel()
            await held.enter()
        assert scope.cancelled_caught
        assert opened._held == {}
    assert steps == ["cancel slow"]


async def test_all_is_closed_the_latest_first_and_the_first_error_is_raised() -> None:
    steps = Steps()

    @asynccontextmanager
    async def failing() -> AsyncIterator[None]:
        yield
        raise LedgerError("cannot close")

    async with trio.open_nursery() as nursery:
        with pytest.raises(LedgerError, match="cannot close"):
            async with Opened(nursery) as opened:
                await Held(steps.block("first"), opened).enter()
                await Held(failing(), opened).enter()
                await Held(steps.block("last"), opened).enter()
    assert steps == ["enter first", "enter last", "leave last", "leave first"]


async def test_a_cancelled_close_ends_the_block_as_a_cancellation_does() -> None:
    steps = Steps()
    async with trio.open_nursery() as nursery, Opened(nursery) as opened:
        held = Held(steps.block("it"), opened)
        await held.enter()
        await Held(steps.block("other"), opened).enter()
        with trio.CancelScope() as scope:
            scope.cancel()
            await opened.close()
        assert scope.cancelled_caught
        await held.leave()  # harmless
    assert sorted(steps[2:]) == ["cancel it", "cancel other"]


async def test_a_gap_that_ends_a_block_is_logged_if_another_error_comes_in_its_place(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    gap = Gap(TOPIC, partition=0, lane=0, position=MessageId(1, 0, 0, 0), first=None, missing=1)

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        yield
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        raise gap

    async with trio.open_nursery() as nursery, Opened(nursery) as opened:
        held = Held(block(), opened)
        await held.enter()
        with trio.move_on_after(0.5):
            await held.leave()
        assert caplog.text.count("nobody saw it") == 1
        caplog.clear()
        held = Held(block(), opened)
        await held.enter()
        with pytest.raises(Gap):
            await held.leave()
        held.log_unseen(gap)
        assert not caplog.text
        held.log_unseen(KeyboardInterrupt())
        held.log_unseen(KeyboardInterrupt())
        assert caplog.text.count("nobody saw it") == 1


async def test_an_error_in_the_block_of_a_client_cancels_what_it_opened() -> None:
    steps = Steps()
    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError):
            async with Opened(nursery) as opened:
                await Held(steps.block("it"), opened).enter()
                raise KeyError
    assert steps == ["enter it", "cancel it"]


async def test_a_crash_in_the_background_reaches_the_calls_and_not_the_run(url: str) -> None:
    client = await ledger_client.connect(url)

    async def crash() -> None:
        raise KeyError("a bug")

    client._context.nursery.start_soon(crash)
    await trio.testing.wait_all_tasks_blocked(0.05)
    with pytest.raises(ClientClosed) as closed:
        _ = client.topics
    assert isinstance(closed.value.__cause__, ExceptionGroup)
    with pytest.raises(ExceptionGroup) as crashed:
        await client.close()
    assert crashed.group_contains(KeyError)
    await client.close()


def test_ctrl_c_in_the_background_reaches_the_main_task(url: str) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        client = await ledger_client.connect(url)
        client._context.nursery.start_soon(interrupted)
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


def test_ctrl_c_in_the_background_ends_the_client_under_a_handler_that_raises(url: str) -> None:
    """As that of PySpark, which raises in whatever runs: trio could not go on."""

    async def interrupted() -> None:
        raise KeyboardInterrupt

    def handler(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        raise KeyboardInterrupt

    async def main() -> None:
        client = await ledger_client.connect(url)
        client._context.nursery.start_soon(interrupted)
        assert client._held is not None
        await client._held._ended.wait()
        with pytest.raises(ClientClosed):
            _ = client.topics

    caught: list[int] = []
    signal.signal(signal.SIGINT, handler)
    trio.run(main)
    assert caught == [signal.SIGINT]


# --- leaks ------------------------------------------------------------------------------


def test_a_client_that_was_never_closed_warns_and_lets_the_run_end(url: str) -> None:
    kept: list[Client] = []

    async def main() -> None:
        kept.append(await ledger_client.connect(url))

    with pytest.warns(ResourceWarning, match="the client was not closed") as warned:
        trio.run(main)
    assert len(warned) == 1
    with pytest.raises(ClientClosed):
        _ = kept[0].topics


async def test_a_client_that_is_dropped_warns_and_is_closed(url: str) -> None:
    client = await ledger_client.connect(url)
    held = client._held
    assert held is not None
    with pytest.warns(ResourceWarning, match="the client was not closed") as warned:
        del client
        gc.collect()
    with trio.fail_after(5):
        await held._ended.wait()
    assert len(warned) == 1


async def test_a_client_stays_while_something_that_it_opened_is_open() -> None:
    async with memory_cluster(3) as cluster, cluster.context() as context:
        client = Client(context)
        await client.topics.create(TOPIC)
        producer = await client.producer(TOPIC)
        owner = client._opened.owner
        del client
        gc.collect()
        assert owner() is not None
        await producer.close()
        gc.collect()
        assert owner() is None


# --- closed by somebody else ------------------------------------------------------------


async def test_closing_cancels_what_is_still_opening(autojump_clock: MockClock) -> None:
    steps = Steps()

    async def open_slowly() -> None:
        with pytest.raises(ClientClosed, match="closed meanwhile"):
            await Held(steps.block("slow", enters=False), opened).enter()
        steps.append("refused")

    async with trio.open_nursery() as nursery, Opened(nursery) as opened:
        nursery.start_soon(open_slowly)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            await opened.close()
    assert steps == ["cancel slow", "refused"]


async def test_what_is_closed_as_it_opens_goes_to_nobody(autojump_clock: MockClock) -> None:
    """As with a client that is closed before the task that opens it runs again."""
    async with trio.open_nursery() as nursery, Opened(nursery) as opened:

        @asynccontextmanager
        async def closing() -> AsyncIterator[None]:
            nursery.start_soon(opened.close)
            await trio.testing.wait_all_tasks_blocked()
            yield

        with pytest.raises(ClientClosed):
            await Held(closing(), opened).enter()


async def test_closing_a_client_does_not_wait_for_access_to_a_topic(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as other:
        await other.topics.create(TOPIC)
        async with other.producer(TOPIC, access="exclusive"), cluster.client() as client:

            async def wait_for_access() -> None:
                with pytest.raises(ClientClosed):
                    await client.producer(TOPIC, access="wait")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_access)
                await trio.sleep(5)
                with trio.fail_after(60):
                    await client.close()


@pytest.mark.parametrize("by", ["client", "itself"])
async def test_a_crash_of_what_is_held_is_raised_once_by_the_close_that_comes_first(
    by: str,
) -> None:
    @asynccontextmanager
    async def crashing() -> AsyncIterator[None]:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(crash)
            yield

    async def crash() -> None:
        raise KeyError("a bug")

    async with trio.open_nursery() as nursery:
        opened = Opened(nursery)
        held = Held(crashing(), opened)
        await held.enter()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ExceptionGroup) as crashed:
            await (opened.close() if by == "client" else held.leave())
        assert crashed.group_contains(KeyError)
        await held.leave()
        await opened.close()
        assert opened._held == {}


async def test_a_failing_callback_of_a_consumer_is_raised_by_the_end_of_the_client(
    autojump_clock: MockClock,
) -> None:
    def fail(_: object) -> None:
        raise KeyError("a bug of the application")

    async with memory_cluster(3) as cluster:
        cluster.lead("b1")
        async with cluster.client() as client:
            await client.topics.create(TOPIC)
            await client.consumer(TOPIC, group="g", on_assigned=fail)
            await trio.sleep(10)
            with pytest.raises(ExceptionGroup) as crashed:
                await client.close()
            assert crashed.group_contains(KeyError)
            await client.close()  # harmless


@pytest.mark.parametrize("closes", ["itself", "all"])
async def test_a_task_may_close_what_it_is_part_of(closes: str, autojump_clock: MockClock) -> None:
    """The end of the block waits for the task, so the task cannot wait for the end."""
    async with trio.open_nursery() as nursery:
        opened = Opened(nursery)

        @asynccontextmanager
        async def with_task() -> AsyncIterator[None]:
            async with trio.open_nursery() as tasks:
                tasks.start_soon(close)
                yield
                tasks.cancel_scope.cancel()

        async def close() -> None:
            await trio.sleep(1)
            await (held.leave() if closes == "itself" else opened.close())

        held = Held(with_task(), opened)
        await held.enter()
        with trio.fail_after(60):
            await held._ended.wait()
        await opened.close()


async def test_a_task_may_close_all_while_what_it_is_part_of_opens(
    autojump_clock: MockClock,
) -> None:
    steps = Steps()

    @asynccontextmanager
    async def closing() -> AsyncIterator[None]:
        await opened.close()
        async with steps.block("rest of the opening", enters=False):
            yield

    async with trio.open_nursery() as nursery:
        opened = Opened(nursery)
        with pytest.raises(ClientClosed):
            await Held(closing(), opened).enter()
        assert opened._held == {}
    assert steps == ["cancel rest of the opening"]


async def test_a_consumer_may_be_closed_by_its_own_callback(autojump_clock: MockClock) -> None:
    consumers: list[GroupConsumer] = []

    async def close(_: object) -> None:
        await consumers[0].close()

    async with memory_cluster(3) as cluster:
        cluster.lead("b1")
        async with cluster.client() as client:
            await client.topics.create(TOPIC)
            consumers.append(await client.consumer(TOPIC, group="g", on_revoked=close))
            await trio.sleep(10)
            with trio.fail_after(60):
                await client.topics.delete(TOPIC, force=True)
                with pytest.raises((MemberRemoved, NoSuchTopic)):
                    while True:
                        await consumers[0].poll(wait_s=5)
                await client.close()


async def test_a_callback_may_close_the_client_and_what_was_sent_is_kept(
    autojump_clock: MockClock,
) -> None:
    """The consumer is closed first, which cancels the callback; the producer is flushed then."""
    clients: list[Client] = []

    async def close(_: object) -> None:
        await clients[0].close()

    @asynccontextmanager
    async def connected() -> AsyncIterator[Client]:
        async with cluster.context() as context, Opened(context.nursery) as opened:
            yield Client(context, opened)

    async with memory_cluster(3) as cluster:
        cluster.lead("b1")
        async with cluster.client() as other:
            await other.topics.create(TOPIC)
            await other.topics.create("shop/results")
            client = await Opening(
                connected(), SystemTasks("client"), what="client", call="connect()"
            )
            clients.append(client)
            producer = await client.producer("shop/results", linger_ms=60_000)
            consumer = await client.consumer(TOPIC, group="g", on_revoked=close)
            await trio.sleep(10)
            producer.send_nowait(b"one")
            await other.topics.delete(TOPIC, force=True)
            with trio.fail_after(60), pytest.raises(LedgerError):
                while True:
                    await consumer.poll(wait_s=5)
            await client.close()
            async with other.reader("shop/results") as reader:
                assert [message.value async for message in reader] == [b"one"]


async def test_who_closes_it_too_is_told_that_the_close_was_cancelled() -> None:
    """Else it would believe that everything was flushed."""
    steps = Steps()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        yield
        async with steps.block("the flush", enters=False):
            pass

    async with trio.open_nursery() as nursery:
        opened = Opened(nursery)
        held = Held(slow(), opened)
        await held.enter()
        first = trio.CancelScope()

        async def close_first() -> None:
            with first:
                await held.leave()

        async def close_too() -> None:
            with pytest.raises(ClientClosed, match=r"another close\(\) was cancelled"):
                await opened.close()

        nursery.start_soon(close_first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(close_too)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
    assert steps == ["cancel the flush"]


async def test_a_ledger_that_cannot_be_closed_is_let_go() -> None:
    """Another client deleted it: the error is raised here, and not by the client once more."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        writer = await client.ledgers.create()
        await writer.append(b"one")
        async with cluster.client() as other:
            await other.ledgers.delete(writer.id)
        for _ in range(2):
            with pytest.raises(NoSuchLedger):
                await writer.close()
        assert writer._held is not None
        assert writer._held.is_left
        await client.close()

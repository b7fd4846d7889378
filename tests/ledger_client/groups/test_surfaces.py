"""Consumers of threads and of asyncio, over a real thread that runs a cluster in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import NoReturn, TypeVar

import pytest
from loop_rig import open_portal
from memory_cluster import memory_cluster

from ledger_client import (
    Client,
    CommitRefused,
    Gap,
    MemberRemoved,
    Message,
    MessageId,
    NoSuchTopic,
    TopicPartition,
)
from ledger_client.aio import AioClient, AioGroupConsumer
from ledger_client.blocking import BlockingClient, BlockingGroupConsumer
from ledger_client.groups.consumer import GroupConsumer, note_unseen
from ledger_client.portal import Portal

TOPIC = "shop/orders"
R = TypeVar("R")


@asynccontextmanager
async def client_and_cluster() -> AsyncIterator[Client]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(TOPIC)
        yield client


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    portal = Portal(client_and_cluster)
    yield BlockingClient(portal, portal.value)
    portal.close()


def send(client: BlockingClient, *values: bytes) -> None:
    with client.producer(TOPIC) as producer:
        producer.send_many(values)


def test_a_thread_consumes_with_every_call(client: BlockingClient) -> None:
    send(client, *(b"%d" % number for number in range(10)))
    told: list[tuple[str, Sequence[TopicPartition], threading.Thread]] = []
    consumers: list[BlockingGroupConsumer] = []

    def assigned(parts: Sequence[TopicPartition]) -> None:
        told.append(("assigned", parts, threading.current_thread()))
        consumers[0].pause(parts)  # a call from the thread in which it runs
        consumers[0].resume(parts)

    with client.consumer(
        TOPIC, group="billing", start="earliest", auto_commit_s=None, on_assigned=assigned
    ) as consumer:
        consumers.append(consumer)
        assert next(iter(consumer)).value == b"0"
        assert [each.value for each in consumer.poll(messages_max=3)] == [b"1", b"2", b"3"]
        (batch,) = consumer.poll_batches(messages_max=2)
        assert batch.column("value").to_pylist() == [b"4", b"5"]
        consumer.commit_nowait()
        consumer.commit()
        (lane,) = consumer.lag()
        assert lane.committed == lane.position
        assert consumer.position() == consumer.committed()
    ((kind, parts, thread),) = told
    assert (kind, parts) == ("assigned", [TopicPartition(TOPIC, -1)])
    assert thread not in (threading.main_thread(), client._portal.thread)


def values(messages: Iterable[Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


def skipped(consumer: BlockingGroupConsumer) -> int:
    """Return how many messages of the only batch lie before the consumer's position."""
    (place,) = consumer.position()
    return place.place.skip


def test_messages_that_have_arrived_are_taken_without_a_call(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them counts as handed out at once, and as consumed when the next one is taken."""
    send(client, *(b"%d" % number for number in range(10)))
    with client.consumer(TOPIC, group="billing", start="earliest", auto_commit_s=None) as consumer:
        assert values([next(consumer)]) == [0]
        with monkeypatch.context() as patch:
            patch.setattr(Portal, "call", None)
            assert values(islice(consumer, 4)) == [1, 2, 3, 4]
        assert skipped(consumer) == 5
        consumer._portal.call(consumer._inner._delivery.commit_consumed)
        (lane,) = consumer.committed()
        assert lane.place.skip == 4
        assert values(consumer.poll()) == [5, 6, 7, 8, 9]


def test_what_is_withheld_while_a_thread_takes_messages_comes_once(client: BlockingClient) -> None:
    send(client, *(b"%d" % number for number in range(10)))
    with client.consumer(TOPIC, group="billing", start="earliest", auto_commit_s=None) as consumer:
        assert values(islice(consumer, 3)) == [0, 1, 2]
        consumer.pause()
        assert skipped(consumer) == 3
        threading.Timer(0.3, consumer.resume).start()
        assert values(islice(consumer, 2)) == [3, 4]
        consumer.commit()
    with pytest.raises(MemberRemoved):
        next(consumer)
    with client.consumer(TOPIC, group="billing") as consumer:
        assert values(islice(consumer, 5)) == [5, 6, 7, 8, 9]


def test_threads_lose_nothing_to_pauses_at_any_moment(client: BlockingClient) -> None:
    count = 20_000
    send(client, *(b"%d" % number for number in range(count)))
    with client.consumer(TOPIC, group="billing", start="earliest", auto_commit_s=0) as consumer:
        ended = threading.Event()

        def disturb() -> None:
            while not ended.wait(0.002):
                consumer.pause()
                consumer.resume()

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            assert values(islice(consumer, count)) == list(range(count))
        finally:
            ended.set()
            disturber.join()


@pytest.mark.parametrize("is_async", [False, True])
def test_on_revoked_is_known_by_the_calls_that_it_makes(is_async: bool) -> None:
    """Its commit() leaves out what the application is at work on."""
    seen: list[object] = []

    def revoking(consumer: AioGroupConsumer | BlockingGroupConsumer) -> object:
        return consumer._call_sync(consumer._inner._partitions.telling.revoking)

    async def in_loop(client: AioClient) -> None:
        async def revoked(_: Sequence[TopicPartition]) -> None:
            seen.append(await consumer._call(asked, consumer._inner))
            seen.append(revoking(consumer))

        async with client.consumer(TOPIC, group="billing", on_revoked=revoked) as consumer:
            await consumer.poll(wait_s=1)
            await client.topics.delete(TOPIC, force=True)
            while not seen:
                with suppress(NoSuchTopic):
                    await consumer.poll(wait_s=1)
            assert revoking(consumer) is None

    async def asked(inner: GroupConsumer) -> object:
        return inner._partitions.telling.revoking()

    def in_thread(client: BlockingClient) -> None:
        def revoked(_: Sequence[TopicPartition]) -> None:
            seen.append(consumer._call(asked, consumer._inner))
            seen.append(revoking(consumer))

        with client.consumer(TOPIC, group="billing", on_revoked=revoked) as consumer:
            consumer.poll(wait_s=1)
            client.topics.delete(TOPIC, force=True)
            while not seen:
                with suppress(NoSuchTopic):
                    consumer.poll(wait_s=1)
            assert revoking(consumer) is None

    if is_async:
        run(in_loop)
    else:
        portal = Portal(client_and_cluster)
        in_thread(BlockingClient(portal, portal.value))
        portal.close()
    assert len(seen) == 2
    assert all(seen)


class Interrupted(BaseException):
    """Stands for Ctrl-C, at a moment that a test chooses."""


def test_what_an_interrupted_thread_never_saw_comes_again(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not committed either."""
    send(client, *(b"%d" % number for number in range(6)))
    with client.consumer(TOPIC, group="billing", start="earliest", auto_commit_s=None) as consumer:
        assert [each.value for each in consumer.poll(wait_s=10, messages_max=2)] == [b"0", b"1"]
        call = consumer._portal.call
        for ask in (consumer.poll, consumer.poll_batches, consumer.__next__):

            def interrupt(work: Callable[..., Awaitable[R]], *args: object) -> R:
                call(work, *args)
                monkeypatch.undo()
                raise Interrupted

            monkeypatch.setattr(consumer._portal, "call", interrupt)
            with pytest.raises(Interrupted):
                ask()
            consumer.commit()
            (place,) = consumer.committed()
            assert place.place.skip == 2
        assert [each.value for each in consumer.poll(wait_s=10)] == [b"2", b"3", b"4", b"5"]


def test_a_task_of_asyncio_consumes_with_every_call() -> None:
    told: list[tuple[str, threading.Thread]] = []

    async def program(client: AioClient) -> None:
        consumers: list[AioGroupConsumer] = []

        def assigned(parts: Sequence[TopicPartition]) -> None:
            told.append((f"assigned {len(parts)}", threading.current_thread()))

        async def revoked(parts: Sequence[TopicPartition]) -> None:
            await consumers[0].commit()
            told.append((f"revoked {len(parts)}", threading.current_thread()))

        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.consumer(
            TOPIC,
            group="billing",
            start="earliest",
            auto_commit_s=None,
            on_assigned=assigned,
            on_revoked=revoked,
        ) as consumer:
            consumers.append(consumer)
            assert (await anext(consumer)).value == b"0"
            assert [each.value for each in await consumer.poll(messages_max=2)] == [b"1", b"2"]
            (batch,) = await consumer.poll_batches(messages_max=2)
            assert batch.column("value").to_pylist() == [b"3", b"4"]
            consumer.commit_nowait()
            await consumer.commit()
            assert consumer.position() == consumer.committed()
            await client.topics.delete(TOPIC, force=True)
            with pytest.raises(Exception, match="no such topic"):
                while True:
                    assert await consumer.poll(wait_s=15)

    run(program)
    assert [what for what, _ in told] == ["assigned 1", "revoked 1"]
    assert {thread for _, thread in told} == {threading.main_thread()}


@pytest.mark.parametrize("twin", [AioGroupConsumer, BlockingGroupConsumer])
def test_no_call_is_missing(twin: type) -> None:
    ours = {name for name in dir(GroupConsumer) if not name.startswith("_")}
    assert ours - {"take_back"} <= {*dir(twin)}


def test_a_thread_acknowledges_with_every_call(client: BlockingClient) -> None:
    send(client, *(b"%d" % number for number in range(5)))
    with client.consumer(TOPIC, group="mail", mode="shared", start="earliest") as consumer:
        first, second, third, fourth, fifth = consumer.poll(wait_s=10)
        consumer.ack(first)
        consumer.ack([second])
        consumer.ack_nowait(third)
        consumer.flush()
        consumer.extend(fourth)
        consumer.nack(fifth, delay_s=0)
        (again,) = consumer.poll(wait_s=10)
        assert (again.value, consumer.deliveries(again)) == (b"4", 2)
        consumer.ack(first)
        with pytest.raises(CommitRefused):
            consumer.extend(first)
    with client.consumer(TOPIC, group="mail", mode="shared") as consumer:
        assert sorted(values(consumer.poll(wait_s=10))) == [3, 4]


def test_a_task_of_asyncio_acknowledges_with_every_call() -> None:
    async def program(client: AioClient) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(5)])
        async with client.consumer(
            TOPIC, group="mail", mode="shared", start="earliest"
        ) as consumer:
            first, second, third, fourth, fifth = await consumer.poll(wait_s=10)
            await consumer.ack(first)
            await consumer.ack([second])
            consumer.ack_nowait(third)
            await consumer.flush()
            consumer.extend(fourth)
            consumer.nack(fifth, delay_s=0)
            (again,) = await consumer.poll(wait_s=10)
            assert (again.value, consumer.deliveries(again)) == (b"4", 2)
        async with client.consumer(TOPIC, group="mail", mode="shared") as consumer:
            assert sorted(values(await consumer.poll(wait_s=10))) == [3, 4]

    run(program)


def test_what_a_cancelled_task_never_saw_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(client: AioClient) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(6)])
        async with client.consumer(
            TOPIC, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            assert len(await consumer.poll(wait_s=10, messages_max=2)) == 2
            call = consumer._portal.call
            one = consumer.__anext__
            for ask in (one, consumer.poll, consumer.poll_batches, one):

                async def cancel(work: Callable[..., Awaitable[R]], *args: object) -> R:
                    await call(work, *args)
                    monkeypatch.undo()
                    raise asyncio.CancelledError

                monkeypatch.setattr(consumer._portal, "call", cancel)
                with pytest.raises(asyncio.CancelledError):
                    await ask()
                await consumer.commit()
                for (place,) in (consumer.committed(), consumer.position()):
                    assert place.place.skip == 2
            assert [each.value for each in await consumer.poll(wait_s=10)] == [
                b"2",
                b"3",
                b"4",
                b"5",
            ]

    run(program)


GAP = Gap(TOPIC, partition=0, lane=0, position=MessageId(1, 0, 0, 0), first=None, missing=1)


class Interruption(BaseException):
    """Ctrl-C, but that pytest goes on."""


async def meets_a_gap(*_: object, **__: object) -> NoReturn:
    raise GAP


def test_a_gap_that_a_cancelled_task_never_saw_is_raised_by_its_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program(client: AioClient) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
        async with client.consumer(TOPIC, group="billing", start="earliest") as consumer:
            call = consumer._portal.call

            async def cancel(work: Callable[..., Awaitable[R]], *args: object) -> R:
                with pytest.raises(Gap):
                    await call(work, *args)
                monkeypatch.undo()
                raise asyncio.CancelledError

            monkeypatch.setattr(consumer._inner, "poll", meets_a_gap)
            monkeypatch.setattr(consumer._portal, "call", cancel)
            with pytest.raises(asyncio.CancelledError):
                await consumer.poll(wait_s=10)
            with pytest.raises(Gap):
                await anext(consumer)
            assert (await anext(consumer)).value == b"0"

    run(program)


def test_a_gap_that_an_interrupted_thread_never_saw_is_raised_by_its_next_call(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.producer(TOPIC) as producer:
        producer.send(b"0")
    with client.consumer(TOPIC, group="billing", start="earliest") as consumer:
        call = consumer._portal.call

        def interrupt(work: Callable[..., Awaitable[R]], *args: object) -> R:
            with pytest.raises(Gap):
                call(work, *args)
            monkeypatch.undo()
            raise Interruption

        monkeypatch.setattr(consumer._inner, "poll", meets_a_gap)
        with pytest.raises(Gap):
            consumer.poll(wait_s=10)
        monkeypatch.setattr(consumer._portal, "call", interrupt)
        with pytest.raises(Interruption):
            consumer.poll(wait_s=10)
        with pytest.raises(Gap):
            next(consumer)
        assert next(consumer).value == b"0"


def test_a_gap_that_nobody_saw_is_raised_by_the_end_of_the_block(client: BlockingClient) -> None:
    with (
        pytest.raises(Gap),
        client.consumer(TOPIC, group="billing", start="earliest") as consumer,
    ):
        note_unseen(consumer._inner, GAP)
    with client.consumer(TOPIC, group="billing", start="earliest") as consumer:
        note_unseen(consumer._inner, GAP)
        with pytest.raises(Gap):
            consumer.close()


def test_a_gap_with_which_a_block_ends_while_its_task_is_cancelled_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(client: AioClient) -> None:
        with pytest.raises(asyncio.CancelledError):
            async with client.consumer(TOPIC, group="billing", start="earliest") as consumer:
                call = consumer._portal.call

                async def cancel(
                    work: Callable[..., Awaitable[R]], *args: object, **how: object
                ) -> R:
                    with suppress(Gap):
                        await call(work, *args, **how)
                    raise asyncio.CancelledError

                note_unseen(consumer._inner, GAP)
                caplog.clear()
                monkeypatch.setattr(consumer._portal, "call", cancel)

    run(program)
    assert "nobody saw it" in caplog.text


def test_a_message_that_a_thread_asks_for_after_a_poll_is_taken_back_alone(
    client: BlockingClient,
) -> None:
    """Those of the poll are done with, also where it is taken without a call."""
    send(client, *(b"%d" % number for number in range(6)))
    with client.consumer(TOPIC, group="billing", start="earliest") as consumer:
        seen = [next(consumer), *consumer.poll(messages_max=2), next(consumer)]
        consumer._portal.call(take_back, consumer._inner)
        assert values([*seen, next(consumer)]) == [0, 1, 2, 3, 3]


def test_a_message_that_a_task_asks_for_after_a_poll_is_taken_back_alone() -> None:
    async def program(client: AioClient) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(6)])
        async with client.consumer(TOPIC, group="mail", start="earliest") as consumer:
            seen = [await anext(consumer), *await consumer.poll(messages_max=2)]
            seen.append(await anext(consumer))
            await consumer._portal.call(take_back, consumer._inner)
            seen.append(await anext(consumer))
            assert values(seen) == [0, 1, 2, 3, 3]

    run(program)


async def take_back(consumer: GroupConsumer) -> None:
    consumer.take_back()


def run(program: Callable[[AioClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_portal(client_and_cluster) as portal:
            await program(AioClient(portal, portal.value))

    asyncio.run(main())


@pytest.mark.parametrize(("ends", "again"), [("block", b"2"), ("close", b"1"), ("client", b"1")])
def test_only_the_end_of_its_block_counts_the_message_that_a_thread_has(
    ends: str, again: bytes, client: BlockingClient
) -> None:
    send(client, *(b"%d" % number for number in range(4)))
    consumer = client.consumer(TOPIC, group="billing", start="earliest")
    assert values(islice(consumer, 2)) == [0, 1]
    if ends == "block":
        with consumer:
            pass
    elif ends == "close":
        consumer.close()
    else:
        client._portal.call(client._inner.close)  # leaves the cluster as it is
        client._inner._opened.is_closed = False
    with client.consumer(TOPIC, group="billing") as consumer:
        assert next(consumer).value == again


@pytest.mark.parametrize(("ends", "again"), [("block", b"2"), ("close", b"1")])
def test_only_the_end_of_its_block_counts_the_message_that_a_task_has(
    ends: str, again: bytes
) -> None:
    async def program(client: AioClient) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(4)])
        async with client.consumer(TOPIC, group="billing", start="earliest") as consumer:
            assert [(await anext(consumer)).value for _ in range(2)] == [b"0", b"1"]
            if ends == "close":
                await consumer.close()
        async with client.consumer(TOPIC, group="billing") as consumer:
            assert (await anext(consumer)).value == again

    run(program)

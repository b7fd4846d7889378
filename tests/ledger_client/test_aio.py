"""The asyncio calls, over a real thread that runs a cluster in memory."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from loop_rig import Program, client_and_cluster, connected, open_portal, run

import ledger_client
from ledger_client import Client, EventTime, aio
from ledger_client.aio import AioClient
from ledger_client.errors import (
    BadAddress,
    Busy,
    ClientClosed,
    LedgerClosed,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchTopic,
    ProducerClosed,
)
from ledger_client.opening import Held
from ledger_client.surfaces.loops import LoopBlock, LoopPortal
from ledger_client.topics.positions import EARLIEST
from ledger_client.topics.reading.lane_ranges import LaneRange
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.options import ReadSettings, Start

TOPIC = "shop/orders"
__all__ = ["run"]  # a fixture


def test_the_whole_life_of_a_topic(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        made = await client.topics.create(TOPIC, partitions=2, order="event-time")
        assert await client.topics.info(TOPIC) == made
        assert await client.topics.list("shop") == [made]
        async with client.producer(TOPIC, producer_name="p", partition=0) as producer:
            first = await producer.send(b"a", key=b"k", event_time=1, headers={"h": b"v"})
            ticket = producer.send_nowait(b"b", event_time=2)
            assert ticket.sequence == 1
            ids = [first, await ticket.message_id()]
            assert ticket.done
            ids += await producer.send_many([b"c", b"d"], event_times=[3, 4])
            assert await producer.last_sequence() == 3
            await producer.flush()
            assert producer.topic == TOPIC
        with pytest.raises(ProducerClosed):
            await producer.send(b"late", event_time=9)
        async with client.reader(TOPIC) as reader:
            found = [message async for message in reader]
            assert reader.caught_up
        assert [message.value for message in found] == [b"a", b"b", b"c", b"d"]
        assert [message.id for message in found] == ids
        cut = await client.topics.truncate(TOPIC, EventTime(3))
        assert cut.topic == TOPIC
        await client.topics.delete(TOPIC)
        with pytest.raises(NoSuchTopic):
            await client.topics.info(TOPIC)

    run(program)


def test_a_reader_keeps_its_place(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.reader(TOPIC) as reader:
            assert [(await anext(reader)).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
            place = reader.position()
            batches = [batch async for batch in reader.read_batches()]
            assert sum(batch.num_rows for batch in batches) == 6
            await reader.seek("earliest")
            assert (await anext(reader)).value == b"0"
        async with client.reader(TOPIC, start=place) as reader:
            messages = await reader.next_messages()
            assert messages[0].value == b"4"

    run(program)


def test_the_whole_life_of_a_ledger(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        async with client.ledgers.create(3, 3, 2) as ledger:
            assert await ledger.append(b"one") == 0
            assert await ledger.append_many(b"%d" % i for i in range(3)) == range(1, 4)
        with pytest.raises(LedgerClosed):
            await ledger.append(b"late")
        async with client.ledgers.open(ledger.id) as reader:
            assert [e.payload for e in await reader.read(0, 3)] == [b"one", b"0", b"1", b"2"]
            assert [len(batch) async for batch in reader.read_batches(0, 3)] == [4]
            assert [e.entry_id async for e in reader.follow(1)] == [1, 2, 3]
            with pytest.raises(NoSuchEntry):
                await reader.read(0, 4)
        assert [info.ledger_id async for info in client.ledgers.list()] == [ledger.id]
        assert len(await client.cluster.bookies()) == 3
        assert (await client.cluster.verify(ledger.id)).whole
        await client.ledgers.delete(ledger.id)
        with pytest.raises(NoSuchLedger):
            await client.ledgers.info(ledger.id)

    run(program)


def test_a_thousand_tasks_share_a_producer_and_its_batches(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC, buffer_bytes=20_000) as producer:  # some wait for room
            ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(1000)))
        assert len(set(ids)) == 1000
        assert len({(each.ledger_id, each.entry_id) for each in ids}) < 500
        async with client.reader(TOPIC) as reader:
            assert [message.value async for message in reader] == [b"%d" % n for n in range(1000)]

    run(program)


def test_sends_with_a_time_limit_and_without_keep_the_order_of_the_calls(
    run: Callable[[Program], None],
) -> None:
    """A number that comes behind a higher one passes for a duplicate: it would not be kept."""

    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        values = [b"%d" % number for number in range(30)]
        async with client.producer(TOPIC, producer_name="p") as producer:
            sends = (
                producer.send(value, sequence=number, timeout_s=60 if number % 3 else None)
                for number, value in enumerate(values)
            )
            await asyncio.gather(*sends)
        async with client.reader(TOPIC) as reader:
            assert [message.value async for message in reader] == values

    run(program)


def test_a_timeout_cancels_the_call_and_waits_for_it(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        ended: list[str] = []

        async def slow() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.2)
                ended.append("cleaned up")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client._call(slow)
        assert ended == ["cleaned up"]

        task = asyncio.create_task(client._call(slow))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()  # twice: it is waited for all the same
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cleaned up"] * 2

    run(program)


def test_a_send_that_is_cancelled_leaves_the_producer_usable(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC, linger_ms=300, buffer_bytes=300) as producer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.send(b"a" * 200)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.send(b"b" * 200)  # waits for room, so it is not kept
            await producer.send(b"c")
        async with client.reader(TOPIC) as reader:
            assert [(m.value or b"")[:1] async for m in reader] == [b"a", b"c"]

    run(program)


def test_a_cancelled_block_is_left_at_once(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)

        async def hold() -> None:
            async with client.producer(TOPIC, access="exclusive", linger_ms=60_000) as producer:
                producer.send_nowait(b"not sent yet")
                await asyncio.sleep(3600)

        task = asyncio.create_task(hold())
        await asyncio.sleep(0.2)
        task.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < 5
        async with client.producer(TOPIC, access="exclusive") as producer:  # the lane is free
            await producer.send(b"b")

    run(program)


async def cancelled_when_answered(call: Awaitable[object]) -> None:
    """Cancel *call* when trio's thread has its result and the loop has not seen that yet."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251  # the loop sees nothing meanwhile
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_messages_that_come_while_their_task_is_cancelled_are_not_lost(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.reader(TOPIC) as reader:
            await cancelled_when_answered(anext(reader))
            assert (await anext(reader)).value == b"0"
            await reader.seek("earliest")
            await cancelled_when_answered(anext(reader))
            place = reader.position()
            await cancelled_when_answered(reader.next_messages())
            assert reader.position() == place
            assert [m.value async for m in reader] == [b"%d" % number for number in range(10)]

    run(program)


def test_another_task_may_ask_for_the_position_while_messages_come(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.reader(TOPIC) as reader:
            task = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
            time.sleep(0.2)  # noqa: ASYNC251  # they come, and the task has not seen them yet
            place = reader.position()
            async with client.reader(TOPIC, start=place) as other:
                assert (await anext(other)).value == b"0"
            assert (await task).value == b"0"
            assert [m.value async for m in reader] == [b"%d" % number for number in range(1, 10)]

    run(program)


def test_messages_that_another_task_takes_during_a_seek_are_forgotten_after_it(
    run: Callable[[Program], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of their batch that it did not take: the place is another one then."""
    find, found, taken = LaneSet.ranges, threading.Event(), threading.Event()

    async def slow(self: LaneSet, start: Start, *, after: bool) -> list[LaneRange]:
        ranges = await find(self, start, after=after)
        found.set()
        await trio.to_thread.run_sync(taken.wait, 60)
        return ranges

    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.reader(TOPIC) as reader:
            monkeypatch.setattr(LaneSet, "ranges", slow)
            seeking = asyncio.ensure_future(reader.seek("earliest"))
            assert await asyncio.to_thread(found.wait, 60)
            assert (await anext(reader)).value == b"0"
            taken.set()
            await seeking
            monkeypatch.setattr(LaneSet, "ranges", find)
            assert [each.place for each in reader.position()] == [EARLIEST]
            assert (await anext(reader)).value == b"0"
            assert [m.value for m in await reader.next_messages(2)] == [b"1", b"2"]
        found.clear()
        taken.clear()

    run(program)


def test_a_second_task_that_takes_is_refused_and_nothing_is_lost(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            for number in range(4):
                await producer.send_many([b"%d" % number])
        expected = [b"%d" % number for number in range(4)]
        async with client.reader(TOPIC) as reader:
            taken = await asyncio.gather(anext(reader), anext(reader), return_exceptions=True)
            assert [isinstance(each, Busy) for each in taken] == [False, True]
            assert [m.value async for m in reader] == expected[1:]
        async with client.reader(TOPIC) as reader:
            calls = reader.next_messages(), reader.next_messages()
            lists = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(lists[1], Busy) and not isinstance(lists[0], BaseException)
            assert len(lists[0]) + len([m async for m in reader]) == 4
        async with client.reader(TOPIC) as reader:
            batches = reader.read_batches(rows_min=1)
            tables = await asyncio.gather(anext(batches), anext(batches), return_exceptions=True)
            assert isinstance(tables[1], Busy) and not isinstance(tables[0], BaseException)
            rows = tables[0].num_rows + sum([batch.num_rows async for batch in batches])
            assert rows == 4

    run(program)


@pytest.mark.parametrize("settings", [{}, {"order": "event-time"}, {"reverse": True}])
@pytest.mark.parametrize("rows_max", [3, 50])
def test_record_batches_that_come_while_their_task_is_cancelled_are_not_lost(
    settings: ReadSettings, rows_max: int
) -> None:
    async def main() -> None:
        async with connected() as client:
            await client.topics.create(TOPIC, partitions=2, order="event-time")
            async with client.producer(TOPIC) as producer:
                for number in range(10):
                    await producer.send(b"x", event_time=number, partition=number % 2)
            async with client.reader(TOPIC, **settings) as reader:
                expected = [message.event_time async for message in reader]
            async with client.reader(TOPIC, **settings) as reader:
                found: list[int | None] = []
                while len(found) < 10:
                    batches = reader.read_batches(rows_max=rows_max)
                    await cancelled_when_answered(anext(batches))
                    place = reader.position()
                    async with client.reader(TOPIC, **(settings | {"start": place})) as other:
                        assert len([message async for message in other]) == 10 - len(found)
                    if len(found) % 2:
                        batches = reader.read_batches(rows_max=rows_max)
                    batch = await anext(batches)
                    found += batch.column("event_time").cast("int64").to_pylist()
            assert sorted(found, key=str) == sorted(expected, key=str)
            if settings.get("order"):
                assert found == expected

    asyncio.run(main())


def test_entries_that_come_while_their_task_is_cancelled_are_not_lost(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        async with client.ledgers.create() as ledger:
            await ledger.append_many(b"%d" % i for i in range(3))
        async with client.ledgers.open(ledger.id) as reader:
            follower = reader.follow(0)
            await cancelled_when_answered(anext(follower))
            assert follower.position == 0
            batch = await follower.next_batch()
            assert batch is not None and len(batch) == 3
            follower = reader.follow(0)
            await cancelled_when_answered(follower.next_batch())
            assert [entry.entry_id async for entry in follower] == [0, 1, 2]
            batches = reader.read_batches(0, 2)
            await cancelled_when_answered(anext(batches))
            assert [len(batch) async for batch in batches] == [3]

    run(program)


def test_a_block_that_is_entered_while_its_task_is_cancelled_is_left(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        await cancelled_when_answered(client.producer(TOPIC, access="exclusive").__aenter__())
        async with client.producer(TOPIC, access="exclusive") as producer:  # the lane is free
            await producer.send(b"b")

    run(program)


def test_a_timeout_while_a_block_is_left_ends_it(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        steps: list[str] = []

        @asynccontextmanager
        async def slow_to_leave() -> AsyncIterator[None]:
            yield
            try:
                await trio.sleep_forever()
            finally:
                steps.append("left")

        held = Held(slow_to_leave(), client._inner._opened)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                block = LoopBlock(client._portal, held)
                await block.enter()
                await block.leave()
        assert steps == ["left"]

    run(program)


def test_a_producer_of_a_closed_client_refuses_every_send() -> None:
    async def main() -> None:
        async with connected() as client:
            await client.topics.create(TOPIC)
            async with client.producer(TOPIC) as producer:
                pass
        for _ in range(3):
            with pytest.raises(ClientClosed, match="connect again"):
                await asyncio.wait_for(producer.send(b"late"), 5)

    asyncio.run(main())


def test_errors_come_out_as_they_are(run: Callable[[Program], None]) -> None:
    async def program(client: AioClient) -> None:
        with pytest.raises(KeyError) as told:
            async with client.ledgers.create() as ledger:
                await ledger.append(b"x")
                raise KeyError("mine")
        assert told.value.args == ("mine",)
        assert (await client.ledgers.info(ledger.id)).last_entry == 0  # it was closed
        with pytest.raises(NoSuchTopic) as missing:
            async with client.producer("shop/none"):
                pass
        assert missing.value.topic == "shop/none"

    run(program)


def test_tasks_of_a_loop_that_is_busy_do_not_starve_the_client(
    run: Callable[[Program], None],
) -> None:
    async def program(client: AioClient) -> None:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            sent = asyncio.create_task(producer.send(b"a"))
            await asyncio.sleep(0)
            time.sleep(0.3)  # noqa: ASYNC251  # a program that blocks its loop
            assert (await client.topics.explain(TOPIC)).lanes
            await sent

    run(program)


def test_what_fails_on_opening_is_raised() -> None:
    async def main() -> None:
        async with aio.connect("nonsense://"):
            pass

    with pytest.raises(BadAddress):
        asyncio.run(main())


def test_a_client_belongs_to_the_loop_that_connected_it() -> None:
    async def main() -> None:
        async with connected() as client:
            failures: list[BaseException] = []

            def use_elsewhere() -> None:
                try:
                    asyncio.run(client.topics.list())
                except RuntimeError as wrong:
                    failures.append(wrong)

            thread = threading.Thread(target=use_elsewhere)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert "connected in another event loop" in str(failures[0])

    asyncio.run(main())


def test_a_client_whose_loop_has_ended_refuses_calls() -> None:
    kept: list[AioClient] = []

    async def main() -> None:
        async with connected() as client:
            kept.append(client)

    asyncio.run(main())

    async def later() -> None:
        await kept[0].topics.list()

    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(later())

    async def closed() -> None:
        async with connected() as client:
            pass
        with pytest.raises(ClientClosed, match="connect again"):
            await client.topics.list()

    asyncio.run(closed())


def test_a_loop_that_is_closed_without_leaving_the_block_hurts_nobody() -> None:
    """What is under way is resolved in trio's thread, which has no loop to report to."""
    loop = asyncio.new_event_loop()
    opened: list[LoopPortal[Client]] = []

    async def open_only() -> None:
        manager = open_portal(client_and_cluster)
        opened.append(await manager.__aenter__())
        opened[0].__dict__["manager"] = manager  # or it would be closed as garbage
        future: asyncio.Future[None] = opened[0].future()
        opened[0].portal.spawn(partial(trio.sleep, 0.1), opened[0].settles(future))

    loop.run_until_complete(open_only())
    loop.close()
    time.sleep(0.3)
    assert opened[0].portal.call(opened[0].value.topics.list) == []
    opened[0].portal.close()


def test_a_forked_process_is_told_to_connect_again() -> None:
    async def main() -> int:
        async with connected() as client:
            if child := os.fork():
                return child
            try:
                await client.topics.list()
            except RuntimeError as wrong:
                os._exit(0 if "connect()" in str(wrong) else 3)
            finally:
                os._exit(2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork, the very point
        child = asyncio.run(main())
    with suppress(ChildProcessError):
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_a_program_of_asyncio_that_calls_the_surface_of_trio_is_sent_here() -> None:
    async def enter() -> None:
        async with ledger_client.connect("bookie://127.0.0.1:1"):
            pass

    async def wait() -> None:
        await ledger_client.connect("bookie://127.0.0.1:1")

    for program in (enter, wait):
        with pytest.raises(RuntimeError, match=r"use ledger_client\.aio with asyncio"):
            asyncio.run(program())

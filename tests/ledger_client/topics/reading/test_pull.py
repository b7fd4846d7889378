"""Pulling messages by number and time, and how far a reader is behind."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import trio
from laid_topic import TOPIC, laid_topic, said
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import BadTopic, ReaderClosed
from ledger_client.ledgers.reader import LedgerView
from ledger_client.topics.messages import Message
from ledger_client.topics.reading import lag, remaining
from ledger_client.topics.reading.options import ReadSettings
from ledger_client.topics.reading.reader import TopicReader


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


def is_over(reader: TopicReader) -> bool:
    return reader.ended


async def test_no_more_than_asked_for_come_and_the_rest_comes_next(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        await topic.lane().lay(said(["a", "b", "c", "d", "e"]), said(["f"]))
        async with topic.client.reader(TOPIC) as reader:
            assert values(await reader.next_messages(2)) == [b"a", b"b"]
            kept = reader.position()
            assert (await anext(reader)).value == b"c"
            assert values(await reader.next_messages(messages_max=9)) == [b"d", b"e"]
            assert not is_over(reader)
            assert values(await reader.next_messages()) == [b"f"]
            assert await reader.next_messages(1) == []
            assert is_over(reader)
            await reader.seek(kept)
            assert not is_over(reader)
            assert values(await reader.next_messages(1)) == [b"c"]


async def test_a_wait_that_is_over_returns_nothing_and_the_reader_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.reader(TOPIC, follow=True) as reader, client.producer(TOPIC) as producer:
            began = trio.current_time()
            assert await reader.next_messages(wait_s=2.5) == []
            assert trio.current_time() == pytest.approx(began + 2.5)
            assert not reader.ended
            await producer.send(b"a")
            assert values(await reader.next_messages(wait_s=60.0)) == [b"a"]
            assert await reader.next_messages(wait_s=0) == []


async def test_without_a_wait_what_has_arrived_is_returned_to_the_last_message(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        await topic.lane().lay(*(said([f"{number}"]) for number in range(300)))
        async with topic.client.reader(TOPIC) as reader:
            found = list[bytes | None]()
            while not reader.ended:
                found += values(await reader.next_messages(wait_s=0))
                await trio.sleep(0.001)
        assert found == [b"%d" % number for number in range(300)]


async def test_the_end_comes_before_the_wait_is_over(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        await topic.lane().lay(said(["a"]))
        async with topic.client.reader(TOPIC) as reader:
            await reader.next_messages(wait_s=1000.0)
            began = trio.current_time()
            assert await reader.next_messages(wait_s=1000.0) == []
            assert reader.ended
            assert trio.current_time() < began + 1000.0


async def test_what_makes_no_sense_is_refused(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        await topic.lane().lay(said(["a"]))
        async with topic.client.reader(TOPIC) as reader:
            for count in (0, True):
                with pytest.raises(ValueError, match="messages_max takes 1 or more"):
                    await reader.next_messages(count)
            with pytest.raises(ValueError, match="wait_s takes seconds"):
                await reader.next_messages(wait_s=-1)
            assert values(await reader.next_messages()) == [b"a"]
        with pytest.raises(ReaderClosed):
            await reader.next_messages(wait_s=0)


# --- ends, and what lies before them --------------------------------------------------------


async def test_a_reader_that_starts_at_the_ends_gets_what_is_sent_later(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, 2)
        async with client.producer(TOPIC) as producer:
            for partition in (0, 1):
                await producer.send(b"old", partition=partition)
            await trio.sleep(1)
            ends = await client.topics.ends(TOPIC)
            assert [(each.partition, each.lane) for each in ends] == [(0, 0), (1, 0)]
            await producer.send(b"new", partition=0)
            await trio.sleep(1)
            async with client.reader(TOPIC, start=ends) as reader:
                assert values(await reader.next_messages()) == [b"new"]
            async with client.reader(TOPIC, end=ends) as reader:
                assert values([message async for message in reader]) == [b"old"] * 2


async def test_the_lag_is_what_was_not_returned_yet(autojump_clock: MockClock) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, 2)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 10, partition=0)
            await producer.send_many([b"x"] * 7, partition=1)
            await trio.sleep(1)
            async with client.reader(TOPIC, follow=True, partitions=[0]) as reader:
                (lag,) = await reader.lag()
                assert (lag.topic, lag.partition, lag.lane) == (TOPIC, 0, 0)
                assert (lag.messages, lag.is_exact) == (10, True)
                assert lag.sent_ms is not None
                await reader.next_messages(4)
                assert [each.messages for each in await reader.lag()] == [6]
                assert len(await reader.next_messages()) == 6
                (lag,) = await reader.lag()
                assert (lag.messages, lag.sent_ms) == (0, None)
                await producer.send(b"x", partition=0)
                await trio.sleep(1)
                assert [each.messages for each in await reader.lag()] == [1]


async def test_the_lag_is_exact_though_the_bookies_that_answer_know_of_no_entry(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the lane was confirmed; the one that knew it may be slow just then."""

    async def learn_nothing(_: LedgerView) -> None:
        """Get no answer in time."""

    async def behind(*args: Any) -> lag.Behind:  # noqa: ANN401
        with monkeypatch.context() as patch:
            patch.setattr(LedgerView, "learn_confirmed", learn_nothing)
            return await lag.behind(*args)

    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 10)
            await trio.sleep(1)
            async with client.reader(TOPIC) as reader:
                monkeypatch.setattr(remaining, "behind", behind)
                (found,) = await reader.lag()
                assert (found.messages, found.is_exact) == (10, True)


@pytest.mark.parametrize("kind", ["reverse", "compacted"])
async def test_a_reader_in_reverse_or_compacted_has_no_lag(
    autojump_clock: MockClock, kind: Literal["reverse", "compacted"]
) -> None:
    async with laid_topic() as topic:
        await topic.lane().lay(said(["a"]))
        chosen: ReadSettings = {"reverse": True} if kind == "reverse" else {"compacted": True}
        async with topic.client.reader(TOPIC, **chosen) as reader:
            with pytest.raises(BadTopic, match="no lag"):
                await reader.lag()


async def test_a_follower_ends_where_all_ledgers_before_its_end_are_gone(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        for value in (b"a", b"b"):
            async with client.producer(TOPIC) as producer:
                await producer.send(value)
        await trio.sleep(60)
        await client.topics.purge(TOPIC)
        ends = await client.topics.ends(TOPIC)
        async with client.reader(TOPIC, end=ends, follow=True) as reader:
            with trio.fail_after(60):
                assert await reader.next_messages() == []
        async with client.producer(TOPIC) as producer:
            await producer.send(b"c")
            ends = await client.topics.ends(TOPIC)
            async with client.reader(TOPIC, end=ends, follow=True) as reader:
                with trio.fail_after(60):
                    assert values(await reader.next_messages()) == [b"c"]
                    assert await reader.next_messages() == []


async def test_batches_end_a_reader_too(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        await topic.lane().lay(said(["a", "b"]))
        async with topic.client.reader(TOPIC) as reader:
            assert [each.num_rows async for each in reader.read_batches()] == [2]
            assert reader.ended
            await reader.seek("earliest")
            assert not is_over(reader)

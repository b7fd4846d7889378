"""The newest messages of a key, and what compacted readers get instead of a message."""

from __future__ import annotations

import pytest
import trio
from memory_cluster import MemoryCluster
from traced import SILENT, TOPIC
from trio.testing import MockClock

from ledger_client import BadTopic, Client, MessageId, NoSuchTopic, PublishTime
from ledger_client.topics.tracing import key_search
from ledger_client.topics.tracing.key_search import partition_of
from ledger_client.topics.tracing.whereabouts import UnreadLane


async def send(client: Client, *keys: bytes | None, value: bytes = b"v") -> list[MessageId]:
    """Send a message of each key, and close the lane."""
    async with client.producer(TOPIC) as producer:
        return [await producer.send(value, key=key) for key in keys]


# --- search -----------------------------------------------------------------------------


async def test_the_newest_message_of_a_key_is_found_in_its_partition(
    autojump_clock: MockClock, client: Client
) -> None:
    topic = await client.topics.create(TOPIC, 4)
    await send(client, b"k", b"a", b"b")
    *_, newest, _ = await send(client, b"k", b"k", b"c")
    found = await client.topics.why_key(TOPIC, b"k")
    assert (found.search.newest, found.is_answered) == ([newest], True)
    assert found.search.partitions == [partition_of(topic, b"k")] == [newest.partition]
    assert [(each.message_id, each.verdict) for each in found.messages] == [(newest, "readable")]


async def test_a_key_without_messages_is_answered_with_what_was_searched(
    autojump_clock: MockClock, client: Client
) -> None:
    topic = await client.topics.create(TOPIC, 4)
    here = partition_of(topic, b"k")
    others = (b"o%d" % n for n in range(99))
    other = next(key for key in others if partition_of(topic, key) != here)
    (elsewhere,) = await send(client, other)
    found = await client.topics.why_key(TOPIC, b"k")
    assert (found.search.newest, found.search.searched, found.is_answered) == ([], 0, True)
    async with client.producer(TOPIC) as producer:
        moved = await producer.send(b"v", key=b"k", partition=elsewhere.partition)
    assert (await client.topics.why_key(TOPIC, b"k")).search.newest == []
    found = await client.topics.why_key(TOPIC, b"k", partitions=range(4))
    assert (found.search.newest, found.search.partitions) == ([moved], [0, 1, 2, 3])


async def test_each_lane_has_a_newest_message(autojump_clock: MockClock, client: Client) -> None:
    await client.topics.create(TOPIC)
    async with (
        client.producer(TOPIC, access="shared") as one,
        client.producer(TOPIC, access="shared") as two,
    ):
        older = await one.send(b"1", key=b"k")
        await trio.sleep(0.01)
        newer = await two.send(b"2", key=b"k")
    found = await client.topics.why_key(TOPIC, b"k")
    assert set(found.search.newest) == {older, newer}
    assert {each.lane for each in found.messages} == {0, 1}


async def test_a_message_above_the_last_confirmed_entry_is_found(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client(SILENT) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"v", key=b"k")
            waiting = await producer.send(b"v", key=b"k")
            found = await client.topics.why_key(TOPIC, b"k")
            other = await client.topics.why_key(TOPIC, b"other")
    assert found.search.newest == [waiting]
    assert [each.verdict for each in found.messages] == ["unconfirmed"]
    assert (other.search.newest, other.is_answered) == ([], True)


async def test_a_search_ends_at_a_time_or_after_so_many_messages(
    autojump_clock: MockClock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create(TOPIC)
    (old,) = await send(client, b"k")
    await send(client, *(b"a" for _ in range(20)))
    seen: list[int] = []
    found = await client.topics.why_key(TOPIC, b"k", messages_max=5, on_progress=seen.append)
    assert (found.search.newest, found.is_answered) == ([], False)
    assert found.search.unread == [
        UnreadLane(-1, 0, f"the search ended after {found.search.searched:,} messages")
    ]
    assert 5 <= sum(seen) == found.search.searched
    later = PublishTime(1 << 60)
    assert (await client.topics.why_key(TOPIC, b"k", since=later)).search.newest == []
    assert (await client.topics.why_key(TOPIC, b"k", since=PublishTime(1))).search.newest == [old]


async def test_a_lane_that_cannot_be_read_may_have_the_key(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Damaged and silent copies are unknown, never absent."""
    await client.topics.create(TOPIC)
    (message_id,) = await send(client, b"k")
    for name in ("b1", "b2"):
        cluster.kill(name)
    with trio.fail_after(30):
        found = await client.topics.why_key(TOPIC, b"k")
    assert (found.search.newest, found.is_answered) == ([], False)
    (unread,) = found.search.unread
    assert (unread.partition, unread.lane) == (-1, 0)
    assert f"ledger {message_id.ledger_id}" in unread.reason


async def test_the_end_of_an_open_ledger_that_nobody_knows_is_reported(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC, ack_quorum=1)
    async with client.producer(TOPIC) as producer:
        message_id = await producer.send(b"v", key=b"k")
        cluster.kill("b2")
        with trio.fail_after(30):
            found = await client.topics.why_key(TOPIC, b"k")
        cluster.revive("b2")
    assert (found.search.newest, found.is_answered) == ([message_id], False)
    assert found.search.unread == [UnreadLane(-1, 0, "too few of its bookies say where it ends")]


async def test_many_unconfirmed_entries_are_not_all_asked_for(
    autojump_clock: MockClock, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_search, "UNCONFIRMED_MAX", 1)
    async with cluster.client(SILENT) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"v", key=b"k")
            await producer.send(b"v", key=b"k")
            found = await client.topics.why_key(TOPIC, b"k")
    assert found.search.unread == [UnreadLane(-1, 0, "more than 1 entries are not confirmed yet")]


async def test_wrong_names_and_partitions_are_refused(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC, 2)
    with pytest.raises(BadTopic, match="there is no partition 2"):
        await client.topics.why_key(TOPIC, b"k", partitions=[0, 2])
    with pytest.raises(NoSuchTopic):
        await client.topics.why_key("shop/bills", b"k")


# --- compaction -------------------------------------------------------------------------


async def test_a_compacted_message_is_named_with_the_one_that_counts(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    first, keyless, second = await send(client, b"k", None, b"k")
    await client.topics.compact(TOPIC)
    (third,) = await send(client, b"x")
    found = [(await client.topics.why(TOPIC, each)) for each in (first, keyless, second, third)]
    assert {each.verdict for each in found} == {"readable"}
    states = [None if each.compacted is None else each.compacted.state for each in found]
    assert states == ["replaced", "dropped", "kept", "not yet"]
    assert found[0].compacted is not None
    assert found[0].compacted.newest == second
    assert found[0].compacted.why == f"compacted readers get {second}, a later message of its key"
    assert found[1].compacted is not None
    assert found[1].compacted.why == "it has no key, and compaction drops such messages"


async def test_compaction_keeps_what_retention_removed(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    first, second = await send(client, b"k", b"k")
    await client.topics.compact(TOPIC)
    await send(client, b"x")
    await client.topics.purge(TOPIC)
    gone, kept = await client.topics.why(TOPIC, first), await client.topics.why(TOPIC, second)
    assert (gone.verdict, kept.verdict) == ("removed", "removed")
    assert gone.compacted is not None
    assert gone.compacted.state == "dropped"
    assert kept.compacted is not None
    assert kept.compacted.state == "kept"


async def test_a_key_that_was_deleted_has_nothing_for_compacted_readers(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (first,) = await send(client, b"k")
    await send(client, b"k", value=b"")
    await client.topics.compact(TOPIC)
    found = await client.topics.why(TOPIC, first)
    assert found.compacted is not None
    assert found.compacted.state == "dropped"
    assert found.compacted.why.startswith("compacted readers get nothing of its key")


async def test_compacted_messages_that_cannot_be_read_are_unknown(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    first, _ = await send(client, b"k", b"k")
    await client.topics.compact(TOPIC)
    compacted = (await client.topics.explain(TOPIC)).compacted
    assert compacted is not None
    await client.ledgers.delete(compacted.ledgers[0].ledger_id)
    found = await client.topics.why(TOPIC, first)
    assert (found.verdict, found.compacted and found.compacted.state) == ("readable", "unknown")

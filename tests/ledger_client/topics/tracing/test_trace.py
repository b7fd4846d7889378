"""Where one message is, in every state that its ledger, lane or topic can be in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster
from traced import SILENT, TOPIC
from trio.testing import MockClock

from ledger_client import BadTopic, Client, MessageId, NoSuchTopic, PublishTime
from ledger_client.errors import NoSuchLedger
from ledger_client.ledgers.copies import EntryCopy
from ledger_client.topics.tracing import trace
from ledger_client.topics.tracing.whereabouts import Whereabouts
from metadata.records import (
    LedgerState,
    UnderReplicated,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.topics import TOPIC_EVENTS, LaneLedger, Retention, encode_row, lane_ledger_key
from native.frame import Flag


async def send(client: Client, count: int = 1, *, topic: str = TOPIC) -> Sequence[MessageId]:
    """Send messages one by one, and close the lane."""
    async with client.producer(topic) as producer:
        return [await producer.send(b"v%d" % n, key=b"k%d" % (n % 2)) for n in range(count)]


async def uid_of(client: Client, topic: str = TOPIC) -> int:
    return (await client.topics.info(topic)).uid


def states(found: Whereabouts) -> dict[str, str]:
    return {copy.bookie_id: copy.state for copy in found.copies}


# --- what readers get -------------------------------------------------------------------


async def test_a_message_of_a_closed_ledger_is_readable(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC, 2)
    (message_id,) = await send(client)
    found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, found.waits_for, found.is_answered) == ("readable", "", True)
    assert found.why == f"entry {message_id.entry_id} is acknowledged, and readers get it"
    assert found.ledger is not None
    assert (found.ledger.ledger_id, found.ledger.number) == (message_id.ledger_id, 0)
    last = message_id.entry_id + 1  # the writer's note at the end
    assert (found.ledger.state, found.ledger.confirmed) == ("closed", last)
    assert (found.lane, found.version, found.writer) == (0, message_id.entry_id, None)
    assert found.message is not None
    assert (found.message.key, found.message.size) == (b"k0", 2)
    assert states(found) == {"b1": "sound", "b2": "sound"}
    assert found.keeping is not None
    assert found.keeping.why == "kept for 7 d after its close"
    assert found.keeping.due_ms is not None


async def test_a_confirmed_message_of_an_open_ledger_is_readable(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    async with client.producer(TOPIC, producer_name="till") as producer:
        message_id = await producer.send(b"x")
        found = await client.topics.why(TOPIC, message_id)
    assert found.verdict == "readable"
    assert found.ledger is not None
    assert (found.ledger.state, found.ledger.confirmed) == ("open", message_id.entry_id)
    assert found.writer is not None
    assert found.writer.producer == "till"
    assert found.writer.lease_s > 0
    assert found.keeping is not None
    assert found.keeping.why.startswith("written by till")


async def test_fewer_copies_than_wanted_are_named(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    mark = UnderReplicated(message_id.ledger_id, "bookie lost", 5000, ["b2"], attempts=1)
    await cluster.store.put(underreplicated_key(message_id.ledger_id), encode_record(mark))
    cluster.kill("b2")
    found = await client.topics.why(TOPIC, message_id)
    assert found.verdict == "readable"
    assert found.why.endswith("readers get it from 1 of 2 copies")
    assert states(found) == {"b1": "sound", "b2": "unknown"}
    assert found.repair is not None
    assert (found.repair.reason, found.repair.attempts) == ("bookie lost", 1)


# --- above the last confirmed entry -----------------------------------------------------


async def test_an_acknowledged_message_waits_for_its_confirmation(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client(SILENT) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            message_id = await producer.send(b"x")
            found = await client.topics.why(TOPIC, message_id)
            assert (found.verdict, found.is_answered) == ("unconfirmed", True)
            ledger, before = message_id.ledger_id, message_id.entry_id - 1
            assert found.why == (
                f"it is on b1, b2, and ledger {ledger} is confirmed up to entry {before}"
            )
            assert found.waits_for.startswith("its writer's next message")
            assert found.message is not None
            await producer.send(b"y")
            again = await client.topics.why(TOPIC, message_id)
    assert again.verdict == "readable"


async def test_a_message_without_enough_copies_waits_for_its_writer(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC, ack_quorum=2)
    async with client.producer(TOPIC) as producer, trio.open_nursery() as nursery:
        first = await producer.send(b"x")
        gate = cluster.stalled["b2"] = trio.Event()
        nursery.start_soon(producer.send, b"y")
        await trio.sleep(0.1)
        found = await client.topics.why(TOPIC, first._replace(entry_id=first.entry_id + 1))
        gate.set()
    assert found.verdict == "unconfirmed"
    assert found.why.startswith("it is on b1, 1 of 2 copies that acknowledge it")
    assert found.waits_for == "its writer, which needs more of its bookies"
    assert states(found) == {"b1": "sound", "b2": "unknown"}


async def test_a_message_that_was_not_sent_yet_is_not_written(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        message_id = await producer.send(b"x")
        coming = message_id._replace(entry_id=message_id.entry_id + 5)
        found = await client.topics.why(TOPIC, coming)
    assert (found.verdict, found.waits_for) == ("not written", "its writer")
    assert states(found) == {"b1": "absent", "b2": "absent"}


async def test_without_a_writer_the_leader_decides(
    autojump_clock: MockClock, cluster: MemoryCluster
) -> None:
    async with cluster.client(SILENT) as client:
        await client.topics.create(TOPIC)
        async with cluster.client(SILENT) as other, other.producer(TOPIC) as producer:
            message_id = await producer.send(b"x")
            for lease in await cluster.store.leases("writers/"):
                await cluster.store.release(lease)
            found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, found.writer) == ("unconfirmed", None)
    assert found.waits_for.startswith("the leader")


async def test_a_ledger_in_recovery_decides_about_its_last_entries(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
) -> None:
    async with cluster.client(SILENT) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            message_id = await producer.send(b"x")
            await send_state(cluster, message_id.ledger_id, LedgerState.IN_RECOVERY)
            found = await client.topics.why(TOPIC, message_id)
            await send_state(cluster, message_id.ledger_id, LedgerState.OPEN)
    assert found.verdict == "unconfirmed"
    assert found.ledger is not None
    assert found.ledger.state == "in recovery"
    assert found.waits_for.startswith("the recovery of its ledger")
    assert f"quire ledger recover {message_id.ledger_id}" in found.waits_for


async def send_state(cluster: MemoryCluster, ledger_id: int, state: LedgerState) -> None:
    record = msgspec.structs.replace(cluster.record(ledger_id), state=state)
    await cluster.store.put(ledger_key(ledger_id), encode_record(record))


async def test_a_silent_bookie_may_have_what_others_deny(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC, ack_quorum=1)
    async with client.producer(TOPIC) as producer:
        message_id = await producer.send(b"x")
        coming = message_id._replace(entry_id=message_id.entry_id + 1)
        cluster.kill("b2")
        found = await client.topics.why(TOPIC, coming)
        cluster.revive("b2")
    assert (found.verdict, found.is_answered) == ("unknown", False)
    assert states(found) == {"b1": "absent", "b2": "unknown"}
    assert found.waits_for == "an answer of b2: start them"


# --- ledgers that ended before it, or were not begun ------------------------------------


async def test_an_entry_behind_the_end_was_never_acknowledged(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    found = await client.topics.why(TOPIC, message_id._replace(entry_id=99))
    assert (found.verdict, found.waits_for) == ("beyond the end", "")
    assert found.why == (
        f"ledger {message_id.ledger_id} was closed after entry {message_id.entry_id + 1}: "
        "entry 99 was never acknowledged"
    )


async def test_a_prepared_ledger_has_nothing_yet(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    following = msgspec.structs.replace(
        cluster.record(message_id.ledger_id), ledger_id=50, state=LedgerState.OPEN, last_entry=-1
    )
    row = encode_row(LaneLedger(ledger_id=50, state="prepared"))
    await cluster.store.put(lane_ledger_key(await uid_of(client), -1, 0, 1), row)
    await cluster.store.put(ledger_key(50), encode_record(following))
    found = await client.topics.why(TOPIC, MessageId(50, 0))
    assert (found.verdict, found.waits_for) == ("not begun", "its writer")
    assert found.ledger is not None
    assert (found.ledger.state, found.ledger.number) == ("prepared", 1)


# --- what is gone -----------------------------------------------------------------------


async def test_messages_deleted_out_of_a_ledger_are_named_so(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    first, second, third = await send(client, 3)
    await client.topics.delete_messages(TOPIC, second, second)
    found = await client.topics.why(TOPIC, second)
    assert (found.verdict, found.waits_for) == ("deleted", "")
    assert "quire topic truncate" in found.why
    whole = second._replace(batch_index=-1)
    assert (await client.topics.why(TOPIC, whole)).verdict == "deleted"
    for kept in (first, third):
        assert (await client.topics.why(TOPIC, kept)).verdict == "readable"


async def test_a_batch_is_deleted_if_all_of_its_messages_are(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        ids = await producer.send_many([b"a", b"b", b"c"])
    await client.topics.delete_messages(TOPIC, ids[0], ids[1])
    verdicts = [(await client.topics.why(TOPIC, each)).verdict for each in ids]
    assert verdicts == ["deleted", "deleted", "readable"]
    whole = ids[0]._replace(batch_index=-1)
    assert (await client.topics.why(TOPIC, whole)).verdict == "readable"


async def test_messages_of_deleted_ledgers_are_named_so(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (first,) = await send(client)
    (second,) = await send(client)
    await send(client)
    await client.topics.delete_messages(TOPIC, second, second)
    found = await client.topics.why(TOPIC, second)
    assert (found.verdict, found.lane) == ("deleted", 0)
    assert found.why == (
        f"ledger {second.ledger_id} of lane 0 was deleted on purpose (`quire topic truncate`); "
        "readers go on behind it without a gap"
    )
    assert (await client.topics.why(TOPIC, first)).verdict == "readable"


async def test_a_removed_ledger_is_named_with_what_removes_ledgers(
    autojump_clock: MockClock, client: Client
) -> None:
    kept = Retention(age_s=3600.0, size=10_000)
    await client.topics.create(TOPIC, retention=kept)
    (gone,) = await send(client)
    (left,) = await send(client)
    await client.topics.purge(TOPIC, before=PublishTime(await purge_time(client, left)))
    found = await client.topics.why(TOPIC, gone)
    assert (found.verdict, found.lane, found.waits_for) == ("removed", 0, "")
    assert found.first_left == MessageId(left.ledger_id, 0)
    assert found.why == (
        f"ledger {gone.ledger_id} is gone, as are the oldest of lane 0, where ledger "
        f"{left.ledger_id} is the first left; they are removed while the partition has more than "
        "10,000 bytes or by `quire topic purge`"
    )
    await trio.sleep(3601)
    later = await client.topics.why(TOPIC, gone)
    assert "they are removed 1 h after their close or while" in later.why


async def purge_time(client: Client, left: MessageId) -> int:
    """Return a time after the close of all ledgers before that of *left*."""
    found = await client.topics.explain(TOPIC)
    rows = [fate.ledger for lane in found.lanes for fate in lane.ledgers]
    return max(row.closed_ms for row in rows if row.ledger_id < left.ledger_id)


async def test_a_ledger_that_was_deleted_by_itself_is_named(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    await client.ledgers.delete(message_id.ledger_id)
    found = await client.topics.why(TOPIC, message_id)
    assert found.verdict == "ledger deleted"
    assert found.ledger is not None
    assert found.ledger.state == "deleted"
    assert "quire ledger delete" in found.why


async def test_a_deleted_topic_is_named_with_the_time(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    await client.topics.delete(TOPIC)
    assert not [key for key in cluster.store.values if key.startswith(TOPIC_EVENTS)]
    found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, found.is_answered) == ("topic deleted", True)
    assert found.deleted_ms is not None
    await client.topics.create(TOPIC)
    found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, found.deleted_ms is not None) == ("no such message", True)
    assert found.why.endswith("a former topic of this name may have had it")


async def test_the_deletion_of_a_topic_is_known_before_its_event_is_published(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    await client._context.catalogue.mark_deleting(TOPIC)
    found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, found.deleted_ms is not None) == ("topic deleted", True)


# --- ids of nothing ---------------------------------------------------------------------


async def test_ids_of_nothing_are_told_apart(autojump_clock: MockClock, client: Client) -> None:
    await client.topics.create(TOPIC, 2)
    await client.topics.create("shop/bills")
    async with client.producer(TOPIC) as producer:
        message_id = await producer.send(b"x", partition=1)
    (bill,) = await send(client, topic="shop/bills")

    async def reason(wanted: MessageId, topic: str = TOPIC) -> str:
        found = await client.topics.why(topic, wanted)
        assert found.verdict == "no such message"
        return found.why

    ledger = message_id.ledger_id
    assert await reason(message_id._replace(partition=2)) == (
        "there is no partition 2: the topic has 0 to 1"
    )
    assert await reason(message_id, "shop/bills") == (
        "the topic has no partitions: its ids end with :-1, not :1"
    )
    assert await reason(message_id._replace(partition=0)) == f"ledger {ledger} is of partition 1"
    assert await reason(bill._replace(partition=0)) == (
        f"ledger {bill.ledger_id} is of topic shop/bills"
    )
    assert await reason(message_id._replace(batch_index=3)) == (
        f"entry {message_id.entry_id} has 1 message, from index 0 on"
    )
    assert await reason(message_id._replace(entry_id=0)) == (
        "entry 0 holds no messages: it is a note of the lane's writer"
    )
    assert await reason(message_id._replace(ledger_id=10**6)) == (
        "partition 1 has no ledger 1000000, and none of its lanes lost one of that id"
    )
    async with client.ledgers.create(1, 1, 1) as plain:
        await plain.append(b"x")
    assert await reason(MessageId(plain.id, 0, 1)) == f"ledger {plain.id} belongs to no topic"


async def test_a_duplicate_of_an_unknown_place_is_refused(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.topics.create(TOPIC)
    with pytest.raises(BadTopic, match="--key"):
        await client.topics.why(TOPIC, MessageId(-1, -1))
    with pytest.raises(NoSuchTopic):
        await client.topics.why("shop/bills", MessageId(1, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        MessageId(2, -1),
        MessageId(2, 1, -1, -2),
        MessageId(1 << 63, 1),
        MessageId(2, 1 << 63),
        "2:1:-1",
    ],
)
async def test_what_is_no_id_is_refused(
    autojump_clock: MockClock, client: Client, wrong: MessageId
) -> None:
    await client.topics.create(TOPIC)
    await send(client)
    with pytest.raises(BadTopic, match="is not the id of a message"):
        await client.topics.why(TOPIC, wrong)


# --- changes under it -------------------------------------------------------------------


@pytest.mark.parametrize("is_purged", [True, False])
async def test_a_ledger_may_go_while_its_bookies_are_asked(
    autojump_clock: MockClock,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    is_purged: bool,
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    await send(client)

    async def gone(_source: object, _entry: int, _limbo: object) -> None:
        if is_purged:
            await client.topics.purge(TOPIC)
        raise NoSuchLedger(message_id.ledger_id)

    monkeypatch.setattr(trace, "ask_copies", gone)
    found = await client.topics.why(TOPIC, message_id)
    assert found.verdict == ("removed" if is_purged else "ledger deleted")
    assert (found.keeping is None) == is_purged


async def test_a_ledger_that_is_closed_meanwhile_has_a_known_end(
    autojump_clock: MockClock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.topics.create(TOPIC)
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(client.producer(TOPIC))
        message_id = await producer.send(b"x")

        async def nothing_confirmed(_source: object) -> int:
            await stack.aclose()
            return -1

        monkeypatch.setattr(trace, "ask_confirmed", nothing_confirmed)
        found = await client.topics.why(TOPIC, message_id)
    assert found.verdict == "readable"
    assert found.ledger is not None
    assert found.ledger.state == "closed"


# --- damage -----------------------------------------------------------------------------


async def test_a_message_without_a_sound_copy_is_unreadable(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    cluster.bookies["b1"].damage(message_id.ledger_id, message_id.entry_id)
    found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, states(found)["b1"]) == ("readable", "damaged")
    del cluster.bookies["b2"].entries(message_id.ledger_id)[message_id.entry_id]
    found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, found.is_answered) == ("unreadable", False)
    assert found.copies == [
        EntryCopy("b1", "damaged", "wrong digest"),
        EntryCopy("b2", "absent", "no such entry"),
    ]


async def test_a_bookie_in_limbo_leaves_it_open(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    for name, bookie in cluster.bookies.items():
        del bookie.entries(message_id.ledger_id)[message_id.entry_id]
        bookie.limbo = True
        limbo = msgspec.structs.replace(cluster.store.bookies[name], limbo=True)
        cluster.store.bookies[name] = limbo
    found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, states(found)) == ("unknown", {"b1": "unknown", "b2": "unknown"})


async def test_a_message_on_silent_bookies_is_unknown(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    (message_id,) = await send(client)
    for name in ("b1", "b2"):
        cluster.kill(name)
    with trio.fail_after(10):
        found = await client.topics.why(TOPIC, message_id)
    assert (found.verdict, found.is_answered) == ("unknown", False)
    assert found.why.endswith("none of its bookies answers")
    assert found.waits_for == "an answer of b1, b2: start them"
    assert found.message is None


async def test_without_an_answer_an_open_ledger_has_no_known_end(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await client.topics.create(TOPIC)
    async with client.producer(TOPIC) as producer:
        message_id = await producer.send(b"x")
        for bookie in cluster.bookies.values():
            bookie.answering = False
        with trio.fail_after(10):
            found = await client.topics.why(TOPIC, message_id)
        for bookie in cluster.bookies.values():
            bookie.answering = True
    assert found.verdict == "unknown"
    assert found.ledger is not None
    assert found.ledger.confirmed is None
    assert found.why == f"no bookie says how far ledger {message_id.ledger_id} is confirmed"


# --- nothing changes --------------------------------------------------------------------


async def test_asking_changes_nothing(autojump_clock: MockClock, cluster: MemoryCluster) -> None:
    async with cluster.client(SILENT) as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            message_id = await producer.send(b"x")
            before = dict(cluster.store.values)
            asked = sum(len(bookie.requests) for bookie in cluster.bookies.values())
            await client.topics.why(TOPIC, message_id)
            await client.topics.why(TOPIC, message_id._replace(entry_id=9))
            assert cluster.store.values == before
            requests = [r for bookie in cluster.bookies.values() for r in bookie.requests]
            assert len(requests) > asked
            assert not any(request.flags & Flag.FENCE for request in requests)
            assert (await producer.send(b"y")).ledger_id == message_id.ledger_id

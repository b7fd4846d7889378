"""send_many: sequences and Arrow arrays, through C, in order, a few MiB ahead."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
import trio
import trio.testing
from fake_lane import FakeLanes, make_record, producing
from trio.testing import MockClock

from ledger_client.errors import BadTopic, PayloadTooLarge, ProducerClosed, SendUnknown
from ledger_client.message_id import MessageId, MessageIds
from ledger_client.topics.producing import bulk
from ledger_client.topics.producing.bulk import AHEAD_SIZE
from native.batch import Columns, encode

VALUES = [b"%d" % number for number in range(5000)]


async def test_many_messages_become_batches_in_order(autojump_clock: MockClock) -> None:
    """PS-08, PS-41: the limits of batches hold here too."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        ids = await producer.send_many(VALUES)
    assert lanes.sizes() == [1000] * 5
    assert lanes.values() == VALUES
    assert list(ids) == [message.id for message in lanes.messages()]
    assert (ids[0], ids[-1], len(ids)) == (MessageId(99, 0, -1, 0), MessageId(99, 4, -1, 999), 5000)
    assert ids[1500:1502] == [MessageId(99, 1, -1, 500), MessageId(99, 1, -1, 501)]
    with pytest.raises(IndexError):
        ids[5000]


async def test_nothing_is_a_call_too(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        assert await producer.send_many([]) == []
        assert await producer.send_many(pa.array([], pa.binary())) == []


ARROW = {
    "binary": pa.array(VALUES, pa.binary()),
    "large": pa.array(VALUES, pa.large_binary()),
    "string": pa.array([value.decode() for value in VALUES]),
    "chunked": pa.chunked_array([VALUES[:1234], VALUES[1234:1234], VALUES[1234:]]),
    "slice": pa.array([b"before", *VALUES, b"after"]).slice(1, 5000),
    "tuple": tuple(VALUES),
}


@pytest.mark.parametrize("kind", ARROW)
async def test_arrow_arrays_are_sent_as_lists_are(autojump_clock: MockClock, kind: str) -> None:
    lanes = FakeLanes()
    times = pa.chunked_array([range(3), range(3, 5000)], pa.int64())
    async with producing(lanes) as producer:
        await producer.send_many(ARROW[kind], keys=ARROW["slice"], event_times=times)
    kept = [(message.value, message.key, message.event_time) for message in lanes.messages()]
    assert kept == [(value, value, number) for number, value in enumerate(VALUES)]


async def test_arrow_times_and_headers(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    pairs = pa.struct([("name", pa.string()), ("value", pa.binary())])
    headers = pa.array([[{"name": "h", "value": b"v"}], None], pa.list_(pairs))
    async with producing(lanes) as producer:
        await producer.send_many(
            pa.array([b"a", None]),
            event_times=pa.array([5, None], pa.timestamp("ms")),
            headers=headers,
        )
        await producer.send_many([b"c", None], headers=[None, {"x": b"y"}], keys=[None, b"k"])
    assert [message[1:5] for message in lanes.messages()] == [
        (b"a", None, 5_000_000, {"h": b"v"}),
        (None, None, None, {}),
        (b"c", None, None, {}),
        (None, b"k", None, {"x": b"y"}),
    ]


async def test_the_ids_of_routed_messages_are_in_the_callers_order(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    chance = random.Random(1)
    keys = [chance.choice([None, b"a", b"b", b"c", b"d", b"e"]) for _ in VALUES]
    async with producing(lanes, make_record(partitions=4)) as producer:
        ids = await producer.send_many(VALUES, keys=keys)
    found = {message.id: message for index in range(4) for message in lanes.messages(index)}
    assert len(found) == len(ids) == 5000
    assert [found[message_id].value for message_id in ids] == VALUES
    assert [found[message_id].key for message_id in ids] == keys
    for index in range(4):
        numbers = [int(m.value or b"") for m in lanes.messages(index) if m.key]
        assert numbers == sorted(numbers)


async def test_without_keys_partitions_take_their_turns_by_batch(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, make_record(partitions=5)) as producer:
        ids = await producer.send_many(VALUES)
        await producer.send_many(VALUES, keys=VALUES, partition=3)
    assert sorted(lanes.sizes(index) for index in range(5)) == [[1000]] * 4 + [[1000] * 6]
    found = {message.id: message.value for i in range(5) for message in lanes.messages(i)}
    assert [found[message_id] for message_id in ids] == VALUES


async def test_a_call_goes_behind_what_was_accepted_before_it(autojump_clock: MockClock) -> None:
    """TD-08: one order for both ways of sending."""
    lanes = FakeLanes()
    async with producing(lanes, linger_ms=1000, access="exclusive") as producer:
        producer.send_nowait(b"before")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_many, [b"many"] * 10)
            await trio.testing.wait_all_tasks_blocked()
            producer.send_nowait(b"after")
    assert lanes.values() == [b"before", *[b"many"] * 10, b"after"]


async def test_only_a_few_mib_are_encoded_ahead_of_a_slow_lane(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = 0

    def count_encoded(columns: Columns, start: int, stop: int, **options: object) -> bytes:
        nonlocal encoded
        payload = encode(columns, start, stop, **options)  # type: ignore[arg-type]
        encoded += len(payload)
        return payload

    monkeypatch.setattr(bulk, "encode", count_encoded)
    lanes = FakeLanes()
    async with producing(lanes, batch_bytes=1 << 20) as producer:
        lanes.shut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_many, [bytes(1 << 19)] * 60)
            await trio.sleep(1)
            assert AHEAD_SIZE < encoded <= AHEAD_SIZE + (2 << 20)
            lanes.gate.set()
    assert encoded > 30 << 20


async def test_messages_of_all_sizes_share_a_call(autojump_clock: MockClock) -> None:
    chance = random.Random(2)
    sizes = [0, 1, 100, 100_000, 200_000, 3_000_000]
    values = [bytes(chance.choice(sizes)) for _ in range(100)]
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send_many(values)
        await producer.send_many(pa.array(values))
    assert lanes.values() == values * 2
    alone = [batch.count for batch in lanes.kept[-1] if batch.size > 128 * 1024]
    assert set(alone) == {1}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"values": [b"a"], "keys": [b"a", b"b"]}, ValueError, "2 keys for 1 values"),
        ({"values": [b"a"], "event_times": []}, ValueError, "0 event times"),
        ({"values": ["text"]}, TypeError, "not str"),
        ({"values": b"bytes"}, TypeError, "not int"),
        ({"values": [b"a"], "keys": [1]}, TypeError, "not int"),
        ({"values": pa.array([1, 2])}, TypeError, "not int64"),
        ({"values": [b"a"], "headers": [{"h": 1}]}, TypeError, "header"),
        ({"values": [b"a"], "sequence": 1}, BadTopic, "name"),
        ({"values": [b"a"], "partition": 9}, BadTopic, "no partition 9"),
        ({"values": pa.array([bytes(6 << 20)])}, PayloadTooLarge, "6291456 bytes"),
        (
            {"values": [bytes(3 << 20)] * 2, "keys": [b"", bytes(3 << 20)]},
            PayloadTooLarge,
            "6291456 bytes",
        ),
    ],
)
async def test_what_is_no_column_is_refused_before_anything_is_sent(
    autojump_clock: MockClock, arguments: dict[str, object], kind: type[Exception], message: str
) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        with pytest.raises(kind, match=message):
            await producer.send_many(**arguments)  # type: ignore[arg-type]
    assert lanes.values() == []


FAR = 100_000
"""A message that is not in the first piece."""


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ([*range(FAR), 0.5], TypeError),
        ([*range(FAR), "0"], TypeError),
        ([None, *range(FAR - 1), 0.5], TypeError),
        ([*range(FAR), 1 << 63], ValueError),
        (pa.array([*range(FAR), 1 << 62], pa.timestamp("s")), ValueError),
        (pa.array(["0"] * (FAR + 1)), TypeError),
    ],
)
async def test_a_time_that_is_none_is_refused_before_anything_is_sent(
    autojump_clock: MockClock, times: object, kind: type[Exception]
) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        with pytest.raises(kind):
            await producer.send_many([b""] * (FAR + 1), event_times=times)
    assert lanes.values() == []


async def test_large_values_and_large_keys_of_different_messages_fit(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send_many([bytes(3 << 20), b""], keys=[b"", bytes(3 << 20)])
    assert lanes.sizes() == [1, 1]


async def test_a_failure_in_the_middle_is_told_and_the_first_messages_stay(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send(b"opens the lane")
        lanes.fail_next(kept=2)
        with pytest.raises(SendUnknown):
            await producer.send_many(VALUES)
        await producer.flush()  # it was told
        await producer.send(b"after")
    assert lanes.values()[:2001] == [b"opens the lane", *VALUES[:2000]]
    assert lanes.values()[-1] == b"after"


async def test_duplicates_that_send_many_waits_for_are_not_taken_back(
    autojump_clock: MockClock,
) -> None:
    """It acknowledges them: then they are kept, whatever their first sender does."""
    lanes = FakeLanes()
    ids = MessageIds([])
    async with (
        producing(lanes, producer_name="p", linger_ms=1000) as producer,
        trio.open_nursery() as nursery,
    ):

        async def send_late() -> None:
            with pytest.raises(SendUnknown):
                await producer.send(b"x", sequence=5, timeout_s=0.5)

        nursery.start_soon(send_late)
        await trio.testing.wait_all_tasks_blocked()
        ids = await producer.send_many([b"x"], sequence=5)
    assert len(ids) == 1
    assert lanes.values() == [b"x"]


async def test_a_cancelled_call_leaves_the_producer_usable(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send(b"opens the lane")
        lanes.shut()
        with trio.move_on_after(1) as patience:
            await producer.send_many([bytes(100_000)] * 100)
        assert patience.cancelled_caught
        lanes.gate.set()
        await producer.send(b"after")
    assert lanes.values()[-1] == b"after"
    assert 40 < len(lanes.values()) < 102


async def test_what_a_cancelled_call_had_accepted_is_told_by_flush_if_it_fails(
    autojump_clock: MockClock,
) -> None:
    """A small call is accepted as a whole, and only waits then."""
    lanes = FakeLanes()
    async with producing(lanes) as producer:
        await producer.send(b"opens the lane")
        lanes.shut()
        lanes.fail_next()
        with trio.move_on_after(1) as patience:
            await producer.send_many([b"x"])
        assert patience.cancelled_caught
        lanes.gate.set()
        await trio.sleep(1)
        with pytest.raises(SendUnknown):
            await producer.flush()
    assert lanes.values() == [b"opens the lane"]


async def test_a_producer_that_is_closed_during_a_call_ends_it(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes) as producer, trio.open_nursery() as nursery:

        async def send() -> None:
            with pytest.raises(ProducerClosed):
                await producer.send_many([bytes(100_000)] * 500)

        nursery.start_soon(send)
        await trio.sleep(0.01)
        await producer.close()
    assert 0 < len(lanes.values()) < 500

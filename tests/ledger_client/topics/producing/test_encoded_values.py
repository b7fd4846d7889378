"""Values that the producer's encoder makes bytes of, against lanes in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
import pytest
import trio
import trio.testing
from fake_lane import FakeLanes, producing
from trio.testing import MockClock

from ledger_client.errors import BufferFull, PayloadTooLarge
from ledger_client.topics.producing.encoded_values import ValueEncoder
from ledger_client.values import encode_json


class Unencodable(Exception):
    pass


def number(value: int | str) -> bytes:
    """Encode a number; "bad" cannot be encoded."""
    if value == "bad":
        raise Unencodable(value)
    return b"%d" % int(value)


class Series:
    """A column of pandas, or of another library that is no sequence."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter([5, 6])

    def __array__(self) -> NoReturn:
        raise AssertionError("Arrow converts what was not encoded")


def fail(value: object) -> NoReturn:
    raise Unencodable(value)


async def test_each_way_of_sending_encodes(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, value_encoder=number) as producer:
        await producer.send(1)
        await producer.send_nowait(2).message_id()
        await producer.send_many([3, 4])
        await producer.send_many(Series())
        await producer.send_many(range(7, 9), keys=[b"k", None])
    assert lanes.values() == [b"%d" % each for each in range(1, 9)]


async def test_bytes_are_encoded_as_all_other_values_are(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, value_encoder=bytes.upper) as producer:
        await producer.send(b"one")
        await producer.send_many([b"two"])
    assert lanes.values() == [b"ONE", b"TWO"]


async def test_null_stays_null_and_is_not_encoded(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, value_encoder=fail) as producer:
        await producer.send(None)
        await producer.send_many([None, None])
    assert lanes.values() == [None, None, None]


async def test_an_encoder_may_return_null_and_any_bytes(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    made: dict[str, Any] = {"null": None, "array": bytearray(b"a"), "view": memoryview(b"v")}
    async with producing(lanes, value_encoder=made.__getitem__) as producer:
        for name in made:
            await producer.send(name)
        await producer.send_many(list(made))
    assert lanes.values() == [None, b"a", b"v"] * 2


async def test_an_arrow_array_is_sent_as_it_is(autojump_clock: MockClock) -> None:
    lanes = FakeLanes()
    async with producing(lanes, value_encoder=fail) as producer:
        await producer.send_many(pa.array([b"a", None]))
        await producer.send_many(pa.chunked_array([[b"b"]]))
    assert lanes.values() == [b"a", None, b"b"]


async def test_an_encoder_s_error_is_the_sender_s_and_the_producer_goes_on(
    autojump_clock: MockClock,
) -> None:
    """Nothing is sent of that call: also not what send_many had encoded already."""
    lanes = FakeLanes()
    async with producing(lanes, value_encoder=number, producer_name="p") as producer:
        await producer.send(0)
        with pytest.raises(Unencodable):
            await producer.send("bad")
        with pytest.raises(Unencodable):
            producer.send_nowait("bad")
        with pytest.raises(Unencodable):
            await producer.send_many([7, "bad", 8])
        await producer.send(1)
        assert await producer.last_sequence() == 1
    assert lanes.values() == [b"0", b"1"]


@pytest.mark.parametrize(
    ("encoder", "sentence"),
    [
        (
            str,
            "values and keys are bytes, not str, as value_encoder str returned: "
            'encode it, as in "text".encode()',
        ),
        (len, "values and keys are bytes, not int, as value_encoder len returned"),
    ],
)
async def test_an_encoder_that_returns_no_bytes_is_named(
    autojump_clock: MockClock, encoder: ValueEncoder, sentence: str
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, value_encoder=encoder) as producer:
        with pytest.raises(TypeError) as refused:
            await producer.send(["one"])
        assert str(refused.value) == sentence
        with pytest.raises(TypeError) as refused:
            producer.send_nowait("one")
        assert str(refused.value) == sentence
        with pytest.raises(TypeError) as refused:
            await producer.send_many([b"one", "two"])
        assert str(refused.value) == sentence
    assert lanes.values() == []


async def test_the_size_that_counts_is_that_of_the_encoded_value(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    async with producing(lanes, value_encoder=bytes, buffer_bytes=2000) as producer:
        producer.send_nowait(1500)
        with pytest.raises(BufferFull):
            producer.send_nowait(1500)
        with pytest.raises(PayloadTooLarge):
            await producer.send(1 << 23)
        with pytest.raises(PayloadTooLarge):
            await producer.send_many([1, 1 << 23])
    assert lanes.values() == [bytes(1500)]


async def test_a_message_that_waits_was_encoded_when_it_was_sent(
    autojump_clock: MockClock,
) -> None:
    lanes = FakeLanes()
    order = {"count": 1}
    async with (
        producing(lanes, value_encoder=encode_json, buffer_bytes=1) as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send({"count": 0})
        lanes.shut()
        for _ in range(2):
            nursery.start_soon(producer.send, order)
        await trio.testing.wait_all_tasks_blocked()
        order["count"] = 2
        lanes.gate.set()
    assert lanes.values() == [b'{"count":0}', b'{"count":1}', b'{"count":1}']

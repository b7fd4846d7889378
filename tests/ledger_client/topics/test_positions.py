"""Positions as JSON, to store and to go on from."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given, strategies as st
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Position
from ledger_client.errors import BadTopic
from ledger_client.topics.positions import LanePlace, Place

TOPIC = "shop/orders"
SHOWN = (
    '{"quire":"position","version":1,"lanes":[{"topic":"shop/orders","uid":7,"partition":0,'
    '"lane":0,"number":3,"entry":12,"skip":0,"ledger_id":41,"entry_version":915}]}'
)
"""The documented form."""
ONE = Position([LanePlace(TOPIC, 7, 0, 0, Place(3, 12, 0, 41, 915))])

numbers = st.integers(-1, 2**63 - 1)
counts = st.integers(0, 2**63 - 1)
positions = st.lists(
    st.builds(
        LanePlace,
        st.just(TOPIC),
        counts,
        numbers,
        counts,
        st.builds(Place, numbers, counts, counts, numbers, numbers),
    )
).map(Position)


def test_the_form_is_the_documented_one() -> None:
    assert ONE.to_json() == SHOWN
    assert Position.from_json(SHOWN) == ONE
    assert Position.from_json(SHOWN.encode()) == ONE


@given(positions)
def test_a_position_comes_back_from_json_and_pickle(position: Position) -> None:
    for back in (
        Position.from_json(position.to_json()),
        pickle.loads(pickle.dumps(position)),
        copy.deepcopy(position),
    ):
        assert back == position
        assert type(back) is Position


@pytest.mark.parametrize("end", range(0, len(SHOWN), 7))
def test_a_position_cut_short_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match="it is no position"):
        Position.from_json(SHOWN[:end])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "of version 2; this quire reads 1"),
        ({"quire": "offset"}, "it is no position"),
        ({"lanes": [{"topic": TOPIC}]}, "missing required field"),
        ({"lanes": None}, "it is no position"),
    ],
)
def test_what_is_no_position_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Position.from_json(json.dumps(json.loads(SHOWN) | change))


def test_a_field_of_a_later_quire_is_ignored() -> None:
    later = json.loads(SHOWN)
    later["lanes"][0]["more"] = later["more"] = 1
    assert Position.from_json(json.dumps(later)) == ONE


async def test_a_reader_goes_on_from_a_position_that_was_stored(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await client.topics.create(TOPIC, partitions=2)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % i for i in range(10)], partition=1)
        async with client.reader(TOPIC) as reader:
            first = [(await anext(reader)).value for _ in range(4)]
            stored = reader.position().to_json()
            rest = [message.value async for message in reader]
            await reader.seek(Position.from_json(stored))
            assert [message.value async for message in reader] == rest
        async with client.reader(TOPIC, start=Position.from_json(stored)) as reader:
            assert [message.value async for message in reader] == rest
        assert first + rest == [b"%d" % i for i in range(10)]
        with pytest.raises(BadTopic, match="from_json"):
            async with client.reader(TOPIC, start=json.loads(stored)):
                pass

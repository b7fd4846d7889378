"""Reading a compacted topic: places, directions, sets replaced meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from batches import Sent
from laid_set import (
    LEDGERS,
    expected,
    keyed_lane,
    lay_set,
    number_of,
    remove_ledger,
    remove_retired,
    survivors,
)
from laid_topic import TOPIC, Laid, laid_topic, read_all, same
from trio.testing import MockClock

from ledger_client.errors import BadTopic, Gap, MessagesLost
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LanePlace, Version
from ledger_client.topics.reading.reader import give_back
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from metadata.compaction import compacted_key, encode_set


def ids(messages: Sequence[Laid]) -> list[MessageId]:
    return [each.id for each in messages]


async def test_a_compacted_reader_finds_the_latest_of_each_key_and_then_all_that_follows(
    autojump_clock: MockClock,
) -> None:
    """PS-37: messages keep id, version, times, headers, producer and number."""
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3)
        (wanted,) = expected([lane], 3)
        assert len(wanted) < len(lane.messages) - 15
        async with topic.client.reader(TOPIC) as reader:
            raw = {message.id: message for message in await read_all(reader)}
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            found = await read_all(reader)
        assert same(found, wanted)
        assert found == [raw[each.id] for each in wanted]


async def test_record_batches_of_a_compacted_topic_are_rows_of_the_raw_ones(
    autojump_clock: MockClock,
) -> None:
    """PS-37: the same columns, whatever the rows come from."""
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3, compression="zstd", entry_messages=4)
        (wanted,) = expected([lane], 3)
        rows = {}
        for compacted in (False, True):
            async with topic.client.reader(TOPIC, compacted=compacted) as reader:
                batches = [batch async for batch in reader.read_batches(rows_min=7)]
            rows[compacted] = [row for batch in batches for row in batch.to_pylist()]
        kept = {each.id for each in wanted}
        fields = ("ledger_id", "entry_id", "partition", "batch_index")
        assert rows[True] == [
            row for row in rows[False] if MessageId(*(row[name] for name in fields)) in kept
        ]


async def test_a_topic_that_was_never_compacted_is_read_as_it_is(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            assert same(await read_all(reader), lane.messages)
        async with topic.client.reader(TOPIC, compacted=True, reverse=True) as reader:
            assert same(await read_all(reader), lane.messages[::-1])


async def test_a_set_of_which_nothing_is_left_is_passed_over(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = topic.lane()
        await lane.lay([Sent(b"v", b"k"), Sent(None, b"k")])
        await lane.lay([Sent(b"w", b"k")])
        await lay_set(topic, ledgers=1)
        for reverse in (False, True):
            async with topic.client.reader(TOPIC, compacted=True, reverse=reverse) as reader:
                assert same(await read_all(reader), lane.messages[2:])


async def test_reverse_is_the_mirror_of_forward(autojump_clock: MockClock) -> None:
    """TB-72, of what compaction left."""
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        for ledgers in (1, 3, 4):
            await lay_set(topic, ledgers=ledgers)
            (wanted,) = expected([lane], ledgers)
            async with topic.client.reader(TOPIC, compacted=True, reverse=True) as reader:
                assert same(await read_all(reader), wanted[::-1])


@pytest.mark.parametrize("reverse", [False, True])
async def test_every_id_begins_and_ends_reading_whether_its_message_is_left_or_not(
    autojump_clock: MockClock, reverse: bool
) -> None:
    """PS-34: original ids are places in what is left."""
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3)
        (wanted,) = expected([lane], 3)
        order = {each.id: place for place, each in enumerate(lane.messages)}
        settings = {"compacted": True, "reverse": reverse}
        async with topic.client.reader(TOPIC, **settings) as reader:  # type: ignore[arg-type]
            for message in lane.messages[::2]:
                for inclusive in (True, False):
                    await reader.seek(message.id, inclusive=inclusive)
                    here = order[message.id]
                    if reverse:
                        bound = here + inclusive
                        left = [m for m in wanted if order[m.id] < bound][::-1]
                    else:
                        bound = here + (not inclusive)
                        left = [m for m in wanted if order[m.id] >= bound]
                    assert ids_of(await read_all(reader)) == ids(left)
        for message in lane.messages[::3]:
            async with topic.client.reader(
                TOPIC, end=message.id, end_inclusive=True, compacted=True, reverse=reverse
            ) as reader:
                here = order[message.id]
                if reverse:
                    left = [m for m in wanted if order[m.id] >= here][::-1]
                else:
                    left = [m for m in wanted if order[m.id] <= here]
                assert ids_of(await read_all(reader)) == ids(left)


def ids_of(messages: Sequence[object]) -> list[MessageId]:
    return [message.id for message in messages]  # type: ignore[attr-defined] # Message


async def test_times_and_versions_are_places_in_what_is_left(autojump_clock: MockClock) -> None:
    """PS-38, TB-36: the first message at a time, or the first one left behind it."""
    async with laid_topic(order="event-time", timesync=True) as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3)
        (wanted,) = expected([lane], 3)
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            for at in range(0, 60, 4):
                time, stamp, version = 100 + 3 * at, 500 + at, at // 2
                for start, left in (
                    (EventTime(time), [m for m in wanted if (m.sent.event_time or 0) >= time]),
                    (EventTime(time + 1), [m for m in wanted if (m.sent.event_time or 0) > time]),
                    (Timestamp(stamp), [m for m in wanted if m.sent.timestamp >= stamp]),
                    (Version(version), [m for m in wanted if m.version >= version]),
                ):
                    await reader.seek(start)
                    assert ids_of(await read_all(reader)) == ids(left)
            for ms in (0, 999, 1000, 2000, 2001, 3500, 4000):
                await reader.seek(PublishTime(ms))
                left = [m for m in wanted if m.created_ms >= ms]
                assert ids_of(await read_all(reader)) == ids(left)


async def test_a_time_in_a_lane_without_order_is_looked_through_for(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=2)
        (wanted,) = expected([lane], 2)
        async with topic.client.reader(TOPIC, compacted=True, start=EventTime(172)) as reader:
            first = next(i for i, m in enumerate(wanted) if (m.sent.event_time or 0) >= 172)
            assert same(await read_all(reader), wanted[first:])


async def test_reading_goes_on_at_every_position_of_any_reader(autojump_clock: MockClock) -> None:
    """Positions are original places: a raw reader's holds in what is left, and the other way."""
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3)
        (wanted,) = expected([lane], 3)
        order = {each.id: place for place, each in enumerate(lane.messages)}
        for compacted in (False, True):
            async with topic.client.reader(TOPIC, compacted=compacted) as reader:
                positions = [(order[m.id] + 1, reader.position()) async for m in reader]
            for count, position in positions:
                async with topic.client.reader(TOPIC, compacted=True, start=position) as reader:
                    left = [m for m in wanted if order[m.id] >= count]
                    assert ids_of(await read_all(reader)) == ids(left)
            async with topic.client.reader(TOPIC, start=positions[3][1]) as reader:
                assert same(await read_all(reader), lane.messages[positions[3][0] :])


async def test_lanes_are_merged_by_event_time_across_what_is_left_and_what_followed(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic(order="event-time") as topic:
        lanes = [await keyed_lane(topic, lane=0), await keyed_lane(topic, lane=1, shift=7)]
        await lay_set(topic, ledgers=2)
        wanted = [m for left in expected(lanes, 2) for m in left]
        wanted.sort(key=lambda m: (m.sent.event_time, m.lane))
        for reverse in (False, True):
            async with topic.client.reader(
                TOPIC, compacted=True, order="event-time", reverse=reverse
            ) as reader:
                assert same(await read_all(reader), wanted[::-1] if reverse else wanted)


async def test_what_was_handed_out_can_be_given_back(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3, entry_messages=5)
        (wanted,) = expected([lane], 3)
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            some = await reader.next_messages()
            give_back(reader, len(some) - 1)
            assert same(some[:1] + await read_all(reader), wanted)


# --- sets that change ------------------------------------------------------------------


async def test_a_reader_ends_the_generation_it_began_and_goes_on_raw(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=2, entry_messages=1, ledger_entries=2)
        begun = survivors([lane], 2)[0]
        async with topic.client.reader(TOPIC, compacted=True, read_ahead_size=1) as reader:
            found = [await anext(reader) for _ in range(3)]
            await lay_set(topic, ledgers=3)
            found += await read_all(reader)
        assert ids_of(found) == ids(begun) + ids(lane.of_ledger(2)) + ids(lane.of_ledger(3))


@pytest.mark.parametrize("reverse", [False, True])
async def test_when_its_generation_is_gone_a_reader_goes_on_in_the_next_at_its_place(
    autojump_clock: MockClock, reverse: bool
) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=4, entry_messages=1, ledger_entries=1)
        begun = survivors([lane], 4)[0]
        async with topic.client.reader(
            TOPIC, compacted=True, reverse=reverse, read_ahead_size=1
        ) as reader:
            found = [await anext(reader) for _ in range(2)]
            await lay_set(topic, ledgers=4, entry_messages=3)
            await remove_retired(topic)
            found += await read_all(reader)
        assert ids_of(found) == ids(begun[::-1] if reverse else begun)


async def test_raw_ledgers_that_went_are_read_from_the_set_that_covers_them(
    autojump_clock: MockClock,
) -> None:
    """No gap is told where a later generation has what is left."""
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=1)
        (before,) = survivors([lane], 1)
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            for _ in before:
                await anext(reader)
            position = reader.position()
        await lay_set(topic, ledgers=3)
        for number in range(3):
            await lane.purge(number)
        wanted = [m for m in expected([lane], 3)[0] if number_of(lane, m) >= 1]
        async with topic.client.reader(TOPIC, compacted=True, start=position) as reader:
            found = ids_of(await read_all(reader))
        assert found == ids(wanted)
        async with topic.client.reader(TOPIC, start=position) as reader:
            with pytest.raises(Gap):
                await read_all(reader)


async def test_a_gap_under_a_raw_reader_is_none_when_a_set_covers_it(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        first = lane.of_ledger(0)
        async with topic.client.reader(TOPIC, compacted=True, read_ahead_size=1) as reader:
            found = [await anext(reader) for _ in first]
            await lay_set(topic, ledgers=3)
            for number in range(3):
                await lane.purge(number)
            found += await read_all(reader)
        order = {each.id: place for place, each in enumerate(lane.messages)}
        places = [order[message.id] for message in found]
        assert places[: len(first)] == list(range(len(first)))
        assert all(before < after for before, after in pairwise(places))
        left = {each.id for each in expected([lane], 3)[0]}
        assert left <= set(ids_of(found)) | set(ids(first))


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_is_compacted_and_removed_meanwhile_the_latest_of_every_key_is_read(
    autojump_clock: MockClock, seed: int
) -> None:
    """PS-37: messages come in order, each once, and none that counts is missed."""
    chance = random.Random(seed)
    async with laid_topic() as topic:
        lane = await keyed_lane(topic, shift=seed)
        ledgers, found, purged = chance.randrange(1, 3), list[Message](), 0
        await lay_set(topic, ledgers=ledgers, entry_messages=1, ledger_entries=2)
        async with topic.client.reader(TOPIC, compacted=True, read_ahead_size=1) as reader:
            async for message in reader:
                found.append(message)
                if chance.random() < 0.2:
                    ledgers = min(ledgers + chance.randrange(2), LEDGERS)
                    await lay_set(topic, ledgers=ledgers, entry_messages=chance.randrange(1, 4))
                if chance.random() < 0.3:
                    await remove_retired(topic)
                if chance.random() < 0.3 and purged < ledgers:
                    await lane.purge(purged)
                    purged += 1
        order = {each.id: place for place, each in enumerate(lane.messages)}
        places = [order[message.id] for message in found]
        assert all(before < after for before, after in pairwise(places))
        last = {message.key: message.id for message in found}
        for each in survivors([lane], LEDGERS)[0]:
            assert last[each.sent.key] == each.id


async def test_a_ledger_of_the_set_that_is_gone_is_told_and_never_replaced_by_raw_messages(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic(timesync=True) as topic:
        await keyed_lane(topic)
        made = await lay_set(topic, ledgers=3, entry_messages=1, ledger_entries=2)
        await remove_ledger(topic, made.ledgers[1].ledger_id)
        for reverse in (False, True):
            async with topic.client.reader(TOPIC, compacted=True, reverse=reverse) as reader:
                for _ in range(2):
                    with pytest.raises(MessagesLost) as lost:
                        await read_all(reader)
                    assert lost.value.ledger_id == made.ledgers[1].ledger_id
        with pytest.raises(MessagesLost):
            async with topic.client.reader(TOPIC, compacted=True, start=Timestamp(500)) as reader:
                pass
        async with topic.client.reader(TOPIC) as reader:
            await read_all(reader)


async def test_an_entry_that_is_no_compacted_one_is_named(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        made = await lay_set(topic, ledgers=3)
        foreign = lane.rows[0].ledger_id
        ledgers = [msgspec.structs.replace(made.ledgers[0], ledger_id=foreign, entries=1)]
        wrong = msgspec.structs.replace(made, ledgers=ledgers)
        topic.cluster.store.change(compacted_key(topic.record.uid), encode_set(wrong))
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            with pytest.raises(MessagesLost) as bad:
                await read_all(reader)
        assert (bad.value.ledger_id, bad.value.entry_id) == (foreign, 0)


async def test_a_position_of_another_topic_is_refused(autojump_clock: MockClock) -> None:
    async with laid_topic() as topic:
        await keyed_lane(topic)
        await lay_set(topic, ledgers=3)
        async with topic.client.reader(TOPIC, compacted=True) as reader:
            await anext(reader)
            (place,) = reader.position()
        wrong = LanePlace(place.topic, place.uid + 1, *place[2:])
        with pytest.raises(BadTopic):
            async with topic.client.reader(TOPIC, compacted=True, start=[wrong]):
                pass


@pytest.mark.parametrize("purged", [0, 2])
async def test_a_message_of_another_lane_is_no_place_in_a_compacted_one(
    autojump_clock: MockClock, purged: int
) -> None:
    """Its ledger exists elsewhere, or the lane can have lost none; a removed message is a place."""
    async with laid_topic() as topic, topic.client.ledgers.create(1, 1, 1) as other:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=3)
        for number in range(purged):
            await lane.purge(number)
        wanted = ids(expected([lane], 3)[0])
        strange = [other.id, -1] if purged else [other.id, -1, 0]
        for start in (MessageId(ledger_id, 0) for ledger_id in strange):
            with pytest.raises(BadTopic, match=f"message {start} is"):
                async with topic.client.reader(TOPIC, compacted=True, start=start):
                    pass
            with pytest.raises(BadTopic, match=f"message {start} is"):
                async with topic.client.reader(TOPIC, compacted=True, end=start):
                    pass
        first = lane.messages[0].id
        async with topic.client.reader(TOPIC, compacted=True, start=first) as reader:
            assert ids_of(await read_all(reader)) == wanted


async def test_a_follower_goes_from_what_is_left_to_what_is_written(
    autojump_clock: MockClock,
) -> None:
    async with laid_topic() as topic:
        lane = await keyed_lane(topic)
        await lay_set(topic, ledgers=LEDGERS)
        (wanted,) = expected([lane], LEDGERS)
        async with topic.client.reader(TOPIC, compacted=True, follow=True) as reader:
            found = [await anext(reader) for _ in wanted]
            async with lane.write(state="open") as ledger:
                await ledger.send([Sent(b"new", b"k0")])
                found.append(await anext(reader))
        assert same(found, [*wanted, lane.messages[-1]])

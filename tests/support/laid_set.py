"""The compacted set of a laid topic, made by hand: a dictionary finds the latest messages."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from itertools import groupby

import msgspec
from batches import Sent, columns_of
from laid_topic import Laid, LaidLane, LaidTopic

from metadata.compaction import (
    CompactedLedger,
    CompactedSet,
    Horizon,
    MessageOrigin,
    Retired,
    compacted_key,
    decode_set,
    encode_set,
)
from metadata.records import ledger_key
from metadata.store import Delete
from native import compacted
from native.batch import Compression

LEDGERS = 4
"""Ledgers of a lane that keyed_lane() lays."""
KEYS = 9


async def keyed_lane(
    topic: LaidTopic, partition: int = -1, lane: int = 0, *, shift: int = 0, timed: bool = True
) -> LaidLane:
    """Ledgers of batches with keys that come again and again, and tombstones."""
    made = topic.lane(partition, lane)
    count = shift
    for ledger in range(LEDGERS):
        batches: list[list[Sent]] = [[]]
        for size in (3, 1, 5, 3):
            batches.append([_message(count + i, timed) for i in range(size)])
            count += size
        await made.lay(*batches, created_ms=1000 * (ledger + 1))
    return made


def _message(i: int, timed: bool) -> Sent:
    value = b"" if i % 11 == 3 else b"v%d" % i
    key = b"k%d" % (i * i % KEYS + i % 4 * 10)
    return Sent(value, key, 100 + 3 * i if timed else None, 500 + i, {"n": b"%d" % i})


def number_of(lane: LaidLane, message: Laid) -> int:
    """Return the number of the ledger a message was laid in."""
    return [row.ledger_id for row in lane.rows].index(message.id.ledger_id)


def survivors(lanes: Sequence[LaidLane], ledgers: int) -> list[list[Laid]]:
    """Return of each lane what is left of its first ledgers; the later lane counts as later."""
    newest: dict[bytes, Laid] = {}
    for lane in lanes:
        for message in lane.messages:
            if message.sent.key is not None and number_of(lane, message) < ledgers:
                newest[message.sent.key] = message
    kept = {id(message) for message in newest.values() if message.sent.value}
    return [[m for m in lane.messages if id(m) in kept] for lane in lanes]


def expected(lanes: Sequence[LaidLane], ledgers: int) -> list[list[Laid]]:
    """Return of each lane what a reader of the set finds: survivors, then all that came later."""
    left = survivors(lanes, ledgers)
    return [
        kept + [m for m in lane.messages if number_of(lane, m) >= ledgers]
        for lane, kept in zip(lanes, left, strict=True)
    ]


async def lay_set(
    topic: LaidTopic,
    *,
    ledgers: int,
    entry_messages: int = 2,
    ledger_entries: int = 3,
    compression: Compression = "none",
) -> CompactedSet:
    """Compact the first ledgers of every lane, and publish the next generation.

    Entries have *entry_messages*, ledgers of the set *ledger_entries*.
    """
    found: list[CompactedLedger] = []
    horizons: list[Horizon] = []
    left = survivors(topic.lanes, ledgers)
    for lane, messages in zip(topic.lanes, left, strict=True):
        row = lane.rows[ledgers - 1]
        horizons.append(
            Horizon(
                partition=lane.partition,
                lane=lane.lane,
                number=ledgers - 1,
                ledger_id=row.ledger_id,
                version=row.base_version + row.entries,
            )
        )
        step = entry_messages * ledger_entries
        for start in range(0, len(messages), step):
            some = messages[start : start + step]
            found.append(await _ledger(topic, lane, some, entry_messages, compression))
    return await _publish(topic, found, horizons)


async def _ledger(
    topic: LaidTopic,
    lane: LaidLane,
    messages: list[Laid],
    entry_messages: int,
    compression: Compression,
) -> CompactedLedger:
    entries = [messages[i : i + entry_messages] for i in range(0, len(messages), entry_messages)]
    async with topic.client.ledgers.create(1, 1, 1) as ledger:
        for each in entries:
            await ledger.append(entry_of(lane, each, compression))
    return CompactedLedger(
        partition=lane.partition,
        lane=lane.lane,
        ledger_id=ledger.id,
        first=_origin(lane, messages[0]),
        last=_origin(lane, messages[-1]),
        entries=len(entries),
        messages=len(messages),
        size=1,
    )


def entry_of(lane: LaidLane, messages: Sequence[Laid], compression: Compression = "none") -> bytes:
    """Return the compacted entry of these messages."""
    origins = []
    for place, group in groupby(messages, key=lambda m: m.id[:2]):
        same = list(group)
        first = same[0]
        origins.append(
            compacted.Origin(
                number_of(lane, first),
                place[0],
                place[1],
                first.version,
                first.created_ms,
                lane.messages.index(first) - max(first.id.batch_index, 0),
                0,
                "p",
                len(same),
            )
        )
    return compacted.encode(
        compacted.Origins.of(origins),
        array("i", [m.id.batch_index for m in messages]),
        columns_of([m.sent for m in messages]),
        compression=compression,
    )


def _origin(lane: LaidLane, message: Laid) -> MessageOrigin:
    ledger_id, entry_id, *_ = message.id
    return MessageOrigin(number_of(lane, message), ledger_id, entry_id, message.version)


async def _publish(
    topic: LaidTopic, ledgers: list[CompactedLedger], horizons: list[Horizon]
) -> CompactedSet:
    key = compacted_key(topic.record.uid)
    before = await current_set(topic)
    retired = [] if before is None else before.retired
    if before is not None:
        now = time.time_ns() // 1_000_000
        retired = [*retired, *(Retired(each.ledger_id, now) for each in before.ledgers)]
    made = CompactedSet(
        generation=1 if before is None else before.generation + 1,
        horizons=horizons,
        ledgers=ledgers,
        retired=retired,
    )
    topic.cluster.store.change(key, encode_set(made))
    return made


async def current_set(topic: LaidTopic) -> CompactedSet | None:
    """Return the set as it is."""
    key = compacted_key(topic.record.uid)
    found = await topic.cluster.store.get(key)
    return None if found is None else decode_set(key, found.value)


async def remove_retired(topic: LaidTopic) -> None:
    """Remove the ledgers of former generations."""
    made = await current_set(topic)
    assert made is not None
    for each in made.retired:
        await remove_ledger(topic, each.ledger_id)
    after = msgspec.structs.replace(made, retired=[])
    topic.cluster.store.change(compacted_key(topic.record.uid), encode_set(after))


async def remove_ledger(topic: LaidTopic, ledger_id: int) -> None:
    """Remove a ledger's record."""
    await topic.cluster.store.transact([Delete(ledger_key(ledger_id))])

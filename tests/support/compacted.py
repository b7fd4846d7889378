"""Compaction as it must be: a dictionary; and compacted sets as they are found."""

from __future__ import annotations

from typing import NamedTuple

from batches import Sent, messages_of
from laid_topic import Laid, LaidTopic

from ledger_client import Client
from ledger_client.message_id import MessageId
from ledger_client.topics.retention.holdings import read_set
from metadata.compaction import CompactedSet
from native.compacted import decode

Place = tuple[int, int]


class Kept(NamedTuple):
    """A message of a set, with all that compaction has to keep."""

    id: MessageId
    lane: int
    version: int
    sent: Sent
    created_ms: int


async def the_set(topic: LaidTopic) -> CompactedSet:
    found = await read_set(topic.cluster.store, topic.record.uid)
    assert found is not None
    return found.set


async def kept_of(client: Client, compacted: CompactedSet) -> list[Kept]:
    """Return all messages of a set, in its order; check that rows say what ledgers hold."""
    found: list[Kept] = []
    for row in compacted.ledgers:
        async with client.ledgers.open(row.ledger_id) as reader:
            entries = await reader.read(0, reader.last_confirmed)
        assert len(entries) == row.entries
        assert sum(len(entry.payload) for entry in entries) == row.size
        some = [kept for entry in entries for kept in _messages(entry.payload, row.partition)]
        assert len(some) == row.messages
        found += [kept._replace(lane=row.lane) for kept in some]
    return found


def _messages(payload: bytes, partition: int) -> list[Kept]:
    compacted = decode(payload)
    sent = messages_of(compacted.decoded.columns)
    rows = zip(compacted.origins.index, compacted.batch_indexes, sent, strict=True)
    found: list[Kept] = []
    for at, index, each in rows:
        origin = compacted.origins[at]
        assert origin.producer == "p"
        place = MessageId(origin.ledger_id, origin.entry_id, partition, index)
        found.append(Kept(place, 0, origin.version, each, origin.created_ms))
    return found


def survivors_of(
    lanes: dict[Place, list[Laid]],
    *,
    ordered: bool = False,
    timed: bool = False,
    null_keys: str = "drop",
) -> list[Kept]:
    """Return the messages that compaction must keep, found by a dictionary."""
    latest: dict[bytes, tuple[tuple[int, int, int, int], Kept]] = {}
    keyless: list[tuple[tuple[int, int, int, int], Kept]] = []
    for (partition, lane), messages in sorted(lanes.items()):
        order = -(1 << 63)
        for at, laid in enumerate(messages):
            order = max(order, laid.created_ms)
            time = laid.sent.timestamp if timed else laid.sent.event_time
            is_timed = (ordered or timed) and time is not None
            mark = (time if is_timed and time is not None else order, partition, lane, at)
            kept = Kept(laid.id, lane, laid.version, laid.sent, laid.created_ms)
            key = laid.sent.key
            if key is None:
                keyless.append((mark, kept))
            elif key not in latest or latest[key][0] < mark:
                latest[key] = mark, kept
    found = [each for each in latest.values() if each[1].sent.value]
    found += keyless if null_keys == "keep" else []
    return [kept for mark, kept in sorted(found, key=lambda each: each[0][1:])]


def without_tombstones(kept: list[Kept]) -> list[Kept]:
    """Return the messages without the tombstones that had to stay."""
    return [each for each in kept if each.sent.value or each.sent.key is None]

"""Topics laid out by hand in a store: lanes, their ledgers, and the records of these."""

from __future__ import annotations

from collections.abc import Iterable

from leases import grant
from memory_store import MemoryStore

from ledger_client.cluster.lane_index import LaneIndex, tallied
from ledger_client.cluster.observer import TopicSnapshot
from ledger_client.topics.retention.holdings import HeldLedger, LaneHoldings
from metadata.records import (
    Fragment,
    LedgerRecord,
    LedgerState,
    decode_ledger,
    encode_record,
    ledger_key,
)
from metadata.topics import (
    LaneLedger,
    LaneOwner,
    LaneRecord,
    TopicRecord,
    encode_row,
    lane_key,
    lane_ledger_key,
    writer_lease,
)

HOUR_MS = 3_600_000


def row(number: int, *, closed_ms: int | None = None, **fields: object) -> LaneLedger:
    """Return the row of ledger 100 + *number*: closed after an hour, 10 messages in 1000 bytes."""
    values: dict[str, object] = {
        "ledger_id": 100 + number,
        "state": "closed",
        "created_ms": number * HOUR_MS,
        "closed_ms": (number + 1) * HOUR_MS if closed_ms is None else closed_ms,
        "entries": 2,
        "messages": 10,
        "size": 1000,
        "first_timestamp": number * 100 + 1,
        "last_timestamp": number * 100 + 99,
        "first_event_time": number * 1000,
        "last_event_time": number * 1000 + 999,
    }
    return LaneLedger(**(values | fields))  # type: ignore[arg-type]  # checked by the tests


def begun(
    number: int, *, ledger_id: int | None = None, created_ms: int | None = None
) -> LaneLedger:
    """Return the row of a ledger that is written."""
    return LaneLedger(
        ledger_id=100 + number if ledger_id is None else ledger_id,
        state="open",
        created_ms=number * HOUR_MS if created_ms is None else created_ms,
    )


def holdings(
    rows: Iterable[LaneLedger],
    *,
    partition: int = -1,
    lane: int = 0,
    producer: str = "",
    owner: LaneOwner | None = None,
) -> LaneHoldings:
    """Return a lane with these ledgers, numbered from 0."""
    held = tuple(HeldLedger(number, each, number + 1) for number, each in enumerate(rows))
    return LaneHoldings(partition, lane, LaneRecord(epoch=1, producer=producer), owner, held)


def figures_of(topic: TopicRecord, lanes: Iterable[LaneHoldings]) -> TopicSnapshot:
    """Return what the leader publishes of a topic with these lanes."""
    index = LaneIndex()
    index.set_topic(topic)
    entry = index.topics[topic.uid]
    for lane in lanes:
        place = lane.partition, lane.lane
        index.put(entry, place, tallied(None, lane.ledgers))
        index.set_owned(entry, place, owned=lane.owner is not None)
    return entry.snapshot()


async def lay_lane(
    store: MemoryStore,
    topic: TopicRecord,
    rows: Iterable[LaneLedger],
    *,
    partition: int = -1,
    lane: int = 0,
    producer: str = "",
    written: bool = False,
) -> None:
    """Store a lane with these ledgers, numbered from 0, and the records of these."""
    record = LaneRecord(epoch=1, producer=producer)
    await store.put(lane_key(topic.uid, partition, lane), encode_row(record))
    for number, each in enumerate(rows):
        await store.put(lane_ledger_key(topic.uid, partition, lane, number), encode_row(each))
        closed = each.state == "closed"
        ledger = LedgerRecord(
            each.ledger_id,
            *(1, 1, 1),
            LedgerState.CLOSED if closed else LedgerState.OPEN,
            [Fragment(0, ["b1"])],
            last_entry=each.entries - 1 if closed else -1,
            length=each.size if closed else 0,
        )
        await store.put(ledger_key(each.ledger_id), encode_record(ledger))
    if written:
        owner = encode_row(LaneOwner(producer="p1", host="h"))
        await grant(
            store, writer_lease(topic.uid, partition, lane), "p1/1", ttl_s=3600, value=owner
        )


def stored(store: MemoryStore, prefix: str) -> list[str]:
    """Return the keys with *prefix*, in order."""
    return sorted(key for key in store.values if key.startswith(prefix))


def ledger_ids(store: MemoryStore) -> list[int]:
    """Return the ledgers that have a record, without those of ``__events``."""
    keys = stored(store, "ledgers/")
    records = [decode_ledger(key, store.values[key].value) for key in keys]
    return [r.ledger_id for r in records if not r.custom.get("topic", "").endswith("__events")]

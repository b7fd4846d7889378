"""A topic in memory whose lanes are written directly, and what is in them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from memory_cluster import MemoryCluster

from ledger_client import Client
from ledger_client.topics.lanes.lane_state import LaneState, SealedBatch
from metadata.records import LedgerState
from metadata.topics import (
    LANE_LEDGERS,
    LaneLedger,
    LaneRecord,
    RollPolicy,
    TopicRecord,
    decode_lane,
    decode_lane_ledger,
    encode_row,
    lane_key,
    lane_ledgers_prefix,
    topic_key,
)
from native import batch as native_batch
from native.batch import BatchKind, Columns

UID = 7


def make_topic(
    cluster: MemoryCluster,
    *,
    order: str = "none",
    replication: int = 3,
    ack_quorum: int = 2,
    **roll: float,
) -> TopicRecord:
    topic = TopicRecord(
        name="shop/orders",
        uid=UID,
        replication=replication,
        ack_quorum=ack_quorum,
        order=order,  # type: ignore[arg-type]  # one of the literals
        roll=msgspec.convert(roll, RollPolicy),
    )
    cluster.store.change(topic_key(topic.name), encode_row(topic))
    return topic


def batch(
    *values: bytes | str,
    times: Sequence[int] | None = None,
    producer: str = "",
    sequence: int = -1,
) -> SealedBatch:
    """A batch of these messages; *sequence* is that of the first."""
    columns = Columns.of(
        [v.encode() if isinstance(v, str) else v for v in values], event_times=times
    )
    payload = native_batch.encode(
        columns, 0, len(values), producer=producer.encode(), sequence=sequence
    )
    return SealedBatch.of(payload)


def lane_record(cluster: MemoryCluster, lane: int = 0) -> LaneRecord:
    key = lane_key(UID, -1, lane)
    return decode_lane(key, cluster.store.values[key].value)


def rows(cluster: MemoryCluster, lane: int = 0) -> list[LaneLedger]:
    """The rows of the lane's ledgers, in order."""
    prefix = lane_ledgers_prefix(UID, -1, lane)
    found = sorted((k, v.value) for k, v in cluster.store.values.items() if k.startswith(prefix))
    return [decode_lane_ledger(key, value) for key, value in found]


def row_count(cluster: MemoryCluster) -> int:
    return sum(key.startswith(LANE_LEDGERS) for key in cluster.store.values)


class Stored(msgspec.Struct):
    """An entry of a lane, decoded."""

    ledger_id: int
    entry_id: int
    version: int
    values: list[bytes]
    times: list[int] = []
    state: LaneState | None = None


async def stored(client: Client, cluster: MemoryCluster, lane: int = 0) -> list[Stored]:
    """Every entry of the lane, in order, as its closed and open ledgers hold it."""
    found: list[Stored] = []
    for row in rows(cluster, lane):
        if row.state == "prepared":
            continue
        async with client.ledgers.open(row.ledger_id) as reader:
            assert reader.metadata.state is LedgerState.CLOSED
            for entry in await reader.read(0, reader.last_confirmed):
                header = native_batch.read_header(entry.payload)
                item = Stored(row.ledger_id, entry.entry_id, row.base_version + entry.entry_id, [])
                if header.kind == BatchKind.MESSAGES:
                    columns = native_batch.decode(entry.payload).columns
                    item.values = cast(
                        "list[bytes]", columns.values.to_list()
                    )  # no test sends None
                    item.times = list(columns.event_times or ())
                else:
                    item.state = LaneState.decode(entry.payload)
                found.append(item)
    return found


async def messages(client: Client, cluster: MemoryCluster, lane: int = 0) -> list[bytes]:
    return [value for item in await stored(client, cluster, lane) for value in item.values]

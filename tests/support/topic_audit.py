"""Records a topic's metadata and ledgers in a history: rows as they change, and entries."""

from __future__ import annotations

from event import mark_of
from history import Recorder
from message_events import HeldEntry, LedgerHeld, Message, RowListed, RowRemoved

from ledger_client import Client
from ledger_client.topics.lanes.lane_state import LaneState
from metadata.store import MetadataStore, Versioned
from metadata.topics import (
    LANE_LEDGERS,
    decode_lane_ledger,
    lane_of,
    last_number,
    topic_prefix,
)
from native import batch as native_batch
from native.batch import BatchKind

Rows = dict[str, int]
"""The version of each row, by its key, that was told last."""


def tell_row(history: Recorder, topic: str, key: str, found: Versioned | None) -> None:
    """Tell how the row of a ledger stands now; None: it was removed."""
    (partition, lane), number = lane_of(key.rpartition("/")[0]), last_number(key)
    if found is None:
        history.add(RowRemoved(topic=topic, partition=partition, lane=lane, number=number))
        return
    row = decode_lane_ledger(key, found.value)
    history.add(
        RowListed(
            topic=topic,
            partition=partition,
            lane=lane,
            number=number,
            version=found.version,
            row=row,
        )
    )


async def tell_rows(
    history: Recorder, topic: str, uid: int, store: MetadataStore, seen: Rows
) -> None:
    """Tell every row of the topic that is not as it was *seen* last."""
    prefix, after, found = topic_prefix(LANE_LEDGERS, uid), "", set()
    while page := await store.list(prefix, after=after):
        for key, row in page:
            found.add(key)
            if seen.get(key) != row.version:
                seen[key] = row.version
                tell_row(history, topic, key, row)
        after = page[-1][0]
    for key in sorted(seen.keys() - found):
        del seen[key]
        tell_row(history, topic, key, None)


async def tell_ledgers(history: Recorder, topic: str, uid: int, client: Client) -> None:
    """Read every closed ledger of the topic. Raises LedgerError."""
    prefix, after = topic_prefix(LANE_LEDGERS, uid), ""
    while page := await client._context.store.list(prefix, after=after):
        for key, found in page:
            row = decode_lane_ledger(key, found.value)
            if row.state == "closed":
                await _tell_ledger(history, topic, row.ledger_id, client)
        after = page[-1][0]


async def _tell_ledger(history: Recorder, topic: str, ledger: int, client: Client) -> None:
    async with client.ledgers.open(ledger, recover=False) as reader:
        found = [] if reader.last_confirmed < 0 else await reader.read(0, reader.last_confirmed)
    entries = [_held(entry.entry_id, bytes(entry.payload)) for entry in found]
    history.add(LedgerHeld(topic=topic, ledger=ledger, entries=entries))


def _held(entry: int, payload: bytes) -> HeldEntry:
    header = native_batch.read_header(payload)
    if header.kind != BatchKind.MESSAGES:
        state = LaneState.decode(payload)
        return HeldEntry(
            entry=entry,
            size=len(payload),
            epoch=state.epoch,
            producer="",
            messages=[],
            state={name: last[0] for name, last in state.producers.items()},
        )
    return HeldEntry(
        entry=entry,
        size=len(payload),
        epoch=header.epoch,
        producer=header.producer,
        messages=_messages(payload),
        batched=header.batched,
    )


def _messages(payload: bytes) -> list[Message]:
    decoded = native_batch.decode(payload)
    columns, header = decoded.columns, decoded.header
    count = header.count
    keys = [None] * count if columns.keys is None else columns.keys.to_list()
    times: list[int | None] = [None] * count
    if columns.event_times is not None:
        times = list(columns.event_times.tolist())
    numbers = (
        [-1] * count if header.sequence < 0 else range(header.sequence, header.sequence + count)
    )
    return [
        Message(mark_of(value or b""), number, time, None if key is None else mark_of(key))
        for value, number, time, key in zip(
            columns.values.to_list(), numbers, times, keys, strict=True
        )
    ]

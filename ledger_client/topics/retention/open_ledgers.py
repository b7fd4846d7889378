"""What readers get of open ledgers: counted, or estimated, by their bookies.

Rows in the metadata have counts of closed ledgers only. Of an open one, the bookies are asked how
far it is confirmed. Then its end is read, in two questions:

    state ... batch batch batch     the lane's state counts all messages before it: exact
          ... batch batch batch     no state is near enough: estimated from these

A writer writes the lane's state every 1000 entries, so the count is exact unless batches are large.
The size is exact in either case, as each entry states the bytes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import trio

from ledger_client.errors import LedgerError, NoSuchLedger
from ledger_client.ledgers.entries import EntryBatch, digest_of, length_before
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.topics.lanes.lane_state import LaneState
from ledger_client.topics.lanes.written_ledger import STATE_ENTRIES
from native import batch as native_batch
from native.batch import BatchKind
from native.digest import Digest
from native.errors import Corrupt

LIMIT_S = 12.0
"""Longer than request_timeout_s, so that a bookie that hangs hides no other's answer."""
ASKED_MAX = 16
"""Ledgers that are asked for at a time."""
READ_SIZE = 16 << 20
"""About the payload bytes read in all; each ledger gets an equal share of it."""
TAIL_SIZE_MIN, TAIL_SIZE_MAX = 4 << 10, 256 << 10
"""The least and the greatest share."""


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """What readers get of one open ledger."""

    ledger_id: int
    entries: int = 0
    messages: int = 0
    size: int = 0
    """payload bytes of one copy"""
    is_estimate: bool = False
    """*messages* is estimated from the last entries"""


async def count_confirmed(ledgers: Ledgers, ledger_ids: Sequence[int]) -> dict[int, Confirmed]:
    """Return what is confirmed in open ledgers, by id.

    Those are left out whose bookies do not answer within LIMIT_S, or do not have the last entry.
    Nothing is fenced or recovered. The cost is a read of the ledger's record, a question to its
    bookies and a few reads of entries for each ledger.
    """
    found: dict[int, Confirmed] = {}
    share = READ_SIZE // max(len(ledger_ids), 1)
    size_max = min(max(share, TAIL_SIZE_MIN), TAIL_SIZE_MAX)
    limiter = trio.CapacityLimiter(ASKED_MAX)

    async def count(ledger_id: int) -> None:
        async with limiter:
            with suppress(LedgerError):
                found[ledger_id] = await _confirmed_in(ledgers, ledger_id, size_max)

    with trio.move_on_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for ledger_id in ledger_ids:
                nursery.start_soon(count, ledger_id)
    return found


async def _confirmed_in(ledgers: Ledgers, ledger_id: int, size_max: int) -> Confirmed:
    """Ask for one ledger. Raises as LedgerReader.read()."""
    try:
        async with ledgers.open(ledger_id, recover=False) as reader:
            last = reader.last_confirmed
            if last < 0:
                return Confirmed(ledger_id=ledger_id)
            digest = digest_of(reader.metadata)
            (newest,) = await _read(reader, last, last)
            length = length_before(newest, digest)
            count = 0
            if not isinstance(_counted(*newest.payloads()), LaneState):
                count = await _fitting(reader, digest, newest, size_max)
            before = await _read(reader, last - count, last - 1) if count else []
    except NoSuchLedger:  # it was removed meanwhile
        return Confirmed(ledger_id=ledger_id)
    messages, is_estimate = _messages_in([*before, newest], length + newest.size)
    return Confirmed(
        ledger_id=ledger_id,
        entries=last + 1,
        messages=messages,
        size=length + newest.size,
        is_estimate=is_estimate,
    )


async def _fitting(reader: LedgerReader, digest: Digest, newest: EntryBatch, size_max: int) -> int:
    """Return how many entries before the *newest* to read: as *size_max* allows, and at least one.

    An entry states the bytes before it. So it is read alone, to learn the size of those from it on.
    """
    last, end = newest.first_entry, length_before(newest, digest)
    count = min(last, STATE_ENTRIES)
    if count < last:
        count = max(min(count, size_max // max(newest.size, 1)), 1)
    while count > 1:
        start = 0
        if count < last:
            (first,) = await _read(reader, last - count, last - count)
            start = length_before(first, digest)
        if end - start <= size_max:
            break
        count = max(min(count // 2, count * size_max // (end - start)), 1)
    return count


async def _read(reader: LedgerReader, first: int, last: int) -> list[EntryBatch]:
    return [batch async for batch in reader.read_batches(first, last)]


def _messages_in(tail: Sequence[EntryBatch], length: int) -> tuple[int, bool]:
    """Return the messages of a ledger of *length* payload bytes that ends with *tail*.

    True with it if they are estimated.
    """
    messages = size = 0
    for payload in reversed([payload for batch in tail for payload in batch.payloads()]):
        found = _counted(payload)
        if isinstance(found, LaneState):
            return messages + found.figures.messages, False
        messages += found
        size += len(payload)
    return messages * length // max(size, 1), size < length


def _counted(payload: bytes) -> int | LaneState:
    """Return the number of messages in an entry, or the lane's state. Damage counts as none."""
    try:
        header = native_batch.read_header(payload)
        if header.kind == BatchKind.LANE_STATE:
            return LaneState.decode(payload)
    except Corrupt:
        return 0
    return header.count if header.kind == BatchKind.MESSAGES else 0

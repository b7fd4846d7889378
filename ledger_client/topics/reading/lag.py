"""How far behind a place in a lane is: in messages, and in seconds.

    place ──► rest of its ledger ──► closed ledgers ──► open ledger ──► end
              the first entries      their rows have    a sample is read,
              are read               counts             or all, if it is short

What is not read and has no count is estimated by the mean of its ledger, or of what was read of it.
So who keeps up has an exact lag; far behind it is right to within a ledger's rest and the open
ledger. The time is that at which the oldest message was sent, by the cluster's clock.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger_client.errors import NoSuchEntry, NoSuchLedger
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.topics.lanes.ledger_rows import (
    LedgerRows,
    Row,
    kept_entries,
    kept_messages,
    past,
)
from ledger_client.topics.messages import message_header
from ledger_client.topics.positions import Place

ENTRIES_MAX = 64
"""Entries of a ledger that are read to count their messages."""
SIZE_MAX = 1 << 20
"""Bytes that are read for this, about."""


class Behind(NamedTuple):
    """What lies between a place and the end of its lane."""

    messages: int
    is_exact: bool
    """False: some of *messages* are estimated"""
    sent_ms: int | None
    """Unix time at which the oldest of them was sent; `None` without any"""


class _Sample(NamedTuple):
    """What was read of a ledger from a place on."""

    entries: int
    messages: int
    sent_ms: int | None


async def behind(rows: LedgerRows, opener: LedgerOpener, place: Place, end: Place) -> Behind:
    """Return what lies between *place* and *end*, the end of the lane.

    Costs one listing of rows for each thousand ledgers, and up to two short reads.

    Raises:
        LedgerError: as reading does.
    """
    messages, is_exact, sent_ms = 0, True, None
    number = max(place.number, 0)
    while number <= end.number and (page := await rows.page(number)):
        number = page[-1].number + 1
        for row in page:
            begin = place if row.number == place.number else row.place(0)
            is_whole = row.ledger.state == "closed" and (begin.entry, begin.skip) == (0, 0)
            entry, skip = past(row.ledger.removed, (begin.entry, begin.skip))
            first, stop = begin._replace(entry=entry, skip=skip), _stop(row, end)
            if row.number > end.number or not row.readable or first.entry >= stop:
                continue
            if is_whole and (sent_ms is not None or not row.ledger.messages):
                messages += row.ledger.messages
                continue
            sample = await _read(rows, opener, row, first, stop)
            if sent_ms is None:
                sent_ms = sample.sent_ms
            left = _kept(row, first.entry + sample.entries, stop)
            is_exact = is_exact and (is_whole or left == 0)
            messages += row.ledger.messages if is_whole else _total(row, first, sample, left)
    return Behind(messages, is_exact, sent_ms)


async def sent_at(rows: LedgerRows, opener: LedgerOpener, place: Place) -> int | None:
    """Return the Unix time in ms at which the entry at *place* was sent; `None` if it is gone.

    Costs a look at a row, and a short read.

    Raises:
        LedgerError: as reading does.
    """
    row = await rows.first_from(place.number)
    if row is None or row.number != place.number or not row.readable:
        return None
    at = place._replace(skip=0)
    return (await _read(rows, opener, row, at, at.entry + 1)).sent_ms


def _stop(row: Row, end: Place) -> int:
    """Return the entry before which a ledger ends, or the lane."""
    if row.number == end.number:
        return end.entry
    return row.ledger.entries if row.ledger.state == "closed" else 0


def _total(row: Row, first: Place, sample: _Sample, left: int) -> int:
    """Return the messages of a sample from *first* on and of the *left* entries after it."""
    if row.ledger.state == "closed" and row.ledger.entries:
        counted, entries = row.ledger.messages, _kept(row, 0, row.ledger.entries)
    else:
        counted, entries = sample.messages, _kept(row, first.entry, first.entry + sample.entries)
    return sample.messages + round(left * (counted / entries if entries else 1.0))


def _kept(row: Row, first: int, stop: int) -> int:
    """Count the entries from *first* to before *stop* that were not deleted as a whole."""
    kept = kept_entries(row.ledger.removed, first, stop - 1)
    return sum(end - begin + 1 for begin, end in kept)


async def _read(
    rows: LedgerRows, opener: LedgerOpener, row: Row, first: Place, stop: int
) -> _Sample:
    """Read the first entries of a ledger from a place on."""
    entries, messages, size = 0, 0, 0
    sent_ms: int | None = None
    try:
        # That they are confirmed is known, even if the bookies that answer now do not know it.
        reader = await opener.open(row.ledger.ledger_id, confirmed=stop - 1)
        try:
            last = min(stop, first.entry + ENTRIES_MAX) - 1
            async for batch in reader.read_batches(first.entry, last):
                for index in range(len(batch)):
                    at = row.place(batch.first_entry + index)
                    payload = batch.payload(index)
                    header = message_header(rows.lane, at, payload, row.ledger.stamp)
                    entries += 1
                    if header is None:
                        continue
                    skip = first.skip if at.entry == first.entry else 0
                    kept = kept_messages(row.ledger.removed, at.entry, skip, header.count)
                    count = sum(end - begin for begin, end in kept)
                    messages += count
                    sent_ms = header.created_ms if count and sent_ms is None else sent_ms
                size += batch.size
                if size >= SIZE_MAX:
                    break
        finally:
            reader.unwatch()
    except NoSuchLedger:  # removed meanwhile
        return _Sample(stop - first.entry, messages, sent_ms)
    except NoSuchEntry:  # what it has is not known
        pass
    return _Sample(entries, messages, sent_ms)

"""The bytes of a cluster in rows that a person can read: by topic, ledger, reason or bookie.

However it is grouped, the sizes of all rows add up to what all disks hold, unless the rows are
those of one topic alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from ledger_client.operations.owners import Owner
from ledger_client.operations.usage import REASONS, LedgerUse, Reason, Usage

By = Literal["topic", "ledger", "reason", "bookie"]
OF_LEDGERS: tuple[Reason, ...] = ("live", "unwanted")
"""Reasons that belong to a ledger; the others belong to a bookie's files."""


class Row(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One row. What it is a row of says what is set; sizes are in bytes, over all bookies.

    *size* is live + unwanted, or bytes that belong to no ledger and are there for *reason*.
    """

    topic: str | None = None
    """empty: ledgers of no topic"""
    part: str | None = None
    ledger_id: int | None = None
    bookie_id: str | None = None
    reason: str | None = None
    ledgers: int = 0
    copies: int = 0
    live: int = 0
    unwanted: int = 0
    unflushed: int = 0
    """in memory, and on disk in the journal only: no part of size"""
    reasons: dict[Reason, int] = {}
    size: int = 0


def rows_of(usage: Usage, by: By, topic: str | None = None) -> list[Row]:
    """Return the rows, the largest first, those of no ledger last; or those of *topic* only."""
    ledgers = [use for use in usage.ledgers if topic is None or _is_of(use, topic)]
    if by == "bookie":
        return _by_bookie(usage, ledgers, whole=topic is None)
    rows = sorted(_GROUPINGS[by](ledgers), key=lambda row: (row.reason is not None, -row.size))
    return rows if topic is not None else rows + _overhead(usage)


def _is_of(use: LedgerUse, topic: str) -> bool:
    return use.owner is not None and use.owner.topic == topic


def _by_topic(ledgers: list[LedgerUse]) -> Iterator[Row]:
    found: dict[Owner | None, Row] = {}
    for use in ledgers:
        row = found.setdefault(use.owner, _row(use.owner))
        row.ledgers += 1
        _add(row, use)
    yield from found.values()


def _row(owner: Owner | None) -> Row:
    if owner is None:
        return Row(reason="unwanted")
    return Row(topic=owner.topic, part=owner.part)


def _by_ledger(ledgers: list[LedgerUse]) -> Iterator[Row]:
    for use in ledgers:
        row = Row(ledger_id=use.ledger_id, ledgers=1)
        if use.owner is not None:
            row.topic, row.part = use.owner.topic, use.owner.part
        _add(row, use)
        yield row


def _by_reason(ledgers: list[LedgerUse]) -> Iterator[Row]:
    live, unwanted = Row(reason="live"), Row(reason="unwanted")
    for use in ledgers:
        live.size += sum(use.live.values())
        unwanted.size += sum(use.unwanted.values())
    yield from (row for row in (live, unwanted) if row.size)


def _by_bookie(usage: Usage, ledgers: list[LedgerUse], *, whole: bool) -> list[Row]:
    rows = {bookie.bookie_id: Row(bookie_id=bookie.bookie_id) for bookie in usage.bookies}
    for use in ledgers:
        for name, size in use.live.items():
            rows[name].live += size
        for name, size in use.unwanted.items():
            rows[name].unwanted += size
        for name in use.live.keys() | use.unwanted.keys():
            rows[name].ledgers += 1
    for bookie in usage.bookies:
        row = rows[bookie.bookie_id]
        row.size = row.live + row.unwanted
        if whole:
            row.size, row.reasons, row.unflushed = bookie.size, bookie.reasons, bookie.unflushed
    return list(rows.values())


def _overhead(usage: Usage) -> list[Row]:
    sizes = {
        reason: sum(bookie.reasons.get(reason, 0) for bookie in usage.bookies)
        for reason in REASONS
        if reason not in OF_LEDGERS
    }
    return [Row(reason=reason, size=size) for reason, size in sizes.items() if size]


def _add(row: Row, use: LedgerUse) -> None:
    live, unwanted = sum(use.live.values()), sum(use.unwanted.values())
    row.copies += len(use.live) + len(use.unwanted)
    row.live += live
    row.unwanted += unwanted
    row.size += live + unwanted


_GROUPINGS: dict[By, Callable[[list[LedgerUse]], Iterator[Row]]] = {
    "topic": _by_topic,
    "ledger": _by_ledger,
    "reason": _by_reason,
}

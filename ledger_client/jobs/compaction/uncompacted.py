"""Messages that a compaction leaves out, and why: it takes the ledgers that were closed before."""

from __future__ import annotations

import msgspec

from ledger_client.errors import LedgerError
from ledger_client.jobs.compaction.plan import CompactionPlan
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.context import TopicContext
from ledger_client.topics.retention.explanation import LedgerTotals
from ledger_client.topics.retention.holdings import read_holdings
from ledger_client.topics.retention.open_ledgers import count_confirmed
from metadata.topics import LaneLedger


class Uncompacted(msgspec.Struct, frozen=True, kw_only=True):
    """Messages after the compacted ones. `Topics.roll()` closes the ledgers that are open."""

    open_ledgers: int = 0
    open_messages: int = 0
    """confirmed in open ledgers"""
    is_estimate: bool = False
    """*open_messages* is an estimate"""
    uncounted: int = 0
    """open ledgers with nothing counted: their bookies did not answer"""
    newer_ledgers: int = 0
    newer_messages: int = 0
    """in ledgers that were closed after the compaction began"""


async def uncompacted(context: TopicContext, plan: CompactionPlan) -> Uncompacted | None:
    """Return what *plan* leaves out. `None` if the store does not answer: nothing depends on it."""
    try:
        rows = await _rows_after(context, plan)
    except LedgerError:
        return None
    is_open = [row for row in rows if row.state == "open"]
    confirmed = await count_confirmed(context.ledgers, [row.ledger_id for row in is_open])
    totals = LedgerTotals.of(is_open, confirmed)
    newer = [row for row in rows if row.state == "closed" and row.messages]
    return Uncompacted(
        open_ledgers=totals.open_ledgers,
        open_messages=totals.open_messages,
        is_estimate=totals.is_estimate,
        uncounted=totals.uncounted,
        newer_ledgers=len(newer),
        newer_messages=sum(row.messages for row in newer),
    )


async def _rows_after(context: TopicContext, plan: CompactionPlan) -> list[LaneLedger]:
    """Return the rows of ledgers behind those that are compacted, also of lanes that are new."""
    planned = [*plan.others, *(lane for each in plan.partitions for lane in each.lanes)]
    last = {(lane.partition, lane.lane): lane.horizon.number for lane in planned if lane.horizon}
    with translated(context.options.metadata_timeout_s):
        holdings = await read_holdings(context.store, plan.topic)
    return [
        held.row
        for lane in holdings
        for held in lane.ledgers
        if held.number > last.get((lane.partition, lane.lane), -1)
    ]

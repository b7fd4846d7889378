"""Topics, lanes and ledgers as tables for people."""

from __future__ import annotations

import sys
import time

from rich.table import Table

from ledger_client.commands.console import Output
from ledger_client.commands.moment import moment_text
from ledger_client.commands.quantity import size
from ledger_client.topics.keeping.explanation import Extent
from ledger_client.topics.keeping.retention import Fate, spell
from metadata.topics import Retention, RollPolicy

WIDTH_PIPED = 240  # where nobody watches, a long line is better than a folded one
MS = 1_000_000
_WHEN = {
    "open": "after its close",
    "prepared": "after its close",
    "pinned": "when it is not needed",
    "in quota": "over the quota",
    "unlimited": "never",
    "behind": "after that one",
}


def table(*heads: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; the columns in *right* hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="")
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left")
    return made


def show(*parts: Table | str) -> None:
    """Print tables and lines on standard output."""
    width = None if sys.stdout.isatty() else WIDTH_PIPED
    console = Output(highlight=False, markup=False, width=width)
    for part in parts:
        console.print(part)


def moment_of_ms(at_ms: int) -> str:
    """Write a Unix time in milliseconds, "-" for none."""
    return moment_text(at_ms // 1000 * 1000 * MS) if at_ms else "-"


def event_times(first: int | None, last: int | None) -> str:
    """Write a span of event times, "-" for none; that of an open ledger has no end yet."""
    if first is None:
        return "-"
    if last is None:
        return f"from {moment_text(first)}"
    return f"{moment_text(first)} to {moment_text(last)}"


def times(extent: Extent) -> str:
    """Write the event times of an extent."""
    return event_times(extent.first_event_time, extent.last_event_time)


def kept_for(retention: Retention) -> str:
    """Write a topic's retention: "7 d", "10.0 MiB a partition", "for ever"."""
    parts = [spell(retention.age_s)] if retention.age_s >= 0 else []
    parts += [f"{size(retention.size)} a partition"] if retention.size >= 0 else []
    return ", ".join(parts) or "for ever"


def rolls_at(roll: RollPolicy) -> str:
    """Write when ledgers roll: "95.4 MiB or 4 h"."""
    parts = [size(roll.size)]
    parts += [f"{roll.entries:,} entries"] if roll.entries else []
    parts += [spell(roll.age_s)] if roll.age_s else []
    least = f", not before {spell(roll.age_min_s)}" if roll.age_min_s else ""
    return " or ".join(parts) + least


def when(fate: Fate) -> str:
    """Write when a ledger will go: "soon" (the leader's next look), "in 3 d", "never"."""
    if fate.goes:
        return "soon"
    if fate.due_ms is None:
        return _WHEN.get(fate.reason, "-")
    left_s = fate.due_ms / 1000 - time.time()
    if left_s <= 0:
        return "soon"
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if left_s >= 2 * length_s:
            return f"in {left_s // length_s:.0f} {unit}"
    return f"in {left_s:.0f} s"

"""Output for people: tables on standard output, and sizes, counts and times in words."""

from __future__ import annotations

import sys
import time

import msgspec
from rich.console import Console
from rich.table import Table

from ledger_client.commands.options import moment_text
from ledger_client.topics.retention.explanation import LaneExplained, LedgerTotals
from ledger_client.topics.retention.retention import Fate, spell
from metadata.topics import LaneOwner, Retention, RollPolicy

WIDTH_PIPED = 240  # in a pipe, a long line beats a folded one
MS = 1_000_000
_WHEN = {
    "open": "after its close",
    "prepared": "after its close",
    "pinned": "when released",
    "in quota": "over the quota",
    "unlimited": "never",
    "behind": "after that one",
}


def table(*heads: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns in *right* are right-aligned numbers."""
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


def partition_text(partition: int) -> str:
    """Return a partition's number; "-" for the only one of a topic without partitions."""
    return "-" if partition < 0 else str(partition)


def moment_of_ms(at_ms: int) -> str:
    """Write a Unix time in milliseconds, "-" for none."""
    return moment_text(at_ms // 1000 * 1000 * MS) if at_ms else "-"


def event_times(first: int | None, last: int | None) -> str:
    """Write a range of event times, "-" for none; an open ledger's has no end yet."""
    if first is None:
        return "-"
    if last is None:
        return f"from {moment_text(first)}"
    return f"{moment_text(first)} to {moment_text(last)}"


def times(extent: LedgerTotals) -> str:
    """Write the event times of an extent."""
    return event_times(extent.first_event_time, extent.last_event_time)


def messages(extent: LedgerTotals) -> str:
    """Write a number of messages: "3,500", "about 3,500", or "at least 4" if some are uncounted."""
    kind = "about " if extent.is_estimate else ""
    return f"{'at least ' if extent.uncounted else kind}{extent.messages:,}"


def kept_for(retention: Retention) -> str:
    """Write a topic's retention: "7 d", "10.0 MiB a partition", "forever"."""
    parts = [spell(retention.age_s)] if retention.age_s >= 0 else []
    parts += [f"{size(retention.size)} a partition"] if retention.size >= 0 else []
    return ", ".join(parts) or "forever"


def rolls_at(roll: RollPolicy) -> str:
    """Write the limits at which ledgers roll: "95.4 MiB or 4 h"."""
    parts = [size(roll.size)]
    parts += [f"{roll.entries:,} entries"] if roll.entries else []
    parts += [spell(roll.age_s)] if roll.age_s else []
    least = f", not before {spell(roll.age_min_s)}" if roll.age_min_s else ""
    return " or ".join(parts) + least


def when(fate: Fate) -> str:
    """Write when a ledger will be removed: "soon" (the leader's next round), "in 3 d", "never"."""
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


# --- Lanes -------------------------------------------------------------------------------


class LaneDescribed(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, as --json prints it."""

    partition: int
    lane: int
    name: str
    producer: str
    epoch: int
    owner: LaneOwner | None
    extent: LedgerTotals

    @classmethod
    def of(cls, lane: LaneExplained) -> LaneDescribed:
        """Summarize *lane*, leaving out its ledgers."""
        return cls(
            partition=lane.partition,
            lane=lane.lane,
            name=lane.name,
            producer=lane.producer,
            epoch=lane.epoch,
            owner=lane.owner,
            extent=lane.extent,
        )


def lanes_table(lanes: list[LaneDescribed]) -> Table:
    """Return a table of lanes, with a column of names if any lane has one."""
    has_names = any(lane.name for lane in lanes)
    numbers = ("partition", "lane", "ledgers", "messages", "size")
    texts = [*(["name"] if has_names else []), "producer", "written by", "event times"]
    drawn = table(*numbers, *texts, right=numbers)
    for lane in lanes:
        drawn.add_row(
            partition_text(lane.partition),
            str(lane.lane),
            str(lane.extent.ledgers),
            messages(lane.extent),
            size(lane.extent.size),
            *([lane.name or "-"] if has_names else []),
            lane.producer or "-",
            writer(lane.owner),
            times(lane.extent),
        )
    return drawn


def writer(owner: LaneOwner | None) -> str:
    """Describe the writer of a lane; "nobody" for `None`."""
    if owner is None:
        return "nobody"
    where = f" on {owner.host}" if owner.host else ""
    process = f", process {owner.process_id}" if owner.process_id else ""
    return f"{owner.producer or 'a producer'}{where}{process}"


# --- Console ----------------------------------------------------------------------------


class Output(Console):
    """A console for standard output.

    If its reader goes away, the command ends with exit code 0; rich alone would exit with 1.
    """

    def on_broken_pipe(self) -> None:
        """Raise, so that conclude() in outcome.py ends the command."""
        raise BrokenPipeError


# --- Sizes, counts and ages -------------------------------------------------------------


def size(number: int) -> str:
    """Write a size in bytes: "17 B", "3.4 MiB"."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(number: int, noun: str) -> str:
    """Write a number with its noun, "1 ledger", "2 entries", with separators for thousands."""
    changes = noun.endswith("y") and noun[-2:-1] not in tuple("aeiou")
    plural = f"{noun[:-1]}ies" if changes else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def copies(number: int) -> str:
    """Write "1 copy" or "3 copies"."""
    return count(number, "copy")


def age(since_ms: int) -> str:
    """Write the time passed since *since_ms* (Unix milliseconds): "12 s", "3 min", "2 h"."""
    seconds = max(time.time() - since_ms / 1000, 0.0)
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f} {unit}"
    return f"{seconds:.0f} s"

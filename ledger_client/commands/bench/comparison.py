"""Figures of a group beside those of plain readers, and how they read."""

from __future__ import annotations

import msgspec

from ledger_client.commands.bench.disk import Floor
from ledger_client.commands.bench.load import Percentiles
from ledger_client.commands.bench.moving import Moved
from ledger_client.commands.tables import copies


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Messages a second of a plain reader and of a group, and medians of their ratios in a round.

    *to_reader* compares messages a second, *cpu_to_reader* the client's CPU time for a message.
    """

    reader_per_s: float
    group_per_s: float
    to_reader: float
    cpu_to_reader: float


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """From the call of send() until the application has the message."""

    reader: Percentiles
    group: Percentiles
    p99_to_reader: float


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """Durable commits a second, of one message each; *at_once* of each member are under way."""

    members: int
    at_once: int
    per_s: float


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a core in per cent, without members and with them."""

    members: int
    lanes: int
    client_before: float
    client: float
    bookies_before: float
    bookies: float


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a group beside those of plain readers.

    *objects*: one message at a time. *lists*: next_messages() and poll(). *batches*: Arrow.
    *store_per_s*: changes of metadata a second, one after the other.
    """

    copies: int
    message_size: int
    batch: int
    objects: Pair
    lists: Pair
    batches: Pair
    delay: Delay
    rate: float
    store_per_s: float
    commits: list[Commits]
    acks_per_s: float
    join: Moved
    leave: Moved
    idle: Idle
    floor: Floor


def describe(result: GroupResult) -> str:
    """Return the figures as lines of text."""
    one, group = result.delay.reader, result.delay.group
    idle = result.idle
    lines = [
        f"a group beside a plain reader, {result.message_size} bytes a message, "
        f"{result.batch} in a batch, in {copies(result.copies)}",
        _pair("message objects", result.objects),
        _pair("lists of messages", result.lists),
        _pair("Arrow batches", result.batches),
        f"  from send to handler at {result.rate:,.0f} messages/s: p50 {group.p50_ms:.3f} ms, p99 "
        f"{group.p99_ms:.3f} ms; reader {one.p50_ms:.3f} ms, {one.p99_ms:.3f} ms: p99 "
        f"{result.delay.p99_to_reader:.2f} x",
        *(
            f"  durable commits, members {each.members}, at once {each.at_once}: "
            f"{each.per_s:,.0f}/s"
            for each in result.commits
        ),
        f"  changes of metadata, one after the other: {result.store_per_s:,.0f}/s",
        f"  shared, one member, one acknowledgement a message: {result.acks_per_s:,.0f}/s",
        _moved("a member joins", result.join),
        _moved("a member leaves", result.leave),
        f"  {idle.members} idle members, {idle.lanes} lanes: client {idle.client:.2f} % of a core "
        f"({idle.client_before:.2f} % without members), bookies {idle.bookies:.2f} % "
        f"({idle.bookies_before:.2f} %)",
    ]
    return "\n".join(lines)


def _pair(name: str, pair: Pair) -> str:
    return (
        f"  {name}: {pair.group_per_s:,.0f} messages/s, {pair.to_reader:.2f} x the reader's "
        f"{pair.reader_per_s:,.0f}; CPU {pair.cpu_to_reader:.2f} x"
    )


def _moved(what: str, moved: Moved) -> str:
    return (
        f"  {what}: {moved.moved} of {moved.partitions} partitions move, all read again after "
        f"{moved.whole_s:.2f} s; longest pause of the others {moved.kept_pause_s:.2f} s "
        f"(before {moved.usual_pause_s:.2f} s)"
    )

"""``quire topic describe``, ``explain`` and ``list``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import click
import msgspec
import trio
from rich.table import Table

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.outcome import finish
from ledger_client.commands.patience import Patience
from ledger_client.commands.tables import (
    LaneDescribed,
    count,
    event_times,
    kept_for,
    lanes_table,
    messages,
    moment_of_ms,
    partition_text,
    rolls_at,
    show,
    size,
    table,
    when,
)
from ledger_client.errors import MetadataUnavailable, lane_text
from ledger_client.topics.catalogue import TopicInfo
from ledger_client.topics.retention.explanation import Explanation, LedgerTotals
from ledger_client.topics.retention.open_ledgers import Confirmed
from ledger_client.topics.retention.retention import Fate
from ledger_client.topics.tick_log import TickLag, tick_lag
from metadata.compaction import CompactedSet
from metadata.time.timestamps import split
from metadata.topics import LaneLedger


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `topic describe --json`; *extent* is the sum of the lanes' extents."""

    topic: TopicInfo
    extent: LedgerTotals
    lanes: list[LaneDescribed]
    compacted: CompactedSet | None = None
    tick: TickLag | None = None
    cuts: list[str] = []

    @classmethod
    def of(cls, found: Explanation, tick: TickLag | None = None) -> Described:
        """Summarize *found*, leaving out single ledgers."""
        lanes = [LaneDescribed.of(lane) for lane in found.lanes]
        return cls(
            topic=found.topic,
            extent=found.extent,
            lanes=lanes,
            compacted=found.compacted,
            tick=tick,
            cuts=found.cuts,
        )


@click.command()
@options.topic
@options.cluster
@options.as_json
def describe(*, name: str, cluster: str, as_json: bool) -> None:
    """Show a topic's settings and the contents of its lanes.

    Counts and bytes (of one copy) include what is confirmed in open ledgers; "about" marks an
    estimate, and lanes whose bookies do not answer are listed. Times end with the last closed
    ledger. `quire topic explain` shows each ledger.
    """
    found = trio.run(finish, partial(_describe, cluster, name))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        show(*_lines(found.topic), *_total(found.extent, found.lanes))
        show(*_compacted(found.compacted))
        if found.topic.timesync:
            show(_ticks(found.tick))
        if found.cuts:
            show(f"{'kept by cuts':<16}{', '.join(found.cuts)}")
        if found.lanes:
            show("", lanes_table(found.lanes))


async def _describe(cluster: str, name: str) -> Described:
    async with connect(cluster) as client:
        with _patience(name).waiting():
            found = await client.topics.explain(name)
            tick: TickLag | None = None
            if found.topic.timesync:
                with suppress(MetadataUnavailable):
                    tick = await tick_lag(client._context, found.topic)
        return Described.of(found, tick)


async def _explain(cluster: str, name: str) -> Explanation:
    async with connect(cluster) as client:
        with _patience(name).waiting():
            return await client.topics.explain(name)


def _patience(name: str) -> Patience:
    return Patience(
        f"waiting for the bookies of {name}; `quire cluster status` shows those that are down"
    )


def _ticks(tick: TickLag | None) -> str:
    """Describe the newest tick of a topic with timesync."""
    if tick is None:
        return f"{'ticks':<16}none yet"
    held = f", held back by {tick.holder}" if tick.holder else ""
    at = moment_of_ms(split(tick.timestamp).physical_ms)
    return f"{'ticks':<16}up to {tick.timestamp} ({at}), {tick.lag_s:.1f} s behind{held}"


def _lines(topic: TopicInfo) -> list[str]:
    partitions = f"{topic.partitions}" if topic.partitions else "none (not partitioned)"
    lines = [
        ("topic", topic.name),
        ("partitions", partitions),
        ("copies", f"{topic.replication}, acknowledged with {topic.ack_quorum} of them"),
        ("order", topic.order),
        ("compression", topic.compression),
        ("ledgers roll at", rolls_at(topic.roll)),
        ("kept", kept_for(topic.retention)),
        ("schema", topic.schema.kind),
        ("created", moment_of_ms(topic.created_ms)),
        *topic.properties.items(),
    ]
    return [f"{key:<16}{value}" for key, value in lines]


def _total(extent: LedgerTotals, lanes: Sequence[LaneDescribed]) -> list[str]:
    """Describe the contents, how much of them is in open ledgers, and what is not counted."""
    noun = "message" if extent.messages == 1 else "messages"
    parts = (count(extent.ledgers, "ledger"), f"{messages(extent)} {noun}", size(extent.size))
    lines = [f"{'holds':<16}{', '.join(parts)}"]
    if extent.open_messages:
        about = "about " if extent.is_estimate else ""
        part = f"{about}{extent.open_messages:,} in {count(extent.open_ledgers, 'open ledger')}"
        them = "it" if extent.open_ledgers == 1 else "them"
        lines.append(f"{'of these':<16}{part}; `quire topic roll` closes {them}")
    lines += [
        f"{'not counted':<16}the open ledger of {lane_text(lane.partition, lane.lane)}:"
        " its bookies do not answer"
        for lane in lanes
        if lane.extent.uncounted
    ]
    return lines


def _compacted(found: CompactedSet | None) -> list[str]:
    """Describe the compacted messages and the last compaction."""
    if found is None:
        return []
    report = found.report
    ledgers = count(len(found.ledgers), "ledger")
    kept = count(sum(ledger.messages for ledger in found.ledgers), "message")
    held = size(sum(ledger.size for ledger in found.ledgers))
    made = f"generation {found.generation}, made {moment_of_ms(report.at_ms)}"
    done = f"{count(report.keys, 'key')} of {count(report.messages_in, 'message')}"
    keyless = "kept" if found.null_keys == "keep" else "dropped"
    lines = [
        ("compacted", f"{kept} in {ledgers}, {held}; {made}"),
        ("last compaction", f"{done} in {report.seconds:.1f} s, {size(report.bytes_in)} read"),
        ("without a key", keyless),
    ]
    return [f"{key:<16}{value}" for key, value in lines]


# --- Explain ----------------------------------------------------------------------------


@click.command()
@options.topic
@options.cluster
@options.as_json
def explain(*, name: str, cluster: str, as_json: bool) -> None:
    """Show why each ledger of a topic is kept, and until when.

    Retention removes closed ledgers only, the oldest of a lane first; a ledger that must stay
    keeps all newer ones of its lane. Sizes are those of one copy. An open ledger has those that
    are confirmed by now; "about" marks an estimate, and "-" bookies that do not answer. Bookies
    free the space of removed ledgers at their next garbage collection.
    """
    found = trio.run(finish, partial(_explain, cluster, name))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    ledgers = [fate for lane in found.lanes for fate in lane.ledgers]
    if ledgers:
        confirmed = [lane.confirmed for lane in found.lanes if lane.confirmed is not None]
        show(_fates_table(ledgers, {each.ledger_id: each for each in confirmed}), "")
    parts = (count(len(ledgers), "ledger"), size(found.extent.size))
    show(f"{found.topic.name}: {', '.join(parts)}; kept: {kept_for(found.topic.retention)}")


def _fates_table(fates: list[Fate], confirmed: Mapping[int, Confirmed]) -> Table:
    right = ("partition", "lane", "number", "ledger", "entries", "messages", "size")
    columns = (*right[:4], "state", *right[4:], "created", "closed", "event times")
    drawn = table(*columns, "kept because", "goes", right=right)
    for fate in fates:
        row = fate.ledger
        drawn.add_row(
            partition_text(fate.partition),
            *map(str, (fate.lane, fate.number, row.ledger_id)),
            row.state,
            *_counts(row, confirmed.get(row.ledger_id)),
            moment_of_ms(row.created_ms),
            moment_of_ms(row.closed_ms),
            event_times(row.first_event_time, row.last_event_time),
            fate.why,
            when(fate),
        )
    return drawn


def _counts(row: LaneLedger, confirmed: Confirmed | None) -> tuple[str, str, str]:
    """Return entries, messages and size of a ledger, "-" where they are unknown."""
    if row.state == "closed":
        return f"{row.entries:,}", f"{row.messages:,}", size(row.size)
    if confirmed is None:
        return "-", "-", "-"
    about = "about " if confirmed.is_estimate else ""
    return f"{confirmed.entries:,}", f"{about}{confirmed.messages:,}", size(confirmed.size)


# --- List -------------------------------------------------------------------------------


@click.command("list")
@click.argument("namespace", required=False)
@click.option("--all", "own", is_flag=True, help="Include quire's own topics, such as __events.")
@options.cluster
@options.as_json
def list_(*, namespace: str | None, own: bool, cluster: str, as_json: bool) -> None:
    """List the topics of NAMESPACE, or all of them.

    With --json, prints one object per line.
    """
    found = trio.run(finish, partial(_list, cluster, namespace, own))
    if as_json:
        for topic in found:
            click.echo(msgspec.json.encode(topic).decode())
    elif found:
        _show_topics(found)


async def _list(cluster: str, namespace: str | None, own: bool) -> list[TopicInfo]:
    async with connect(cluster) as client:
        return await client.topics.list(namespace, own=own)


def _show_topics(found: list[TopicInfo]) -> None:
    right = ("partitions", "copies")
    drawn = table("topic", *right, "order", "compression", "kept", "created", right=right)
    for topic in found:
        drawn.add_row(
            topic.name,
            str(topic.partitions) if topic.partitions else "-",
            str(topic.replication),
            topic.order,
            topic.compression,
            kept_for(topic.retention),
            moment_of_ms(topic.created_ms),
        )
    show(drawn)

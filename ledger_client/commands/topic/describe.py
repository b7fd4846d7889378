"""``quire topic describe``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio
from rich.table import Table

import ledger_client
from ledger_client.commands import options
from ledger_client.commands.interruption import finish
from ledger_client.commands.quantity import count, size
from ledger_client.commands.topic.settings import name
from ledger_client.commands.topic.tables import (
    kept_for,
    moment_of_ms,
    rolls_at,
    show,
    table,
    times,
)
from ledger_client.topics.catalogue import TopicInfo
from ledger_client.topics.keeping.explanation import Explanation, Extent, LaneExplained
from metadata.compaction import CompactedSet
from metadata.topics import LaneOwner


class LaneDescribed(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, as --json shows it."""

    partition: int
    lane: int
    name: str
    producer: str
    epoch: int
    owner: LaneOwner | None
    extent: Extent

    @classmethod
    def of(cls, lane: LaneExplained) -> LaneDescribed:
        """Return *lane* without its ledgers."""
        return cls(
            partition=lane.partition,
            lane=lane.lane,
            name=lane.name,
            producer=lane.producer,
            epoch=lane.epoch,
            owner=lane.owner,
            extent=lane.extent,
        )


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints."""

    topic: TopicInfo
    extent: Extent
    lanes: list[LaneDescribed]
    compacted: CompactedSet | None = None

    @classmethod
    def of(cls, found: Explanation) -> Described:
        """Return *found* without the single ledgers."""
        lanes = [LaneDescribed.of(lane) for lane in found.lanes]
        return cls(topic=found.topic, extent=found.extent, lanes=lanes, compacted=found.compacted)


@click.command()
@name
@options.cluster
@options.as_json
def describe(*, name: str, cluster: str, as_json: bool) -> None:
    """Show a topic's settings, and what its lanes hold.

    Counts, bytes (of one copy) and times are those of closed ledgers: what is in the one
    that is written is known once it is closed, but for the time with which it begins.
    `quire topic explain` shows each ledger.
    """
    found = Described.of(trio.run(finish, partial(_explain, cluster, name)))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        show(*_lines(found.topic), _total(found.extent), *_compacted(found.compacted))
        if found.lanes:
            show("", lanes_table(found.lanes))


async def _explain(cluster: str, name: str) -> Explanation:
    async with ledger_client.connect(cluster) as client:
        return await client.explain_topic(name)


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


def _total(extent: Extent) -> str:
    told = (count(extent.ledgers, "ledger"), count(extent.messages, "message"), size(extent.size))
    return f"{'holds':<16}{', '.join(told)}"


def _compacted(found: CompactedSet | None) -> list[str]:
    """Write what compaction left of the topic, and what the last run did."""
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


def lanes_table(lanes: list[LaneDescribed]) -> Table:
    """Return a table of lanes; the column of names is there when one has a name."""
    has_names = any(lane.name for lane in lanes)
    numbers = ("partition", "lane", "ledgers", "messages", "size")
    texts = [*(["name"] if has_names else []), "producer", "written by", "event times"]
    drawn = table(*numbers, *texts, right=numbers)
    for lane in lanes:
        drawn.add_row(
            str(lane.partition),
            str(lane.lane),
            str(lane.extent.ledgers),
            f"{lane.extent.messages:,}",
            size(lane.extent.size),
            *([lane.name or "-"] if has_names else []),
            lane.producer or "-",
            writer(lane.owner),
            times(lane.extent),
        )
    return drawn


def writer(owner: LaneOwner | None) -> str:
    """Write who writes a lane, "nobody" for None."""
    if owner is None:
        return "nobody"
    where = f" on {owner.host}" if owner.host else ""
    process = f", process {owner.process_id}" if owner.process_id else ""
    return f"{owner.producer or 'a producer'}{where}{process}"

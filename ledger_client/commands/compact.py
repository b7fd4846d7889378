"""``quire compact``: keep the latest message of each key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.outcome import advising, finish
from ledger_client.commands.progress import show_part
from ledger_client.commands.tables import count, size
from ledger_client.jobs.compaction.job import Compaction, Runner
from ledger_client.jobs.compaction.runner import LocalRunner

MEMORY_MIB = 256


class CompactRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options and arguments of the command line."""

    name: str
    cluster: str
    null_keys: Literal["keep", "drop"] | None
    master: str | None
    """`None`: without Spark"""
    memory: int
    dry_run: bool


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `compact --drop --json`; *size* is payload bytes of one copy."""

    topic: str
    dropped: bool
    """False if there was nothing to drop"""
    ledgers: int = 0
    messages: int = 0
    size: int = 0


@click.command()
@options.topic
@click.option(
    "--null-keys",
    type=click.Choice(["keep", "drop"]),
    show_default="as last time; at first, drop",
    help="Whether to keep messages without a key.",
)
@options.spark_master
@options.no_spark
@click.option(
    "--memory",
    type=click.IntRange(1, 1 << 20),
    default=MEMORY_MIB,
    show_default=True,
    metavar="MIB",
    help="Memory for the table of keys, per partition being compacted; more keys than fit take "
    "several passes.",
)
@click.option("--dry-run", is_flag=True, help="Only show how much would be read.")
@click.option("--drop", is_flag=True, help="End compaction: remove the compacted messages.")
@options.cluster
@options.as_json
def compact(
    *,
    name: str,
    null_keys: Literal["keep", "drop"] | None,
    master: str,
    no_spark: bool,
    memory: int,
    dry_run: bool,
    drop: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Keep the latest message of each key of a topic.

    `quire read --compacted` reads the result. Compacts all closed ledgers, together with the
    result of the last compaction. Messages in open ledgers are left out, and their number is
    shown; to have them compacted, too, run `quire topic roll` first. Messages keep their ids,
    timestamps, keys and headers. A message with an empty value removes its key. Across lanes,
    the latest message is the one with the latest event time in topics ordered by it, and the
    one published last in others.

    From the first compaction on, retention removes messages only after they were compacted;
    --drop ends that. Readers see either the old result or the new one, even if this command is
    interrupted.
    """
    request = CompactRequest(
        name=name,
        cluster=cluster,
        null_keys=null_keys,
        master=None if no_spark else master,
        memory=memory << 20,
        dry_run=dry_run,
    )
    if drop and (dry_run or null_keys):
        raise click.UsageError("--drop excludes --dry-run and --null-keys")
    if drop:
        dropped = trio.run(finish, partial(_drop, cluster, name))
        _print(dropped, _dropped_text(dropped), as_json=as_json)
    else:
        with advising():
            done = trio.run(finish, partial(_compact, request))
        lines = [_text(done, dry_run=dry_run), *_left_out(done)]
        _print(done, "\n".join(lines), as_json=as_json)


def _print(result: Compaction | Dropped, line: str, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(result).decode() if as_json else line)


async def _compact(request: CompactRequest) -> Compaction:
    async with connect(request.cluster) as client:
        with show_part(f"compacting {request.name}") as advance:
            async with _runner(client, request) as runner:
                return await client.topics.compact(
                    request.name,
                    null_keys=request.null_keys,
                    runner=runner,
                    dry_run=request.dry_run,
                    on_progress=advance,
                )


@asynccontextmanager
async def _runner(client: Client, request: CompactRequest) -> AsyncIterator[Runner]:
    if request.master is None:
        yield LocalRunner(client._context, memory_max=request.memory)
        return
    from ledger_client.spark.compaction import spark_runner  # imports PySpark

    runner = spark_runner(request.cluster, master=request.master, memory_max=request.memory)
    async with runner as made:
        yield made


async def _drop(cluster: str, name: str) -> Dropped:
    async with connect(cluster) as client:
        found = await client.topics.drop_compacted(name)
    if found is None:
        return Dropped(topic=name, dropped=False)
    return Dropped(
        topic=name,
        dropped=True,
        ledgers=len(found.ledgers),
        messages=sum(ledger.messages for ledger in found.ledgers),
        size=sum(ledger.size for ledger in found.ledgers),
    )


def _text(done: Compaction, *, dry_run: bool) -> str:
    report = done.report
    if not done.published:
        if dry_run and done.partitions:
            return f"would read {size(done.bytes_in)} of {count(done.partitions, 'partition')}"
        return "nothing to compact: no ledger was closed since the last time"
    assert report is not None
    kept = f"{count(report.messages_out, 'message')} of {report.messages_in:,} kept"
    parts = [
        kept,
        count(report.keys, "key"),
        f"{size(report.bytes_in)} to {size(report.bytes_out)}",
    ]
    if report.tombstones:
        parts.append(f"{count(report.tombstones, 'tombstone')} stay")
    if report.shuffled:
        parts.append("keys were in several partitions")
    return f"{', '.join(parts)}; generation {done.generation}, {report.seconds:.1f} s"


def _left_out(done: Compaction) -> list[str]:
    """Return lines about messages that are not compacted: how many, why, and what to do."""
    left = done.uncompacted
    if left is None:
        return []
    lines = []
    if left.open_messages or left.uncounted:
        messages = count(left.open_messages, "message")
        if left.uncounted:
            messages = f"at least {messages}" if left.open_messages else "an unknown number"
        elif left.is_estimate:
            messages = f"about {messages}"
        where = count(left.open_ledgers, "open ledger")
        them = "it" if left.open_ledgers == 1 else "them"
        lines.append(
            f"not compacted: {messages} in {where};"
            f" `quire topic roll {done.topic}` closes {them}, then compact again"
        )
    if left.newer_messages:
        where = count(left.newer_ledgers, "ledger")
        lines.append(
            f"not compacted: {count(left.newer_messages, 'message')} in {where}"
            " closed after this began; compact again"
        )
    return lines


def _dropped_text(dropped: Dropped) -> str:
    if not dropped.dropped:
        return "there is no compacted set"
    parts = (count(dropped.ledgers, "ledger"), count(dropped.messages, "message"))
    return f"{', '.join(parts)}, {size(dropped.size)} removed"

"""``quire cut``: topics as they were at one moment, by name."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.options import Ago, DurationParam
from ledger_client.commands.outcome import finish
from ledger_client.commands.places import MomentOfRead, timestamp_of
from ledger_client.commands.progress import show_entries
from ledger_client.commands.tables import count, moment_of_ms, partition_text, show, table
from ledger_client.topics.cuts import TIMEOUT_S, CutInfo
from ledger_client.topics.times import Timestamp
from metadata.outcome import confirm
from metadata.time.timestamps import utc_of


class CutSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One of the cuts that `cut list --json` prints."""

    name: str
    timestamp: int
    """0 if none of its topics has timestamps"""
    created_ms: int
    topics: list[str]

    @classmethod
    def of(cls, cut: CutInfo) -> CutSummary:
        """Return a cut without its places."""
        return cls(
            name=cut.name,
            timestamp=cut.timestamp,
            created_ms=cut.created_ms,
            topics=[topic.name for topic in cut.topics],
        )


@click.group()
def cut() -> None:
    """Record several topics as they are at one moment, and keep that.

    `quire read`, `quire replay` and Spark take the name of a cut as the beginning or end of what
    they read, and read the same messages however often, whatever is written later.
    """


class CutRequest(NamedTuple):
    """The options and arguments of `cut create`."""

    cluster: str
    name: str
    topics: tuple[str, ...]
    at: Timestamp | Ago | None
    loose: bool
    timeout_s: float


@cut.command()
@click.argument("name", metavar="NAME")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--at",
    type=MomentOfRead(),
    metavar="TIME",
    show_default="now",
    help="Moment of the cut: a time in the past, or a timestamp of quire tso get.",
)
@click.option(
    "--loose",
    is_flag=True,
    help="Take topics without timesync along, as they are when their turn comes.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DurationParam(),
    default=TIMEOUT_S,
    metavar="TIME",
    show_default="30s",
    help="Give up after this time.",
)
@options.cluster_alone
@options.as_json
def create(
    *,
    name: str,
    topics: tuple[str, ...],
    at: Timestamp | Ago | None,
    loose: bool,
    timeout_s: float,
    cluster: str,
    as_json: bool,
) -> None:
    """Record TOPIC, one or several, as they are now or were at a moment.

    The cut has every message that was acknowledged before the command began. If it has a message,
    it has all that were acknowledged to anybody before that one was sent, in each TOPIC. Until it
    is deleted, nothing of it is removed: not by retention, purges or truncation, and none of its
    topics can be deleted.

    It waits until the cluster knows that no earlier message follows, 0.3 s as a rule.
    """
    request = CutRequest(cluster, name, topics, at, loose, timeout_s)
    made = trio.run(finish, partial(_create, request))
    if as_json:
        click.echo(msgspec.json.encode(made).decode())
    else:
        click.echo(f"cut {name} of {count(len(made.topics), 'topic')} {_moment(made)}")


async def _create(request: CutRequest) -> CutInfo:
    async with connect(request.cluster) as client:
        work = f"waiting for ticks up to cut {request.name}"
        with show_entries(work, len(request.topics)) as advance:
            return await client.cuts.create(
                request.name,
                request.topics,
                at=await timestamp_of(client, request.at),
                loose=request.loose,
                timeout_s=request.timeout_s,
                on_progress=lambda _count: advance(1),
            )


@cut.command("list")
@options.cluster
@options.as_json
def list_(*, cluster: str, as_json: bool) -> None:
    """List all cuts."""
    found = trio.run(finish, partial(_list, cluster))
    if as_json:
        click.echo(msgspec.json.encode([CutSummary.of(each) for each in found]).decode())
        return
    rows = table("cut", "moment", "created", "topics")
    for each in found:
        topics = ", ".join(topic.name for topic in each.topics)
        rows.add_row(each.name, _moment(each), moment_of_ms(each.created_ms), topics)
    show(rows)


async def _list(cluster: str) -> list[CutInfo]:
    async with connect(cluster) as client:
        return await client.cuts.list()


@cut.command()
@click.argument("name", metavar="NAME")
@options.cluster
@options.as_json
def describe(*, name: str, cluster: str, as_json: bool) -> None:
    """Show a cut with its place in each lane, before which all of it lies.

    A place is the number of a ledger in its lane, an entry, and a message within this entry.
    """
    found = trio.run(finish, partial(_describe, cluster, name))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    about = table("", "")
    about.show_header = False
    about.add_row("cut", found.name)
    about.add_row("moment", _moment(found))
    about.add_row("created", moment_of_ms(found.created_ms))
    heads = ("partition", "lane", "ledger", "number", "entry", "message")
    rows = table("topic", *heads, right=heads)
    for topic in found.topics:
        for at in topic.lanes:
            words = (at.lane, at.ledger_id, at.number, at.entry, at.skip)
            rows.add_row(topic.name, partition_text(at.partition), *map(str, words))
        if not topic.lanes:
            rows.add_row(topic.name, *["-"] * len(heads))
    show(about, "", rows)


async def _describe(cluster: str, name: str) -> CutInfo:
    async with connect(cluster) as client:
        return await client.cuts.get(name)


@cut.command()
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.cluster
def delete(*, name: str, yes: bool, cluster: str) -> None:
    """Delete a cut. Its topics keep nothing for it any more."""
    if not yes:
        question = f"Delete cut {name}, and keep nothing for it any more?"
        confirm(question, refused="nothing was deleted")
    trio.run(finish, partial(_delete, cluster, name))


async def _delete(cluster: str, name: str) -> None:
    async with connect(cluster) as client:
        await client.cuts.delete(name)


def _moment(found: CutInfo) -> str:
    """Write the moment of a cut."""
    if not found.timestamp:
        return "at no one moment"
    at = utc_of(found.timestamp).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    loose = "" if all(topic.timed for topic in found.topics) else ", some topics later"
    return f"at {at}, timestamp {found.timestamp}{loose}"

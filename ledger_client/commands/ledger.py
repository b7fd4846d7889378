"""``quire ledger``: create, look at and delete ledgers; write, read and follow them."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec
import trio

import ledger_client
from ledger_client import LedgerInfo
from ledger_client.commands import options
from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.read import follow, read
from ledger_client.commands.recover import recover
from ledger_client.commands.target import Target, fill_quorums
from ledger_client.commands.topic.tables import event_times
from ledger_client.commands.verify import verify
from ledger_client.commands.write import write
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import BadTopic
from ledger_client.topics.ledger_description import LedgerDescription
from metadata.records import LedgerState

HEADS = ("ledger", "state", "entries", "bytes", "E/Qw/Qa", "created")
ROW = "{:>10}  {:<12}{:>12}{:>16}  {:<9}{}"


@click.group()
def ledger() -> None:
    """Write, read and look after ledgers."""


for command in (write, read, follow, recover, verify):
    ledger.add_command(command)


@ledger.command()
@options.quorums
@options.digest
@options.password
@options.new_id
@options.cluster
@options.as_json
def create(
    *,
    ensemble: int,
    write_quorum: int | None,
    ack_quorum: int | None,
    digest: str,
    password: str,
    new_id: int | None,
    cluster: str,
    as_json: bool,
) -> None:
    """Make an empty ledger and print its id.

    Only who makes a ledger can write it, so this one is closed at once and stays empty;
    `quire ledger write` makes one with something in it.
    """
    target = Target(
        cluster=cluster,
        quorums=fill_quorums(ensemble, write_quorum, ack_quorum),
        digest=digest,
        password=password,
        ledger_id=new_id,
    )
    trio.run(_create, target, as_json)


async def _create(target: Target, as_json: bool) -> None:
    async with ledger_client.connect(target.cluster) as client:
        async with target.create(client) as made:
            pass
        found = await client.ledger_info(made.id)
    click.echo(msgspec.json.encode(found).decode() if as_json else found.ledger_id)


@ledger.command()
@options.ledger_id
@options.cluster
@options.as_json
def info(*, ledger_id: int, cluster: str, as_json: bool) -> None:
    """Say what metadata knows of LEDGER: its bookies, and what it holds of which topic.

    The first bookie of the list is its head, the last its tail. Its end is known once it is
    closed.
    """
    trio.run(_info, ledger_id, cluster, as_json)


async def _info(ledger_id: int, cluster: str, as_json: bool) -> None:
    async with ledger_client.connect(cluster) as client:
        found = await client.describe_ledger(ledger_id)
    click.echo(msgspec.json.encode(found).decode() if as_json else _describe(found))


@ledger.command("list")
@options.cluster
@options.as_json
def list_(*, cluster: str, as_json: bool) -> None:
    """List all ledgers by rising id; with --json, an object on a line for each."""
    trio.run(_list, cluster, as_json)


async def _list(cluster: str, as_json: bool) -> None:
    async with ledger_client.connect(cluster) as client:
        heads = None if as_json else ROW.format(*HEADS)
        async for found in client.list_ledgers():
            if heads:
                click.echo(heads)
                heads = None
            click.echo(msgspec.json.encode(found).decode() if as_json else _row(found))


@ledger.command()
@options.ledger_id
@click.option("--force", is_flag=True, help="Also if it belongs to a topic.")
@options.cluster
@options.as_json
def delete(*, ledger_id: int, force: bool, cluster: str, as_json: bool) -> None:
    """Delete LEDGER. Bookies free its space when they collect garbage next.

    A ledger of a topic goes with `quire topic purge`, `truncate` or `delete`; by itself it is
    deleted only by force. Readers of the topic are told of the gap, or pass it over if asked to.
    """
    trio.run(_delete, ledger_id, force, cluster, as_json)


async def _delete(ledger_id: int, force: bool, cluster: str, as_json: bool) -> None:
    async with ledger_client.connect(cluster) as client:
        if not force:
            await _check_free(client, ledger_id)
        await client.delete_ledger(ledger_id)
    if as_json:
        click.echo(msgspec.json.encode({"ledger_id": ledger_id, "deleted": True}).decode())


async def _check_free(client: TopicClient, ledger_id: int) -> None:
    """Raise CommandFailed if the ledger belongs to a topic that is there."""
    topic = (await client.ledger_info(ledger_id)).custom.get("topic", "")
    try:
        known = await client.topics.find(topic)
    except BadTopic:
        return  # somebody else's word for it
    if known is not None:
        raise CommandFailed(
            f"ledger {ledger_id} belongs to topic {topic}; purge or truncate the topic, or say "
            "--force"
        )


def _describe(found: LedgerDescription) -> str:
    times = event_times(found.first_event_time, found.last_event_time)
    holding = [
        ("number in lane", found.number),
        ("messages", found.messages if _ended(found) else "-"),
        ("event times", times),
    ]
    lines = [
        ("ledger", found.ledger_id),
        ("state", found.state.value),
        ("entries", _entries(found)),
        ("bytes", _bytes(found)),
        ("quorums", f"{_quorums(found)} (ensemble, write, ack)"),
        ("digest", found.digest),
        ("created", _created(found)),
        *((f"from entry {first}", ", ".join(bookies)) for first, bookies in found.bookies),
        ("head, tail", f"{found.head}, {found.tail}"),
        *found.custom.items(),
        *(holding if found.topic else ()),
    ]
    return "\n".join(f"{key:<16}{value}" for key, value in lines)


def _row(found: LedgerInfo) -> str:
    return ROW.format(
        found.ledger_id,
        found.state.value,
        _entries(found),
        _bytes(found),
        _quorums(found),
        _created(found),
    )


def _entries(found: LedgerInfo) -> str:
    return str(found.last_entry + 1) if _ended(found) else "-"


def _bytes(found: LedgerInfo) -> str:
    return str(found.length) if _ended(found) else "-"


def _ended(found: LedgerInfo) -> bool:
    return found.state is LedgerState.CLOSED


def _quorums(found: LedgerInfo) -> str:
    return f"{found.ensemble_size}/{found.write_quorum}/{found.ack_quorum}"


def _created(found: LedgerInfo) -> str:
    return datetime.fromtimestamp(found.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")

"""``quire ledger create``, ``list``, ``info``, ``recover`` and ``delete``."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import click
import msgspec
import trio

from ledger_client.client import Client, connect
from ledger_client.commands import options
from ledger_client.commands.options import NewLedger
from ledger_client.commands.outcome import finish
from ledger_client.commands.tables import count, event_times
from ledger_client.errors import BadTopic
from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.topics.retention.explanation import LedgerDescription
from metadata.outcome import CommandFailed
from metadata.records import LedgerState

HEADS = ("ledger", "state", "entries", "bytes", "E/Qw/Qa", "created")
ROW = "{:>10}  {:<12}{:>12}{:>16}  {:<9}{}"


@click.command()
@options.new_ledger
@options.cluster
@options.as_json
def create(*, new: NewLedger, cluster: str, as_json: bool) -> None:
    """Create an empty ledger and print its id.

    Only its creator can write a ledger, so this one is closed at once and stays empty. Use
    `quire ledger write` to create one with content.
    """
    trio.run(_create, new, cluster, as_json)


async def _create(new: NewLedger, cluster: str, as_json: bool) -> None:
    async with connect(cluster) as client:
        async with new.create(client.ledgers.create) as made:
            pass
        found = await client.ledgers.info(made.id)
    click.echo(msgspec.json.encode(found).decode() if as_json else found.ledger_id)


@click.command()
@options.ledger_id
@options.cluster
@options.as_json
def info(*, ledger_id: int, cluster: str, as_json: bool) -> None:
    """Show the metadata of LEDGER.

    It includes the ledger's bookies and, if it belongs to a topic, its place there. The first
    of these bookies is called head, the last one tail. Last entry and size are known once the
    ledger is closed.
    """
    trio.run(_info, ledger_id, cluster, as_json)


async def _info(ledger_id: int, cluster: str, as_json: bool) -> None:
    async with connect(cluster) as client:
        found = await client.ledgers.describe(ledger_id)
    click.echo(msgspec.json.encode(found).decode() if as_json else _describe(found))


@click.command("list")
@options.cluster
@options.as_json
def list_(*, cluster: str, as_json: bool) -> None:
    """List all ledgers.

    With --json, prints one object per line.
    """
    trio.run(_list, cluster, as_json)


async def _list(cluster: str, as_json: bool) -> None:
    async with connect(cluster) as client:
        heads = None if as_json else ROW.format(*HEADS)
        async for found in client.ledgers.list():
            if heads:
                click.echo(heads)
                heads = None
            click.echo(msgspec.json.encode(found).decode() if as_json else _row(found))


@click.command()
@options.ledger_id
@click.option("--force", is_flag=True, help="Delete it even if it belongs to a topic.")
@options.cluster
@options.as_json
def delete(*, ledger_id: int, force: bool, cluster: str, as_json: bool) -> None:
    """Delete LEDGER. Bookies free its space at their next garbage collection.

    To remove ledgers of a topic, use `quire topic purge`, `truncate` or `delete`. Deleting one
    directly needs --force and leaves a gap, at which readers of the topic fail unless they skip
    gaps.
    """
    trio.run(_delete, ledger_id, force, cluster, as_json)


async def _delete(ledger_id: int, force: bool, cluster: str, as_json: bool) -> None:
    async with connect(cluster) as client:
        if not force:
            await _check_free(client, ledger_id)
        await client.ledgers.delete(ledger_id)
    if as_json:
        click.echo(msgspec.json.encode({"ledger_id": ledger_id, "deleted": True}).decode())


async def _check_free(client: Client, ledger_id: int) -> None:
    """Raise CommandFailed if the ledger belongs to an existing topic."""
    topic = (await client.ledgers.info(ledger_id)).custom.get("topic", "")
    try:
        known = await client._context.catalogue.find(topic)
    except BadTopic:
        return  # an application's own use of the field
    if known is not None:
        raise CommandFailed(
            f"ledger {ledger_id} belongs to topic {topic}; purge or truncate the topic, or use "
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


# --- Recover ----------------------------------------------------------------------------


@click.command()
@options.ledger_id
@options.cluster
@options.password
@options.as_json
def recover(*, ledger_id: int, cluster: str, password: bytes, as_json: bool) -> None:
    """Close LEDGER, whose writer is gone.

    Every acknowledged entry is kept. A writer that is still alive is fenced: it gets no further
    acknowledgements. A closed ledger stays as it is. If too few bookies answer to determine its
    end, the command fails; repeat it once more of them are back.
    """
    found = trio.run(finish, partial(_recover, ledger_id, cluster, password))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    entries = count(found.last_entry + 1, "entry")
    click.echo(f"ledger {ledger_id} is closed with {entries}, {found.length} bytes")


async def _recover(ledger_id: int, cluster: str, password: bytes) -> LedgerInfo:
    async with connect(cluster) as client:
        return await client.ledgers.recover(ledger_id, password=password)

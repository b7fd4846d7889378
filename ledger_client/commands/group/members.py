"""``quire group members``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.group.names import GroupParam
from ledger_client.commands.outcome import finish
from ledger_client.commands.tables import moment_of_ms, show, table
from ledger_client.groups.consumers import ConsumerInfo


@click.command()
@click.argument("name", metavar="[GROUP]", required=False, type=GroupParam())
@options.cluster
@options.as_json
def members(*, name: str | None, cluster: str, as_json: bool) -> None:
    """List the members of all groups, or of GROUP, with their settings.

    "up" is when a member was started, "joined" when it subscribed last, and "rebalanced" when its
    partitions last changed; `quire group describe` shows these. Members of a key-shared group have
    slots of partitions, 16 in each, and share a partition slot by slot; "slots" counts them. With
    --json, all options of the consumer are printed.
    """
    found = trio.run(finish, partial(_members, cluster, name or ""))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    slots = ("slots",) if any(each.slots for each in found) else ()
    rows = table(
        *("group", "member", "client id", "state", "topics", "partitions", *slots),
        *("up", "joined", "rebalanced", "process", "settings"),
        right=("partitions", "slots"),
    )
    for each in found:
        rows.add_row(*_cells(each, with_slots=bool(slots)))
    show(rows)


async def _members(cluster: str, name: str) -> Sequence[ConsumerInfo]:
    async with connect(cluster) as client:
        return await client.groups.consumers(name)


def _cells(each: ConsumerInfo, *, with_slots: bool) -> list[str]:
    return [
        each.group,
        each.member,
        each.client_id or "-",
        each.state,
        ", ".join(each.topics),
        str(each.partitions),
        *([str(each.slots or "-")] if with_slots else []),
        *map(moment_of_ms, (each.up_ms, each.joined_ms, each.rebalanced_ms)),
        f"{each.host}:{each.process_id}",
        f"session {each.session_s:g} s, poll {each.poll_s_max:g} s, revoke {each.revoke_s:g} s",
    ]

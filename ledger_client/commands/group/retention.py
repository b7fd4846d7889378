"""``quire group keep``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.group.names import group_name
from ledger_client.commands.outcome import finish


class GroupKept(msgspec.Struct, frozen=True):
    """The output of `group keep --json`."""

    group: str
    keep: bool
    """it holds back retention"""


@click.command()
@group_name
@click.argument("state", metavar="on|off", type=click.Choice(("on", "off")))
@options.cluster
@options.as_json
def keep(*, name: str, state: str, cluster: str, as_json: bool) -> None:
    """Let a group hold back retention (on), or not (off, as all groups at first).

    While it does, neither retention nor a purge removes messages that the group has not committed,
    in topics that its members consume or in which it has committed something: in a partition in
    which it has not, none at all. `quire topic explain` names the group. Off, or the end of the
    group, frees them; also of a topic that the group no longer consumes.
    """
    is_on = state == "on"
    trio.run(finish, partial(_keep, cluster, name, is_on=is_on))
    if as_json:
        click.echo(msgspec.json.encode(GroupKept(name, is_on)).decode())


async def _keep(cluster: str, name: str, *, is_on: bool) -> None:
    async with connect(cluster) as client:
        await client.groups.keep(name, is_on)

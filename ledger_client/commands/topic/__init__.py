"""``quire topic``: topics made, looked at, altered, emptied and deleted."""

from __future__ import annotations

import click

from ledger_client.commands.topic.alter import alter
from ledger_client.commands.topic.create import create
from ledger_client.commands.topic.delete import delete
from ledger_client.commands.topic.describe import describe
from ledger_client.commands.topic.explain import explain
from ledger_client.commands.topic.lanes import delete_lane, lanes, rename_lane
from ledger_client.commands.topic.listing import list_
from ledger_client.commands.topic.purge import purge
from ledger_client.commands.topic.truncate import truncate


@click.group()
def topic() -> None:
    """Make topics, look after them, and see what they hold and why."""


for command in (create, list_, describe, explain, alter, purge, truncate, delete):
    topic.add_command(command)
for command in (lanes, rename_lane, delete_lane):
    topic.add_command(command)

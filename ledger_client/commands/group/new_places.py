"""Where a group goes on after a command, or would."""

from __future__ import annotations

import click
import msgspec

from ledger_client.commands.tables import partition_text, show, table
from ledger_client.topics.positions import Position


class GroupReset(msgspec.Struct, frozen=True):
    """The output of `group reset --json` and `group import --json`.

    A lane that is not here begins at its first message.
    """

    group: str
    dry_run: bool
    places: Position


def print_reset(found: GroupReset, as_json: bool) -> None:
    """Print where a group goes on."""
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    rows = table("topic", "partition", "lane", "next entry", right=("lane", "next entry"))
    for topic, _, partition, lane, place in found.places:
        at = f"{place.ledger_id}:{place.entry}"
        rows.add_row(topic, partition_text(partition), str(lane), at)
    show(rows if found.places else "every lane: its first message")

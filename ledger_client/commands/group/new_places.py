"""Where a group goes on after a command, or would."""

from __future__ import annotations

import click
import msgspec

from ledger_client.commands.tables import partition_text, show, table
from ledger_client.topics.positions import UNKNOWN, Place, Position


class GroupReset(msgspec.Struct, frozen=True):
    """The output of `group reset --json` and `group import --json`.

    The place in each lane. One with number -1 is before the lane's first message.
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
        rows.add_row(topic, partition_text(partition), str(lane), _text(place))
    show(rows if found.places else "no lanes: nothing changes")


def _text(place: Place) -> str:
    if place.number == UNKNOWN:
        return "first message"
    if place.ledger_id == UNKNOWN:
        return "next message"  # no ledger holds it yet, or the one that did was removed
    return f"{place.ledger_id}:{place.entry}"

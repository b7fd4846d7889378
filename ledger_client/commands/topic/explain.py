"""``quire topic explain``."""

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
    event_times,
    kept_for,
    moment_of_ms,
    show,
    table,
    when,
)
from ledger_client.topics.keeping.explanation import Explanation
from ledger_client.topics.keeping.retention import Fate


@click.command()
@name
@options.cluster
@options.as_json
def explain(*, name: str, cluster: str, as_json: bool) -> None:
    """Tell for every ledger of a topic why it is still there, and when it will go.

    Only closed ledgers go, the oldest of a lane first; the first that stays keeps those
    after it. What a ledger holds (bytes of one copy) is known once it is closed, the time
    with which it begins before that. Bookies free the space of what went when they collect
    garbage next.
    """
    found = trio.run(finish, partial(_explain, cluster, name))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    ledgers = [fate for lane in found.lanes for fate in lane.ledgers]
    if ledgers:
        show(_drawn(ledgers), "")
    told = (count(len(ledgers), "ledger"), size(found.extent.size))
    show(f"{found.topic.name}: {', '.join(told)}; kept: {kept_for(found.topic.retention)}")


async def _explain(cluster: str, name: str) -> Explanation:
    async with ledger_client.connect(cluster) as client:
        return await client.explain_topic(name)


def _drawn(fates: list[Fate]) -> Table:
    right = ("partition", "lane", "number", "ledger", "entries", "messages", "size")
    columns = (*right[:4], "state", *right[4:], "created", "closed", "event times")
    drawn = table(*columns, "why it is there", "goes", right=right)
    for fate in fates:
        row = fate.ledger
        closed = row.state == "closed"
        drawn.add_row(
            *map(str, (fate.partition, fate.lane, fate.number, row.ledger_id)),
            row.state,
            f"{row.entries:,}" if closed else "-",
            f"{row.messages:,}" if closed else "-",
            size(row.size) if closed else "-",
            moment_of_ms(row.created_ms),
            moment_of_ms(row.closed_ms),
            event_times(row.first_event_time, row.last_event_time),
            fate.why,
            when(fate),
        )
    return drawn

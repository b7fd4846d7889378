"""``quire topic roll``."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.options import DurationParam
from ledger_client.commands.outcome import finish
from ledger_client.commands.progress import show_part
from ledger_client.commands.tables import count, show
from ledger_client.topics.rolls import ROLL_WAIT_S, Rolled


@click.command()
@options.topic
@click.option(
    "--partition", metavar="INDEX", type=click.IntRange(-1), help="Only in this partition."
)
@click.option(
    "--wait",
    "wait_s",
    type=DurationParam(),
    default=ROLL_WAIT_S,
    show_default="30s",
    metavar="DURATION",
    help="How long a producer has to go on in a new ledger.",
)
@options.cluster
@options.as_json
def roll(*, name: str, partition: int | None, wait_s: float, cluster: str, as_json: bool) -> None:
    """Close a topic's open ledgers, so that compaction, purge and retention can use them.

    Producers are not disturbed: each goes on in a new ledger, as it does when one is full. The
    ledger of a producer that sent nothing since its last ledger stays. A lane without a producer
    is closed as its next producer would do. May be interrupted and repeated.

    Exit code 1 if a producer does not answer: it is paused, cut off, or of an older version. All
    other ledgers are closed.
    """
    done = trio.run(finish, partial(_roll, cluster, name, partition, wait_s))
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
    else:
        show(*_lines(done))


async def _roll(cluster: str, name: str, partition: int | None, wait_s: float) -> Rolled:
    async with connect(cluster) as client:
        work = f"waiting for each producer of {name} to go on in a new ledger"
        with show_part(work) as advance:
            return await client.topics.roll(
                name, partition=partition, wait_s=wait_s, on_progress=advance
            )


def _lines(done: Rolled) -> list[str]:
    lines = [f"{count(done.closed, 'ledger')} closed"]
    empty = len(done.lanes) - done.closed
    if empty:
        left = "it has" if empty == 1 else "they have"
        lines.append(f"{count(empty, 'open ledger')} left open, as {left} no messages")
    return lines

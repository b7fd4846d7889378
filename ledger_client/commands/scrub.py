"""``quire scrub``: compare the payloads of all copies of closed ledgers, by Spark or without."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio
from rich.table import Table

import ledger_client
from ledger_client import Client
from ledger_client.commands import options
from ledger_client.commands.console import Output
from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.interruption import finish
from ledger_client.commands.progress import show_part
from ledger_client.commands.quantity import count, size
from ledger_client.commands.spark_advice import advising
from ledger_client.operations.remedy import mend
from ledger_client.operations.scrubbing import (
    Chosen,
    Part,
    Scrubbed,
    ScrubbedLedger,
    choose_ledgers,
    scrub as scrub_here,
    scrubbed_of,
    summary,
)

SHOWN_MAX = 50
WIDTH = 100


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    topics: tuple[str, ...]
    ledgers: tuple[int, ...]
    master: str
    no_spark: bool
    repair: bool
    cluster: str
    as_json: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints: how ledgers are, in the end with --repair."""

    whole: bool
    found: Scrubbed
    mended: list[int] = []
    """ledgers that were not whole, and are by --repair"""


@click.command()
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only ledgers of topics.")
@click.option(
    "--ledger",
    "--ledgers",
    "ledgers",
    multiple=True,
    type=click.IntRange(0, 2**63 - 1),
    metavar="LEDGER",
    help="Only these.",
)
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Where Spark runs: local[N] within this process, or a Spark cluster.",
)
@click.option("--no-spark", is_flag=True, help="Do it in this process alone.")
@click.option("--repair", is_flag=True, help="Copy what is faulty from a bookie that has it right.")
@options.cluster
@options.as_json
def scrub(**asked: object) -> None:
    """Compare the payloads of all copies of closed ledgers.

    Tells of each ledger that is not whole how many copies of entries are missing, damaged (they
    cannot be read, or their checksum is wrong), different from what most bookies hold,
    or unreachable. All closed ledgers are looked at, or those of --topic and --ledger.

    Exit code 1 unless every copy is whole; with --repair, unless every copy is whole in the end.
    """
    wanted = msgspec.convert(asked, Asked)
    with advising():
        result = trio.run(finish, partial(_scrub, wanted))
    if wanted.as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        _tell(result)
    if not result.whole:
        raise CommandFailed(_verdict(result.found, repaired=wanted.repair))


async def _scrub(asked: Asked) -> Result:
    async with ledger_client.connect(asked.cluster) as client:
        for topic in asked.topics:
            await client.topic(topic)
        chosen = await choose_ledgers(client, topics=asked.topics, ids=asked.ledgers)
        with show_part() as told:
            found = await _look(client, asked, chosen, told)
        mended: list[int] = []
        if asked.repair:
            by_id = {one.ledger_id: one for one in chosen}
            for number, each in enumerate(found):
                if each.faulty and not each.gone:
                    found[number] = await _mend(client, by_id[each.ledger_id])
                    mended += [each.ledger_id] if found[number].whole else []
    told_all = summary(found)
    return Result(whole=told_all.whole, found=told_all, mended=sorted(mended))


async def _look(
    client: Client, asked: Asked, chosen: list[Chosen], told: Part
) -> list[ScrubbedLedger]:
    if asked.no_spark:
        return await scrub_here(client, chosen, told)
    from ledger_client.spark.scrub import scrub_by_spark  # PySpark only for who uses it

    return await scrub_by_spark(asked.cluster, chosen, told, master=asked.master)


async def _mend(client: Client, one: Chosen) -> ScrubbedLedger:
    _, after = await mend(client, client.store, one.ledger_id)
    return scrubbed_of(after, one)


def _tell(result: Result) -> None:
    found = result.found
    if found.faulty:
        table = Table(box=None, pad_edge=False, header_style="")
        for head in ("ledger", "topic"):
            table.add_column(head)
        for head in ("missing", "damaged", "different", "unreachable", "lost"):
            table.add_column(head, justify="right")
        table.add_column("on")
        for each in found.faulty[:SHOWN_MAX]:
            numbers = (each.missing, each.damaged, each.different, each.unreachable, each.lost)
            where = " ".join(dict.fromkeys([*each.faulty, *each.silent]))
            table.add_row(str(each.ledger_id), each.topic, *map(str, numbers), where)
        Output(highlight=False, markup=False, width=WIDTH).print(table)
        if len(found.faulty) > SHOWN_MAX:
            click.echo(f"and {len(found.faulty) - SHOWN_MAX} more; --json names them")
    if result.mended:
        click.echo(f"mended {count(len(result.mended), 'ledger')}")
    click.echo(
        f"{count(found.ledgers, 'ledger')}, {count(found.entries, 'entry')} in "
        f"{found.copies:,} copies, {size(found.size)}: "
        + (
            "every copy is whole"
            if result.whole
            else f"{count(len(found.faulty), 'ledger')} not whole"
        )
    )


def _verdict(found: Scrubbed, *, repaired: bool) -> str:
    ids = ", ".join(str(each.ledger_id) for each in found.faulty[:5])
    more = ", ..." if len(found.faulty) > 5 else ""
    parts = [f"not every copy is whole: ledger {ids}{more}"]
    silent = sorted({name for each in found.faulty for name in each.silent})
    if found.lost:
        parts.append(f"of {count(found.lost, 'entry')} no copy is known to be right")
    if silent:
        parts.append(f"no answer from {', '.join(silent)}")
    if not repaired and any(each.faulty for each in found.faulty):
        parts.append("--repair mends what another bookie has right")
    return "; ".join(parts)

"""``quire scrub``: compare all copies of closed ledgers, with Spark or without."""

from __future__ import annotations

from functools import partial

import click
import msgspec
import trio
from rich.table import Table

from ledger_client.client import Client, connect
from ledger_client.cluster.operations.scrubbing import (
    Chosen,
    OnProgress,
    Scrubbed,
    ScrubbedLedger,
    choose_ledgers,
    mend,
    scrub as scrub_here,
    scrubbed_of,
    summary,
)
from ledger_client.commands import options
from ledger_client.commands.outcome import advising, finish
from ledger_client.commands.progress import show_part
from ledger_client.commands.tables import Output, count, size
from ledger_client.errors import LedgerError, MetadataUnavailable, NoSuchLedger
from metadata.errors import MetadataError
from metadata.outcome import CommandFailed, first_of

SHOWN_MAX = 50
WIDTH = 100


class ScrubRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options and arguments of the command line."""

    topics: tuple[str, ...]
    ledgers: tuple[int, ...]
    master: str
    no_spark: bool
    repair: bool
    cluster: str
    as_json: bool


class NotMended(msgspec.Struct, frozen=True):
    """A ledger whose repair failed."""

    ledger_id: int
    why: str


class ScrubResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of --json: the state of the ledgers, after repairs if --repair was given."""

    whole: bool
    found: Scrubbed
    mended: list[int] = []
    """ledgers that --repair made whole"""
    not_mended: list[NotMended] = []
    """ledgers whose repair failed; it may have made some copies"""


@click.command()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only ledgers of this topic. May be repeated.",
)
@click.option(
    "--ledger",
    "--ledgers",
    "ledgers",
    multiple=True,
    type=click.IntRange(0, 2**63 - 1),
    metavar="LEDGER",
    help="Only this ledger. May be repeated.",
)
@options.spark_master
@options.no_spark
@click.option("--repair", is_flag=True, help="Replace bad copies by good ones from other bookies.")
@options.cluster
@options.as_json
def scrub(**arguments: object) -> None:
    """Compare all copies of closed ledgers.

    For each ledger that is not whole, shows how many copies of entries are missing, damaged
    (unreadable, or with a wrong checksum), different from what most bookies hold, or
    unreachable. Checks all closed ledgers, or those named by --topic and --ledger.

    Exit code 1 unless every copy is whole, with --repair after the repair.
    """
    wanted = msgspec.convert(arguments, ScrubRequest)
    with advising():
        result = trio.run(finish, partial(_scrub, wanted))
    if wanted.as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        _show(result)
    if not result.whole:
        raise CommandFailed(_verdict(result.found, repaired=wanted.repair))


async def _scrub(request: ScrubRequest) -> ScrubResult:
    repaired = Repaired()
    async with connect(request.cluster) as client:
        with show_part("comparing copies") as advance:
            for topic in request.topics:
                await client.topics.info(topic)
            chosen = await choose_ledgers(
                client._context.ledgers, topics=request.topics, ids=request.ledgers
            )
            found = await _look(client, request, chosen, advance)
            if request.repair:
                repaired = await _mend_all(client, chosen, found)
    sums = summary(found)
    return ScrubResult(
        whole=sums.whole,
        found=sums,
        mended=sorted(repaired.whole),
        not_mended=sorted(repaired.failed, key=lambda each: each.ledger_id),
    )


async def _look(
    client: Client, request: ScrubRequest, chosen: list[Chosen], on_progress: OnProgress
) -> list[ScrubbedLedger]:
    if request.no_spark:
        return await scrub_here(client._context.ledgers, chosen, on_progress)
    from ledger_client.spark.scrub import scrub_by_spark  # imports PySpark

    return await scrub_by_spark(request.cluster, chosen, on_progress, master=request.master)


class Repaired(msgspec.Struct):
    """The ledgers that a repair made whole, and those at which it failed."""

    whole: list[int] = []
    failed: list[NotMended] = []


async def _mend_all(client: Client, chosen: list[Chosen], found: list[ScrubbedLedger]) -> Repaired:
    """Repair the ledgers in *found*, and replace them by their new state.

    A ledger that cannot be repaired keeps the others from nothing. Raises MetadataUnavailable:
    without the metadata none can.
    """
    repaired = Repaired()
    by_id = {one.ledger_id: one for one in chosen}
    for number, each in enumerate(found):
        if not each.faulty or each.gone:
            continue
        try:
            found[number] = await _mend(client, by_id[each.ledger_id])
        except* MetadataUnavailable as failure:
            raise first_of(failure) from None
        except* NoSuchLedger:
            found[number] = msgspec.structs.replace(each, gone=True)
        except* (LedgerError, MetadataError) as failure:
            why = str(first_of(failure)).removeprefix(f"ledger {each.ledger_id}: ")
            repaired.failed.append(NotMended(each.ledger_id, why))
        else:
            repaired.whole += [each.ledger_id] if found[number].whole else []
    return repaired


async def _mend(client: Client, one: Chosen) -> ScrubbedLedger:
    _, after = await mend(client._context.ledgers, client._context.store, one.ledger_id)
    return scrubbed_of(after, one)


def _show(result: ScrubResult) -> None:
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
        click.echo(f"repaired {count(len(result.mended), 'ledger')}")
    for failed in result.not_mended[:SHOWN_MAX]:
        click.echo(f"ledger {failed.ledger_id} could not be repaired: {failed.why}")
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
        parts.append(f"{count(found.lost, 'entry')} without a copy known to be right")
    if silent:
        parts.append(f"no answer from {', '.join(silent)}")
    if not repaired and any(each.faulty for each in found.faulty):
        parts.append("--repair replaces bad copies by good ones from other bookies")
    return "; ".join(parts)

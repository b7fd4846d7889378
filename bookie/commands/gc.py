"""``bookie gc``: collect garbage now instead of waiting for the next interval."""

from __future__ import annotations

import click
import msgspec
import trio

from bookie.commands import options
from bookie.commands.call import FOR_EVER, PLAIN, open_remote
from bookie.commands.output import print_json, print_table, size
from bookie.commands.stores import open_store
from metadata.access import Access
from metadata.address import parse_address
from metadata.calls import CollectGarbage, GarbageReport
from metadata.cluster_url import is_cluster_url, parse_cluster_url
from metadata.errors import LedgerError, MetadataError, MetadataUnavailable
from metadata.outcome import CommandFailed, first_of
from metadata.records import BookieRecord
from metadata.registrations import list_registrations


class Collected(msgspec.Struct, frozen=True):
    """Result of one bookie; *error* is "" on success."""

    bookie_id: str
    address: str
    report: GarbageReport | None = None
    error: str = ""


@click.command()
@options.cluster
@click.option("--bookie", "only", metavar="NAME", help="Only this bookie. [default: all serving]")
@click.option(
    "--major", is_flag=True, help="Rewrite all logs below the major threshold, not the minor one."
)
@options.as_json
def gc(*, cluster: str, only: str | None, major: bool, as_json: bool) -> None:
    """Free the space of deleted ledgers now, on all bookies.

    Each bookie looks for ledgers that the metadata no longer has, deletes entry logs without
    live data, and rewrites those with little of it: less than the share minor_threshold, or
    with --major less than major_threshold. The command waits until all are done. That can
    take minutes, because compaction is throttled (compaction_rate). Bookies also do this by
    themselves every gc_interval_s.

    Exit code 1 if a bookie failed, 3 if none answers.
    """
    collected = trio.run(_collect_all, cluster, only, major)
    if as_json:
        for each in collected:
            print_json(each)
    else:
        _show(collected)
    failed = [each for each in collected if each.error]
    if failed:
        reasons = [f"{each.bookie_id} at {each.address}: {each.error}" for each in failed]
        raise CommandFailed("; ".join(reasons))


async def _collect_all(cluster: str, only: str | None, major: bool) -> list[Collected]:
    access = parse_cluster_url(cluster).access if is_cluster_url(cluster) else PLAIN
    bookies = [b for b in await _serving(cluster) if only in (None, b.bookie_id)]
    if not bookies:
        what = f"bookie {only}" if only else "no bookie"
        raise CommandFailed(f"{what} is not registered; leave --bookie out to see who is")
    collected: list[Collected] = []

    async def collect(bookie: BookieRecord) -> None:
        collected.append(await _collect(bookie, access, major))

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(collect, bookie)
    return sorted(collected, key=lambda each: each.bookie_id)


async def _serving(cluster: str) -> list[BookieRecord]:
    try:
        async with open_store(cluster) as store:
            return (await list_registrations(store)).bookies
    except MetadataUnavailable as cause:
        raise CommandFailed.unreachable(f"no bookie answers: {cause}") from cause


async def _collect(bookie: BookieRecord, access: Access, major: bool) -> Collected:
    report: GarbageReport | None = None
    error = ""
    try:
        async with open_remote(parse_address(bookie.address), access) as remote:
            report = await remote.ask(CollectGarbage(major), GarbageReport, wait_s=FOR_EVER)
    except* (CommandFailed, LedgerError, MetadataError) as cause:
        error = str(first_of(cause))  # that of one bookie, which stops no other one
    return Collected(bookie.bookie_id, bookie.address, report, error)


def _show(collected: list[Collected]) -> None:
    heads = (
        "bookie",
        "ledgers deleted",
        "moved away",
        "logs deleted",
        "logs rewritten",
        "freed",
        "copied",
    )
    print_table(
        heads,
        [
            (
                each.bookie_id,
                each.report.ledgers_deleted,
                each.report.ledgers_moved_away,
                each.report.logs_deleted,
                each.report.logs_compacted,
                size(each.report.freed_size),
                size(each.report.copied_size),
            )
            for each in collected
            if each.report is not None
        ],
    )
    for each in collected:
        for kept in each.report.kept if each.report is not None else ():
            click.echo(f"{each.bookie_id} keeps log {kept.log_id:08x}: {kept.reason}")

"""Where the bytes of a cluster's bookies are: which ledger, whose, and why they are there.

Each bookie tells what its files take, and how much of it each ledger has. Whose a ledger is
stands in metadata, which is read afterwards: a ledger that a bookie has and metadata has not
was deleted, and not one that has just been made.

All ledgers are held in memory, some hundred bytes for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import trio

from ledger_client.client import Client
from ledger_client.errors import BookieUnavailable
from ledger_client.operations.owners import Owner, Owners, read_owners
from ledger_client.repair.records import ledger_records
from metadata.calls import DiskUse, DiskUsed, FilesOnDisk, LedgerStatePage, LedgerStates
from metadata.records import LedgerRecord
from metadata.store import MetadataStore

PAGE_COUNT = 1000
ASK_S = 30.0
"""For one page, or for looking at all files."""

Reason = Literal[
    "live", "unwanted", "dead", "unsettled", "padding", "index", "journal", "metadata", "other"
]
REASONS: dict[Reason, str] = {
    "live": "records of ledgers that are wanted, in entry logs",
    "unwanted": "records of ledgers deleted or moved elsewhere: the next collection gives them up",
    "dead": "records that were given up, in entry logs that are not rewritten yet: `bookie gc`",
    "unsettled": "records written or given up while the bookies were asked",
    "padding": "headers, ledger maps and alignment of entry logs",
    "index": "where entries lie in entry logs",
    "journal": "the journal, files that are preallocated included",
    "metadata": "the metadata of the cluster, where a bookie has it in its folder",
    "other": "table of ledgers, mark, cookie, locks, folders",
}
_FILES: dict[str, Reason] = {"index": "index", "journal": "journal", "metadata": "metadata"}


class BookieUse(msgspec.Struct):
    """What one bookie has on disk. Sizes in bytes, as du counts them.

    *reasons* add up to *size*. *unflushed* is in its memory, and on disk in the journal only.
    """

    bookie_id: str
    size: int
    unflushed: int
    reasons: dict[Reason, int]


class LedgerUse(msgspec.Struct):
    """What bookies have of one ledger, in bytes of records, by bookie.

    *unwanted* copies lie on bookies that do not have the ledger any more. *owner* is None
    when nothing of it stands in metadata.
    """

    ledger_id: int
    owner: Owner | None = None
    live: dict[str, int] = {}
    unwanted: dict[str, int] = {}


class Usage(msgspec.Struct):
    """What all bookies have that answered, and why others did not."""

    bookies: list[BookieUse]
    ledgers: list[LedgerUse]
    silent: dict[str, str]
    owners: Owners

    @property
    def size(self) -> int:
        """Bytes on all disks."""
        return sum(bookie.size for bookie in self.bookies)


class _Told(msgspec.Struct):
    """What a bookie said."""

    ledgers: dict[int, int]
    disk: DiskUsed


async def take_usage(
    client: Client, store: MetadataStore, *, on_ledgers: Callable[[int], None] = lambda _: None
) -> Usage:
    """Ask all registered bookies, and metadata whose what they have is.

    *on_ledgers* is told how many ledgers more were seen.

    Raises:
        MetadataError, LedgerError: the metadata cannot be asked.
    """
    told, silent = await _ask_all(client, on_ledgers)
    ledgers = {number: LedgerUse(number) for said in told.values() for number in said.ledgers}
    owners = await read_owners(store)
    async for record in ledger_records(store):
        on_ledgers(1)
        use = ledgers.get(record.ledger_id)
        if use is not None:
            use.owner = owners.of(record.ledger_id)
            _divide(use, _names(record), told)
    for use in ledgers.values():
        if use.owner is None:
            _divide(use, frozenset(), told)
    bookies = [_bookie(name, said, ledgers) for name, said in sorted(told.items())]
    return Usage(bookies, [ledgers[number] for number in sorted(ledgers)], silent, owners)


async def _ask_all(
    client: Client, on_ledgers: Callable[[int], None]
) -> tuple[dict[str, _Told], dict[str, str]]:
    told: dict[str, _Told] = {}
    silent: dict[str, str] = {}

    async def ask(name: str) -> None:
        try:
            told[name] = await _ask(client, name, on_ledgers)
        except BookieUnavailable as failure:
            silent[name] = failure.reason

    async with trio.open_nursery() as nursery:
        for bookie in await client.list_bookies():
            nursery.start_soon(ask, bookie.bookie_id)
    return told, silent


async def _ask(client: Client, name: str, on_ledgers: Callable[[int], None]) -> _Told:
    ledgers: dict[int, int] = {}
    after = -1
    while True:
        page = await client.call(name, LedgerStates(after, PAGE_COUNT), timeout_s=ASK_S)
        if not isinstance(page, LedgerStatePage):
            raise BookieUnavailable(name, f"answered {type(page).__name__}")
        if not page.ledgers:
            break
        if page.ledgers[-1].ledger_id <= after:
            raise BookieUnavailable(name, "told ledgers that do not rise")
        after = page.ledgers[-1].ledger_id
        ledgers |= {row.ledger_id: row.bytes_in_logs for row in page.ledgers if row.bytes_in_logs}
        on_ledgers(len(page.ledgers))
    disk = await client.call(name, DiskUse(), timeout_s=ASK_S)
    if not isinstance(disk, DiskUsed):
        raise BookieUnavailable(name, f"answered {type(disk).__name__}")
    return _Told(ledgers, disk)


def _names(record: LedgerRecord) -> frozenset[str]:
    return frozenset(name for fragment in record.fragments for name in fragment.bookies)


def _divide(use: LedgerUse, names: frozenset[str], told: dict[str, _Told]) -> None:
    for name, said in told.items():
        if size := said.ledgers.get(use.ledger_id, 0):
            (use.live if name in names else use.unwanted)[name] = size


def _bookie(name: str, said: _Told, ledgers: dict[int, LedgerUse]) -> BookieUse:
    disk = said.disk
    live = sum(ledgers[number].live.get(name, 0) for number in said.ledgers)
    unwanted = sum(ledgers[number].unwanted.get(name, 0) for number in said.ledgers)
    reasons: dict[Reason, int] = dict.fromkeys(REASONS, 0)
    reasons["live"], reasons["unwanted"] = live, unwanted
    reasons["dead"] = disk.dead
    reasons["unsettled"] = disk.live - live - unwanted
    reasons["padding"] = -disk.live - disk.dead
    for files in disk.files:
        reasons[_reason(files)] += files.allocated
    size = sum(files.allocated for files in disk.files)
    return BookieUse(name, size, disk.unflushed, {key: n for key, n in reasons.items() if n})


def _reason(files: FilesOnDisk) -> Reason:
    if files.kind == "log":
        return "padding"  # what is left of it when the records are taken off
    if files.kind == "deleted":
        return "dead"
    return _FILES.get(files.kind, "other")

"""Disk usage of a cluster: which ledgers take the bytes, which topics own them, and why.

Each bookie reports the size of its files and each ledger's part in them. Metadata, which
names the owners, is read afterwards: so a ledger that metadata lacks was deleted, and
is not one that has just been created.

All ledgers are held in memory, a few hundred bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.ledgers.ledgers import Ledgers
from metadata.calls import DiskUse, DiskUsed, FilesOnDisk, LedgerStatePage, LedgerStates
from metadata.compaction import COMPACTED, decode_set
from metadata.jobs import STAGED, decode_staged
from metadata.listings import ledger_records
from metadata.paged import whole_value
from metadata.pointers import read_lane_rows
from metadata.records import LedgerRecord, parse_ledger_key
from metadata.store import MetadataStore, Versioned, pages
from metadata.topics import LANE_LEDGERS, TOPICS, decode_topic

PAGE_COUNT = 1000
ASK_S = 30.0
"""Deadline for one page, or for a scan of a bookie's files."""

Reason = Literal[
    "live", "unwanted", "dead", "unsettled", "padding", "index", "journal", "metadata", "other"
]
REASONS: dict[Reason, str] = {
    "live": "records of existing ledgers, in entry logs",
    "unwanted": "records of ledgers deleted or moved elsewhere; garbage collection drops them",
    "dead": "dropped records in entry logs not rewritten yet: run `bookie gc`",
    "unsettled": "records written or dropped while the bookies were being asked",
    "padding": "headers, ledger maps and alignment of entry logs",
    "index": "positions of entries in entry logs",
    "journal": "the journal, including preallocated files",
    "metadata": "the cluster's metadata, if a bookie keeps it in its folder",
    "other": "ledger table, mark, cookie, locks, folders",
}
_FILES: dict[str, Reason] = {"index": "index", "journal": "journal", "metadata": "metadata"}


class BookieUse(msgspec.Struct):
    """What one bookie has on disk. Sizes are bytes as du counts them.

    *reasons* add up to *size*. *unflushed* bytes are in memory, and on disk in the journal only.
    """

    bookie_id: str
    size: int
    unflushed: int
    reasons: dict[Reason, int]


class LedgerUse(msgspec.Struct):
    """Bytes of one ledger's records on each bookie.

    *unwanted* copies are on bookies that its record no longer names. *owner* is `None` if
    the ledger is not in metadata.
    """

    ledger_id: int
    owner: LedgerOwner | None = None
    live: dict[str, int] = {}
    unwanted: dict[str, int] = {}


class ClusterUsage(msgspec.Struct):
    """Usage of all bookies that answered, and in *silent* why others did not."""

    bookies: list[BookieUse]
    ledgers: list[LedgerUse]
    silent: dict[str, str]
    owners: Owners

    @property
    def size(self) -> int:
        """Bytes on the disks of all bookies that answered."""
        return sum(bookie.size for bookie in self.bookies)


class _Answer(msgspec.Struct):
    """One bookie's report: bytes of records by ledger, and its files."""

    ledgers: dict[int, int]
    disk: DiskUsed


async def take_usage(
    ledgers: Ledgers, store: MetadataStore, *, on_ledgers: Callable[[int], None] = lambda _: None
) -> ClusterUsage:
    """Ask all registered bookies for their usage, and look up the owners in metadata.

    *on_ledgers* is called with the number of ledgers just seen. Of a ledger whose record cannot be
    decoded, which is logged, all copies count as live.

    Raises:
        MetadataError, LedgerError: metadata is unavailable.
    """
    answers, silent = await _ask_all(ledgers, on_ledgers)
    uses = {number: LedgerUse(number) for answer in answers.values() for number in answer.ledgers}
    owners = await read_owners(store)
    unreadable: set[str] = set()
    async for record in ledger_records(store, unreadable=unreadable):
        on_ledgers(1)
        use = uses.get(record.ledger_id)
        if use is not None:
            use.owner = owners.of(record.ledger_id)
            _divide(use, _names(record), answers)
    for number in map(parse_ledger_key, unreadable):
        if number in uses:  # nobody knows which copies are wanted: all are there to stay
            uses[number].owner = owners.of(number)
            _divide(uses[number], frozenset(answers), answers)
    for use in uses.values():
        if use.owner is None:
            _divide(use, frozenset(), answers)
    bookies = [_bookie(name, answer, uses) for name, answer in sorted(answers.items())]
    return ClusterUsage(bookies, [uses[number] for number in sorted(uses)], silent, owners)


async def _ask_all(
    ledgers: Ledgers, on_ledgers: Callable[[int], None]
) -> tuple[dict[str, _Answer], dict[str, str]]:
    answers: dict[str, _Answer] = {}
    silent: dict[str, str] = {}

    async def ask(name: str) -> None:
        try:
            answers[name] = await _ask(ledgers, name, on_ledgers)
        except BookieUnavailable as failure:
            silent[name] = failure.reason

    async with trio.open_nursery() as nursery:
        for bookie in await ledgers.list_bookies():
            nursery.start_soon(ask, bookie.bookie_id)
    return answers, silent


async def _ask(ledgers: Ledgers, name: str, on_ledgers: Callable[[int], None]) -> _Answer:
    used: dict[int, int] = {}
    after = -1
    while True:
        page = await ledgers.call(name, LedgerStates(after, PAGE_COUNT), timeout_s=ASK_S)
        if not isinstance(page, LedgerStatePage):
            raise BookieUnavailable(name, f"answered {type(page).__name__}")
        if not page.ledgers:
            break
        if page.ledgers[-1].ledger_id <= after:
            raise BookieUnavailable(name, "reported ledgers that do not rise")
        after = page.ledgers[-1].ledger_id
        used |= {row.ledger_id: row.bytes_in_logs for row in page.ledgers if row.bytes_in_logs}
        on_ledgers(len(page.ledgers))
    disk = await ledgers.call(name, DiskUse(), timeout_s=ASK_S)
    if not isinstance(disk, DiskUsed):
        raise BookieUnavailable(name, f"answered {type(disk).__name__}")
    return _Answer(used, disk)


def _names(record: LedgerRecord) -> frozenset[str]:
    return frozenset(name for fragment in record.fragments for name in fragment.bookies)


def _divide(use: LedgerUse, names: frozenset[str], answers: dict[str, _Answer]) -> None:
    for name, answer in answers.items():
        if size := answer.ledgers.get(use.ledger_id, 0):
            (use.live if name in names else use.unwanted)[name] = size


def _bookie(name: str, answer: _Answer, ledgers: dict[int, LedgerUse]) -> BookieUse:
    disk = answer.disk
    live = sum(ledgers[number].live.get(name, 0) for number in answer.ledgers)
    unwanted = sum(ledgers[number].unwanted.get(name, 0) for number in answer.ledgers)
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
        return "padding"  # the records in it are subtracted, which leaves the padding
    if files.kind == "deleted":
        return "dead"
    return _FILES.get(files.kind, "other")


# --- Owners -----------------------------------------------------------------------------
# A topic's ledger is listed in a row of its lane, in the topic's compacted set, or in the
# rows that a job has staged. Any other ledger is plain.


Part = Literal["messages", "compacted", "staged", "plain"]


class LedgerOwner(msgspec.Struct, frozen=True, order=True):
    """The topic that a ledger belongs to; empty for a plain ledger."""

    topic: str
    part: Part
    """messages of the topic, survivors of its compaction, or a job's unpublished output"""


PLAIN = LedgerOwner("", "plain")


class Owners(msgspec.Struct):
    """The owners of all ledgers of topics."""

    topics: set[str]
    by_ledger: dict[int, LedgerOwner]

    def of(self, ledger_id: int) -> LedgerOwner:
        """Return the owner of a ledger that exists."""
        return self.by_ledger.get(ledger_id, PLAIN)


async def read_owners(store: MetadataStore) -> Owners:
    """Read the owners of all ledgers; one read for each thousand rows.

    Raises:
        MetadataError: the store is unavailable, or a record in it is damaged.
    """
    names: dict[int, str] = {}
    async for page in pages(store, TOPICS):
        for key, row in page:
            topic = decode_topic(key, row.value)
            names[topic.uid] = topic.name
    owners = Owners(set(names.values()), {})
    async for page in pages(store, STAGED):
        for key, row in page:
            staged = decode_staged(key, row.value)
            owners.by_ledger[staged.ledger_id] = _owner(names, key, "staged")
    await _read_lanes(store, names, owners)
    async for page in pages(store, COMPACTED):
        for key, row in page:
            owner = _owner(names, key, "compacted")
            for ledger_id in await _compacted_ledgers(store, key, row):
                owners.by_ledger[ledger_id] = owner
    return owners


async def _read_lanes(store: MetadataStore, names: dict[int, str], owners: Owners) -> None:
    after = ""
    while rows := await read_lane_rows(store, LANE_LEDGERS, after=after):
        after = rows[-1].key
        for row in rows:
            if not row.is_hidden:
                owners.by_ledger[row.ledger.ledger_id] = _owner(names, row.key, "messages")


async def _compacted_ledgers(store: MetadataStore, key: str, row: Versioned) -> list[int]:
    """Return the ledgers of a compacted set, and those of former generations."""
    whole = await whole_value(store, key, row)
    if whole is None:
        return []
    found = decode_set(key, whole.value)
    ledgers = [each.ledger_id for each in found.ledgers]
    return ledgers + [each.ledger_id for each in found.retired]


def _owner(names: dict[int, str], key: str, part: Part) -> LedgerOwner:
    uid = int(key.split("/")[1])
    return LedgerOwner(names.get(uid, f"(topic {uid}, being deleted)"), part)


# --- Rows for people --------------------------------------------------------------------
# Whatever rows stand for, their sizes add up to what all disks hold, unless they
# are limited to one topic.


By = Literal["topic", "ledger", "reason", "bookie"]
OF_LEDGERS: tuple[Reason, ...] = ("live", "unwanted")
"""Reasons that apply to a ledger; the others apply to a bookie's files."""


class UsageRow(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One row of a table of usage. Its kind decides which fields are set; sizes are bytes.

    *size* is live + unwanted, or bytes of no ledger that are there for *reason*.
    """

    topic: str | None = None
    """empty for ledgers of no topic"""
    part: str | None = None
    ledger_id: int | None = None
    bookie_id: str | None = None
    reason: str | None = None
    ledgers: int = 0
    copies: int = 0
    live: int = 0
    unwanted: int = 0
    unflushed: int = 0
    """in memory, and on disk in the journal only; not part of size"""
    reasons: dict[Reason, int] = {}
    size: int = 0


def rows_of(usage: ClusterUsage, by: By, topic: str | None = None) -> list[UsageRow]:
    """Return the rows, largest first and those of no ledger last, or only those of *topic*."""
    ledgers = [use for use in usage.ledgers if topic is None or _is_of(use, topic)]
    if by == "bookie":
        return _by_bookie(usage, ledgers, whole=topic is None)
    rows = sorted(_GROUPINGS[by](ledgers), key=lambda row: (row.reason is not None, -row.size))
    return rows if topic is not None else rows + _overhead(usage)


def _is_of(use: LedgerUse, topic: str) -> bool:
    return use.owner is not None and use.owner.topic == topic


def _by_topic(ledgers: list[LedgerUse]) -> Iterator[UsageRow]:
    found: dict[LedgerOwner | None, UsageRow] = {}
    for use in ledgers:
        row = found.setdefault(use.owner, _row(use.owner))
        row.ledgers += 1
        _add(row, use)
    yield from found.values()


def _row(owner: LedgerOwner | None) -> UsageRow:
    if owner is None:
        return UsageRow(reason="unwanted")
    return UsageRow(topic=owner.topic, part=owner.part)


def _by_ledger(ledgers: list[LedgerUse]) -> Iterator[UsageRow]:
    for use in ledgers:
        row = UsageRow(ledger_id=use.ledger_id, ledgers=1)
        if use.owner is not None:
            row.topic, row.part = use.owner.topic, use.owner.part
        _add(row, use)
        yield row


def _by_reason(ledgers: list[LedgerUse]) -> Iterator[UsageRow]:
    live, unwanted = UsageRow(reason="live"), UsageRow(reason="unwanted")
    for use in ledgers:
        live.size += sum(use.live.values())
        unwanted.size += sum(use.unwanted.values())
    yield from (row for row in (live, unwanted) if row.size)


def _by_bookie(usage: ClusterUsage, ledgers: list[LedgerUse], *, whole: bool) -> list[UsageRow]:
    rows = {bookie.bookie_id: UsageRow(bookie_id=bookie.bookie_id) for bookie in usage.bookies}
    for use in ledgers:
        for name, size in use.live.items():
            rows[name].live += size
        for name, size in use.unwanted.items():
            rows[name].unwanted += size
        for name in use.live.keys() | use.unwanted.keys():
            rows[name].ledgers += 1
    for bookie in usage.bookies:
        row = rows[bookie.bookie_id]
        row.size = row.live + row.unwanted
        if whole:
            row.size, row.reasons, row.unflushed = bookie.size, bookie.reasons, bookie.unflushed
    return list(rows.values())


def _overhead(usage: ClusterUsage) -> list[UsageRow]:
    sizes = {
        reason: sum(bookie.reasons.get(reason, 0) for bookie in usage.bookies)
        for reason in REASONS
        if reason not in OF_LEDGERS
    }
    return [UsageRow(reason=reason, size=size) for reason, size in sizes.items() if size]


def _add(row: UsageRow, use: LedgerUse) -> None:
    live, unwanted = sum(use.live.values()), sum(use.unwanted.values())
    row.copies += len(use.live) + len(use.unwanted)
    row.live += live
    row.unwanted += unwanted
    row.size += live + unwanted


_GROUPINGS: dict[By, Callable[[list[LedgerUse]], Iterator[UsageRow]]] = {
    "topic": _by_topic,
    "ledger": _by_ledger,
    "reason": _by_reason,
}

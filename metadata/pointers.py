"""Results shown by one row, however many rows they have.

A transaction is small, and what a job shows may be large. So the rows of the result are put
first, in steps, where no reader counts them; then one transaction turns one row, the pointer, and
all of them count at once. Later steps make them ordinary rows, and the pointer goes.

    open ──► rows, lane by lane ──► shown ──► settled, lane by lane ──► no pointer
      └────► undone ──► rows removed, lane by lane ──► no pointer

    lanes/...           LaneRecord with pending: the end that the lane gets, and the pointer's name
    lane-ledgers/...    LaneLedger "prepared" with the pointer's name: complete but for its state
    staged/...          StagedLedger with the pointer's name: this ledger is part of the result

A pointer's name is "<job id>/<attempt>". A row counts if the pointer of its job is shown and has
that very attempt; a missing pointer means that the attempt was undone. Rules:

1. Every step before the change to "shown" checks that the pointer is open, at the version at which
   it was made. So no step of an attempt that was undone can be made late.
2. A pointer only changes from open to shown, or from open to undone, by compare-and-set. It is
   deleted when no row names it any more, or after it was undone.
3. A lane with a pending end has no writer. Whoever wants to write it decides first: it undoes an
   open pointer, then settles or clears the lane. All of these steps check the lane's record, so
   any number of processes may do them at once, and stop anywhere.
4. A staged ledger is discarded only by a transaction which checks that its job has no pointer
   (topics/retention/job_rows.py). So none is discarded that may be shown, or is.
5. Rows that name a pointer are not changed by anybody else. Retention, purges and truncations
   have shown pointers settled first, and leave rows alone that name one.

Readers resolve names as they read. A row may be settled between reading it and looking for its
pointer, which is then gone; so after a missing pointer the rows are read again.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from metadata.errors import VersionConflict
from metadata.jobs import (
    POINTERS,
    JobPointer,
    decode_pointer,
    decode_staged,
    encode_job_row,
    job_of,
    pointer_key,
    staged_prefix,
)
from metadata.store import (
    ABSENT,
    PAGE_COUNT_MAX,
    Check,
    CheckLease,
    Delete,
    MetadataStore,
    Op,
    Put,
    Versioned,
    items_under,
)
from metadata.topics import (
    LANES,
    LaneLedger,
    LaneRecord,
    decode_lane,
    decode_lane_ledger,
    encode_row,
    lane_key,
    lane_ledger_key,
    lane_ledgers_prefix,
    lane_of,
    topic_prefix,
)

STEP_COUNT = 100
"""Ledgers that one step puts, settles or clears; each takes up to two ops."""

T = TypeVar("T")


class OpenPointer(NamedTuple):
    """A pointer that this process opened. Made by open_pointer()."""

    key: str
    version: int
    row: JobPointer

    @property
    def name(self) -> str:
        """The name by which rows refer to it."""
        return f"{job_of(self.key)[1]}/{self.row.attempt}"

    @property
    def check(self) -> Check:
        """The check for every step: the pointer is still open."""
        return Check(self.key, self.version)

    @property
    def shown(self) -> Put:
        """The op that shows all rows which name it."""
        return Put(self.key, _encoded(self.row, "shown"), self.version)


class LaneRow(NamedTuple):
    """A row of a lane's ledger, resolved: "closed" if it is shown, even if that is not stored."""

    key: str
    ledger: LaneLedger
    version: int

    @property
    def is_hidden(self) -> bool:
        """Whether it waits for its pointer, so that it belongs to a job and not to the lane."""
        return bool(self.ledger.pointer) and self.ledger.state == "prepared"


class LaneAt(NamedTuple):
    """A lane's record, resolved: with the end that it has by now, even if that is not stored."""

    key: str
    record: LaneRecord
    version: int


# --- showing -----------------------------------------------------------------------------


async def open_pointer(
    store: MetadataStore, uid: int, job_id: str, checks: Sequence[Op]
) -> OpenPointer:
    """Open a job's pointer in a transaction with *checks*.

    Raises:
        VersionConflict: the job has a pointer already, or a check failed.
        MetadataError: it may have been opened.
    """
    key, row = pointer_key(uid, job_id), JobPointer(attempt=secrets.token_hex(8), state="open")
    versions = await store.transact([Put(key, encode_job_row(row), ABSENT), *checks])
    return OpenPointer(key, versions[0], row)


async def finish(
    store: MetadataStore, uid: int, job_id: str, *, checks: Sequence[CheckLease] = ()
) -> bool:
    """Undo a job's pointer if it is open, settle or clear all its rows, and delete it.

    Returns True if its result is shown; a job without a pointer has none.

    Raises:
        MetadataError: call again to finish the rest.
        LeaseLost: one of *checks* is over.
    """
    key, shown = pointer_key(uid, job_id), False
    while (found := await store.get(key)) is not None:
        row = decode_pointer(key, found.value)
        name = f"{job_id}/{row.attempt}"
        try:
            if row.state == "open":
                await store.transact([*checks, Put(key, _encoded(row, "undone"), found.version)])
                continue
            shown = row.state == "shown"
            await _resolve_lanes(store, uid, name, checks)
            if shown:
                await _unstage(store, staged_prefix(uid, job_id), name, checks)
            await store.transact([*checks, Delete(key, found.version)])
        except VersionConflict:
            continue
        return shown
    return shown


async def settle_topic(store: MetadataStore, uid: int) -> None:
    """Settle the rows of all results of a topic that are shown. Raises MetadataError."""
    for key, found in await items_under(store, topic_prefix(POINTERS, uid)):
        if decode_pointer(key, found.value).state == "shown":
            await finish(store, uid, job_of(key)[1])


async def _resolve_lanes(
    store: MetadataStore, uid: int, name: str, checks: Sequence[CheckLease]
) -> None:
    """Settle or clear all lanes of a topic whose pending end names a pointer."""
    prefix, after = topic_prefix(LANES, uid), ""
    while page := await store.list(prefix, after=after):
        after = page[-1][0]
        for key, found in page:
            pending = decode_lane(key, found.value).pending
            if pending is not None and pending.pointer == name:
                await resolve_lane(store, uid, *lane_of(key), checks=checks)


async def _unstage(
    store: MetadataStore, prefix: str, name: str, checks: Sequence[CheckLease]
) -> None:
    """Delete the staged rows of the ledgers that a pointer shows; the ledgers stay."""
    after = ""
    while page := await store.list(prefix, after=after):
        after = page[-1][0]
        ours = [
            Delete(key, found.version)
            for key, found in page
            if decode_staged(key, found.value).pointer == name
        ]
        for start in range(0, len(ours), 2 * STEP_COUNT):
            await store.transact([*checks, *ours[start : start + 2 * STEP_COUNT]])


async def resolve_lane(
    store: MetadataStore,
    uid: int,
    partition: int,
    lane: int,
    *,
    checks: Sequence[CheckLease] = (),
) -> None:
    """Settle or clear a lane with a pending end, after which it may be written.

    An open pointer is undone: its job must show its result anew.

    Raises:
        MetadataError: call again to finish the rest.
        LeaseLost: one of *checks* is over.
    """
    key = lane_key(uid, partition, lane)
    while (found := await store.get(key)) is not None:
        record = decode_lane(key, found.value)
        if record.pending is None:
            return
        shown = await _decided(store, uid, record.pending.pointer, checks)
        if shown is None:
            continue
        try:
            await _move(store, key, record, found.version, shown=shown, checks=checks)
        except VersionConflict:
            continue


async def _decided(
    store: MetadataStore, uid: int, name: str, checks: Sequence[CheckLease]
) -> bool | None:
    """Return whether a pointer shows its rows, after undoing it if it is open.

    `None` means that it changed meanwhile.
    """
    job_id, _, attempt = name.rpartition("/")
    key = pointer_key(uid, job_id)
    found = await store.get(key)
    row = None if found is None else decode_pointer(key, found.value)
    if found is None or row is None or row.attempt != attempt:
        return False
    if row.state == "open":
        try:
            await store.transact([*checks, Put(key, _encoded(row, "undone"), found.version)])
        except VersionConflict:
            return None
        return False
    return row.state == "shown"


async def _move(
    store: MetadataStore,
    key: str,
    record: LaneRecord,
    version: int,
    *,
    shown: bool,
    checks: Sequence[CheckLease],
) -> None:
    """Settle the pending rows of a lane, or remove them; then the lane has no pending end."""
    assert record.pending is not None
    name, check = record.pending.pointer, Check(key, version)
    uid, place = int(key.split("/")[1]), lane_of(key)
    prefix = lane_ledgers_prefix(uid, *place)
    after = lane_ledger_key(uid, *place, record.current) if record.current >= 0 else ""
    while page := await store.list(prefix, after=after, limit=STEP_COUNT):
        ops = [op for each in page if (op := _moved(*each, name, shown=shown)) is not None]
        if ops:
            await store.transact([*checks, check, *ops])
        after = page[-1][0]
    last = record.ended if shown else msgspec.structs.replace(record, pending=None)
    await store.transact([*checks, Put(key, encode_row(last), version)])


def _moved(key: str, found: Versioned, name: str, *, shown: bool) -> Op | None:
    row = decode_lane_ledger(key, found.value)
    if row.pointer != name:
        return None
    if not shown:
        return Delete(key, found.version)
    return Put(key, encode_row(_counted(row, pointer="")), found.version)


def _counted(row: LaneLedger, *, pointer: str) -> LaneLedger:
    return msgspec.structs.replace(row, state="closed", pointer=pointer)


def _encoded(row: JobPointer, state: Literal["shown", "undone"]) -> bytes:
    return encode_job_row(msgspec.structs.replace(row, state=state))


# --- reading -----------------------------------------------------------------------------


async def read_lane_rows(
    store: MetadataStore, prefix: str, *, after: str = "", limit: int = PAGE_COUNT_MAX
) -> list[LaneRow]:
    """Return one page of lane-ledgers/ as MetadataStore.list() does, resolved.

    A row that is shown and not settled is "closed", and still names its pointer.

    Raises:
        MetadataError: from the store; BadRecord for a damaged row.
    """

    async def read() -> list[LaneRow]:
        items = await store.list(prefix, after=after, limit=limit)
        return [_lane_row(key, found) for key, found in items]

    return await _resolved_rows(store, read)


async def all_lane_rows(store: MetadataStore, prefix: str, *, after: str = "") -> list[LaneRow]:
    """Return all rows under *prefix* behind the key *after*, as read_lane_rows()."""
    rows: list[LaneRow] = []
    while page := await read_lane_rows(store, prefix, after=after):
        rows += page
        after = page[-1].key
    return rows


async def read_lane_row(store: MetadataStore, key: str) -> LaneRow | None:
    """Return the row of one ledger, as read_lane_rows(), or `None` if there is none."""

    async def read() -> list[LaneRow]:
        found = await store.get(key)
        return [] if found is None else [_lane_row(key, found)]

    rows = await _resolved_rows(store, read)
    return rows[0] if rows else None


async def read_lane_records(store: MetadataStore, prefix: str) -> list[LaneAt]:
    """Return the records of all lanes under *prefix* in order, resolved. Raises MetadataError."""
    lanes: list[LaneAt] = []
    after = ""

    async def read() -> list[LaneAt]:
        return [_lane(*item) for item in await store.list(prefix, after=after)]

    while page := await _resolved_lanes(store, read):
        lanes += page
        after = page[-1].key
    return lanes


async def read_lane(store: MetadataStore, key: str) -> LaneAt | None:
    """Return a lane's record, resolved, or `None` if there is none. Raises MetadataError."""

    async def read() -> list[LaneAt]:
        found = await store.get(key)
        return [] if found is None else [_lane(key, found)]

    lanes = await _resolved_lanes(store, read)
    return lanes[0] if lanes else None


def _lane_row(key: str, found: Versioned) -> LaneRow:
    return LaneRow(key, decode_lane_ledger(key, found.value), found.version)


def _lane(key: str, found: Versioned) -> LaneAt:
    return LaneAt(key, decode_lane(key, found.value), found.version)


async def _resolved_rows(
    store: MetadataStore, read: Callable[[], Awaitable[list[LaneRow]]]
) -> list[LaneRow]:
    rows, shown = await _resolved(store, read, lambda row: (row.key, row.ledger.pointer))
    return [
        row._replace(ledger=_counted(row.ledger, pointer=row.ledger.pointer))
        if (_uid(row.key), row.ledger.pointer) in shown
        else row
        for row in rows
    ]


async def _resolved_lanes(
    store: MetadataStore, read: Callable[[], Awaitable[list[LaneAt]]]
) -> list[LaneAt]:
    lanes, shown = await _resolved(store, read, lambda lane: (lane.key, _pending(lane.record)))
    return [
        lane._replace(record=lane.record.ended)
        if (_uid(lane.key), _pending(lane.record)) in shown
        else lane
        for lane in lanes
    ]


def _pending(record: LaneRecord) -> str:
    return "" if record.pending is None else record.pending.pointer


async def _resolved(
    store: MetadataStore,
    read: Callable[[], Awaitable[list[T]]],
    named: Callable[[T], tuple[str, str]],
) -> tuple[list[T], set[tuple[int, str]]]:
    """Return what *read* returns, and the pointers, by uid and name, that show some of it."""
    gone: set[tuple[int, str]] = set()
    while True:
        rows = await read()
        names = {(_uid(key), name) for key, name in map(named, rows) if name}
        states = {each: await _state(store, *each) for each in names - gone}
        missing = {each for each, state in states.items() if state == "gone"}
        if not missing:
            return rows, {each for each, state in states.items() if state == "shown"}
        gone |= missing  # undone, unless the rows were settled since they were read


async def _state(
    store: MetadataStore, uid: int, name: str
) -> Literal["open", "shown", "undone", "gone"]:
    job_id, _, attempt = name.rpartition("/")
    key = pointer_key(uid, job_id)
    found = await store.get(key)
    row = None if found is None else decode_pointer(key, found.value)
    return "gone" if row is None or row.attempt != attempt else row.state


def _uid(key: str) -> int:
    return int(key.split("/")[1])

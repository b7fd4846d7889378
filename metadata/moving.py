"""Moving house: all that a store holds, as another store needs it.

What moves are the keys with their values, and the floors: what the new store must continue above.
An id that was issued is not issued again there, its time does not go back, and its versions and
the epochs of its leases are greater than any there ever was. Versions themselves do not move: a
version counts for the store that gave it. Leases do not move either, because the cluster stands
still meanwhile.

    store ──► Snapshot ──► Archive (metadata/archive.py) ──► import_archive() ──► empty store

THE MARK. An import takes many transactions. Until the last one the key ``moving`` shows how many
records have come, and every transaction replaces the version of that key which the one before
wrote. So an import that was interrupted continues where it ended, and of two that run at the same
time one wins. Bookies do not start on a store with this key.

BACKUPS. After a backup was made, copies of closed ledgers moved. A record of then does not name
where they are, and a bookie deletes what it has of a closed ledger whose record does not name it.
It leaves a ledger that is marked for repair, and repair asks all bookies. So all closed ledgers of
an archive that may be a backup are marked: of a cluster that ran, or older than BACKUP_MS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Annotated, NamedTuple, Protocol

import msgspec

from metadata.archive import Archive, ArchiveHeader, KeyLine, Spool
from metadata.errors import BadRecord, MetadataBroken, VersionConflict
from metadata.records import (
    INSTANCE,
    LEDGERS,
    Count,
    LedgerState,
    UnderReplicated,
    check_readable,
    decode_ledger,
    decode_row,
    decode_underreplicated,
    encode_record,
    underreplicated_key,
)
from metadata.store import (
    ABSENT,
    PAGE_COUNT_MAX,
    Leases,
    MetadataStore,
    Op,
    Page,
    Put,
    Versioned,
    check_key,
    check_range,
    check_value,
    is_last,
)

MARK = "moving"
REVISION_MAX = 1 << 62
"""The greatest floor of versions: as many are left above it."""
BATCH_OPS = 200
BATCH_SIZE = 256 << 10
BACKUP_MS = 3_600_000
"""A cluster that moves house stands still for less."""
Progress = Callable[[int], None]


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """What another store must continue above.

    Attributes:
        counters: the next id of each counter.
        time_ms: the store's time.
        revision: no version, and no epoch of a lease, was greater.
    """

    counters: dict[str, Annotated[int, msgspec.Meta(ge=1, le=REVISION_MAX)]] = {}
    time_ms: Count = 0
    revision: Annotated[int, msgspec.Meta(ge=0, le=REVISION_MAX)] = 0


class Snapshot(Protocol):
    """What a store holds. It is of one moment if is_consistent() says so at the end."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """As MetadataStore.list."""

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """As MetadataStore.leases."""

    async def floors(self) -> Floors:
        """Return the floors, which cover all that was listed before."""

    async def is_consistent(self) -> bool:
        """Return True if all that was listed so far is of one moment."""


class MovableStore(MetadataStore, Protocol):
    """What a driver offers beside MetadataStore, so that its contents can move."""

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Look at everything for the length of the block. Raises MetadataError."""

    async def floors(self) -> Floors:
        """Return what another store must continue above. Raises MetadataError."""

    async def raise_floors(self, floors: Floors) -> None:
        """Continue above *floors*, and above the own ones. May be repeated.

        Versions of keys that are there may rise with it, without a hint: nobody else uses the
        store meanwhile.

        Raises:
            MetadataError: nothing, or some of it, was done.
        """


class LiveView:
    """A Snapshot of a driver that has none: it reads the store itself, which may change."""

    def __init__(self, store: MovableStore, revision: int) -> None:
        self._store = store
        self._revision = revision

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """As MetadataStore.list."""
        return await self._store.list(prefix, after=after, limit=limit)

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        """As MetadataStore.leases."""
        return await self._store.leases(prefix, after=after)

    async def floors(self) -> Floors:
        """As MovableStore.floors."""
        return await self._store.floors()

    async def is_consistent(self) -> bool:
        """Return True if the store did not change since the view began."""
        return (await self._store.changes("")).revision == self._revision


@asynccontextmanager
async def live_view(store: MovableStore) -> AsyncIterator[Snapshot]:
    """Look at *store* itself, for a driver without snapshots. Raises MetadataError."""
    yield LiveView(store, (await store.changes("")).revision)


def check_floors(floors: Floors) -> None:
    """Raise MetadataBroken for floors that a store could not continue above."""
    check_range(floors.revision, 0, REVISION_MAX, "the greatest version")
    check_range(floors.time_ms, 0, REVISION_MAX, "the time")
    for name, following in floors.counters.items():
        check_key(name, "counter")
        check_range(following, 1, REVISION_MAX, f"the next id of {name}")


async def next_page(snapshot: Snapshot, page: Page, prefix: str = "") -> Page:
    """Return the keys after those of *page*, or the first ones; none at the end."""
    return await snapshot.list(prefix, after=page[-1][0] if page else "")


async def count_leases(snapshot: Snapshot) -> tuple[int, str]:
    """Return how many leases are live, and the name of one of them."""
    count, last, page = 0, "", await snapshot.leases("")
    while page:
        count, last = count + len(page), page[-1].name
        page = await snapshot.leases("", after=last) if len(page) == PAGE_COUNT_MAX else []
    return count, last


# --- out -----------------------------------------------------------------------------------


async def export_store(
    store: MovableStore, spool: Spool, *, program: str, force: bool, on_progress: Progress
) -> ArchiveHeader:
    """Write all that *store* holds into *spool*, and return the archive's header.

    Args:
        store: of a cluster that stands still.
        spool: an empty one.
        program: version of this program, for people.
        force: also while the cluster runs. If the driver has no snapshots and the store changed
            meanwhile, the header says that the archive is not consistent.
        on_progress: called with the number of keys so far.

    Raises:
        MetadataBroken: leases are live, or the store holds half of an import, or it changed, or a
            record cannot be moved as it is.
        MetadataError: the store does not answer.
    """
    async with store.snapshot() as snapshot:
        leases, name = await count_leases(snapshot)
        if leases and not force:
            raise MetadataBroken(
                f"the cluster runs: the lease {name} is live, and {leases - 1} more; stop it, and "
                "try again when they are over; or back it up as it runs, with --force"
            )
        cluster = ""
        page: Page = []
        while page := await next_page(snapshot, page):
            for key, found in page:
                if key == MARK:
                    raise MetadataBroken("the store holds only half of an import; finish it first")
                if key == INSTANCE:
                    cluster = found.value.decode(errors="replace")
                _check_movable(key, found.value)
                spool.add(KeyLine.of(key, found.value))
            on_progress(spool.count)
        floors, consistent = await snapshot.floors(), await snapshot.is_consistent()
    if not consistent and not force:
        raise MetadataBroken("the store changed while it was read; stop the cluster and try again")
    return ArchiveHeader(
        program=program,
        cluster=cluster,
        consistent=consistent,
        leases=leases,
        keys=spool.count,
        counters=floors.counters,
        time_ms=floors.time_ms,
        revision=floors.revision,
    )


def _check_movable(key: str, value: bytes) -> None:
    """Raise MetadataBroken for a record whose archive no store would take back."""
    try:
        check_readable(key, value)
        check_value(key, value)
    except (BadRecord, MetadataBroken) as wrong:
        raise MetadataBroken(
            f"{wrong}; an archive could not bring it back, so nothing is exported. Mend or remove "
            "that record first; `bookie metadata check` names all of them"
        ) from wrong


# --- in ------------------------------------------------------------------------------------


class HalfImport(msgspec.Struct, frozen=True, kw_only=True):
    """An import under way: the archive's digest, and how many of its keys have come."""

    digest: str
    keys: Count


class Imported(NamedTuple):
    """What became of an import.

    *resumed_at*: keys that were there before. *marked*: closed ledgers that repair is to look at.
    """

    keys: int
    resumed_at: int
    marked: int = 0


async def check_moved_in(store: MetadataStore) -> None:
    """Raise MetadataBroken if *store* holds only half of an import."""
    if await store.get(MARK) is not None:
        raise MetadataBroken(
            "the store holds only half of an import; run the same `bookie metadata import` again"
        )


async def import_archive(
    store: MovableStore, archive: Archive, *, on_progress: Progress
) -> Imported:
    """Put all that *archive* holds into *store*, which is empty or has half of the same import.

    Closed ledgers of a backup are marked for repair. It may be repeated after any failure, and
    continues then.

    Raises:
        MetadataBroken: the store is not empty, or has half of another archive.
        VersionConflict: somebody else changes the store at the same time.
        MetadataError: the store does not answer.
    """
    floors = Floors(
        counters=archive.header.counters,
        time_ms=archive.header.time_ms,
        revision=archive.header.revision,
    )
    check_floors(floors)
    await _begin(store, archive.digest)
    await store.raise_floors(floors)
    done, version = await _progress(store, archive.digest)
    resumed_at = done
    on_progress(done)
    for batch in _batches(archive, skip=done):
        half = HalfImport(digest=archive.digest, keys=done + len(batch))
        ops: list[Op] = [Put(MARK, msgspec.json.encode(half), version)]
        ops += [Put(line.key, line.content, ABSENT) for line in batch]
        version = (await store.transact(ops))[0]
        done = half.keys
        on_progress(done)
    marked = 0
    if archive.header.leases or await store.now_ms() > archive.header.time_ms + BACKUP_MS:
        half = HalfImport(digest=archive.digest, keys=done)
        marked, version = await _mark_closed(store, msgspec.json.encode(half), version)
    await store.delete(MARK, expected=version)
    return Imported(done, resumed_at, marked)


async def _mark_closed(store: MetadataStore, half: bytes, version: int) -> tuple[int, int]:
    """Mark all closed ledgers for repair; return how many, and the version of *half* by then."""
    marked, page = 0, await store.list(LEDGERS)
    while page:
        ids = [*_closed_in(page)]
        for first in range(0, len(ids), BATCH_OPS):
            batch = ids[first : first + BATCH_OPS]
            ops: list[Op] = [Put(MARK, half, version)]
            ops += [await _marked(store, ledger_id) for ledger_id in batch]
            version = (await store.transact(ops))[0]
        marked += len(ids)
        page = [] if is_last(page) else await store.list(LEDGERS, after=page[-1][0])
    return marked, version


def _closed_in(page: Page) -> Iterator[int]:
    for key, found in page:
        with suppress(BadRecord):  # nobody deletes copies of a ledger that cannot be decoded
            ledger = decode_ledger(key, found.value)
            if ledger.state is LedgerState.CLOSED:
                yield ledger.ledger_id


async def _marked(store: MetadataStore, ledger_id: int) -> Put:
    """Return the mark that copies of a ledger may be missing anywhere, with what is known of it."""
    key = underreplicated_key(ledger_id)
    mark, found = UnderReplicated(ledger_id, "check", await store.now_ms()), await store.get(key)
    if found is not None:
        with suppress(BadRecord):
            known = decode_underreplicated(key, found.value)
            mark = msgspec.structs.replace(known, bookies=[], whole=[])
    return Put(key, encode_record(mark), ABSENT if found is None else found.version)


async def _begin(store: MovableStore, digest: str) -> None:
    """Mark the store as half imported. Raises MetadataBroken unless it is empty or is so."""
    found = await store.get(MARK)
    if found is None:
        await _check_empty(store)
        half = HalfImport(digest=digest, keys=0)
    else:
        half = _half(found, digest)
    # Put again if it was there: whoever else imports now fails at its next transaction.
    expected = ABSENT if found is None else found.version
    try:
        await store.put(MARK, msgspec.json.encode(half), expected=expected)
    except VersionConflict as cause:
        raise MetadataBroken("another import into this store has just begun") from cause


async def _progress(store: MovableStore, digest: str) -> tuple[int, int]:
    """Return how many keys the store has, and the version of the mark with the floors raised."""
    found = await store.get(MARK)
    if found is None:
        raise MetadataBroken("another import into this store has just ended")
    return _half(found, digest).keys, found.version


def _half(found: Versioned, digest: str) -> HalfImport:
    half = decode_row(MARK, found.value, HalfImport)
    if half.digest != digest:
        raise MetadataBroken(
            "the store holds half of the import of another file; import that one again, or "
            "begin with an empty store"
        )
    return half


async def _check_empty(store: MovableStore) -> None:
    if page := await store.list("", limit=1):
        raise _not_empty(f"it has the key {page[0][0]}")
    if leases := await store.leases(""):
        raise _not_empty(f"the lease {leases[0].name} is live")
    if counters := (await store.floors()).counters:
        raise _not_empty(f"it has issued ids of {min(counters)}")


def _not_empty(why: str) -> MetadataBroken:
    return MetadataBroken(
        f"the store is not empty: {why}; name a file or a path that does not exist yet"
    )


def _batches(archive: Archive, *, skip: int) -> Iterator[list[KeyLine]]:
    """Yield the keys after the first *skip*, some for each transaction."""
    batch: list[KeyLine] = []
    size = 0
    for number, line in enumerate(archive.lines()):
        if number < skip:
            continue
        line_size = len(line.key) + len(line.content)
        if batch and (len(batch) == BATCH_OPS or size + line_size > BATCH_SIZE):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += line_size
    if batch:
        yield batch

"""Moving house between any two drivers, interrupted anywhere."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from ensemble import Ensemble, new_path
from lease_clock import LeaseClock
from leases import grant
from memory_store import MemoryStore
from memory_zookeeper import MemoryConnection, MemoryEnsemble

from metadata import moving
from metadata.archive import Archive, ArchiveHeader, Spool
from metadata.audit import Finding, audit
from metadata.errors import LeaseLost, MetadataBroken, MetadataUnavailable, VersionConflict
from metadata.moving import (
    MARK,
    REVISION_MAX,
    Floors,
    Imported,
    MovableStore,
    check_moved_in,
    export_store,
    import_archive,
)
from metadata.records import (
    UNDERREPLICATED,
    DamagedRun,
    Fragment,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.sqlite import SqliteStore
from metadata.store import CheckLease, MetadataStore, Op, Put, Versions, items_under
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.layout import Layout
from metadata.zookeeper.ledger_metadata import encode_metadata
from metadata.zookeeper.protobuf import bytes_field
from metadata.zookeeper.store import ZooKeeperStore, open_zookeeper_store, serving
from metadata.zookeeper.znodes import Set

KEYS = 450
LEDGER = LedgerRecord(7, 1, 1, 1, LedgerState.OPEN, [Fragment(0, ["a"])])
UNKNOWN = bytes_field(99, bytes(400 << 10))
"""A field of a newer BookKeeper."""
GROWN = msgspec.structs.replace(LEDGER, foreign=b64encode(UNKNOWN).decode())
IN_ZOOKEEPER = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper")]
DRIVERS = ["sqlite", "dict", "memory of zookeeper"]
PARAMS = [*DRIVERS, pytest.param("zookeeper", marks=IN_ZOOKEEPER)]
moves = pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sqlite", "sqlite"),
        ("sqlite", "memory of zookeeper"),
        ("memory of zookeeper", "sqlite"),
        ("memory of zookeeper", "dict"),
        ("dict", "memory of zookeeper"),
        pytest.param("sqlite", "zookeeper", marks=IN_ZOOKEEPER),
        pytest.param("zookeeper", "sqlite", marks=IN_ZOOKEEPER),
    ],
    indirect=True,
)
"""From each driver and to each, and not from each to each: what lies between is an archive."""


@asynccontextmanager
async def opened(
    driver: str, folder: Path, name: str, clock: LeaseClock, url: str = ""
) -> AsyncIterator[MovableStore]:
    """Open an empty store that can be moved; *url* is for ZooKeeper."""
    if driver == "dict":
        yield MemoryStore(clock_ms=clock)
    elif driver == "memory of zookeeper":
        connection = RaisedConnection(MemoryConnection(MemoryEnsemble()))
        layout = await find_cluster(connection, create=True)
        cluster = ZooKeeperStore(connection, layout, clock_ms=clock)
        async with serving(cluster):
            yield cluster
    elif driver == "zookeeper":
        async with open_zookeeper_store(url, create=True, clock_ms=clock) as cluster:
            yield cluster
    else:
        store = await SqliteStore.open(folder / f"{name}.db", clock_ms=clock)
        yield store
        await store.aclose()


def url_of(request: pytest.FixtureRequest) -> str:
    if request.param != "zookeeper":
        return ""
    found: Ensemble = request.getfixturevalue("one_zookeeper")
    return found.url(new_path())


@pytest.fixture(params=PARAMS)
async def old(
    request: pytest.FixtureRequest, tmp_path: Path, clock: LeaseClock
) -> AsyncIterator[MovableStore]:
    async with opened(request.param, tmp_path, "old", clock, url_of(request)) as store:
        yield store


@pytest.fixture(params=PARAMS)
async def new(
    request: pytest.FixtureRequest, tmp_path: Path, clock: LeaseClock
) -> AsyncIterator[MovableStore]:
    async with opened(request.param, tmp_path, "new", clock, url_of(request)) as store:
        yield store


async def fill(store: MetadataStore) -> dict[str, int]:
    """Put keys, take ids, and return the next id of each counter."""
    await store.put("instance", b"5f5f")
    await store.put("binary", b"\xff\x00")
    for first in range(0, KEYS, 150):
        await store.transact(
            [
                Put(f"lanes/{number:020d}", b"%d" % number * 50)
                for number in range(first, first + 150)
            ]
        )
    counts = {"ledgers": 700, "topics": 3}
    return {name: await store.next_id(name, count) + count for name, count in counts.items()}


async def export(store: MovableStore, *, force: bool = False) -> tuple[ArchiveHeader, bytes]:
    spool, to = Spool(io.BytesIO()), io.BytesIO()
    header = await export_store(
        store, spool, program="1", force=force, on_progress=lambda _keys: None
    )
    spool.finish(header, to)
    return header, to.getvalue()


async def take_in(store: MovableStore, data: bytes) -> Imported:
    archive = Archive(io.BytesIO(data), "house")
    return await import_archive(store, archive, on_progress=lambda _keys: None)


async def contents(store: MetadataStore) -> dict[str, bytes]:
    return {key: found.value for key, found in await items_under(store, "")}


@pytest.mark.parametrize("new", ["sqlite", "memory of zookeeper"], indirect=True)
@pytest.mark.parametrize("old", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["moves", "runs", "old"])
async def test_no_copy_of_a_backup_is_deleted_before_repair_has_looked(
    old: MovableStore,
    new: MovableStore,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Copies moved after the backup, and records do not name the bookies that have them now."""
    await old.put("instance", b"5f5f")
    for ledger_id in range(300):
        state = LedgerState.OPEN if ledger_id == 9 else LedgerState.CLOSED
        record = LedgerRecord(ledger_id, 1, 1, 1, state, [Fragment(0, ["a"])], last_entry=5)
        await old.put(ledger_key(ledger_id), encode_record(record))
    known = UnderReplicated(7, "damaged", 5, ["a"], [DamagedRun("a", 1, 2)])
    await old.put(underreplicated_key(7), encode_record(known))
    await old.put(underreplicated_key(8), b"{}")
    if kind == "runs":
        await grant(old, "leader", "b1", ttl_s=60)
    _, data = await export(old, force=True)
    if kind == "old":
        monkeypatch.setattr(moving, "BACKUP_MS", -1)
    marked: int | None = None
    # After the last keys, after the first marks, never.
    for fail_at in (3, 0) if kind == "moves" else (3, 2, 0):
        steps.begin(fail_at=fail_at)
        try:
            marked = (await take_in(new, data)).marked
        except MetadataUnavailable:
            with pytest.raises(MetadataBroken, match="half of an import"):
                await check_moved_in(new)
    marks = dict(await items_under(new, UNDERREPLICATED))
    if kind == "moves":
        assert (marked, len(marks)) == (0, 2)
        return
    assert marked == len(marks) == 299
    for ledger_id in {*range(300)} - {9}:
        mark = decode_underreplicated("", marks[underreplicated_key(ledger_id)].value)
        assert (mark.ledger_id, mark.bookies) == (ledger_id, [])
    assert decode_underreplicated("", marks[underreplicated_key(7)].value).damaged == known.damaged


# --- what moves ----------------------------------------------------------------------------


@moves
async def test_keys_and_counters_move(old: MovableStore, new: MovableStore) -> None:
    counters = await fill(old)
    header, data = await export(old)
    assert (header.cluster, header.keys, header.consistent) == ("5f5f", KEYS + 2, True)
    assert await take_in(new, data) == Imported(KEYS + 2, 0)
    assert await contents(new) == await contents(old)
    assert {name: await new.next_id(name) for name in counters} == counters


@moves
async def test_there_and_back_is_the_same(old: MovableStore, new: MovableStore) -> None:
    counters = await fill(old)
    _, data = await export(old)
    await take_in(new, data)
    header, back = await export(new)
    assert back.splitlines()[1:-1] == data.splitlines()[1:-1]
    assert header.counters == counters


@moves
async def test_no_version_and_no_epoch_comes_twice(old: MovableStore, new: MovableStore) -> None:
    await fill(old)
    lease = await grant(old, "role", "me", ttl_s=10)
    version = await old.put("last", b"")
    await old.release(lease)
    _, data = await export(old)
    await take_in(new, data)
    assert all(found.version > version for _, found in await items_under(new, ""))
    granted = await grant(new, "role", "me", ttl_s=10)
    assert granted.epoch > max(lease.epoch, version)
    with pytest.raises(LeaseLost):
        await new.transact([CheckLease.of(lease)])


async def test_versions_continue_above_a_floor_far_away(new: MovableStore) -> None:
    first = await new.put("a", b"")
    await new.raise_floors(Floors(revision=first + (1 << 40)))
    found = await new.get("a")
    assert found is not None
    assert found.version >= first
    assert await new.put("a", b"", expected=found.version) > first + (1 << 40)


@moves
async def test_the_time_does_not_go_back(
    old: MovableStore, new: MovableStore, clock: LeaseClock
) -> None:
    ahead = await old.now_ms() + 86_400_000
    await old.raise_floors(Floors(time_ms=ahead))
    assert await old.now_ms() >= ahead
    _, data = await export(old)
    await take_in(new, data)
    assert await new.now_ms() >= ahead
    clock.advance(10)
    assert await new.now_ms() >= ahead + 5_000


async def test_floors_are_raised_and_never_lowered(new: MovableStore) -> None:
    following = await new.next_id("ledgers", 10) + 10
    version = await new.put("a", b"")
    await new.raise_floors(Floors(counters={"ledgers": 5, "topics": 9}, time_ms=1, revision=1))
    await new.raise_floors(Floors(counters={"ledgers": 5, "topics": 9}, time_ms=1, revision=1))
    assert await new.next_id("ledgers") == following
    assert await new.next_id("topics") == 9
    assert await new.put("a", b"") > version


async def test_floors_that_leave_nothing_above_are_refused(new: MovableStore) -> None:
    for floors in (
        Floors(revision=REVISION_MAX + 1),
        Floors(counters={"ledgers": REVISION_MAX + 1}),
        Floors(counters={"": 1}),
        Floors(time_ms=-1),
    ):
        with pytest.raises(MetadataBroken):
            await new.raise_floors(floors)


# --- what is refused -----------------------------------------------------------------------


@moves
async def test_a_running_cluster_is_exported_only_by_force(
    old: MovableStore, new: MovableStore
) -> None:
    await fill(old)
    lease = await grant(old, "bookies/b1", "me", ttl_s=10)
    with pytest.raises(MetadataBroken, match="the lease bookies/b1 is live"):
        await export(old)
    header, data = await export(old, force=True)
    assert header.leases == 1
    await take_in(new, data)
    assert await new.leases("") == []
    await old.release(lease)
    await export(old)


async def test_a_store_that_holds_anything_is_refused(
    old: MovableStore, tmp_path: Path, clock: LeaseClock
) -> None:
    await fill(old)
    _, data = await export(old)

    async def refusal(driver: str, call: str) -> str:
        async with opened(driver, tmp_path, call, clock) as store:
            if call == "put":
                await store.put("a", b"")
            elif call == "next_id":
                await store.next_id("ledgers")
            else:
                await grant(store, "a", "me", ttl_s=10)
            with pytest.raises(MetadataBroken, match="the store is not empty") as refused:
                await take_in(store, data)
            assert MARK not in await contents(store)
            return str(refused.value)

    for driver in DRIVERS:
        assert "key a" in await refusal(driver, "put")
        assert "ids of ledgers" in await refusal(driver, "next_id")
        assert "lease a" in await refusal(driver, "grant")


@moves
async def test_a_second_import_into_the_same_store_is_refused(
    old: MovableStore, new: MovableStore
) -> None:
    await fill(old)
    _, data = await export(old)
    await take_in(new, data)
    before = await contents(new)
    with pytest.raises(MetadataBroken, match="not empty"):
        await take_in(new, data)
    assert await contents(new) == before


# --- interruptions -------------------------------------------------------------------------


Before = Callable[[int], Awaitable[None]]


class Steps:
    """Numbers the transactions of *store* from 1 on, and fails after number *fail_at*."""

    def __init__(self, store: MovableStore, patch: pytest.MonkeyPatch) -> None:
        self.fail_at = 0
        self.before: Before | None = None
        self._count = 0
        self._transact = store.transact
        patch.setattr(store, "transact", self._step)

    def begin(self, *, fail_at: int) -> None:
        self.fail_at, self._count = fail_at, 0

    async def _step(self, ops: Sequence[Op]) -> Versions:
        self._count += 1
        number = self._count
        if self.before is not None:
            await self.before(number)
        versions = await self._transact(ops)
        if number == self.fail_at:
            raise MetadataUnavailable("no answer", outcome_unknown=True)
        return versions


@pytest.fixture
def steps(new: MovableStore, monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(new, monkeypatch)


@moves
async def test_an_import_that_was_interrupted_anywhere_continues(
    old: MovableStore, new: MovableStore, steps: Steps
) -> None:
    await fill(old)
    _, data = await export(old)
    resumed = []
    for fail_at in (1, 2, 3):  # the mark, one batch, two
        steps.begin(fail_at=fail_at)
        with pytest.raises(MetadataUnavailable):
            await take_in(new, data)
        with pytest.raises(MetadataBroken, match="half of an import"):
            await check_moved_in(new)
        with pytest.raises(MetadataBroken, match="half of an import"):
            await export(new)
        resumed.append(len(await contents(new)) - 1)
    assert resumed[0] == 0 < resumed[1] < resumed[2]
    steps.begin(fail_at=0)
    done = await take_in(new, data)
    assert (done.keys, done.resumed_at) == (KEYS + 2, resumed[2])
    assert await contents(new) == await contents(old)
    await check_moved_in(new)


@moves
async def test_half_of_another_archive_is_not_continued(
    old: MovableStore, new: MovableStore, steps: Steps
) -> None:
    await fill(old)
    _, data = await export(old)
    steps.begin(fail_at=2)
    with pytest.raises(MetadataUnavailable):
        await take_in(new, data)
    await old.put("more", b"")
    _, other = await export(old)
    with pytest.raises(MetadataBroken, match="another file"):
        await take_in(new, other)


@moves
async def test_of_two_imports_at_a_time_the_later_one_wins(
    old: MovableStore, new: MovableStore, steps: Steps
) -> None:
    await fill(old)
    _, data = await export(old)

    async def overtake(number: int) -> None:
        if number == 2:
            assert await take_in(new, data) == Imported(KEYS + 2, 0)

    steps.before = overtake
    with pytest.raises(VersionConflict):
        await take_in(new, data)
    assert await contents(new) == await contents(old)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (b"BookieMetadataFormatVersion\t4\nunknown", "format version 4, newer than 3"),
        (encode_metadata(GROWN), "at most 491520 are allowed"),
    ],
)
async def test_a_record_that_no_store_would_take_back_is_named_and_not_exported(
    clock: LeaseClock, node: bytes, why: str
) -> None:
    """The archive would say what is wrong, and the record's own bytes would be gone."""
    ensemble = MemoryEnsemble()
    connection = RaisedConnection(MemoryConnection(ensemble))
    store = ZooKeeperStore(connection, await find_cluster(connection, create=True), clock_ms=clock)
    key = ledger_key(LEDGER.ledger_id)
    async with serving(store):
        await store.put(key, encode_record(LEDGER))
        ensemble.make([Set(f"/{Layout().path(key)}", node)], 0)
        findings: list[Finding] = []
        async with store.snapshot() as snapshot:
            await audit(snapshot, on_finding=findings.append, on_progress=lambda _: None)
        assert [each.problem for each in findings if key == each.key and why in each.problem]
        for force in (False, True):
            with pytest.raises(MetadataBroken, match=f"{key}.*{why}"):
                await export(store, force=force)


# --- snapshots -----------------------------------------------------------------------------


async def test_what_changes_during_a_snapshot_is_not_in_it_or_shows(old: MovableStore) -> None:
    await fill(old)
    async with old.snapshot() as snapshot:
        before = await snapshot.list("lanes/", limit=1)
        await old.put("lanes/9", b"new")
        await old.delete(before[0][0])
        after = await snapshot.list("lanes/", limit=1000)
        is_old = len(after) == KEYS and after[0] == before[0]
        assert is_old == await snapshot.is_consistent()


async def test_a_snapshot_of_sqlite_is_of_one_moment(tmp_path: Path, clock: LeaseClock) -> None:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened("sqlite", tmp_path, "it", clock))
        counters = await fill(store)
        snapshot = await stack.enter_async_context(store.snapshot())
        await store.put("lanes/9", b"new")
        await store.next_id("ledgers", 50)
        assert len(await snapshot.list("lanes/")) == KEYS
        assert (await snapshot.floors()).counters == counters
        assert await snapshot.is_consistent()


async def test_a_change_during_an_export_needs_force(clock: LeaseClock) -> None:
    store = MemoryStore(clock_ms=clock)
    await fill(store)

    async def run(*, force: bool) -> ArchiveHeader:
        spool = Spool(io.BytesIO())
        return await export_store(
            store, spool, program="1", force=force, on_progress=lambda _: _change(store)
        )

    with pytest.raises(MetadataBroken, match="changed while it was read"):
        await run(force=False)
    assert not (await run(force=True)).consistent


def _change(store: MemoryStore) -> None:
    store.change("zz", b"")

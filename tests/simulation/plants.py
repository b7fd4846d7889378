"""Mistakes, each of which the simulation must find.

Each is a block in which one rule is broken, in the simulated nodes and nowhere else: a
name of the code under test is replaced, and the rest stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import trio
from disks import Disk, SimulatedEngine, Tail
from machines import MACHINE
from page_cache import PageCache
from promises import Promises
from replaced import replaced

from ledger_client.cluster.operations.rebalance import Rebalancer
from ledger_client.ledgers import inquiry, ledgers
from ledger_client.ledgers.entries import Unsound, Verdict
from ledger_client.ledgers.replica_reads import LedgerSource, ReplicaRead
from ledger_client.ledgers.write_state import Action, WriteState
from ledger_client.wire.bookies import BookieConnection
from ledger_client.wire.inflight import Reply
from metadata.records import LedgerRecord
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.znodes import Folder, Node, Stat
from native.digest import crc32c
from native.engine import Request
from native.frame import Code, Flag, Opcode
from native.journal import FENCE
from native.link import Response
from native.mark import Mark

Plant = Callable[[], AbstractContextManager[None]]
Paths = Sequence[str]
Watch = Callable[[], None] | None


@contextmanager
def acknowledge_before_sync() -> Iterator[None]:
    """Answer at once, and let the sync come when it comes: a power cut undoes answers."""
    synced: dict[str, tuple[int, int]] = {}
    cut_power = Disk.cut_power

    def note(disk: Disk) -> None:
        if disk.engine is not None and not disk.engine.closed:
            stats = disk.engine.stats()
            synced[str(disk.folder)] = stats.journal_id, stats.journal_offset

    async def drive(disk: Disk) -> None:
        note(disk)
        while True:
            await disk.work.wait()
            if disk.engine is not None and not disk.engine.closed:
                disk.commit(disk.engine)
                await trio.sleep(disk.sync_s())
                note(disk)

    def flush(engine: SimulatedEngine) -> Mark | None:
        mark: Mark | None = real_flush(engine)
        note(_disk_of_task())
        return mark

    def cut(disk: Disk, tail: Tail) -> None:
        known = synced.get(str(disk.folder))
        cut_power(disk, Tail.CLEAN)
        if known is not None:
            _cut_journal(disk.journal_folder, *known)

    real_flush = SimulatedEngine.flush
    with (
        replaced(Disk, "drive", drive),
        replaced(Disk, "cut_power", cut),
        replaced(SimulatedEngine, "flush", flush),
    ):
        yield


def _cut_journal(folder: Path, file_id: int, end: int) -> None:
    for path in folder.glob("*.journal"):
        number = int(path.stem, 16)
        if number > file_id:
            path.unlink()
        elif number == file_id and path.stat().st_size > end:
            with path.open("r+b") as file:
                file.truncate(end)


def _disk_of_task() -> Disk:
    machine = MACHINE.get()
    disk = getattr(machine.owner if machine else None, "disk", None)
    assert isinstance(disk, Disk)
    return disk


@contextmanager
def fence_only_the_first_read() -> Iterator[None]:
    """Fence with the question for the last confirmed entry; read the tail without."""
    with replaced(inquiry, "RECOVERY_READ_FLAGS", Flag.PRIORITY):
        yield


@contextmanager
def timeout_is_absence() -> Iterator[None]:
    """Take whoever does not answer for one that has not got the entry."""

    def is_negative(answer: object) -> bool:
        return not isinstance(answer, Response) or answer.code in (Code.NO_ENTRY, Code.NO_LEDGER)

    with replaced(inquiry, "is_negative", is_negative):
        yield


@contextmanager
def no_floor() -> Iterator[None]:
    """Believe the last ensemble how far the ledger was confirmed, and ask it for the rest.

    With the floor, everything above lies in the last fragment, so that it makes no
    difference whether a recovery asks that fragment's bookies or the entry's.
    """

    def floor(_record: LedgerRecord, lacs: Iterable[int]) -> int:
        return max(*lacs, -1, -1)

    def replicas(source: LedgerSource, entry_id: int) -> list[BookieConnection]:
        bookies = source.record.fragments[-1].bookies
        chosen = [bookies[(entry_id + i) % len(bookies)] for i in range(source.record.write_quorum)]
        return [source._bookies.connections[name] for name in chosen]

    run = inquiry.Run.__init__

    def begin(self: inquiry.Run, source: LedgerSource, entry_id: int) -> None:
        with replaced(LedgerSource, "replicas", replicas):
            run(self, source, entry_id)

    with replaced(inquiry, "floor", floor), replaced(inquiry.Run, "__init__", begin):
        yield


@contextmanager
def stale_acknowledgements() -> Iterator[None]:
    """Count a replaced bookie's acknowledgements for its replacement."""
    told: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    keep, replaced_by = Promises.keep, WriteState.replaced

    def remember(promises: Promises, ledger: int, entry: int) -> None:
        told[promises.name].add((ledger, entry))
        keep(promises, ledger, entry)

    def replace_bookies(state: WriteState, record: LedgerRecord, now: float) -> list[Action]:
        ensemble = state.ensemble
        gone = {index: ensemble.bookies[index] for index in ensemble._places}
        actions = replaced_by(state, record, now)
        native = state._native
        for index, bookie in gone.items():
            for entry in range(native.state().lac + 1, native.state().next_entry):
                if (record.ledger_id, entry) in told[bookie]:
                    native.acknowledge(index, entry)
        return actions

    with (
        replaced(Promises, "keep", remember),
        replaced(WriteState, "replaced", replace_bookies),
    ):
        yield


@contextmanager
def fence_forgotten() -> Iterator[None]:
    """Forget at each start which ledgers are fenced."""
    opening = SimulatedEngine.open.__func__  # type: ignore[attr-defined]

    def forget_and_open(cls: type[SimulatedEngine], /, **options: object) -> object:
        disk = _disk_of_task()
        for path in sorted(disk.folder.glob("*/*")):
            if path.suffix in (".journal", ".table"):
                _forget_fences(path)
        return opening(cls, **options)

    with replaced(SimulatedEngine, "open", classmethod(forget_and_open)):
        yield


_FENCE = FENCE.to_bytes(8, "big", signed=True)
_RECORD_SIZE = 24  # size, check, ledger, number


def _forget_fences(path: Path) -> None:
    """Make every fence record name a ledger that does not exist."""
    data = bytearray(path.read_bytes())
    at = data.find(_FENCE)
    while at >= 0:
        start = at + 8 - _RECORD_SIZE
        if start >= 0 and data[start : start + 4] == b"\x10\0\0\0" and data[start + 8] == 0:
            salt = _check_of(data, start) ^ _crc_of(data, start)
            data[start + 8] = 0x10
            check = _crc_of(data, start) ^ salt
            data[start + 4 : start + 8] = check.to_bytes(4, "little")
        at = data.find(_FENCE, at + 1)
    path.write_bytes(data)


def _check_of(data: bytearray, start: int) -> int:
    return int.from_bytes(data[start + 4 : start + 8], "little")


def _crc_of(data: bytearray, start: int) -> int:
    return crc32c(bytes(data[start : start + 4] + data[start + 8 : start + _RECORD_SIZE]))


@contextmanager
def late_mark() -> Iterator[None]:
    """Take the position of the journal when a flush is done, not when its half was sealed."""
    real_flush = SimulatedEngine.flush

    def flush(engine: SimulatedEngine) -> Mark | None:
        mark: Mark | None = real_flush(engine)
        if mark is None:
            return None
        stats = engine.stats()
        folder = _disk_of_task().journal_folder
        if not (folder / f"{stats.journal_id:016x}.journal").exists():
            return mark  # the next file, which begins behind this mark as behind the true one
        return msgspec.structs.replace(
            mark, journal_id=stats.journal_id, journal_offset=stats.journal_offset
        )

    with replaced(SimulatedEngine, "flush", flush):
        yield


@contextmanager
def move_without_copying() -> Iterator[None]:
    """Level bookies by changing lists alone."""

    async def copy_nothing(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    with replaced(Rebalancer, "_copy", copy_nothing):
        yield


@contextmanager
def damage_is_absence() -> Iterator[None]:
    """Say of an entry that cannot be read that it was never here."""
    answer = SimulatedEngine.answer

    def deny(
        engine: SimulatedEngine, request: Request, *, use_disk: bool, size_max: int
    ) -> bytes | None:
        frame = answer(engine, request, use_disk=use_disk, size_max=size_max)
        if frame is not None and frame[8:12] == Code.IO_ERROR.to_bytes(4, "big"):
            return frame[:8] + Code.NO_ENTRY.to_bytes(4, "big") + frame[12:]
        return frame

    with replaced(SimulatedEngine, "answer", deny):
        yield


@contextmanager
def journal_not_synced() -> Iterator[None]:
    """Leave out the syncs of the journal, and answer as if they had been."""
    with _not_synced(".journal"):
        yield


@contextmanager
def log_not_synced() -> Iterator[None]:
    """Leave out the syncs of entry logs, and forget the journal as if they had been."""
    with _not_synced(".log"):
        yield


@contextmanager
def _not_synced(suffix: str) -> Iterator[None]:
    note_sync = PageCache.note_sync

    def note_others(cache: PageCache, path: Path) -> None:
        if path.suffix != suffix:
            note_sync(cache, path)

    with replaced(PageCache, "note_sync", note_others):
        yield


@contextmanager
def name_no_incarnation() -> Iterator[None]:
    """Write ledgers as if no id were ever given out again."""
    with replaced(ledgers, "_new_incarnation", lambda: 0):
        yield


@contextmanager
def confirm_what_is_stored() -> Iterator[None]:
    """Tell followers of an open ledger that the last entry here is confirmed."""
    answer = SimulatedEngine.answer

    def confirm(
        engine: SimulatedEngine, request: Request, *, use_disk: bool, size_max: int
    ) -> bytes | None:
        frame = answer(engine, request, use_disk=use_disk, size_max=size_max)
        here = engine.ledger(request.ledger_id) if request.opcode == Opcode.READ_WAIT else None
        if frame is None or here is None or frame[8:12] != bytes(4):
            return frame
        return frame[:36] + here.last_entry.to_bytes(8, "big", signed=True) + frame[44:]

    with replaced(SimulatedEngine, "answer", confirm):
        yield


@contextmanager
def give_up_at_damage() -> Iterator[None]:
    """Call an entry lost when one copy is damaged, and ask for no other."""
    give_up = ReplicaRead._give_up

    def give_up_all(read: ReplicaRead[object], reply: Reply, unsound: Unsound) -> None:
        give_up(read, reply, unsound)
        if unsound.verdict is Verdict.DAMAGED:
            read._untried.clear()

    with replaced(ReplicaRead, "_give_up", give_up_all):
        yield


@contextmanager
def read_without_sync() -> Iterator[None]:
    """Read in ZooKeeper what the server has that answers, however far it is behind."""
    get, stat, children = RaisedConnection.get, RaisedConnection.stat, RaisedConnection.children

    async def get_old(self: RaisedConnection, paths: Paths, **_: bool) -> list[Node | None]:
        return await get(self, paths)

    async def stat_old(
        self: RaisedConnection, paths: Paths, *, watch: Watch = None, **_: bool
    ) -> list[Stat | None]:
        return await stat(self, paths, watch=watch)

    async def list_old(
        self: RaisedConnection, paths: Paths, *, watch: Watch = None, **_: bool
    ) -> list[Folder | None]:
        return await children(self, paths, watch=watch)

    with (
        replaced(RaisedConnection, "get", get_old),
        replaced(RaisedConnection, "stat", stat_old),
        replaced(RaisedConnection, "children", list_old),
    ):
        yield


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        acknowledge_before_sync,
        fence_only_the_first_read,
        timeout_is_absence,
        no_floor,
        stale_acknowledgements,
        fence_forgotten,
        late_mark,
        move_without_copying,
        damage_is_absence,
        journal_not_synced,
        log_not_synced,
        name_no_incarnation,
        confirm_what_is_stored,
        give_up_at_damage,
        read_without_sync,
    )
}

"""CALL: requests to a bookie outside the data path (metadata/calls.py).

Calls about metadata are answered from the bookie's own metadata store, so that a client needs no
access to it; calls about the bookie are answered here. Every call gets a reply within its
deadline. A call that only reads returns a failure of the disk as a Failure. In a call that
flushes or compacts, such a failure ends the bookie, as it does without a call.

Calls have a few threads of their own, because the flush needs one too: a bookie whose flush waits
long for a thread would conclude that its disk hangs (stall.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_args

import msgspec
import trio

from bookie.disk_usage import measure
from bookie.errors import CallRefused
from bookie.garbage import Collector
from bookie.hints import KEYS_MAX
from bookie.incarnations import Incarnations
from bookie.inspecting import Inspector
from bookie.lost_records import forget_unknown, is_unidentified
from bookie.outbox import CallRoom
from bookie.parked import MOVED_MAX
from bookie.reads import ANSWER_SIZE_MAX
from bookie.scrub import Scrubber
from bookie.status import Status
from bookie.storage import Storage
from metadata import calls, inspections
from metadata.calls import (
    BookieReply,
    Done,
    Failure,
    Granted,
    MetadataReply,
    MetadataRequest,
    Reply,
)
from metadata.errors import BadRecord, MetadataError
from metadata.failures import failure_of
from metadata.groups.calls import DescribeGroups, GroupRequest
from metadata.groups.coordinator import Coordinator
from metadata.inspections import InspectionRequest
from metadata.records import LedgerState
from metadata.store import (
    KEY_SIZE_MAX,
    LEASE_VALUE_SIZE_MAX,
    PAGE_COUNT_MAX,
    PAGE_SIZE_MAX,
    VALUE_SIZE_MAX,
    Changes,
    Delete,
    MetadataStore,
    Put,
    send_within_s,
)
from metadata.time.calls import NewestTick, TimeRequest
from metadata.time.timekeeper import Timekeeper
from native.engine import Request as WireRequest
from native.errors import Absent, CoreError, Corrupt
from native.frame import CALL_SIZE_MAX, Code, Opcode

T = TypeVar("T")
_METADATA = get_args(MetadataRequest)
_OF_GROUPS = get_args(GroupRequest)
_ROW_SIZE = 128  # of a row as objects, without its texts and values
_FAILURE_SIZE = 16 << 10  # ReportNoted is as small
_LOOKED_SIZE = 2 << 20
_GROUPS_SIZE = 4 << 20
_CHANGES_SMALL = 4 << 10
_HINTS_FEW = 100
"""Hints that make a small response."""
_WRITES = (calls.FlushNow, calls.CollectGarbage, calls.ForgetUnknown)
_READS = (
    calls.Get,
    calls.ListKeys,
    calls.ListLeases,
    calls.WatchSince,
    calls.LedgerStates,
    calls.LedgerRuns,
    calls.Logs,
    DescribeGroups,
    NewestTick,
    *get_args(InspectionRequest),
)
_LONG = (calls.CollectGarbage, calls.ScrubNow)
_HOLDS_LATER = (*_LONG, calls.AwaitHints, calls.AwaitLedgers)
_THREADS_MAX = 4
_LOOKERS_MAX = 1  # they read in Python, so a second one would only slow the loop down
SEND_S = 3.0
"""A client's change that waits so long for the metadata store is given up, unsent.

The client waits for 10 s in all, so it can ask another bookie.
"""
_QUICK_S = 10.0
_FLUSH_S = 60.0
_UPKEEP_S = 24 * 3600.0  # compaction is throttled and may take hours
_LOGS_PAGE = 1000


class MetadataCalls:
    """Answers metadata requests from *store*, each as one call of MetadataStore."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._handlers: dict[type, Callable[[Any], Awaitable[MetadataReply]]] = {
            calls.Get: self._get,
            Put: self._put,
            Delete: self._delete,
            calls.Transact: self._transact,
            calls.ListKeys: self._list,
            calls.NextId: self._next_id,
            calls.OpenSession: self._open_session,
            calls.KeepSession: self._keep_session,
            calls.EndSession: self._end_session,
            calls.Grant: self._grant,
            calls.Update: self._update,
            calls.Release: self._release,
            calls.ListLeases: self._leases,
            calls.ReadClock: self._now,
            calls.WatchSince: self._changes,
        }

    async def answer(self, request: MetadataRequest) -> MetadataReply:
        """Return the reply to *request*; a MetadataError becomes a Failure.

        WatchSince takes up to its wait_ms, so answer each request in its own task.
        """
        token = send_within_s.set(SEND_S)
        try:
            return await self._handlers[type(request)](request)
        except MetadataError as error:
            return failure_of(error)
        finally:
            send_within_s.reset(token)

    async def _get(self, request: calls.Get) -> MetadataReply:
        found = await self._store.get(request.key)
        return calls.Missing() if found is None else calls.Found(*found)

    async def _put(self, request: Put) -> MetadataReply:
        version = await self._store.put(request.key, request.value, expected=request.expected)
        return Done([version])

    async def _delete(self, request: Delete) -> MetadataReply:
        await self._store.delete(request.key, expected=request.expected)
        return Done()

    async def _transact(self, request: calls.Transact) -> MetadataReply:
        return Done(await self._store.transact(request.ops))

    async def _list(self, request: calls.ListKeys) -> MetadataReply:
        page = await self._store.list(request.prefix, after=request.after, limit=request.limit)
        return calls.KeyPage([calls.KeyItem(key, *found) for key, found in page])

    async def _next_id(self, request: calls.NextId) -> MetadataReply:
        return Done([await self._store.next_id(request.counter, request.count)])

    async def _open_session(self, request: calls.OpenSession) -> MetadataReply:
        opened = await self._store.open_session(request.owner, ttl_s=request.ttl_s)
        return calls.SessionOpened(opened)

    async def _keep_session(self, request: calls.KeepSession) -> MetadataReply:
        await self._store.keep_session(request.session)
        return Done()

    async def _end_session(self, request: calls.EndSession) -> MetadataReply:
        await self._store.end_session(request.session)
        return Done()

    async def _grant(self, request: calls.Grant) -> MetadataReply:
        return Granted(
            await self._store.grant(
                request.name, request.session, owner=request.owner, value=request.value
            )
        )

    async def _update(self, request: calls.Update) -> MetadataReply:
        return Granted(await self._store.update(request.lease, request.value))

    async def _release(self, request: calls.Release) -> MetadataReply:
        await self._store.release(request.lease)
        return Done()

    async def _leases(self, request: calls.ListLeases) -> MetadataReply:
        return calls.LeasePage(await self._store.leases(request.prefix, after=request.after))

    async def _now(self, _request: calls.ReadClock) -> MetadataReply:
        return calls.StoreTime(await self._store.now_ms())

    async def _changes(self, request: calls.WatchSince) -> MetadataReply:
        return await self._store.changes(
            request.prefix, since=request.revision, wait_s=request.wait_ms / 1000
        )


class Calls:
    """Answers the calls of all connections."""

    def __init__(
        self,
        store: MetadataStore,
        storage: Storage,
        collector: Collector,
        scrubber: Scrubber,
        incarnations: Incarnations,
        coordinator: Coordinator,
        timekeeper: Timekeeper,
    ) -> None:
        self._metadata = MetadataCalls(store)
        self._coordinator = coordinator
        self._timekeeper = timekeeper
        self._storage = storage
        self._collector = collector
        self._scrubber = scrubber
        self._incarnations = incarnations
        self._threads = trio.CapacityLimiter(_THREADS_MAX)
        self._lookers = trio.CapacityLimiter(_LOOKERS_MAX)
        self._status: Status | None = None
        self._handlers: dict[type, Callable[[Any], Awaitable[BookieReply]]] = {
            calls.BookieInfo: self._info,
            calls.LedgerStates: self._ledgers,
            calls.EntryLocation: self._location,
            calls.JournalMark: self._journal,
            calls.Logs: self._logs,
            calls.CollectGarbage: self._collect,
            calls.FlushNow: self._flush,
            calls.LedgerRuns: self._runs,
            calls.ForgetUnknown: self._forget,
            calls.ScrubNow: self._scrub,
            calls.DiskUse: self._disk_use,
            inspections.JournalFiles: self._look,
            inspections.JournalRecords: self._look,
            inspections.Indexes: self._look,
            inspections.IndexExtents: self._look,
        }

    def set_status(self, status: Status) -> None:
        """Answer BookieInfo with *status* from now on; before this call it is refused."""
        self._status = status

    async def answer(self, body: bytes, room: CallRoom) -> bytes:
        """Return the reply to the request in *body*, both in msgpack; wait for *room* first.

        Raises:
            OSError: the bookie's disk failed while it was written.
        """
        reply = await self._answer(body, room)
        encoded = calls.encode_reply(reply)
        if len(encoded) <= CALL_SIZE_MAX:
            return encoded
        what = f"{type(reply).__name__} has {len(encoded)} bytes; a frame takes {CALL_SIZE_MAX}"
        return calls.encode_reply(Failure("AnswerTooLarge", what))

    async def _answer(self, body: bytes, room: CallRoom) -> Reply:
        try:
            request = calls.decode_request(body)
        except BadRecord as error:
            await room.hold(_FAILURE_SIZE)
            return failure_of(error)
        room.may_ask_again = isinstance(request, _READS)
        waits = isinstance(request, calls.WatchSince) and request.wait_ms > 0
        if not (waits or isinstance(request, _HOLDS_LATER)):
            await room.hold(reply_size_max(request))
        deadline_s = _deadline_s(request)
        with trio.move_on_after(deadline_s):
            try:
                return await self._do(request, room)
            except Corrupt as error:
                message = f"{error}: damaged here; the bookie's log names file and offset"
                return Failure(type(error).__name__, message)
            except (CallRefused, CoreError) as error:
                return Failure(type(error).__name__, str(error))
            except OSError as error:
                if isinstance(request, _WRITES):
                    raise
                return Failure("ReadFailed", str(error))
        return Failure("CallTimedOut", f"{type(request).__name__} took over {deadline_s:g} s")

    async def _do(self, request: calls.Request, room: CallRoom) -> Reply:
        if isinstance(request, calls.WatchSince) and request.wait_ms > 0:
            return await self._watch(request, room)
        if isinstance(request, calls.HintRequest):
            return await self._hint(request, room)
        if isinstance(request, calls.AwaitLedgers):
            return await self._follow(request, room)
        if isinstance(request, _METADATA):
            return await self._metadata.answer(request)
        if isinstance(request, _OF_GROUPS):
            return await _answered(self._coordinator.answer(request))
        if isinstance(request, TimeRequest):
            return await _answered(self._timekeeper.answer(request))
        if isinstance(request, _LONG):
            return await self._work_long(request, room)
        return await self._handlers[type(request)](request)

    async def _watch(self, request: calls.WatchSince, room: CallRoom) -> Reply:
        """Wait without memory held; request large changes again once there is memory."""
        with room.parked():
            found = await self._metadata.answer(request)
        if isinstance(found, Changes) and sum(map(len, found.keys)) > _CHANGES_SMALL:
            del found
            await room.hold(reply_size_max(request))
            found = await self._metadata.answer(msgspec.structs.replace(request, wait_ms=0))
        return found

    async def _hint(self, request: calls.HintRequest, room: CallRoom) -> Reply:
        """Answer with hints; a wait holds no memory, and no place of the parked calls."""
        box = room.hints
        if box is None:
            raise CallRefused("this bookie has no hints")
        try:
            if isinstance(request, calls.WatchPrefixes):
                return await box.change(request.add, request.drop, request.since)
        except MetadataError as error:
            return failure_of(error)
        is_our_turn = await box.wait(request.wait_ms / 1000)
        await room.hold(reply_size_max(request))
        if not is_our_turn:
            return Changes(0, [])
        return box.take(_HINTS_FEW if room.is_express else KEYS_MAX)

    async def _follow(self, request: calls.AwaitLedgers, room: CallRoom) -> Reply:
        """Wait for news of ledgers, like _hint()."""
        followed = room.followed
        if followed is None:
            raise CallRefused("no ledgers can be followed here")
        followed.change(request.add, request.drop)
        is_our_turn = await followed.wait(request.wait_ms / 1000)
        await room.hold(reply_size_max(request))
        return calls.LedgersMoved(followed.take() if is_our_turn else [])

    async def _work_long(
        self, request: calls.CollectGarbage | calls.ScrubNow, room: CallRoom
    ) -> Reply:
        """Work without memory held, perhaps for hours; reserve it before the reply is encoded."""
        with room.parked():
            reply = await self._handlers[type(request)](request)
        await room.hold(reply_size_max(request))
        return reply

    async def _info(self, _: calls.BookieInfo) -> BookieReply:
        if self._status is None:
            raise CallRefused("the bookie is starting")
        return self._status.report()

    async def _ledgers(self, request: calls.LedgerStates) -> BookieReply:
        engine = self._storage.engine
        states = engine.ledgers(request.after, request.count)
        # Both lists are ordered by id, and a ledger with entries in logs is in the first.
        usage = engine.store.ledgers(request.after, request.count)
        size_in_logs = {row.ledger_id: row.bytes for row in usage}
        return calls.LedgerStatePage(
            [
                calls.LedgerOnBookie(
                    state.ledger_id,
                    state.last_entry,
                    state.lac,
                    state.explicit_lac,
                    bool(state.fenced),
                    size_in_logs.get(state.ledger_id, 0),
                    state.incarnation,
                )
                for state in states
            ]
        )

    async def _location(self, request: calls.EntryLocation) -> BookieReply:
        return await trio.to_thread.run_sync(
            self._locate, request.ledger_id, request.entry_id, limiter=self._threads
        )

    def _locate(self, ledger_id: int, entry_id: int) -> BookieReply:
        engine = self._storage.engine
        try:
            place = engine.store.find(ledger_id, entry_id)
        except Absent:
            request = _read_of(ledger_id, entry_id)
            frame = engine.answer(request, use_disk=True, size_max=ANSWER_SIZE_MAX)
            found = frame is not None and frame[8:12] == int(Code.OK).to_bytes(4, "big")
            return calls.EntryPlace("memtable" if found else "absent")
        return calls.EntryPlace("log", place.log_id, place.offset, place.record_size)

    async def _journal(self, _: calls.JournalMark) -> BookieReply:
        stats = self._storage.engine.stats()
        return calls.JournalState(stats.journal_id, stats.journal_offset, self._storage.mark)

    async def _logs(self, request: calls.Logs) -> BookieReply:
        logs = self._storage.engine.store.logs(request.after, _LOGS_PAGE)
        return calls.LogPage(
            [
                calls.LogOnBookie(
                    log.log_id, log.size, log.live, bool(log.open), bool(log.damaged), log.extents
                )
                for log in logs
            ]
        )

    async def _collect(self, request: calls.CollectGarbage) -> BookieReply:
        return await self._collector.collect(major=request.major)

    async def _flush(self, request: calls.FlushNow) -> BookieReply:
        await self._storage.checkpoint()
        return await self._journal(calls.JournalMark())

    async def _runs(self, request: calls.LedgerRuns) -> BookieReply:
        runs = self._storage.engine.runs
        ledger_id, meant = request.ledger_id, request.incarnation
        if await self._incarnations.is_over(ledger_id, meant):
            raise CallRefused(f"ledger {ledger_id} was replaced by another; read its record again")
        try:
            page = await trio.to_thread.run_sync(
                runs, request.ledger_id, request.after, request.count, limiter=self._threads
            )
        except Absent:
            page = []
        if not self._incarnations.is_here(ledger_id, meant):
            raise CallRefused(
                f"the current incarnation of ledger {ledger_id} is unknown; ask again"
            )
        # Repair may rely on this, so a power cut must not undo it.
        await self._storage.events.synced(self._storage.engine.gathered())
        return calls.RunPage(page)

    async def _forget(self, request: calls.ForgetUnknown) -> BookieReply:
        ledger_id, meant = request.ledger_id, request.incarnation
        if not self._storage.limbo.is_on:
            raise CallRefused("this bookie is not in limbo")
        record = await self._incarnations.record_of(ledger_id)
        is_meant = record is not None and record.incarnation == meant != 0
        if record is None or not is_meant or record.state is not LedgerState.CLOSED:
            raise CallRefused(f"ledger {ledger_id} is not known to be closed, or another by now")
        if request.dry_run:
            return calls.Forgotten(is_unidentified(self._storage, ledger_id))
        was_here = await forget_unknown(self._storage, record)
        await self._storage.events.synced(self._storage.engine.gathered())
        return calls.Forgotten(was_here)

    async def _scrub(self, _: calls.ScrubNow) -> BookieReply:
        return await self._scrubber.check()

    async def _look(self, request: InspectionRequest) -> BookieReply:
        return await trio.to_thread.run_sync(self._look_into, request, limiter=self._lookers)

    def _look_into(self, request: InspectionRequest) -> BookieReply:
        inspector = Inspector(*self._storage.own_folders)
        match request:
            case inspections.JournalFiles():
                return inspector.journals()
            case inspections.JournalRecords():
                return inspector.journal_records(request)
            case inspections.Indexes():
                return inspector.indexes(request)
            case inspections.IndexExtents():
                return inspector.extents(request)

    async def _disk_use(self, _: calls.DiskUse) -> BookieReply:
        files = await trio.to_thread.run_sync(measure, self._storage.folders, limiter=self._threads)
        store, engine = self._storage.engine.store.stats(), self._storage.engine.stats()
        return calls.DiskUsed(files, store.live_bytes, store.dead_bytes, engine.memtable_bytes)


async def _answered(answer: Awaitable[T]) -> T | Failure:
    """Return the answer of a role of the leader; a MetadataError becomes a Failure."""
    try:
        return await answer
    except MetadataError as error:
        return failure_of(error)


def reply_size_max(request: calls.Request) -> int:
    """Return a bound of the reply's bytes before it is encoded."""
    match request:
        case calls.Get():
            return VALUE_SIZE_MAX + _ROW_SIZE
        case calls.ListKeys():
            count = min(request.limit, PAGE_COUNT_MAX)
            values = min(count * VALUE_SIZE_MAX, PAGE_SIZE_MAX + VALUE_SIZE_MAX)
            return values + count * (KEY_SIZE_MAX + _ROW_SIZE)
        case calls.ListLeases():
            return PAGE_COUNT_MAX * (LEASE_VALUE_SIZE_MAX + 2 * KEY_SIZE_MAX + _ROW_SIZE)
        case calls.WatchSince() | calls.AwaitHints():
            return 1000 * (KEY_SIZE_MAX + _ROW_SIZE)
        case calls.AwaitLedgers():
            return MOVED_MAX * 9 + _ROW_SIZE
        case calls.LedgerStates() | calls.LedgerRuns():
            return request.count * _ROW_SIZE * 4
        case _ if isinstance(request, InspectionRequest):
            return _LOOKED_SIZE
        case DescribeGroups() | NewestTick():
            return _GROUPS_SIZE
        case calls.Logs() | calls.CollectGarbage() | calls.ScrubNow():
            return _LOGS_PAGE * _ROW_SIZE * 4
        case _:
            return _FAILURE_SIZE


def _deadline_s(request: calls.Request) -> float:
    match request:
        case calls.WatchSince() | calls.AwaitHints() | calls.AwaitLedgers():
            return _QUICK_S + request.wait_ms / 1000
        case calls.FlushNow() | calls.ForgetUnknown():
            return _FLUSH_S
        case calls.CollectGarbage() | calls.ScrubNow():
            return _UPKEEP_S
        case _:
            return _QUICK_S


def _read_of(ledger_id: int, entry_id: int) -> WireRequest:
    return WireRequest(opcode=Opcode.READ, flags=0, ledger_id=ledger_id, entry_id=entry_id)

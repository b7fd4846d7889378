"""A bookie in memory: protocol v2 over any stream, and misbehaviour on demand."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import trio

from metadata.calls import (
    AwaitLedgers,
    BookieInfo,
    BookieReply,
    BookieStatus,
    DiskUse,
    DiskUsed,
    Failure,
    FilesOnDisk,
    ForgetUnknown,
    Forgotten,
    LedgerOnBookie,
    LedgerRuns,
    LedgerStatePage,
    LedgerStates,
    Reply,
    RunPage,
    decode_request,
    encode_reply,
)
from metadata.errors import MetadataError
from metadata.failures import failure_of
from metadata.groups.calls import GroupRequest
from metadata.groups.coordinator import Coordinator
from metadata.time.calls import TimeRequest
from metadata.time.timekeeper import Timekeeper
from native import frame
from native.errors import ProtocolBroken
from native.frame import Code, Flag, Opcode, Request


class MemoryLedger:
    """A bookie's entries of one ledger."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.key: bytes | None = None
        self.lac = -1
        self.fenced = False
        self.news = trio.lowlevel.ParkingLot()

    def raise_lac(self, lac: int) -> None:
        if lac > self.lac:
            self.lac = lac
            self.news.unpark_all()

    def fence(self) -> None:
        self.fenced = True
        self.news.unpark_all()

    def admits(self, key: bytes | None) -> bool:
        """True if *key* is the ledger's; the first key used becomes it."""
        self.key = self.key or key
        return key is not None and key == self.key


class MemoryBookie:
    """Takes entries and serves them. The attributes decide how it fares."""

    def __init__(self, name: str = "b1", *, chance: random.Random | None = None) -> None:
        self.name = name
        self.ledgers: dict[int, MemoryLedger] = {}
        self.requests: list[Request] = []
        self.statements: list[tuple[int, int]] = []
        """ledger and incarnation of which it was told"""
        self.meant: list[tuple[Request, int]] = []
        """each request with the incarnation that it is about"""
        self.connections = 0
        self.answering = True
        """False: take requests and never answer"""
        self.add_code = Code.OK
        """READ_ONLY lets adds of high priority pass"""
        self.read_code = Code.OK
        self.read_fault: Callable[[Request], int] = lambda _request: Code.OK
        """The code with which a read is answered, for some reads only"""
        self.unflushed: set[int] = set()
        """Entries that no entry log has yet"""
        self.limbo = False
        """True: it may have lost entries, so it denies none"""
        self.unknown: set[int] = set()
        """ledgers of which it has lost the incarnation"""
        self.asked_to_forget: list[ForgetUnknown] = []
        self.page_count = 1000
        """ledgers that it tells of in one answer"""
        self.files: list[FilesOnDisk] = []
        """on its disk, beside a log of all entries"""
        self.dead = 0
        """bytes in files that are of ledgers it gave up"""
        self.holding = False
        """True: keep acknowledgements until release()"""
        self.delay_s: Callable[[Request], float] = lambda _request: 0.0
        self.coordinator: Coordinator | None = None
        self.timekeeper: Timekeeper | None = None
        self._pulsed: list[tuple[trio.abc.SendStream, trio.Lock]] = []
        self._held: list[tuple[trio.abc.SendStream, trio.Lock, bytes]] = []
        self._chance = chance or random.Random(0)
        self._scopes: list[trio.CancelScope] = []

    def entries(self, ledger_id: int) -> dict[int, bytes]:
        """Return the stored entries of a ledger by id."""
        return self.ledgers[ledger_id].entries if ledger_id in self.ledgers else {}

    def damage(self, ledger_id: int, entry_id: int) -> None:
        """Flip the last bit of a stored entry."""
        entries = self.ledgers[ledger_id].entries
        entries[entry_id] = entries[entry_id][:-1] + bytes([entries[entry_id][-1] ^ 1])

    def drop_connections(self) -> None:
        """End every connection, as a crash does."""
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()
        self._held.clear()

    async def release(self, *, shuffled: bool = False, then: bytes = b"") -> None:
        """Send the acknowledgements that were held, each followed by *then*."""
        held, self._held = self._held, []
        if shuffled:
            self._chance.shuffle(held)
        for stream, lock, answer in held:
            async with lock:
                await stream.send_all(answer + then)

    async def pulse(self) -> None:
        """Tell all who asked for it that adds are under way and the disk moves."""
        for stream, lock in self._pulsed:
            async with lock:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await stream.send_all(frame.pulse())

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends."""
        self.connections += 1
        scope = trio.CancelScope()
        self._scopes.append(scope)
        data = bytearray()
        said: dict[int, int] = {}
        lock = trio.Lock()
        try:
            with scope:
                async with stream, trio.open_nursery() as nursery:
                    async for received in stream:
                        data += received
                        while (request := _take_request(data)) is not None:
                            if request.opcode == Opcode.PULSE:
                                self._pulsed.append((stream, lock))
                                continue
                            if request.opcode == Opcode.INCARNATION:
                                said[request.ledger_id] = request.incarnation
                                self.statements.append((request.ledger_id, request.incarnation))
                                continue  # it has no ledger whose id was used before
                            self.requests.append(request)
                            self.meant.append((request, said.get(request.ledger_id, 0)))
                            nursery.start_soon(self._answer, request, stream, lock)
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolBroken):
            pass

    async def _answer(self, request: Request, stream: trio.abc.Stream, lock: trio.Lock) -> None:
        if not self.answering:
            return
        delay_s = self.delay_s(request)
        if delay_s > 0:
            await trio.sleep(delay_s)
        if request.opcode == Opcode.READ_WAIT:
            answer = await self._read_wait(request)
        elif request.opcode == Opcode.CALL:
            answer = await self._answer_call(request)
        else:
            answer = self._handle(request)
        if request.opcode == Opcode.ADD and self.holding:
            self._held.append((stream, lock, answer))
            return
        async with lock:
            await stream.send_all(answer)

    async def _answer_call(self, request: Request) -> bytes:
        asked = decode_request(request.body)
        reply: Reply
        try:
            if isinstance(asked, GroupRequest) and self.coordinator is not None:
                reply = await self.coordinator.answer(asked)
            elif isinstance(asked, TimeRequest) and self.timekeeper is not None:
                reply = await self.timekeeper.answer(asked)
            else:
                reply = self._call(asked)
        except MetadataError as failure:
            reply = failure_of(failure)
        return frame.call_response(Code.OK, request.request_id, encode_reply(reply))

    def _handle(self, request: Request) -> bytes:
        if request.opcode == Opcode.ADD:
            return self._add(request)
        if request.opcode == Opcode.READ:
            return self._read(request)
        if request.opcode == Opcode.BATCH_READ:
            return self._batch_read(request)
        if request.opcode == Opcode.WRITE_LAC:
            return self._write_lac(request)
        raise AssertionError(request)

    def _call(self, request: object) -> BookieReply:
        if isinstance(request, BookieInfo):
            return BookieStatus(self.name, "", "ready")
        if isinstance(request, LedgerStates):
            return self._states(request)
        if isinstance(request, DiskUse):
            return self._disk_used()
        if isinstance(request, AwaitLedgers):
            return Failure("CallRefused", "followers of this bookie poll")
        if isinstance(request, ForgetUnknown):
            return self._forget(request)
        assert isinstance(request, LedgerRuns), request
        if request.ledger_id in self.unknown:
            return Failure("CallRefused", "the current incarnation is unknown")
        runs: list[tuple[int, int]] = []
        for entry_id in sorted(self.entries(request.ledger_id)):
            if runs and runs[-1][1] == entry_id - 1:
                runs[-1] = (runs[-1][0], entry_id)
            elif entry_id > request.after:
                runs.append((entry_id, entry_id))
        return RunPage(runs[: request.count])

    def _forget(self, request: ForgetUnknown) -> BookieReply:
        was_here = request.ledger_id in self.unknown
        if not request.dry_run:
            self.asked_to_forget.append(request)
        if was_here and not request.dry_run:
            self.unknown.remove(request.ledger_id)
            del self.ledgers[request.ledger_id]
        return Forgotten(was_here)

    def _states(self, request: LedgerStates) -> LedgerStatePage:
        numbers = sorted(number for number in self.ledgers if number > request.after)
        page = numbers[: min(request.count, self.page_count)]
        return LedgerStatePage(
            [LedgerOnBookie(n, -1, -1, bytes_in_logs=self._size(n)) for n in page]
        )

    def _disk_used(self) -> DiskUsed:
        live = sum(map(self._size, self.ledgers))
        return DiskUsed([FilesOnDisk("log", 1, live, live), *self.files], live, self.dead)

    def _size(self, ledger_id: int) -> int:
        return sum(map(len, self.entries(ledger_id).values()))

    def _add(self, request: Request) -> bytes:
        ledger = self._ledger(request.ledger_id)
        code = self._verdict(ledger, request)
        if code == Code.OK:
            ledger.entries[request.entry_id] = request.body
            ledger.raise_lac(int.from_bytes(request.body[16:24], "big", signed=True))
        return frame.response(Opcode.ADD, code, request.ledger_id, request.entry_id)

    def _write_lac(self, request: Request) -> bytes:
        ledger = self._ledger(request.ledger_id)
        code = self._verdict(ledger, request)
        if code == Code.OK:
            ledger.raise_lac(request.entry_id)
        return frame.response(Opcode.WRITE_LAC, code, request.ledger_id, request.request_id)

    def _verdict(self, ledger: MemoryLedger, request: Request) -> int:
        """The code with which a write is answered."""
        if not ledger.admits(request.key):
            return Code.UNAUTHORIZED
        if ledger.fenced and not request.flags & Flag.RECOVERY:
            return Code.FENCED
        if self.add_code == Code.READ_ONLY and request.flags & Flag.PRIORITY:
            return Code.OK
        return self.add_code

    def _read(self, request: Request) -> bytes:
        code, entry = self._find(request)
        return frame.response(Opcode.READ, code, request.ledger_id, request.entry_id, entry)

    def _batch_read(self, request: Request) -> bytes:
        code, _ = self._find(request)
        if request.flags & Flag.FROM_LOG and request.entry_id in self.unflushed:
            code = Code.NO_ENTRY
        body = b""
        if code == Code.OK:
            body = self._run(request, request.entry_id + request.count_max - 1)
        return frame.batch_response(
            code, request.ledger_id, request.entry_id, request.request_id, body
        )

    async def _read_wait(self, request: Request) -> bytes:
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None:
            code = Code.IO_ERROR if self.limbo else Code.NO_LEDGER
            return frame.read_wait_response(
                code, request.ledger_id, request.entry_id, request.request_id, -1, False
            )
        with trio.move_on_after(request.wait_ms / 1000):
            while ledger.lac <= request.known_lac and not ledger.fenced:
                await ledger.news.park()
        body = self._run(request, min(ledger.lac, request.entry_id + request.count_max - 1))
        return frame.read_wait_response(
            Code.OK,
            request.ledger_id,
            request.entry_id,
            request.request_id,
            ledger.lac,
            ledger.fenced,
            body,
        )

    def _run(self, request: Request, last: int) -> bytes:
        body = bytearray()
        for entry_id in range(request.entry_id, last + 1):
            entry = self.entries(request.ledger_id).get(entry_id)
            if request.flags & Flag.FROM_LOG and entry_id in self.unflushed:
                break
            if entry is None or (body and len(body) + len(entry) > request.size_max):
                break
            body += len(entry).to_bytes(4, "big") + entry
        return bytes(body)

    def _find(self, request: Request) -> tuple[int, bytes]:
        """Return code and entry; -1 is the last. A fencing read fences first."""
        if request.flags & Flag.FENCE:
            ledger = self._ledger(request.ledger_id)
            if not ledger.admits(request.key):
                return Code.UNAUTHORIZED, b""
            ledger.fence()
        code = self.read_fault(request) or self.read_code
        if code != Code.OK:
            return code, b""
        entries = self.entries(request.ledger_id)
        wanted = max(entries, default=-1) if request.entry_id == -1 else request.entry_id
        if wanted in entries:
            return Code.OK, entries[wanted]
        if self.limbo:
            return Code.IO_ERROR, b""
        return Code.NO_ENTRY if request.ledger_id in self.ledgers else Code.NO_LEDGER, b""

    def _ledger(self, ledger_id: int) -> MemoryLedger:
        return self.ledgers.setdefault(ledger_id, MemoryLedger())


def _take_request(data: bytearray) -> Request | None:
    size, whole = frame.find(data)
    if not whole:
        return None
    request = frame.parse_request(bytes(data[:size]))
    del data[:size]
    return request

"""Ledger ids: decides which incarnation of a ledger is current, and who may create one.

An id is reused when a ledger is deleted and another one created with its id, or when metadata is
restored from a backup and issues ids a second time. The ledger's record holds its incarnation
(metadata/records.py), and a client declares to its bookies which one it means (native/frame.h).
If that is not the stored one:

    the record has the client's incarnation  ─► the stored ledger is forgotten, durably
    the record has the stored incarnation    ─► the client gets OTHER_LEDGER
    neither, or no answer                    ─► the client gets UNKNOWN_STATE, and may ask again

No client gets entries of a ledger that is over, or the answer that one of them is absent. In doubt
nothing is forgotten: a store that does not have this bookie (another cluster's, or an emptied
one) decides nothing.

A stored ledger of unknown incarnation (0) is none that a client can declare: a client that
declares nothing wrote it, or the bookie lost what it knew. It stays, and clients that declare an
incarnation get UNKNOWN_STATE, until it is deleted; or, in limbo, until repair has found all its
entries elsewhere and lets it be forgotten (lost_records.py).

Clients of BookKeeper declare nothing, and mean whatever is stored. In doubt they get IO_ERROR:
UNKNOWN_STATE makes BookKeeper's own client close the connection. What is not stored they create
only where the metadata has the ledger, as it does if BookKeeper's own client or ours created it,
and as that ledger: with its incarnation, and with the master key of its password if it is one of
ours. Otherwise an id that is yet to be issued would have entries, a fence or another key already.
A client that picks its ids itself may pick them from foreign.FREE_FROM up.
"""

from __future__ import annotations

import logging
import math

import msgspec
import trio

from bookie.events import Events
from bookie.foreign import FREE_FROM
from metadata.errors import MetadataError
from metadata.records import LedgerRecord, cookie_key, decode_ledger, ledger_key
from metadata.store import MetadataStore
from native.connection import Connection
from native.digest import Digest
from native.engine import Engine
from native.errors import Full
from native.frame import Code, Request

ASK_S = 1.0
"""Wait for metadata; clients give the bookie up after two seconds."""

_log = logging.getLogger(__name__)


class NotFenced(Exception):
    """A fence was not set, and nothing may be said of the ledger's entries.

    *code*: the answer.
    """

    def __init__(self, reason: str, code: Code = Code.IO_ERROR) -> None:
        super().__init__(reason)
        self.code = code


class Newcomer(msgspec.Struct, frozen=True):
    """What the metadata say of a ledger that is not stored here.

    Attributes:
        code: the error for clients that declare no incarnation; OK if they may create the ledger.
        incarnation: its incarnation; 0 if BookKeeper's own client created it.
        key: its master key; None if any will do.
    """

    code: int
    incarnation: int = 0
    key: bytes | None = None


class Incarnations:
    """Decides between the incarnation that a client declares and the stored one.

    *is_shared*: BookKeeper's own clients create ledgers in *store*, too.
    """

    def __init__(
        self,
        engine: Engine,
        events: Events,
        store: MetadataStore,
        bookie_id: str,
        *,
        is_shared: bool = False,
    ) -> None:
        self._is_shared = is_shared
        self._engine = engine
        self._events = events
        self._store = store
        self._bookie_id = bookie_id
        self._silent_until = -math.inf

    async def is_over(self, ledger_id: int, meant: int) -> bool:
        """Return True if incarnation *meant* is over, because another one is current.

        If *meant* is current, the stored one is forgotten first. False means that *meant* is
        stored now, or that it is unknown which one is current.
        """
        here = self._engine.ledger(ledger_id)
        if here is None or meant in (0, here.incarnation):
            return False
        _, record = await self._ask(ledger_id)
        if record is None:
            return False
        if record.incarnation == meant:
            await self._renew(ledger_id, here.incarnation, meant)
        return record.incarnation == here.incarnation

    def is_here(self, ledger_id: int, meant: int) -> bool:
        """Return True if the stored ledger, if any, may be incarnation *meant*."""
        here = self._engine.ledger(ledger_id)
        return here is None or meant in (0, here.incarnation)

    async def newcomer(self, ledger_id: int) -> Newcomer:
        """Return what holds for clients that declare nothing, of a ledger that is not stored.

        The tombstone of an earlier ledger with this id is replaced. Costs two reads of the
        metadata; the code is IO_ERROR if they do not answer within ASK_S.
        """
        if self._is_free(ledger_id):
            return Newcomer(Code.OK)
        is_known, record = await self._ask(ledger_id)
        if record is None:
            return Newcomer(Code.NO_LEDGER if is_known else Code.IO_ERROR)
        if record.incarnation == 0:
            return Newcomer(Code.OK)
        here = self._engine.ledger(ledger_id)
        if here is not None and here.deleted and here.incarnation != record.incarnation:
            await self._renew(ledger_id, here.incarnation, record.incarnation)
        key = Digest(password=record.password_bytes).master_key
        return Newcomer(Code.OK, record.incarnation, key)

    async def tell(self, connection: Connection, known: dict[int, Newcomer]) -> None:
        """Tell *connection* what holds for the ledger that it asked for, and add that to *known*.

        Its next frames wait meanwhile, those of other ledgers too. So if the metadata did not
        answer, new ledgers are refused unasked for as long as the question took.
        """
        ledger_id = connection.asked
        is_silent = trio.current_time() < self._silent_until and not self._is_free(ledger_id)
        if ledger_id in known or is_silent:
            await trio.lowlevel.checkpoint()  # answers at hand would never yield
        else:
            known[ledger_id] = await self.newcomer(ledger_id)
        found = known.get(ledger_id, Newcomer(Code.IO_ERROR))
        connection.tell(ledger_id, found.code, found.incarnation, found.key)

    async def meant(self, request: Request) -> Request:
        """Return a fence with the incarnation that it means, if it would create the ledger.

        A tombstone may be of a former ledger: it does not fence the one of today.

        Raises:
            NotFenced: the cluster has no such ledger, whatever is stored here; or it has one with
                another key; or it is unknown whether it has one, or whether that is the one here.
        """
        here = self._engine.ledger(request.ledger_id)
        is_here = here is not None and not here.deleted and (here.key or here.incarnation == 0)
        if is_here or request.incarnation or request.ledger_id < 0:
            return request
        found = await self.newcomer(request.ledger_id)
        if found.code == Code.IO_ERROR:
            raise NotFenced(f"ledger {request.ledger_id}: the metadata did not answer")
        if found.code:
            raise NotFenced(f"ledger {request.ledger_id}: there is none", Code.NO_LEDGER)
        if found.key not in (None, request.key):
            raise NotFenced(f"ledger {request.ledger_id} has another key")
        if here is not None and here.incarnation and not found.incarnation:
            reason = f"ledger {request.ledger_id} is not the one that is stored"
            raise NotFenced(reason)
        return msgspec.structs.replace(
            request, incarnation=found.incarnation, other_code=Code.IO_ERROR
        )

    async def record_of(self, ledger_id: int) -> LedgerRecord | None:
        """Return the ledger's record; `None` without one, or if the metadata do not answer."""
        _, record = await self._ask(ledger_id)
        return record

    async def _ask(self, ledger_id: int) -> tuple[bool, LedgerRecord | None]:
        """Return the ledger's record, if any; and False if it is unknown whether there is one."""
        key = ledger_key(ledger_id)
        began_at = trio.current_time()
        try:
            with trio.move_on_after(ASK_S):
                if await self._store.get(cookie_key(self._bookie_id)) is None:
                    return False, None
                found = await self._store.get(key)
                return True, None if found is None else decode_ledger(key, found.value)
        except (MetadataError, msgspec.MsgspecError) as error:
            _log.warning("the record of ledger %d is unknown: %s", ledger_id, error)
        now = trio.current_time()
        self._silent_until = now + min(now - began_at, ASK_S)
        return False, None

    def _is_free(self, ledger_id: int) -> bool:
        return ledger_id >= FREE_FROM and not self._is_shared

    async def _renew(self, ledger_id: int, before: int, after: int) -> None:
        while True:
            space = self._events.space
            try:
                renewed = self._engine.renew_ledger(ledger_id, before, after)
            except Full:
                await space.wait()
                continue
            if renewed:
                _log.info("ledger %d is another one by now: the former is deleted", ledger_id)
            return

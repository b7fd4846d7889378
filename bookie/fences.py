"""Fences: sets the one that a read asks for, before the read is answered."""

from __future__ import annotations

from bookie.events import Events
from bookie.incarnations import Incarnations, NotFenced
from native.engine import Engine
from native.errors import Full, OtherLedger, Refused
from native.frame import Code, Request


class Fences:
    """Sets fences in *engine*, of the ledgers that *incarnations* decides on, if given."""

    def __init__(self, engine: Engine, events: Events, incarnations: Incarnations | None) -> None:
        self._engine = engine
        self._events = events
        self._incarnations = incarnations

    async def set(self, request: Request) -> tuple[Request, Code]:
        """Fence durably. Return the read that is the answer, if the code is OK.

        Any other code is the answer to a fence that was not set. A read is not: when it looks at
        the ledger, that may be a later one, which is not fenced either.
        """
        try:
            if self._incarnations:
                request = await self._incarnations.meant(request)
            await self._events.synced(await self._ticket(request))
        except NotFenced as doubt:
            return request, doubt.code
        except OtherLedger:
            return request, Code(request.other_code)
        except Refused:
            return request, self._refusal(request.ledger_id)
        return request, Code.OK

    def _refusal(self, ledger_id: int) -> Code:
        if ledger_id < 0:
            return Code.BAD_REQUEST
        here = self._engine.ledger(ledger_id)
        # The id may be that of another ledger by now, and the key be right for that one.
        return Code.IO_ERROR if here is not None and here.deleted else Code.UNAUTHORIZED

    async def _ticket(self, request: Request) -> int:
        if request.key is None:
            raise Refused(f"ledger {request.ledger_id}: a fencing read without a key")
        while True:
            space = self._events.space
            try:
                return self._engine.fence(request.ledger_id, request.key, request.incarnation)
            except Full:
                await space.wait()

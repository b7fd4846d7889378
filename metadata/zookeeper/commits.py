"""Makes plans in ZooKeeper, some of them together, each once.

    plan ──► waiting ──take──► multi: slot, guards, changes, change log ──► outcome of each
                               │
                 refused ──────┤  the plan with the failed op is refused; the others go again
                 connection ───┘  find out by the slot whether it was made
                 lost

What waits while multis are under way goes into the next one together, since a multi costs the
same for one change as for fifty. Plans that touch each other's nodes never share one.

The slot says whether a multi was made whose answer was lost. It is an ephemeral node of the
store's session that every multi sets, expecting the version that it has. If the answer does not
come, the store sets the slot itself, expecting the same version: of the two only one can ever
succeed. If it is the store's, the multi was not made and never will be, however late a server
comes upon it, so it is made again; if not, the slot's Stat has its zxid. Only when the
session itself is over nothing can be found out, and the outcome stays unknown.

A call that gives up meanwhile reports an unknown outcome, too; the slot is settled nevertheless
before it is used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import trio

from metadata.errors import MetadataBroken, MetadataError, MetadataUnavailable
from metadata.zookeeper import paths
from metadata.zookeeper.changelog import ChangeLog
from metadata.zookeeper.patience import Patience
from metadata.zookeeper.plan import SIZE_MAX, Plan
from metadata.zookeeper.znodes import Connection, Create, Op, Reason, Refused, Set, Stat

SLOTS = 4
"""Multis of one store that are under way at a time."""
TOGETHER_MAX = 64
"""Plans in one multi."""
WAITING_MAX = 10_000
TURNS_MAX = 1 << 30
"""Multis of one slot; a node's version has 31 bits."""
_ASKED = b"?"


class Made(NamedTuple):
    """The plan was made by the multi with this zxid."""

    zxid: int


class _Waiting:
    """A plan, and what became of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settled = trio.Event()
        self.is_begun = False
        self.is_abandoned = False
        self.outcome: Made | Refused | MetadataError | None = None

    def settle(self, outcome: Made | Refused | MetadataError) -> None:
        self.outcome = outcome
        self.settled.set()


class _Slot:
    """The node that a task of Commits sets with each of its multis."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.session_id = 0
        self.version = 0
        self.path = ""
        self._made = 0

    def begin(self, session_id: int) -> None:
        """Take a new node, which is yet to be created."""
        self._made += 1
        self.session_id = session_id
        self.version = -1
        self.path = f"{paths.SLOTS}/{session_id:x}-{self.number}-{self._made}"


class Commits:
    """The multis of one store. run() makes them."""

    def __init__(self, connection: Connection, log: ChangeLog, patience: Patience) -> None:
        self._connection = connection
        self._log = log
        self._patience = patience
        self._waiting: deque[_Waiting] = deque()
        self._news = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Make plans until cancelled."""
        async with trio.open_nursery() as nursery:
            for number in range(SLOTS):
                nursery.start_soon(self._serve, _Slot(number))

    async def make(self, plan: Plan, *, until: float) -> Made | Refused:
        """Make *plan*, and return its outcome; Refused: nothing was changed.

        Raises:
            MetadataUnavailable: no outcome at *until*, by trio's clock, or patience.py ended the
                wait. It is unknown if the plan was begun.
        """
        mine = _Waiting(plan)
        if len(self._waiting) >= WAITING_MAX:
            raise MetadataUnavailable(f"{self._connection.name}: too many changes wait")
        self._waiting.append(mine)
        self._news.unpark()
        try:
            with self._patience.scope(until, lambda: mine.is_begun):
                await mine.settled.wait()
        finally:
            mine.is_abandoned = True
        outcome = mine.outcome
        if outcome is None:
            raise MetadataUnavailable(
                f"{self._connection.name}: ZooKeeper did not answer in time",
                outcome_unknown=mine.is_begun,
            )
        if isinstance(outcome, MetadataUnavailable):
            raise MetadataUnavailable(outcome.message, outcome_unknown=outcome.outcome_unknown)
        if isinstance(outcome, MetadataError):
            raise type(outcome)(outcome.message) from outcome
        return outcome

    # --- one slot ----------------------------------------------------------------------

    async def _serve(self, slot: _Slot) -> None:
        while True:
            try:
                await self._connection.connected()
            except MetadataError as failure:  # there will be no connection any more
                self._waiting = deque(_settle(self._waiting, failure))
                return
            group = self._take()
            if not group:
                await self._news.park()
                continue
            while group:
                group = await self._attempt(slot, group)

    def _take(self) -> list[_Waiting]:
        """Return plans that may share a multi: none changes what another one looks at."""
        group: list[_Waiting] = []
        passed: list[_Waiting] = []
        read: set[str] = set()
        written: set[str] = set()
        size = 0
        while self._waiting and len(group) < TOGETHER_MAX and len(passed) < TOGETHER_MAX:
            waiting = self._waiting.popleft()
            if waiting.is_abandoned:
                continue
            plan = waiting.plan
            is_apart = plan.writes.isdisjoint(read | written) and plan.reads.isdisjoint(written)
            fits = not group or size + plan.size <= SIZE_MAX
            if is_apart and fits:
                group.append(waiting)
                size += plan.size
            else:
                passed.append(waiting)
            read |= plan.reads  # also of one that was passed, which nobody may overtake
            written |= plan.writes
        self._waiting.extendleft(reversed(passed))
        if self._waiting:
            self._news.unpark()
        return group

    async def _attempt(self, slot: _Slot, group: list[_Waiting]) -> list[_Waiting]:
        """Make the plans in one multi. Return those that must go again: none of them is made."""
        group = [waiting for waiting in group if not waiting.is_abandoned]
        for waiting in group:
            waiting.is_begun = False
        try:
            if not group or not await self._prepare(slot):
                return group
        except MetadataError as failure:
            return _settle(group, failure)
        group = [waiting for waiting in group if not waiting.is_abandoned]  # while it prepared
        if not group:
            return group
        for waiting in group:
            waiting.is_begun = True
        ops = self._multi(slot, [waiting.plan for waiting in group])
        try:
            outcome = await self._connection.multi(ops)
        except MetadataUnavailable as lost:
            return await self._find_out(slot, group, lost)
        except MetadataError as failure:
            return _settle(group, failure)
        if isinstance(outcome, Refused):
            return await self._sort_out(slot, group, outcome)
        slot.version += 1
        if isinstance(outcome[-1], str):
            self._log.note(outcome[-1])
        return _settle(group, Made(_stat(outcome[1]).modified))

    def _multi(self, slot: _Slot, plans: Sequence[Plan]) -> list[Op]:
        ops: list[Op] = [self._log.guard(), Set(slot.path, b"", slot.version)]
        for plan in plans:
            ops += plan.guards
        for plan in plans:
            ops += plan.ops
        changed = list(dict.fromkeys(key for plan in plans for key in plan.changed))
        if changed:
            ops.append(self._log.entry(changed))
        return ops

    async def _prepare(self, slot: _Slot) -> bool:
        """Create the slot's node unless there is one of this session. False: try again."""
        await self._connection.connected()
        session_id = self._connection.session_id
        if slot.session_id != session_id or slot.version > TURNS_MAX:
            slot.begin(session_id)
        try:
            if slot.version < 0:
                made = await self._connection.multi([Create(slot.path, b"", ephemeral=True)])
                if isinstance(made, Refused) and made.reason is not Reason.EXISTS:
                    raise MetadataBroken(f"{slot.path}: {made.reason.value}")
                slot.version = 0
            await self._log.begin()
        except MetadataUnavailable:
            return False
        return True

    async def _sort_out(
        self, slot: _Slot, group: list[_Waiting], refused: Refused
    ) -> list[_Waiting]:
        """Refuse the plan whose op failed; return the others."""
        at = 2
        for is_guard in (True, False):
            for waiting in group:
                at += len(waiting.plan.guards if is_guard else waiting.plan.ops)
                if 2 <= refused.place < at:
                    waiting.settle(refused)
                    return [each for each in group if each is not waiting]
        if refused.place == 1:  # the slot
            slot.session_id = 0
        else:  # the log moved on
            self._log.forget()
        return group

    async def _find_out(
        self, slot: _Slot, group: list[_Waiting], lost: MetadataUnavailable
    ) -> list[_Waiting]:
        """Settle a multi whose answer was lost. Return the plans if it was not made."""
        unknown = MetadataUnavailable(lost.message, outcome_unknown=True)
        while True:
            try:
                await self._connection.connected()
            except MetadataError:
                return _settle(group, unknown)
            try:
                if self._connection.session_id != slot.session_id:
                    return _settle(group, unknown)
                asked = await self._connection.multi([Set(slot.path, _ASKED, slot.version)])
                if not isinstance(asked, Refused):
                    slot.version += 1
                    return group
                if asked.reason is not Reason.BAD_VERSION:
                    return _settle(group, unknown)
                (node,) = await self._connection.get([slot.path], fresh=True)
            except MetadataUnavailable:
                await trio.lowlevel.checkpoint()
                continue
            except MetadataError as failure:
                return _settle(group, failure)
            if node is None:
                return _settle(group, unknown)
            slot.version = node[1].version
            if node[0] == _ASKED:  # by an earlier turn of this loop
                return group
            return _settle(group, Made(node[1].modified))


def _settle(group: Iterable[_Waiting], outcome: Made | MetadataError) -> list[_Waiting]:
    """Settle all of *group*; none of them goes again."""
    for waiting in group:
        waiting.settle(outcome)
    return []


def _stat(result: str | Stat | None) -> Stat:
    assert isinstance(result, Stat)
    return result

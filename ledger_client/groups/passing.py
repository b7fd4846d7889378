"""Messages on their way from this member to others: given to one of them, or left to them all.

    READY, HANDED … ──► LEAVING ──changed in the store──► DONE here, and theirs
                           └──not changed──► as before

Who has nothing to do is given messages of a shared group. In a key-shared group the messages of
slots that moved are left to the next owner: those of all shares at once, or by steps in the order
of their lanes, so that later messages of a key are not there before earlier ones. What could not
be left of slots that came back stays here. It is handed out again once everything else of them was
taken over, as earlier messages of its keys may be among that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from typing import Protocol

import trio

from ledger_client.errors import LedgerError
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share import Share, State
from ledger_client.groups.share_rows import ShareRows
from ledger_client.groups.slots import Units
from metadata.errors import VersionConflict
from metadata.groups.assignment import Part
from metadata.groups.rows import SLOTS
from metadata.groups.shares import ShareRecord
from metadata.store import Item

RETRY_S = 1.0
_log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Who hands out what could not be given away."""

    def keep(self, share: Share, index: int) -> None:
        """Go on with a message that could not be given away."""

    def changed(self, share: Share) -> None:
        """Store a share soon."""


class OwnParts(Protocol):
    """The parts of a group that a member has; Partitions has the details."""

    parts: set[Part]
    begun: set[Part]

    def known(self, parts: Iterable[Part]) -> list[Part]:
        """Return the parts whose topic is or was read; those just assigned may not be yet."""

    def partition(self, part: Part) -> int:
        """Return the partition of a part that is or was read."""


class Passing:
    """See the head of this module. run() must run meanwhile.

    Args:
        group: name of the group.
        units: what it assigns.
        partitions: those that this member has.
        rows: of its shares.
        holdings: what it has.
        keeper: goes on with what stays here.
        on_back: called when messages may be handed out that were to leave.
    """

    def __init__(
        self,
        group: str,
        units: Units,
        partitions: OwnParts,
        rows: ShareRows,
        holdings: Holdings,
        keeper: Keeper,
        on_back: Callable[[], None],
    ) -> None:
        self._group = group
        self._units = units
        self._partitions = partitions
        self._rows = rows
        self._holdings = holdings
        self._keeper = keeper
        self._on_back = on_back
        self._turn = trio.Lock()
        self._news = trio.Event()
        self._leaving: dict[Share, dict[int, int]] = {}
        """messages that are to be left to others, with the states that they had"""
        self._recalled: dict[Share, dict[int, int]] = {}
        """those that are to stay, as their slots came back"""

    @property
    def is_leaving(self) -> bool:
        """True if messages are to be left to others, and are not yet."""
        return bool(self._leaving)

    async def run(self) -> None:
        """Leave to others what could not be left at once, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._leaving:
                await self.leave()
                await trio.sleep(RETRY_S if self._leaving else 0)

    # --- given ---------------------------------------------------------------------------

    async def give(self, share: Share, indexes: Iterable[int], want: Item) -> bool:
        """Give some messages of a share to the member that stored *want*; False if they stay.

        Those that the application was handed while this waited for its turn are left out: two
        members would work on them.
        """
        async with self._turn:
            at = [each for each in indexes if share.states[each] in (State.READY, State.DUE)]
            if not at or share.name not in self._holdings.shares:
                return False
            before = {index: share.states[index] for index in at}
            record = share.part_of(at)
            for index in at:
                self._holdings.wait(share, index, State.LEAVING)
            try:
                is_given = await self._rows.give(share, record, at, want)
            except LedgerError:
                is_given = await self._was_given(share, at)
            except BaseException:
                self._settle(share, before, is_given=False)  # a change of the row finds out
                raise
            self._settle(share, before, is_given=is_given)
            return is_given

    async def _was_given(self, share: Share, indexes: Sequence[int]) -> bool:
        """Return True if a change was made of which the answer was lost."""
        while True:
            await trio.sleep(RETRY_S)
            with suppress(LedgerError):
                return await self._rows.is_without(share, indexes)

    def _settle(self, share: Share, before: Mapping[int, int], *, is_given: bool) -> None:
        """Have the messages no longer, or as before."""
        here = {at: state for at, state in before.items() if share.states[at] == State.LEAVING}
        if here and not is_given:
            self._holdings.restore(share, here)
            for index in here:
                self._keeper.keep(share, index)
            self._on_back()  # the application may have asked meanwhile
        for index in here if is_given else ():
            self._holdings.finish(share, index)
        if is_given and share.is_stored:
            self._holdings.drop(share)
        elif is_given and not share.left:
            self._keeper.changed(share)  # the rest was acknowledged meanwhile

    # --- left ----------------------------------------------------------------------------

    def withhold(self, found: Mapping[Share, Sequence[int]]) -> None:
        """Hand messages out no more, as others are to have them. They are left soon."""
        for share, indexes in found.items():
            before = {index: share.states[index] for index in indexes}
            self._leaving.setdefault(share, {}).update(before)
            for index in indexes:
                self._holdings.wait(share, index, State.LEAVING)
        self._news.set()

    def withhold_strange(self, share: Share) -> None:
        """Withhold what came of slots that this member has no more."""
        theirs = set(range(SLOTS)) - self.slots(share.record)
        if strange := self._in_slots(share, theirs):
            self.withhold({share: strange})

    async def leave(self) -> None:
        """Leave to others what is theirs, in the order of lanes, as far as that is possible."""
        async with self._turn:
            while left := self._left():
                try:
                    given = await self._rows.free(left)
                except LedgerError as failure:
                    _log.warning("group %s: %s", self._group, failure)
                    return
                for share in given:
                    before = dict.fromkeys(left[share], int(State.LEAVING))
                    self._settle(share, before, is_given=True)
                    self._take_out(self._leaving, share, before)
                if not given:
                    return

    def _left(self) -> dict[Share, list[int]]:
        """Return what is to be left of each share, in the order of lanes."""
        left: dict[Share, list[int]] = {}
        for share in sorted(self._leaving, key=lambda each: each.record.order):
            at = [each for each in self._leaving[share] if share.states[each] == State.LEAVING]
            if at and share.name in self._holdings.shares:
                left[share] = at
            else:
                del self._leaving[share]
        return left

    async def recall(self) -> None:
        """Keep what could not be left to others of slots that this member has again.

        Later messages of its keys wait for it. It is handed out by restore().
        """
        async with self._turn:
            for share, before in list(self._leaving.items()):
                ours = self._ours(share, before)
                if not ours or not share.is_held:
                    continue
                is_given = await self._rows.is_without(share, sorted(ours))
                here = self._take_out(self._leaving, share, ours)
                if is_given:
                    self._settle(share, here, is_given=True)
                else:
                    self._recalled.setdefault(share, {}).update(here)
                    self._holdings.precede(share, here)

    def restore(self) -> None:
        """Hand out what was recalled: all else of its slots is here by now."""
        for share, before in list(self._recalled.items()):
            here = self._take_out(self._recalled, share, self._ours(share, before))
            if share.is_held:
                self._settle(share, here, is_given=False)
        for share, before in self._recalled.items():  # their slots went again
            self._leaving.setdefault(share, {}).update(before)
            self._news.set()
        self._recalled.clear()

    def _take_out(
        self, found: dict[Share, dict[int, int]], share: Share, indexes: Iterable[int]
    ) -> dict[int, int]:
        """Remove some messages of a share; return them with the states that they had."""
        states = found.get(share, {})
        taken = {at: states.pop(at) for at in list(indexes) if at in states}
        if not states:
            found.pop(share, None)
        return taken

    def _ours(self, share: Share, indexes: Iterable[int]) -> set[int]:
        slots = self.slots(share.record)
        return {at for at in indexes if self._slot_of(share, at) in slots}

    def _slot_of(self, share: Share, index: int) -> int:
        message = share.messages[index]
        return -1 if message is None else self._units.slot_of(message)

    async def leave_all(self) -> None:
        """Leave everything to others, with the deliveries that took place. Raises LedgerError."""
        async with self._turn:
            self._leaving.clear()
            self._recalled.clear()
            for share in list(self._holdings.shares.values()):
                with suppress(VersionConflict):  # others have it by now
                    await self._rows.leave(share)
            self._holdings.clear()

    # --- slots ---------------------------------------------------------------------------

    def slots(self, record: ShareRecord, begun: AbstractSet[Part] | None = None) -> set[int]:
        """Return the slots of a share's partition that this member has, and has begun.

        What it took of others would not be handed over if they went before that. *begun*: those
        that it had begun at some time; default: now.
        """
        begun = self._partitions.begun if begun is None else begun
        return {
            self._units.slot(part)
            for part in self._partitions.known(self._partitions.parts & begun)
            if part.topic == record.topic and self._partitions.partition(part) == record.partition
        }

    def of_slots(self, parts: Iterable[Part]) -> Iterator[tuple[Share, list[int]]]:
        """Yield the messages of these slots that are not done, by share."""
        slots = {
            (part.topic, self._partitions.partition(part), self._units.slot(part))
            for part in self._partitions.known(parts)
        }
        for share in list(self._holdings.shares.values()):
            ours = {slot for topic, partition, slot in slots if (topic, partition) == share.part}
            if ours and (here := self._in_slots(share, ours)):
                yield share, here

    def _in_slots(self, share: Share, slots: set[int]) -> list[int]:
        """Return the messages of a share in some slots that are not done, nor on their way."""
        return [
            index
            for index, message in enumerate(share.messages)
            if message is not None
            and share.states[index] not in (State.DONE, State.LEAVING)
            and self._units.slot_of(message) in slots
        ]

"""Transactions of one process that wait together travel together, as one transaction.

    transact ──► waiting ──round──► one transaction ──► versions of each
                 (in order)              │ conflict
                                         └──► each by itself

For the store that is one call, and one change of its log, instead of many. A transaction that
fails must not take others with it. So if one of them meets a conflict, each is made alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from ledger_client.background import Rounds
from metadata.errors import MetadataError, MetadataUnavailable
from metadata.store import (
    OPS_MAX,
    OPS_SIZE_MAX,
    CheckLease,
    MetadataStore,
    Op,
    Put,
    Versions,
)


class _Change:
    """A transaction that waits, and what became of it."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.keys = {op.key for op in ops if not isinstance(op, CheckLease)}
        self.size = sum(len(op.value) for op in ops if isinstance(op, Put))
        self.versions: Versions | None = None
        self.failure: MetadataError | None = None

    @property
    def is_settled(self) -> bool:
        return self.versions is not None or self.failure is not None


class JointChanges:
    """Makes transactions in *store*."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._waiting: deque[_Change] = deque()
        self._rounds = Rounds(self._make)

    async def transact(self, ops: Sequence[Op]) -> Versions:
        """Do all ops or none, as MetadataStore.transact.

        If the caller is cancelled, the change may have been made, and so may those that travelled
        with it; they are sent again, so each op must expect a version.
        """
        mine = _Change(ops)
        self._waiting.append(mine)
        try:
            while not mine.is_settled:
                await self._rounds.share()
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
        if mine.failure is not None:
            raise mine.failure
        assert mine.versions is not None
        return mine.versions

    async def _make(self) -> None:
        """Make the changes that wait, as many as one transaction takes.

        Until their outcome is known they wait on, in case this task is cancelled.
        """
        taken: list[_Change] = []
        ops: list[Op] = []
        keys: set[str] = set()
        size = 0
        for change in self._waiting:
            size += change.size
            is_full = len(ops) + len(change.ops) > OPS_MAX or size > OPS_SIZE_MAX
            if taken and (is_full or not keys.isdisjoint(change.keys)):
                break
            taken.append(change)
            ops += change.ops
            keys |= change.keys
        if len(taken) == 1:
            await self._make_alone(taken[0])
        elif not await self._make_together(taken, ops):
            async with trio.open_nursery() as nursery:
                for change in taken:
                    nursery.start_soon(self._make_alone, change)
        self._waiting = deque(change for change in self._waiting if not change.is_settled)

    async def _make_together(self, taken: Sequence[_Change], ops: Sequence[Op]) -> bool:
        """Make all changes in one transaction; False if one of them was refused, and none made."""
        try:
            versions = await self._store.transact(ops)
        except MetadataUnavailable as failure:
            for change in taken:
                change.failure = failure
            return True
        except MetadataError:
            return False
        for change in taken:
            change.versions, versions = versions[: len(change.ops)], versions[len(change.ops) :]
        return True

    async def _make_alone(self, change: _Change) -> None:
        try:
            change.versions = await self._store.transact(change.ops)
        except MetadataError as failure:
            change.failure = failure

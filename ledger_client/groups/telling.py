"""Calls of the application's on_assigned and on_revoked, one at a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextvars import ContextVar

import trio

from ledger_client.errors import CommitRefused, MemberRemoved
from ledger_client.groups.options import ConsumerOptions, OnParts, TopicPartition
from metadata.groups.assignment import Part

_log = logging.getLogger(__name__)


class Revocation:
    """A call of on_revoked, by which the calls that it makes are known."""

    def __init__(self, owner: object, names: Mapping[Part, TopicPartition]) -> None:
        self.owner: object = owner
        """`None` once it has returned"""
        self.names = names
        self.parts = set(names)
        self.lapsed: Set[Part] = set()
        """those whose messages come again elsewhere: it was called too late, or took too long"""
        self.is_told = False
        """it was called, or there was nothing to tell"""
        self.is_cut_off = False
        """it took too long"""


_revocation: ContextVar[Revocation | None] = ContextVar("_revocation", default=None)
"""the one that the caller is in, whatever thread it runs in"""


class Telling:
    """Tells the application of one consumer what it has, and what it has no more."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        self._turn = trio.Lock()
        """held while a function of the application runs"""
        self._told: set[Part] = set()
        """what it was told that it has"""

    def revocation(self, names: Mapping[Part, TopicPartition]) -> Revocation:
        """Return what revoked() is to tell of parts, with the names of their partitions."""
        return Revocation(self, names)

    def revoking(self) -> Revocation | None:
        """Return the call of on_revoked by which the caller is called, if it is."""
        found = _revocation.get()
        return found if found and found.owner is self else None

    async def assigned(
        self,
        parts: Callable[[], Set[Part]],
        named: Callable[[Iterable[Part]], Sequence[TopicPartition]],
    ) -> None:
        """Call on_assigned, unless no *parts* are left when it is its turn."""
        async with self._turn:
            if not (left := parts()):
                return
            self._told |= left
            try:
                await _tell(self._options.on_assigned, named(left))
            except (CommitRefused, MemberRemoved) as failure:  # it cannot know that they are going
                _log.warning("on_assigned: %s", failure)

    async def revoked(self, told: Revocation, *, begin_by: float = math.inf) -> None:
        """Call on_revoked with what the application was told that it has, for revoke_s at most.

        It is not called if another function of the application still runs at *begin_by*, by trio's
        clock; told.is_told says so. A cancellation cuts it off.
        """
        if self._options.on_revoked is None or not self._told & told.parts:
            self._told -= told.parts
            told.is_told, told.owner = True, None
            return
        if self._turn.locked():
            with trio.move_on_at(begin_by) as waiting:
                await self._turn.acquire()
            if waiting.cancelled_caught:
                return
        else:
            self._turn.acquire_nowait()
        try:
            await self._call(told, self._options.on_revoked)
        finally:
            self._turn.release()

    async def _call(self, told: Revocation, on_revoked: OnParts) -> None:
        told.is_told = True
        known = self._told & told.parts
        self._told -= known
        token = _revocation.set(told)
        try:
            with trio.move_on_after(self._options.revoke_s) as limit:
                # None are known if another call told of them while this one waited.
                named = sorted({told.names[part] for part in known})
                await _tell(on_revoked if named else None, named)
            # One that is cut off is not over: a thread goes on, and its commits are still its own.
            if limit.cancelled_caught:
                _log.warning("on_revoked was cut off after %g s", self._options.revoke_s)
            else:
                told.owner = None
        except (CommitRefused, MemberRemoved) as failure:  # it cannot know that it is too late
            _log.warning("on_revoked: %s", failure)
            told.owner = None
        finally:
            _revocation.reset(token)


async def _tell(function: OnParts | None, parts: Sequence[TopicPartition]) -> None:
    """Call a function of the application, which may be an async one."""
    if function is not None:
        result = function(parts)
        if result is not None:
            await result

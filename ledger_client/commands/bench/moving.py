"""How long a group is not whole when a member joins or leaves, while messages come all the time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count, pairwise
from typing import NamedTuple

import msgspec
import trio

from ledger_client.topics.messages import Message

READY_S = 60.0
QUIET_S = 3.0
"""How long nothing must move before the next change, and after it."""
LOOK_S = 0.1

OpenMember = Callable[[], AbstractAsyncContextManager[AsyncIterable[Message]]]


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the partitions after one change of members.

    *whole_s*: until each partition that moved had been read by its new member.
    *kept_pause_s*: the longest time between two messages of a partition that did not move.
    *usual_pause_s*: the same before the change, of all partitions.
    """

    partitions: int
    moved: int
    whole_s: float
    kept_pause_s: float
    usual_pause_s: float


class _Taken(NamedTuple):
    """A message that a member was handed."""

    at: float
    member: int


async def measure_moving(
    open_member: OpenMember,
    send: Callable[[int], object],
    *,
    members: int,
    partitions: int,
    rate: float,
) -> tuple[Moved, Moved]:
    """Return what happens when a member joins *members* others, and when one of those leaves.

    Args:
        open_member: opens a consumer for the length of a block.
        send: sends a message to a partition.
        members: before and after.
        partitions: of the topic, which is empty.
        rate: messages a second, in each partition in turn.
    """
    rig = _Rig(open_member, send, partitions)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.send, rate)
        for _ in range(members):
            rig.add(nursery)
        await rig.wait_quiet(members)
        at = time.perf_counter()
        rig.add(nursery)
        await rig.wait_quiet(members + 1)
        join = rig.moved(at)
        at = time.perf_counter()
        rig.scopes.pop(0).cancel()
        await rig.wait_quiet(members)
        leave = rig.moved(at)
        nursery.cancel_scope.cancel()
    return join, leave


class _Rig:
    """Members of one group, and what they were handed."""

    def __init__(
        self, open_member: OpenMember, send: Callable[[int], object], partitions: int
    ) -> None:
        self.scopes: list[trio.CancelScope] = []
        self._open_member = open_member
        self._send = send
        self._partitions = partitions
        self._taken: list[list[_Taken]] = [[] for _ in range(partitions)]
        self._members = 0

    def add(self, nursery: trio.Nursery) -> None:
        """Start one more member."""
        self._members += 1
        scope = trio.CancelScope()
        self.scopes.append(scope)
        nursery.start_soon(self._consume, self._members, scope)

    async def send(self, rate: float) -> None:
        """Send to each partition in turn, until cancelled."""
        started = time.perf_counter()
        for number in count():
            self._send(number % self._partitions)
            await trio.sleep(max(started + (number + 1) / rate - time.perf_counter(), 0))

    async def _consume(self, member: int, scope: trio.CancelScope) -> None:
        with scope:
            async with self._open_member() as consumer:
                async for message in consumer:
                    taken = _Taken(time.perf_counter(), member)
                    self._taken[message.id.partition].append(taken)

    async def wait_quiet(self, members: int) -> None:
        """Wait until *members* share the partitions evenly, and nothing moves any more.

        Raises:
            trio.TooSlowError: that takes longer than a minute.
        """
        since = time.perf_counter()
        owners: list[int] = []
        with trio.fail_after(READY_S):
            while time.perf_counter() - since < QUIET_S:
                await trio.sleep(LOOK_S)
                now = [taken[-1].member if taken else 0 for taken in self._taken]
                if now != owners or 0 in now or len(set(now)) != min(members, len(now)):
                    owners, since = now, time.perf_counter()

    def moved(self, at: float) -> Moved:
        """Return what happened since *at*."""
        moved, whole, kept_pause, usual_pause = 0, at, 0.0, 0.0
        for taken in self._taken:
            before = [each for each in taken if each.at <= at]
            after = [each for each in taken if each.at > at]
            usual_pause = max(usual_pause, _pause(before[-len(after) :]))
            if after[-1].member == before[-1].member:
                kept_pause = max(kept_pause, _pause([before[-1], *after]))
            else:
                moved += 1
                whole = max(whole, _since(after))
        return Moved(
            partitions=self._partitions,
            moved=moved,
            whole_s=round(whole - at, 3),
            kept_pause_s=round(kept_pause, 3),
            usual_pause_s=round(usual_pause, 3),
        )


def _since(taken: Sequence[_Taken]) -> float:
    """Return when the last member got its first message."""
    return next(each.at for each in taken if each.member == taken[-1].member)


def _pause(taken: Sequence[_Taken]) -> float:
    pairs = pairwise(taken)
    return max((later.at - earlier.at for earlier, later in pairs), default=0.0)

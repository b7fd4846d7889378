"""Reports that this process's members live, from a thread and a connection of its own.

    members ──► Heartbeats ──(thread: its own loop, its own connection)──► coordinator
                     ◄── answers: still a member? a new epoch of its row?

So a handler that blocks the event loop loses nothing: the thread reports how long ago each member
asked for messages, and the coordinator removes those that ask no more. All members of a client
share one report.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from ledger_client.errors import LedgerError
from ledger_client.ledgers.leader_calls import LeaderCalls
from ledger_client.portal import Portal
from ledger_client.topics.context import TopicContext
from metadata.groups.calls import (
    BEATS_MAX,
    Beat,
    BeatNoted,
    GroupLeft,
    LeaveGroup,
    ReportIn,
    ReportNoted,
)

ANSWER_S = 3.0
"""How long a report may take; then the next one is made."""
LEAVE_S = 2.0
BEAT_S_MIN = 0.05
"""Between two reports, even if members have applied new rows meanwhile."""


class Pulse:
    """One member, as its reports say. Its owner sets the attributes; any thread may read them.

    Args:
        name: of the group, of the member, and of its run.
        beat_s: between two reports.
        progress: returns something that changes as the application takes or asks for messages.
        on_answer: called in the owner's loop with each answer.

    Attributes:
        applied: the epoch of the row that the member applied last.
        is_waiting: the application waits for messages now.
    """

    def __init__(
        self,
        name: tuple[str, str, str],
        *,
        beat_s: float,
        progress: Callable[[], object],
        on_answer: Callable[[BeatNoted], None],
    ) -> None:
        self.name = name
        self.beat_s = beat_s
        self.on_answer = on_answer
        self.applied = 0
        self.is_waiting = False
        self._progress = progress
        self._seen: object = None
        self._polled_at = time.monotonic()

    def beat(self) -> Beat:
        """Return the report of this moment."""
        now, seen = time.monotonic(), self._progress()
        if self.is_waiting or seen != self._seen:
            self._seen, self._polled_at = seen, now
        return Beat(*self.name, self.applied, now - self._polled_at)


class Heartbeats:
    """The members of one client. Made by open_heartbeats()."""

    def __init__(
        self,
        deliver: Callable[[Callable[[], object]], object],
        ask: Callable[[LeaveGroup], Awaitable[GroupLeft]],
    ) -> None:
        """*deliver* runs a function in the loop of the members' owner.

        *ask* asks the coordinator by the reports' own connection, which a cancellation of the
        owner does not end.
        """
        self._deliver = deliver
        self._ask = ask
        self._pulses: list[Pulse] = []
        self._wake: Callable[[], None] = _nothing

    def add(self, pulse: Pulse) -> None:
        """Report a member from now on."""
        self._pulses = [*self._pulses, pulse]
        self.now()

    def remove(self, pulse: Pulse) -> None:
        """Report a member no longer."""
        self._pulses = [each for each in self._pulses if each is not pulse]

    async def leave(self, pulse: Pulse, *, in_vain: bool = False, stays: bool = False) -> None:
        """Let a member leave its group. Raises MetadataUnavailable, BadGroup.

        *in_vain*: it could begin nothing, so a group that it alone wanted goes, too. *stays*: from
        any other group it does not leave.
        """
        self.remove(pulse)
        await self._ask(LeaveGroup(*pulse.name, in_vain=in_vain, stays=stays))

    def now(self) -> None:
        """Report soon: a member has applied its row."""
        self._wake()

    async def run(self, calls: LeaderCalls) -> None:
        """Report until cancelled, in the loop in which *calls* lives."""
        token = trio.lowlevel.current_trio_token()
        woken = trio.Event()

        def wake() -> None:
            woken.set()

        self._wake = lambda: _post(token, wake)
        while True:
            pulses = self._pulses
            for first in range(0, len(pulses), BEATS_MAX):
                await self._report(calls, pulses[first : first + BEATS_MAX])
            pause_s = min((pulse.beat_s for pulse in pulses), default=math.inf)
            await trio.sleep(BEAT_S_MIN)
            with trio.move_on_after(pause_s):
                await woken.wait()
            woken = trio.Event()

    async def _report(self, calls: LeaderCalls, pulses: list[Pulse]) -> None:
        request = ReportIn([pulse.beat() for pulse in pulses])
        try:
            noted = await calls.ask(request, ReportNoted, timeout_s=ANSWER_S)
        except LedgerError:
            return  # the next report follows soon
        for pulse, answer in zip(pulses, noted.answers, strict=False):
            self._deliver(partial(pulse.on_answer, answer))


@asynccontextmanager
async def open_heartbeats(context: TopicContext) -> AsyncIterator[Heartbeats]:
    """Report members for the length of the block: from a thread, where the context allows it."""
    if context.again is None:
        calls = context.leader
        beats = Heartbeats(lambda work: work(), partial(_leave, calls))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beats.run, calls)
            yield beats
            nursery.cancel_scope.cancel()
        return
    token = trio.lowlevel.current_trio_token()
    portal = await trio.to_thread.run_sync(Portal, context.again)
    calls = portal.value.leader

    async def ask(request: LeaveGroup) -> GroupLeft:
        return await trio.to_thread.run_sync(portal.call, _leave, calls, request)

    beats = Heartbeats(partial(_post, token), ask)
    try:
        portal.post(lambda: portal.nursery.start_soon(beats.run, calls))
        yield beats
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(portal.close)


async def _leave(calls: LeaderCalls, request: LeaveGroup) -> GroupLeft:
    return await calls.ask(request, GroupLeft, timeout_s=LEAVE_S)


class SharedHeartbeats:
    """The heartbeats of one client: a thread while it has consumers."""

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._users = 0
        self._turn = trio.Lock()
        self._beats: Heartbeats | None = None
        self._unused = trio.Event()
        self._ended = trio.Event()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Heartbeats]:
        """Have the thread run for the length of the block."""
        async with self._turn:
            if self._beats is None:
                self._unused, self._ended = trio.Event(), trio.Event()
                self._beats = await self._context.nursery.start(self._keep)
            self._users += 1
            beats = self._beats
        try:
            yield beats
        finally:
            self._users -= 1
            if not self._users:
                with trio.CancelScope(shield=True):
                    await self._end()

    async def _end(self) -> None:
        async with self._turn:
            if not self._users and self._beats is not None:
                self._beats = None
                self._unused.set()
                await self._ended.wait()

    async def _keep(self, task_status: trio.TaskStatus[Heartbeats]) -> None:
        """Report until nobody needs it. It outlives a cancellation, as leaving a group may."""
        try:
            with trio.CancelScope(shield=True):
                async with open_heartbeats(self._context) as beats:
                    task_status.started(beats)
                    await self._unused.wait()
        finally:
            self._ended.set()


def _post(token: trio.lowlevel.TrioToken, work: Callable[[], object]) -> None:
    """Run *work* in the loop of *token* soon, unless it has ended."""
    try:
        token.run_sync_soon(work)
    except trio.RunFinishedError:
        return


def _nothing() -> None:
    """Do nothing: no report is made yet."""

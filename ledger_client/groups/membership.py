"""One member of a group: it joins, follows its row, and leaves.

    join ──► row stored ──► hint, answer to a report, or 5 s ──► row read ──► applied
                 ▲                                                  │ gone
                 └──────────── the application asks again ◄─────────┘

The row is the truth. Hints and answers to reports only say when to read it. A member that asks
again joins in the background, however short it waits: a call that is cut off may have joined.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from ledger_client.errors import LedgerError, MemberRemoved, MetadataUnavailable
from ledger_client.groups.heartbeats import LEAVE_S, Heartbeats, Pulse
from ledger_client.groups.options import ConsumerOptions
from ledger_client.groups.progress import Progress
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.context import TopicContext
from metadata.errors import MetadataError
from metadata.groups.calls import BeatNoted, GroupJoined, JoinGroup
from metadata.groups.rows import MemberRecord, Wanted, decode_member, member_key

LOOK_S = 5.0
"""Between two looks at the row, beside hints and reports."""
RETRY_S = 0.5
REPLACED = "another consumer was started under this name"
_log = logging.getLogger(__name__)

ApplyRow = Callable[[MemberRecord | None], Awaitable[None]]


def _new_name() -> str:
    """Return a name that no other member has, and that tells people where it runs."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())
    return f"{host[:100]}-{os.getpid()}-{secrets.token_hex(4)}"


class Membership:
    """A member's place in its group.

    Args:
        context: the client's.
        options: the consumer's.
        wanted: the topics that it wants.
        heartbeats: reports it.
        progress: returns something that changes as the application takes or asks for messages.
        apply: called with each new row, `None` once the member is none any more.
        prepare: called before the member joins. Raises MetadataUnavailable.
        wake: called when a call of the application that waits is to raise something.
    """

    def __init__(
        self,
        context: TopicContext,
        options: ConsumerOptions,
        wanted: Wanted,
        heartbeats: Heartbeats,
        *,
        progress: Callable[[], object],
        apply: ApplyRow,
        prepare: Callable[[], Awaitable[None]],
        wake: Callable[[], None],
    ) -> None:
        self.group = options.group
        self.member = options.member or _new_name()
        self.run_id = secrets.token_hex(8)
        self.is_member = False
        self.failure: LedgerError | None = None
        self._context = context
        self._options = options
        self.wanted = wanted
        self._calls = context.leader
        self._heartbeats = heartbeats
        self._apply = apply
        self._prepare = prepare
        self._wake = wake
        self._is_wanted = False
        """the application asks for messages, and the member was removed"""
        self._refusal: LedgerError | None = None
        """why it did not become a member again"""
        self._news = trio.Event()
        self._has_asked = False
        """it asked to be a member, and may have become one"""
        self._asking = trio.Lock()
        self._row_epoch = 0
        self._is_leaving = False
        self._up_ms = 0
        self.rows = Progress(
            context.store,
            context.joint,
            self.group,
            self.member,
            self.run_id,
            timeout_s=context.options.metadata_timeout_s,
        )
        self.pulse = Pulse(
            (self.group, self.member, self.run_id),
            beat_s=options.beat_s,
            progress=progress,
            on_answer=self._hear,
        )

    async def join(self) -> None:
        """Become a member. Partitions come later.

        Raises:
            BadGroup: the options do not suit the group.
            MetadataUnavailable: no leader answered in time.
        """
        options = self._options
        if not self.is_member:
            await self._prepare()
        record = MemberRecord(
            epoch=0,
            run=self.run_id,
            wanted=self.wanted,
            is_static=bool(options.member),
            session_s=options.session_s,
            poll_s_max=options.poll_s_max,
            revoke_s=options.revoke_s,
            client_id=options.client_id,
            host=socket.gethostname(),
            process_id=os.getpid(),
            parameters=options.parameters,
            up_ms=await self._up(),
        )
        request = JoinGroup(self.group, self.member, record, options.mode, options.keep)
        timeout_s = self._context.options.metadata_timeout_s
        async with self._asking:
            if self._is_leaving:
                return
            self._has_asked = True
            await self._calls.ask(request, GroupJoined, timeout_s=timeout_s)
        if not (self.is_member or self._is_leaving):
            self.is_member = True
            self._heartbeats.add(self.pulse)
        self._news.set()

    def come_back(self) -> None:
        """Become a member again, in the background. Raises why the last attempt was refused."""
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        self._is_wanted = True
        self._news.set()

    async def _up(self) -> int:
        """Return the store's time when this member began."""
        if not self._up_ms:
            self._up_ms = await self._context.catalogue.now_ms()
        return self._up_ms

    async def run(self) -> None:
        """Follow the row until cancelled."""
        key = member_key(self.group, self.member)
        watches = self._context.store.watches
        with suppress(MetadataError):  # the row is looked at all the same
            watches.subscribe(key, self)
        try:
            while True:
                with trio.move_on_after(LOOK_S):
                    await self._news.wait()
                self._news = trio.Event()
                if self._is_wanted and not (self.is_member or self._is_leaving):
                    await self._join_again()
                if self.is_member:
                    await self._look()
        finally:
            watches.unsubscribe(key, self)

    async def _join_again(self) -> None:
        """Become a member again; without a leader there are just no messages.

        The name may be another run's by now, which goes on.
        """
        try:
            if self._options.member and await self._is_replaced():
                self.end(REPLACED)
                self._is_wanted = False
                return
            await self.join()
        except MetadataUnavailable as failure:
            _log.warning("group %s: not joined yet: %s", self.group, failure)
            await trio.sleep(RETRY_S)
            self._news.set()
            return
        except LedgerError as failure:
            self._refusal = failure
            self._wake()
        self._is_wanted = False

    async def leave(self, *, in_vain: bool) -> None:
        """Leave the group, unless the member keeps its name: then its session runs out.

        That its row is gone then is no loss: the application is not told of one. *in_vain*: the
        member could begin nothing. Then it takes a group with it that was not there before, unless
        somebody else has joined it.
        """
        self._is_leaving = True
        stays = bool(self._options.member)
        with trio.move_on_after(LEAVE_S):  # which would overtake it
            async with self._asking:
                pass
        if (self.is_member or self._has_asked) and (in_vain or not stays):
            with suppress(LedgerError):
                await self._heartbeats.leave(self.pulse, in_vain=in_vain, stays=stays)
        self.vanish()

    def vanish(self) -> None:
        """Be no member any more, as far as this process goes: the session runs out."""
        self._is_leaving = True
        self._heartbeats.remove(self.pulse)
        self.is_member = False

    @property
    def is_waiting(self) -> bool:
        """True while the application waits for a message."""
        return self.pulse.is_waiting

    @is_waiting.setter
    def is_waiting(self, waits: bool) -> None:
        self.pulse.is_waiting = waits

    def fail(self, failure: LedgerError) -> None:
        """Let the application's next call raise *failure*."""
        self.failure = failure
        self._wake()

    def end(self, reason: str) -> None:
        """Let the application's calls raise that the member is none any more, and why."""
        self.fail(MemberRemoved(self.group, self.member, reason))

    def notify(self, _prefix: str, _hint: str) -> None:
        """Read the row: it may have changed."""
        self._news.set()

    def _hear(self, answer: BeatNoted) -> None:
        if not answer.is_member or answer.epoch != self._row_epoch:
            self._news.set()

    async def _look(self) -> None:
        """Read the row, and apply what is new."""
        try:
            row = await self.rows.read_row()
        except MetadataUnavailable:
            return  # the next look follows
        if row is None:
            if not self._is_leaving:
                await self._lose()
        elif row.epoch != self._row_epoch:
            await self._apply(row)
            self._row_epoch = self.pulse.applied = row.epoch
            self._heartbeats.now()

    async def _lose(self) -> None:
        """Notice that the group removed the member, or that another run took its name."""
        self._heartbeats.remove(self.pulse)
        self.is_member, self._row_epoch, self.pulse.applied = False, 0, 0
        self._has_asked = False
        await self._apply(None)
        with suppress(LedgerError):
            if self._options.member and await self._is_replaced():
                self.end(REPLACED)

    async def _is_replaced(self) -> bool:
        """Return True if the row of this name is that of another run. Raises LedgerError."""
        key = member_key(self.group, self.member)
        with translated(self._context.options.metadata_timeout_s):
            found = await self._context.store.get(key)
            return found is not None and decode_member(key, found.value).run != self.run_id

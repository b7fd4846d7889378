"""Hints about metadata from a bookie: one long call for all prefixes of a client.

    begin ──► WatchPrefixes ──► bookie          a message for each batch of prefixes
    next  ──► AwaitHints ─────► bookie          one, which waits there
          ◄── Changes ────────┘

What is watched belongs to the connection. When the client changes to another one, the prefixes are
sent again with the revision of the last answer, so that nothing in between is missed. Those whose
begin() is under way are among them: their answer may come over the connection that is being left.
A bookie that says twice that it is cut off from its store is left for another one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.wire.dialer import Dialer, reply_in, unavailable, withdraw
from ledger_client.wire.inflight import Call, fail_after
from ledger_client.wire.session import Session
from metadata.calls import (
    WATCHED_AT_ONCE_MAX,
    AwaitHints,
    HintRequest,
    WatchPrefixes,
    encode_request,
    expect,
)
from metadata.errors import MetadataUnavailable
from metadata.watch import Changes

WAIT_S = 10.0
"""A bookie that hangs is noticed after this time at the latest."""
ANSWER_S = 2.0
"""For an answer that does not wait; and how late one may be that does."""
PAUSE_S = 0.1


class BookieHints:
    """A HintSource behind the connection that *dialer* keeps. *name* is that of the cluster.

    Attributes:
        is_cut_off: as HintSource.is_cut_off: what the bookie said last, which has its own hints
            from a store. True while no bookie is asked.
    """

    def __init__(self, dialer: Dialer, name: str, timeout_s: float) -> None:
        self._dialer = dialer
        self._name = name
        self._timeout_s = timeout_s
        self._watched: dict[str, None] = {}
        self._beginning: Counter[str] = Counter()
        """prefixes of begin() calls under way"""
        self._ended: dict[str, None] = {}
        """the bookie still reports them"""
        self._revision: int | None = None
        self._session: Session | None = None
        self._call: Call | None = None
        self._until = 0.0
        self._opening = trio.Lock()
        self.is_cut_off = True

    async def begin(self, prefixes: Sequence[str]) -> None:
        """As HintSource.begin; tried at one bookie after the other until the deadline."""
        for prefix in prefixes:
            self._ended.pop(prefix, None)
        self._beginning.update(prefixes)
        is_done = False
        try:
            await self._begin(prefixes)
            self._watched.update(dict.fromkeys(prefixes))
            is_done = True
        finally:
            self._beginning -= Counter(prefixes)
            for prefix in () if is_done else prefixes:  # the bookie may have got the request
                if not self._is_wanted(prefix):
                    self.end(prefix)

    def _is_wanted(self, prefix: str) -> bool:
        return prefix in self._watched or prefix in self._beginning

    async def _begin(self, prefixes: Sequence[str]) -> None:
        """Have the bookie watch *prefixes*. Its connection may be left meanwhile: see _move()."""
        until = trio.current_time() + self._timeout_s
        while True:
            try:
                with fail_after(max(until - trio.current_time(), 0.0)):
                    session = await self._current()  # others may try, too
                await self._watch(session, prefixes, None)
            except (MetadataUnavailable, trio.TooSlowError) as error:
                if trio.current_time() + PAUSE_S > until:
                    reason = unavailable(error, self._timeout_s, is_sent=False).message
                    raise MetadataUnavailable(f"metadata: {self._name}: {reason}") from error
                await trio.sleep(PAUSE_S)
            else:
                return

    def end(self, prefix: str) -> None:
        """As HintSource.end; the bookie learns it with the next message.

        While a begin() of it is under way, that decides: it may be wanted again by then.
        """
        self._watched.pop(prefix, None)
        if prefix not in self._beginning:
            self._ended[prefix] = None

    def rest(self) -> None:
        """As HintSource.rest; the long call ends by itself."""

    async def next(self) -> Changes:
        """As HintSource.next, by one call that waits at the bookie."""
        session = await self._current()
        if self._call is None and self._ended:
            await self._watch(session, [], None)
        if self._call is None:
            self._call = session.call(encode_request(AwaitHints(int(WAIT_S * 1000))), self._name)
            self._until = trio.current_time() + WAIT_S + ANSWER_S
        try:
            with trio.fail_at(math.inf if self._call.arrived else self._until):
                response = await self._call.wait()
            self._call = None
            changes = expect(reply_in(response), Changes)
        except (BookieUnavailable, trio.TooSlowError, MetadataUnavailable) as error:
            self._leave()
            self._dialer.pass_over(session)
            raise unavailable(error, WAIT_S + ANSWER_S, is_sent=True) from error
        self._revision = max(changes.revision, self._revision or 0)
        if changes.cut_off and self.is_cut_off:  # not only for a moment: another one may know more
            self._dialer.pass_over(session)
        self.is_cut_off = changes.cut_off is not False
        return changes

    def _leave(self) -> None:
        """Forget the connection, and what is watched there."""
        withdraw(self._session, self._call)
        self._session = self._call = None
        self._ended.clear()
        self.is_cut_off = True

    async def _current(self) -> Session:
        """Return the connection in use, on which all prefixes are watched."""
        async with self._opening:
            if self._session is None or not self._dialer.is_current(self._session):
                self._leave()
                self._session = await self._move()
            return self._session

    async def _move(self) -> Session:
        try:
            session = await self._dialer.session()
        except OSError as error:
            raise MetadataUnavailable(str(error)) from error
        wanted = list(dict.fromkeys([*self._watched, *self._beginning]))
        await self._watch(session, wanted, self._revision)
        return session

    async def _watch(self, session: Session, prefixes: Sequence[str], since: int | None) -> None:
        """Have the bookie watch *prefixes*, and no longer those that ended."""
        sent, is_cut_off = 0, self.is_cut_off
        while sent < len(prefixes) or self._ended:
            ended = list(islice(self._ended, WATCHED_AT_ONCE_MAX))
            for prefix in ended:
                del self._ended[prefix]
            request = WatchPrefixes([*prefixes[sent : sent + WATCHED_AT_ONCE_MAX]], ended, since)
            try:
                changes = await self._ask(session, request)
            except BaseException:
                again = (prefix for prefix in ended if not self._is_wanted(prefix))
                self._ended.update(dict.fromkeys(again))
                raise
            is_cut_off = changes.cut_off is not False
            if self._revision is None:
                self._revision = changes.revision
            sent += WATCHED_AT_ONCE_MAX
        self.is_cut_off = is_cut_off

    async def _ask(self, session: Session, request: HintRequest) -> Changes:
        call = session.call(encode_request(request), self._name)
        try:
            with trio.fail_after(ANSWER_S):
                return expect(reply_in(await call.wait()), Changes)
        except (BookieUnavailable, trio.TooSlowError, MetadataUnavailable) as error:
            self._dialer.pass_over(session)
            raise unavailable(error, ANSWER_S, is_sent=True) from error
        finally:
            withdraw(session, call)

"""Hints about metadata from a bookie: one long call for all prefixes of a client.

    begin ──► WatchPrefixes ──► bookie          a message for each batch of prefixes
    next  ──► AwaitHints ─────► bookie          one, which waits there
          ◄── Changes ────────┘

What is watched belongs to the connection. When the client changes to another one, the prefixes are
sent again with the revision of the last answer, so that nothing in between is missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.wire.dialer import Dialer, reply_in, unavailable, withdraw
from ledger_client.wire.inflight import Call
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
    """A HintSource behind the connection that *dialer* keeps. *name* is that of the cluster."""

    def __init__(self, dialer: Dialer, name: str, timeout_s: float) -> None:
        self._dialer = dialer
        self._name = name
        self._timeout_s = timeout_s
        self._watched: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        """the bookie still reports them"""
        self._revision: int | None = None
        self._session: Session | None = None
        self._call: Call | None = None
        self._until = 0.0
        self._opening = trio.Lock()

    async def begin(self, prefixes: Sequence[str]) -> None:
        """As HintSource.begin; tried at one bookie after the other until the deadline."""
        for prefix in prefixes:
            self._ended.pop(prefix, None)
        try:
            await self._begin(prefixes)
        except BaseException:
            for prefix in prefixes:  # the bookie may have got the request
                self.end(prefix)
            raise
        self._watched.update(dict.fromkeys(prefixes))

    async def _begin(self, prefixes: Sequence[str]) -> None:
        until = trio.current_time() + self._timeout_s
        while True:
            try:
                await self._watch(await self._current(), prefixes, None)
            except MetadataUnavailable as error:
                if trio.current_time() + PAUSE_S > until:
                    raise MetadataUnavailable(f"metadata: {self._name}: {error.message}") from error
                await trio.sleep(PAUSE_S)
            else:
                return

    def end(self, prefix: str) -> None:
        """As HintSource.end; the bookie learns it with the next message."""
        self._watched.pop(prefix, None)
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
        return changes

    def _leave(self) -> None:
        """Forget the connection, and what is watched there."""
        withdraw(self._session, self._call)
        self._session = self._call = None
        self._ended.clear()

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
        await self._watch(session, list(self._watched), self._revision)
        return session

    async def _watch(self, session: Session, prefixes: Sequence[str], since: int | None) -> None:
        ended, self._ended = list(self._ended), {}
        try:
            for start in range(0, max(len(prefixes), len(ended)), WATCHED_AT_ONCE_MAX):
                part = slice(start, start + WATCHED_AT_ONCE_MAX)
                request = WatchPrefixes([*prefixes[part]], ended[part], since)
                changes = await self._ask(session, request)
                if self._revision is None:
                    self._revision = changes.revision
        except BaseException:
            self._ended.update(dict.fromkeys(each for each in ended if each not in self._watched))
            raise

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

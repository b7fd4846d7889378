"""Following a ledger: what is there first, then each entry as it is confirmed.

While there is backlog it is read in batches. After that a long poll is parked at
one bookie, which answers with new entries as soon as it hears that they are
confirmed. A bookie may hear nothing, because the writer gave it up, and the end
of the ledger is told by metadata alone: so the record is watched, and every few
seconds without news the record and the other bookies are asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import trio

from ledger_client.connection import BookieConnection
from ledger_client.entries import Entry, EntryBatch
from ledger_client.errors import MetadataUnavailable, ReplicasUnavailable
from ledger_client.questions import Unsound, Verdict, check_code, sound_entries
from ledger_client.replies import Reply
from ledger_client.stretch import Stretch
from ledger_client.view import LedgerView
from native import frame
from native.frame import Code

POLL_COUNT_MAX = 4096
POLL_SIZE_MAX = 1 << 20
PAUSE_S = 0.02
"""After a poll without news: a ledger without entries, or a fenced one, is answered at once."""


class Follower:
    """Entries from a position on, waiting for new ones; an async iterator."""

    def __init__(self, view: LedgerView, start: int) -> None:
        self._view = view
        self._source = view.source
        self._position = start
        self._stretch: Stretch | None = None
        self._entries: Iterator[Entry] = iter(())
        self._looked_at = float("-inf")
        self._silent_since: float | None = None

    @property
    def position(self) -> int:
        """Id of the first entry that no batch has brought yet."""
        return self._position

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> Entry:
        while True:
            for entry in self._entries:
                return entry
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._entries = iter(batch)

    async def next_batch(self) -> EntryBatch | None:
        """Wait for the next entries; None when the ledger has ended.

        Cancelled or failed, it leaves the position where it was.

        Raises:
            EntryLost, NoSuchEntry: no replica has the next entry.
            ReplicasUnavailable: no bookie answered for read_timeout_s.
            MetadataUnavailable: the bookies known here lack it; others may have it.
            NoSuchLedger: the ledger was deleted.
        """
        while True:
            if self._has_backlog():
                batch = await self._read_on()
            elif self._view.closed:
                return None
            else:
                batch = await self._wait()
            if batch is not None:
                self._position = batch.last_entry + 1
                return batch

    def _has_backlog(self) -> bool:
        return self._position <= self._view.last_confirmed

    async def _read_on(self) -> EntryBatch | None:
        stretch, self._stretch = self._stretch, None  # dropped if this is cancelled or fails
        if stretch is None:
            stretch = Stretch(self._view, self._position, self._view.last_confirmed)
        batch = await stretch.next()
        if batch is not None:
            self._stretch = stretch
        return batch

    async def _wait(self) -> EntryBatch | None:
        """Wait for news, a poll's length at most; return entries if they came along."""
        self._stretch = None
        self._view.watch()
        if self._view.hinted.is_set():
            with suppress(MetadataUnavailable):  # reading goes on without the store
                await self._view.reload()
            return None
        bookie = self._source.newest_ensemble()[0]
        batch, unsound = None, None
        try:
            batch = await self._poll(bookie)
        except Unsound as wrong:
            unsound = wrong
        if unsound is not None:
            self._give_up(bookie, unsound)
        if batch is None and not self._has_backlog() and not self._view.hinted.is_set():
            await self._look_elsewhere(bookie)
            await trio.sleep(PAUSE_S)
        return batch

    async def _poll(self, bookie: BookieConnection) -> EntryBatch | None:
        """Park one long poll. Raises Unsound when the bookie does not answer well."""
        news = trio.Event()
        reply = self._ask(bookie, news)
        options = self._source.options
        try:
            with trio.move_on_after(options.poll_s + options.request_timeout_s) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_pass_on, self._view.hinted, news)
                    await news.wait()
                    nursery.cancel_scope.cancel()
            if scope.cancelled_caught:
                bookie.suspect(reply.sent_at)
                raise Unsound(Verdict.UNAVAILABLE, "no answer")
            return self._take(reply) if reply.arrived else None
        finally:
            reply.abandon()

    def _ask(self, bookie: BookieConnection, news: trio.Event) -> Reply:
        request_id = bookie.next_request_id()
        request = frame.read_wait(
            self._source.ledger_id,
            self._position,
            request_id=request_id,
            count_max=0 if self._source.striped else POLL_COUNT_MAX,
            size_max=POLL_SIZE_MAX,
            known_lac=self._view.last_confirmed,
            wait_ms=int(self._source.options.poll_s * 1000),
        )
        return bookie.ask(request, request_id, news.set, self._source.name)

    def _take(self, reply: Reply) -> EntryBatch | None:
        """Take note of what the bookie says; return the entries it sent."""
        response = reply.response
        if response is None:
            assert reply.failure is not None
            raise Unsound(Verdict.UNAVAILABLE, reply.failure.reason)
        self._silent_since = None
        if response.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            return None  # no entry was written yet
        check_code(response)
        self._view.raise_confirmed(response.lac)
        batch = sound_entries(
            response, self._source.digest, self._position, POLL_COUNT_MAX, reply.bookie_id
        )
        return batch if len(batch) else None

    async def _look_elsewhere(self, bookie: BookieConnection) -> None:
        """Has the ledger ended, or did this bookie miss what others know?"""
        now = trio.current_time()
        if now - self._looked_at < self._source.options.poll_s:
            return
        self._looked_at = now
        with suppress(MetadataUnavailable, ReplicasUnavailable):  # the poll itself decides
            await self._view.refresh()
        if self._has_backlog():
            self._source.shun(bookie.bookie_id)

    def _give_up(self, bookie: BookieConnection, unsound: Unsound) -> None:
        """Turn to another bookie; raise when none has answered for too long."""
        self._source.shun(bookie.bookie_id)
        now = trio.current_time()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= self._source.options.read_timeout_s:
            self._silent_since = None  # who asks again gets the full time again
            raise ReplicasUnavailable(
                ledger_id=self._source.ledger_id,
                entry_id=self._position,
                reasons={bookie.bookie_id: unsound.reason},
            )


async def _pass_on(hinted: trio.Event, news: trio.Event) -> None:
    await hinted.wait()
    news.set()

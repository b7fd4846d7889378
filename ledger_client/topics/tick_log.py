"""A topic's stored ticks: written by the leader, followed by readers.

    rows ticks/<uid>/0, 1, 2 ──► ledger 0 │ ledger 1 │ ledger 2 ◄── the leader appends
                                 closed     closed     open

A new leader recovers the last ledger, so that nobody appends to it any more, and begins another.
"""

from __future__ import annotations

import itertools
import logging

import msgspec

from ledger_client.errors import (
    LedgerClosed,
    MessagesLost,
    MetadataUnavailable,
    NoSuchLedger,
    NoSuchTopic,
    NotEnoughBookies,
)
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import LedgerPlan, new_record
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.ledgers.writer import WriteDriver
from ledger_client.topics.context import TopicContext
from ledger_client.topics.tick_follower import tick_rows
from ledger_client.topics.ticks import Tick, entry_of, unfolded
from metadata.records import LedgerRecord, encode_record, ledger_key
from metadata.store import ABSENT, Check, CheckLease, Delete, Op, Put
from metadata.time.calls import NewestTick, TickNow
from metadata.time.tick_rows import (
    TickLedger,
    tick_ledger_key,
)
from metadata.time.ticker import NO_TICK, StoredTick
from metadata.time.timestamps import split
from metadata.topics import TopicRecord, topic_key
from native.errors import Corrupt
from native.tick import WHOLE_EVERY, Covers, TickEntry

ROLL_ENTRIES = 20_000
"""Ticks of a ledger: about an hour of a busy topic."""
ROLL_AGAIN_ENTRIES = 100
"""Ticks until the next attempt, where too few bookies took another ledger."""
LAG_TIMEOUT_S = 3.0
_log = logging.getLogger(__name__)


class TickLag(msgspec.Struct, frozen=True):
    """How far the newest tick of a topic is behind."""

    timestamp: int
    """of the newest tick"""
    lag_s: float
    """from there to the cluster's time"""
    holder: str = ""
    """the lane that holds the next tick back, "" for none"""


async def tick_lag(context: TopicContext, topic: TopicRecord) -> TickLag:
    """Return how far the newest tick of *topic* is behind.

    Raises:
        MetadataUnavailable: there is none yet, or nobody leads. The message says who holds the
            first tick back.
    """
    now = await context.timestamps.allocate()
    found = await context.leader.ask(NewestTick(topic.uid), TickNow, timeout_s=LAG_TIMEOUT_S)
    if not found.timestamp:
        held = f"; {found.holder} holds it back" if found.holder else ""
        raise MetadataUnavailable(f"{topic.name} has no tick yet{held}")
    lag_ms = split(now.first).physical_ms - split(found.timestamp).physical_ms
    # Timestamps stand still while the leader's clock is behind them: then its age alone is known.
    return TickLag(found.timestamp, max(lag_ms / 1000, found.held_s), found.holder)


async def whole_from(
    topic: str, reader: LedgerReader, first: int, last: int, before: TickEntry | None
) -> list[TickEntry]:
    """Return the ticks in entries *first* to *last*; see ticks.unfolded(). Raises MessagesLost."""
    entries = await reader.read(first, last)
    try:
        return list(unfolded([entry.payload for entry in entries], before))
    except Corrupt as wrong:
        raise MessagesLost.batch(
            topic, ledger_id=reader.id, entry_id=first, reason=str(wrong)
        ) from wrong


class TickLog:
    """The stored ticks of a topic, as the leader of one term appends to them.

    After a failure of append() the log must be begun anew: whether the tick is stored is unknown.
    """

    def __init__(self, context: TopicContext, uid: int, name: str, check: CheckLease) -> None:
        """*check*: of the leader's term, without which no ledger is made."""
        self._context = context
        self._uid = uid
        self._name = name
        self._check = check
        self._number = -1
        self._last = NO_TICK
        self._writer: WriteDriver | None = None
        self._entries = 0
        self._put_off = 0
        """ticks later than usual, as no other ledger was possible"""
        self._is_short = False
        """the ledger has fewer copies than the topic"""

    async def begin(self) -> StoredTick:
        """Fence the former leader's ledger; return the last tick that is stored.

        A ledger that an operator deleted is passed over. Ticks that it had may come again.

        Raises:
            LedgerError: the next call begins anew.
        """
        rows = await tick_rows(self._context, self._uid)
        self._number = rows[-1][0] if rows else -1
        self._last = NO_TICK
        for _, row in reversed(rows):
            try:
                info = await self._context.ledgers.recover(row.ledger_id)
            except NoSuchLedger:
                continue
            if info.last_entry >= 0:
                self._last = await self._read_last(row.ledger_id, info.last_entry)
                break
        return self._last

    async def append(self, timestamp: int, covers: Covers) -> None:
        """Make a tick durable.

        Raises:
            NoSuchTopic: the topic was deleted.
            LeaseLost: the term is over.
            LedgerError: it may be stored or not.
        """
        due = (ROLL_AGAIN_ENTRIES if self._is_short else ROLL_ENTRIES) + self._put_off
        writer = self._writer
        if writer is None or self._entries >= due:
            writer = await self._roll()
        is_whole = self._entries % WHOLE_EVERY == 0
        tick = Tick(timestamp, covers, timestamp)
        before = None if is_whole else self._last.covers
        payload = entry_of(tick, before, created_ms=self._context.clock.now_ms())
        await writer.append_many([payload])
        self._entries += 1
        self._last = StoredTick(timestamp, covers)

    def leave(self) -> None:
        """Append no more; the next leader closes the ledger."""
        if self._writer is not None:
            self._writer.fail(LedgerClosed(self._writer.id))

    async def trim(self, first_timestamp: int) -> None:
        """Remove ledgers whose ticks are all below *first_timestamp*, that of the oldest message.

        The last ledger stays. Raises LeaseLost, LedgerError.
        """
        rows = await tick_rows(self._context, self._uid)
        for (number, row), (_, following) in itertools.pairwise(rows):
            if following.after >= first_timestamp:
                break
            gone: list[Op] = [
                self._check,
                Delete(tick_ledger_key(self._uid, number)),
                Delete(ledger_key(row.ledger_id)),
            ]
            with translated(self._context.options.metadata_timeout_s):
                await self._context.store.transact(gone)

    async def _roll(self) -> WriteDriver:
        """Go on in another ledger; the present one is kept while no other is possible."""
        former = self._writer
        try:
            following = self._writer = await self._next(in_need=former is None)
        except NotEnoughBookies:
            if former is None:
                raise
            self._put_off += ROLL_AGAIN_ENTRIES
            return former
        if former is not None:
            try:
                await former.close()
            finally:
                former.fail(LedgerClosed(former.id))  # also if this was cut off
        return following

    async def _next(self, *, in_need: bool) -> WriteDriver:
        """Make the next ledger; *in_need*, with fewer copies rather than none. Raises as append().

        The fewest are as many as must be durable before a tick counts.
        """
        topic, version = await self._context.catalogue.get(self._name)
        if topic.uid != self._uid:
            raise NoSuchTopic(self._name)
        ledgers = self._context.ledgers
        try:
            record = await self._record(topic, topic.replication)
        except NotEnoughBookies as few:
            if not in_need or topic.ack_quorum == topic.replication:
                raise
            record = await self._record(topic, topic.ack_quorum)
            _log.warning("ticks of %s have %d copies: %s", topic.name, topic.ack_quorum, few)
        row = TickLedger(record.ledger_id, self._last.timestamp)
        ops: list[Op] = [
            Put(ledger_key(record.ledger_id), encode_record(record), ABSENT),
            Put(tick_ledger_key(self._uid, self._number + 1), msgspec.json.encode(row), ABSENT),
            self._check,
            Check(topic_key(topic.name), version),
        ]
        if await ledgers.catalogue.transact(ops) is None:
            raise MetadataUnavailable(f"ticks of {self._name}: another leader, or a change of it")
        self._number += 1
        self._entries = self._put_off = 0
        self._is_short = record.write_quorum < topic.replication
        return ledgers.writers.open(record)

    async def _record(self, topic: TopicRecord, copies: int) -> LedgerRecord:
        plan = LedgerPlan(
            ensemble_size=copies,
            write_quorum=copies,
            ack_quorum=topic.ack_quorum,
            custom={"ticks": topic.name},
        )
        ledgers = self._context.ledgers
        return await new_record(plan, catalogue=ledgers.catalogue, placement=ledgers.placement)

    async def _read_last(self, ledger_id: int, last_entry: int) -> StoredTick:
        reader = await self._context.opener.open(ledger_id)
        try:
            first = last_entry - last_entry % WHOLE_EVERY
            ticks = await whole_from(self._name, reader, first, last_entry, None)
        finally:
            reader.unwatch()
        return StoredTick(ticks[-1].timestamp, ticks[-1].covers)

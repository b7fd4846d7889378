"""Closing the open ledgers of a topic, without disturbing their writers.

A ledger that is written is closed by its writer alone, because anybody else would have to fence it.
So its writer is asked, by a row that names the ledger (metadata/topics.py). Every client watches
for these rows (lanes/roll_desk.py) and goes on in another ledger, as it does when one is full.

    open ─┬─ lease ──► nothing in it ──► EMPTY: left as it is
          │        ──► asked ─┬─ closed by its writer ──► ROLLED
          │                   └─ wait_s is over ────────► WritersSilent: paused, or an old version
          └─ no lease ──► asked ─┬─ closed by its writer, which had lost its lease ──► ROLLED
                                 └─ ABSENT_S are over ──► taken over and closed ────► CLOSED

A writer may lose its lease while the metadata store is away, and go on. So one without a lease is
asked, too, before its lane is taken. If a process takes the lane meanwhile, it closes the ledger
in its own way, and that is what was asked for.

The request names the ledger, so it does nothing once that is closed. It is put again every
ASK_AGAIN_S, because hints may be lost, and removed in the end. A request that is left behind by a
process that was killed makes the writer leave the ledger all the same, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec
import trio

from ledger_client.errors import (
    BadTopic,
    LedgerError,
    MessagesLost,
    NoSuchTopic,
    TopicError,
    WritersSilent,
)
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.reader import settle
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.positions import LaneRef
from ledger_client.topics.retention.holdings import (
    HeldLedger,
    LaneHoldings,
    read_holdings,
    read_owners,
)
from metadata.errors import MetadataError, VersionConflict
from metadata.store import Check, Put
from metadata.topics import (
    LaneOwner,
    LaneRoll,
    TopicRecord,
    encode_row,
    lane_ledger_key,
    lane_roll_key,
    topic_key,
)

ROLL_WAIT_S = 30.0
"""How long a writer is waited for; longer than the lease of one that was killed lasts."""
ABSENT_S = 3.0
"""How long a writer without a lease is asked: one that lost it in an outage gets it back sooner."""
ASK_AGAIN_S = 1.0
LOOK_S = 0.5
"""How often the ledger's row and the lease are read, without a hint."""
ROLLS_MAX = 16
"""Lanes that are asked at a time: each costs its writer some transactions of the metadata store."""
EMPTY_S = 5.0
"""For finding out whether a ledger has messages; without an answer its writer is asked."""
FORGET_S = 5.0
"""For removing a request."""
NOTED_MAX = 5
"""Further failures that are told with the first."""
Outcome = Literal["rolled", "closed", "empty"]


class LaneRolled(msgspec.Struct, frozen=True, kw_only=True):
    """A lane that had an open ledger, and what became of it."""

    partition: int
    lane: int
    ledger_id: int
    """the ledger that was open"""
    outcome: Outcome
    """rolled: its writer closed it; closed: it had no writer, so this call closed it; empty: it
    is written and has no messages, and was left as it is"""


class Rolled(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of a topic that had an open ledger, in order."""

    topic: str
    lanes: list[LaneRolled]

    @property
    def closed(self) -> int:
        """How many ledgers were closed."""
        return sum(lane.outcome != "empty" for lane in self.lanes)


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A writer that did not answer."""

    partition: int
    lane: int
    owner: LaneOwner


OnProgress = Callable[[float], None]
"""Called with the fraction of the lanes that are done, from 0 to 1."""


async def roll_topic(
    context: TopicContext,
    name: str,
    *,
    partition: int | None,
    wait_s: float,
    on_progress: OnProgress,
) -> Rolled:
    """Close the open ledgers of a topic. Topics.roll() documents arguments and errors."""
    topic, _ = await context.catalogue.get(name)
    if partition is not None and partition not in topic.partition_indexes:
        raise BadTopic(f"there is no partition {partition}", topic=name)
    with translated(context.catalogue.timeout_s):
        lanes = await read_holdings(context.store, topic, partition)
    patience = Patience(wait_s)
    rolls = [
        LedgerRoll(context, topic, lane, held, patience)
        for lane in lanes
        for held in lane.ledgers
        if held.row.state == "open"
    ]
    limiter, done = trio.CapacityLimiter(ROLLS_MAX), 0

    async def run(roll: LedgerRoll) -> None:
        nonlocal done
        async with limiter:
            await roll.run()
        done += 1
        on_progress(done / len(rolls))

    async with trio.open_nursery() as nursery:
        for roll in rolls:
            nursery.start_soon(run, roll)
    return _outcome(topic, rolls)


def _outcome(topic: TopicRecord, rolls: list[LedgerRoll]) -> Rolled:
    """Return the report. Raises the first failure, or WritersSilent."""
    failures = [roll.failure for roll in rolls if roll.failure is not None]
    silent = [roll.silent for roll in rolls if roll.silent is not None]
    writers = [(each.partition, each.lane, _name_of(each.owner)) for each in silent]
    if writers:
        failures.append(WritersSilent(topic.name, writers=writers, count=len(rolls)))
    if failures:
        for other in failures[1 : 1 + NOTED_MAX]:
            failures[0].add_note(str(other))
        if len(failures) > 1:
            open_still = sum(roll.done is None for roll in rolls)
            failures[0].add_note(f"{open_still} of {len(rolls)} ledgers were not closed")
        raise failures[0]
    return Rolled(topic=topic.name, lanes=[roll.done for roll in rolls if roll.done is not None])


def _name_of(owner: LaneOwner) -> str:
    name = f"producer {owner.producer}" if owner.producer else "a producer"
    where = f" (process {owner.process_id} on {owner.host})" if owner.host else ""
    return f"{name}{where}"


class Patience:
    """How long writers are waited for: each at least LOOK_S, so that it is asked and can answer.

    The other lanes of a silent process get ABSENT_S each.
    """

    def __init__(self, wait_s: float) -> None:
        self.longest_s = max(wait_s, LOOK_S)
        self._silent: set[tuple[str, int]] = set()

    def wait_s(self, owner: LaneOwner) -> float:
        """Return the seconds that this writer has for an answer."""
        is_silent = (owner.host, owner.process_id) in self._silent
        return min(ABSENT_S, self.longest_s) if is_silent else self.longest_s

    def gave_up(self, owner: LaneOwner) -> None:
        """Note that a writer of this process did not answer."""
        self._silent.add((owner.host, owner.process_id))


class LedgerRoll:
    """One open ledger, on its way to be closed.

    Attributes:
        done: how it ended.
        silent: the writer that did not answer, if so.
        failure: the reason why it could not be closed, if so.
    """

    def __init__(
        self,
        context: TopicContext,
        topic: TopicRecord,
        lane: LaneHoldings,
        held: HeldLedger,
        patience: Patience,
    ) -> None:
        self.done: LaneRolled | None = None
        self.silent: Silent | None = None
        self.failure: LedgerError | None = None
        self._context = context
        self._topic = topic
        self._place = (lane.partition, lane.lane)
        self._number = held.number
        self._ledger_id = held.row.ledger_id
        self._patience = patience
        ref = LaneRef(0, *self._place, topic.name, topic.uid, topic.order == "event-time")
        self._rows = LedgerRows(context.store, ref, timeout_s=context.catalogue.timeout_s)
        self._news = trio.Event()

    async def run(self) -> None:
        """Set one of the attributes. A failure of the lane is not raised."""
        key = lane_ledger_key(self._topic.uid, *self._place, self._number)
        watches = self._context.store.watches
        with suppress(MetadataError):  # too many prefixes: the row is read all the same
            watches.subscribe(key, self)
        try:
            await self._run()
        except LedgerError as failure:
            self.failure = failure
        finally:
            watches.unsubscribe(key, self)

    def notify(self, _prefix: str, _hint: str) -> None:
        """Look at the row at once: it may have changed."""
        self._news.set()

    async def _run(self) -> None:
        if await self._owner() is not None and await self._is_empty():
            self._end("empty")
            return
        try:
            await self._ask_until_closed()
        finally:
            with (
                trio.CancelScope(shield=True),
                suppress(LedgerError, MetadataError),
                translated(FORGET_S),
            ):
                await self._context.store.delete(self._key)

    async def _ask_until_closed(self) -> None:
        """Ask the writer again and again; without one, close the ledger in its place."""
        started = seen_at = trio.current_time()
        asked_at = -math.inf
        while await self._is_open():
            owner, now = await self._owner(), trio.current_time()
            if owner is not None:
                seen_at = now
                if now - started >= self._patience.wait_s(owner):
                    self._give_up(owner)
                    return
            elif now - seen_at >= ABSENT_S:
                if await self._close(is_last=now - started >= self._patience.longest_s):
                    return
                seen_at = now
            if now - asked_at >= ASK_AGAIN_S:
                await self._ask()
                asked_at = now
            with trio.move_on_after(LOOK_S):
                await self._news.wait()
            self._news = trio.Event()
        self._end("rolled")

    def _give_up(self, owner: LaneOwner) -> None:
        partition, lane = self._place
        self._patience.gave_up(owner)
        self.silent = Silent(partition=partition, lane=lane, owner=owner)

    def _end(self, outcome: Outcome) -> None:
        partition, lane = self._place
        self.done = LaneRolled(
            partition=partition, lane=lane, ledger_id=self._ledger_id, outcome=outcome
        )

    # --- looking -------------------------------------------------------------------------

    async def _is_open(self) -> bool:
        row = await self._rows.at(self._number)
        return row is not None and row.ledger.state == "open"

    async def _owner(self) -> LaneOwner | None:
        """Return the lane's writer as its lease shows it; `None` without a lease."""
        partition, _ = self._place
        with translated(self._context.catalogue.timeout_s):
            owners = await read_owners(self._context.store, self._topic, partition)
        return owners.get(self._place)

    async def _is_empty(self) -> bool:
        """True if nothing but the lane's state was acknowledged; False also if nobody can tell."""
        with suppress(LedgerError), trio.move_on_after(EMPTY_S):
            async with self._context.ledgers.open(self._ledger_id, recover=False) as reader:
                return await settle(reader, self._rows.is_written) <= 0
        return False

    # --- changing ------------------------------------------------------------------------

    @property
    def _key(self) -> str:
        return lane_roll_key(self._topic.uid, *self._place, self._ledger_id)

    async def _ask(self) -> None:
        """Put the request, once more if it is there. Raises NoSuchTopic."""
        catalogue = self._context.catalogue
        while True:
            record, version = await catalogue.get(self._topic.name)
            if record.uid != self._topic.uid:
                raise NoSuchTopic(self._topic.name)
            request = encode_row(LaneRoll(asked_ms=await catalogue.now_ms()))
            # A deleted topic leaves no rows, so none comes after its deletion began.
            unchanged = Check(topic_key(record.name), version)
            with suppress(VersionConflict), translated(catalogue.timeout_s):
                await self._context.store.transact([unchanged, Put(self._key, request)])
                return

    async def _close(self, *, is_last: bool) -> bool:
        """Take the lane as its next writer would, and close it.

        False if another process takes it at the same time: that one closes the ledger. Its error
        is raised if the attempt *is_last*.
        """
        try:
            await close_lane(self._context.ledgers, self._topic, *self._place)
        except (NoSuchTopic, MessagesLost):
            raise
        except TopicError:
            if is_last:
                raise
            return False
        self._end("closed")
        return True

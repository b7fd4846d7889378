"""Messages deleted from a topic: from a place on, or between two places, in every lane.

Every lane is checked before anything is deleted. Then each lane is cut by itself; after a failure
the same call cuts the rest.

Between two places in closed ledgers, one transaction changes the rows, and a writer of the
lane goes on. From a place to the end, the lane is taken as its next writer would take it:

    lease ──► claim ──► recover and close ──► state at the place ──► ledger with this state
          └──► one transaction: the lane continues in that ledger, and all after the place goes

So the next writer finds the last event time and the producers' sequence numbers as they were at
the place, and readers see all of it or nothing. The previous writer is fenced for good. After a
kill the lane is unchanged or done, and repeating the call does the rest. Very many ledgers are
deleted in several such steps, from the end of the lane backwards.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.errors import (
    BadTopic,
    LedgerError,
    MetadataUnavailable,
    NoSuchLedger,
    ProducerBusy,
    TopicBusy,
    TopicError,
)
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.ledgers.reader import settle
from ledger_client.message_id import MessageId
from ledger_client.topics.lanes.lane_end import close_lane, find_end
from ledger_client.topics.lanes.lane_lease import LaneLease, hold_lane
from ledger_client.topics.lanes.lane_names import unnaming
from ledger_client.topics.lanes.lane_rows import Beside, LaneRows
from ledger_client.topics.lanes.lane_state import LaneEnd, LaneState, greater
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.reading.lane_ranges import KnownLane, LaneStart
from ledger_client.topics.reading.lane_set import LaneSet, narrow
from ledger_client.topics.reading.options import ReadOptions, Start, check_timed
from ledger_client.topics.reading.place_finder import PlaceFinder
from ledger_client.topics.retention.holdings import (
    HeldLedger,
    LaneHoldings,
    read_holdings,
    read_set,
)
from ledger_client.topics.retention.job_rows import HOLDER, read_cut_pins, read_pins
from ledger_client.topics.retention.lane_parts import (
    LanePart,
    LaneTruncated,
    LedgerPart,
    LedgerScan,
    LostRace,
    Truncated,
    counted,
    ledger_parts,
    part_ops,
)
from ledger_client.topics.times import EventTime
from metadata.errors import LeaseLost
from metadata.jobs import truncation_lease
from metadata.pointers import settle_topic
from metadata.store import CheckLease, Op
from metadata.topics import REMOVED_MAX, TopicRecord, writer_lease

if TYPE_CHECKING:
    from ledger_client.topics.context import TopicContext

ATTEMPTS = 5
"""Attempts while others, such as retention, change the same rows."""
SETTLE_S = 60.0
"""Time limit for settling a large result that a job has shown."""
OnRemoved = Callable[[int], None]

WHOLE_MAX = 100
"""Ledgers that one transaction deletes, each with its record."""


class LaneTruncation:
    """Deletes messages of one lane. Calls raise as lane.open_lane() does.

    Args:
        ledgers: whose bookies and metadata.
        topic: the topic.
        lane: the lane.
        opener: opens ledgers for reading.
    """

    def __init__(
        self, ledgers: Ledgers, topic: TopicRecord, lane: LaneRef, opener: LedgerOpener
    ) -> None:
        self._ledgers = ledgers
        self._topic = topic
        self._lane = lane
        self._opener = opener
        self._limit_s = ledgers.options.metadata_timeout_s

    # --- looking -----------------------------------------------------------------------

    async def plan(self, found: LaneHoldings, start: Place, stop: Place | None) -> LanePart:
        """Return the part between two places; without *stop* up to the end of the lane.

        An open ledger counts up to its last confirmed entry.
        """
        ledgers = [await self._known(held) for held in found.ledgers]
        ledgers = [held for held in ledgers if held.row.state != "prepared"]
        parts = ledger_parts(ledgers, start, stop)
        last = found.record.current if found.record is not None else -1
        taken = LanePart(parts=parts, whole=[], changed=[], messages=0)
        for part in parts:
            # The lane's next writer reads the lane's state from its last ledger.
            keeps_row = stop is not None and part.held.number == last
            left = await self._left(
                part, until=part.start if part is parts[0] else None, taken=taken
            )
            taken.messages += part.held.row.messages - left.row.messages
            (taken.changed if left.row.messages or keeps_row else taken.whole).append(left)
        if parts and stop is None:
            before = [held for held in ledgers if held.number < parts[0].held.number]
            if start.number < 0:
                taken.state = LaneState()  # the lane begins anew
            taken.state = taken.state or await self._state_after(before)
            taken.state.last_event_time = _last_time(before, taken)
        return taken

    async def _state_after(self, ledgers: Sequence[HeldLedger]) -> LaneState:
        """Return the lane's state after *ledgers*; those written by jobs have no state."""
        for held in reversed(ledgers):
            row = Row(held.number, held.row)
            with suppress(NoSuchLedger):
                scan = LedgerScan(self._lane, row, until=(held.row.entries, 0))
                if (state := (await scan.run(self._opener)).state) is not None:
                    return state
        return LaneState()

    async def _left(
        self, part: LedgerPart, *, until: tuple[int, int] | None, taken: LanePart
    ) -> HeldLedger:
        """Return the rest of a ledger; set the state of *taken* to the lane's before *until*."""
        if part.is_whole and until is None:
            return part.held._replace(row=msgspec.structs.replace(part.held.row, messages=0))
        left = part.left()
        if len(left.row.removed) > REMOVED_MAX:
            raise TopicError(
                f"more than {REMOVED_MAX} ranges are deleted out of ledger {left.row.ledger_id}",
                topic=self._topic.name,
            )
        scan = LedgerScan(self._lane, Row(left.number, left.row), until=until or (0, 0))
        try:
            await scan.run(self._opener)
        except NoSuchLedger:
            if not part.is_whole:
                raise  # an operator deleted the ledger; its row can go
        if until is not None:
            taken.state = scan.state
        return left._replace(row=counted(left.row, scan.figures))

    async def _known(self, held: HeldLedger) -> HeldLedger:
        """Return a ledger with its present entries."""
        if held.row.state != "open":
            return held
        rows = LedgerRows(self._ledgers.store, self._lane, timeout_s=self._limit_s)
        reader = await self._opener.open(held.row.ledger_id)
        try:
            entries = await settle(reader, rows.is_written) + 1
        finally:
            reader.unwatch()
        row = msgspec.structs.replace(held.row, entries=entries)
        scan = await LedgerScan(self._lane, Row(held.number, row)).run(self._opener)
        return held._replace(row=counted(row, scan.figures))

    # --- between two places --------------------------------------------------------------

    async def punch(self, taken: LanePart) -> bool:
        """Delete messages in closed ledgers; return False if a row has changed."""
        stop = taken.parts[-1].held
        behind = stop.number, stop.row.base_version
        if taken.whole and taken.whole[-1].number == stop.number:
            behind = stop.number + 1, stop.row.base_version + stop.row.entries
        ops = await part_ops(self._ledgers.catalogue, self._lane, taken, *behind)
        return await self._ledgers.catalogue.transact(ops, limit_s=self._limit_s) is not None

    # --- to the end ----------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, *, force: bool) -> AsyncIterator[LaneRows]:
        """Hold the lane, closed, for the block; *force* fences an active writer.

        Raises:
            ProducerBusy: a producer writes it, without *force*.
        """
        partition, lane = self._lane.partition, self._lane.lane
        if force:
            await self._end_lease()
        async with hold_lane(
            self._ledgers.session,
            self._topic,
            partition,
            access="exclusive",
            producer="",
            lane=lane,
            limit_s=self._limit_s,
            owner=f"truncation-{secrets.token_hex(16)}",
            is_closing=True,
        ) as lease:
            rows = LaneRows(self._ledgers.catalogue, self._topic, partition, lane)
            await rows.claim(None, writer=lease.owner)
            async with Background() as nursery:
                nursery.start_soon(_keep, lease, rows)
                await self._close(rows, await find_end(self._ledgers, rows))
                yield rows

    async def _close(self, rows: LaneRows, last: LaneEnd) -> None:
        row, end = last.unclosed, last.end
        if row is None or end is None:
            return
        if last.next_version != row.base_version + end.last_entry + 1:
            raise _busy(
                self._lane,
                f"ends in ledger {row.ledger_id}, which was deleted by itself: let a producer "
                "write the lane first",
            )
        await rows.close(row, end)

    async def truncate(self, rows: LaneRows, taken: LanePart) -> None:
        """Delete everything from the first part of *taken* on; the lane must be held."""
        following = rows.record.current + 1, rows.record.next_version

        async def ops() -> Sequence[Op]:
            return await part_ops(self._ledgers.catalogue, self._lane, taken, *following)

        state = taken.state or LaneState()
        rows.beside = Beside(ops, state.last_event_time)
        async with Background() as nursery:
            last = LaneEnd(state, rows.record.next_version, None, None)
            writer = LaneWriter(self._ledgers, rows, last, nursery)
            limit_s = self._ledgers.options.append_timeout_s
            with trio.move_on_after(limit_s) as scope:
                await writer.open()
            if scope.cancelled_caught:
                raise MetadataUnavailable(f"the lane was not cut within {limit_s:g} s")
            nursery.start_soon(writer.run)
            await writer.close()

    async def _end_lease(self) -> None:
        name = writer_lease(self._topic.uid, self._lane.partition, self._lane.lane)
        with translated(self._limit_s):
            for lease in await self._ledgers.store.leases(name):
                await self._ledgers.store.release(lease)

    def outcome(self, taken: LanePart, found: LaneHoldings) -> LaneTruncated:
        """Return the public outcome of *taken*."""
        first = taken.parts[0]
        kept = [held for held in found.ledgers if held.number < first.held.number]
        last: MessageId | None = None
        if first.start > (0, 0):
            last = MessageId(
                first.held.row.ledger_id, max(first.start[0] - (not first.start[1]), 0)
            )
        elif kept:
            last = MessageId(kept[-1].row.ledger_id, max(kept[-1].row.entries - 1, 0))
        return LaneTruncated(
            partition=self._lane.partition,
            lane=self._lane.lane,
            ledgers=len(taken.whole),
            messages=taken.messages,
            last_kept=last and last._replace(partition=self._lane.partition),
            owner=found.owner,
        )


def limited(taken: LanePart, start: Place, stop: Place | None) -> tuple[Place, Place | None]:
    """Narrow the places to what one transaction can delete."""
    if len(taken.whole) <= WHOLE_MAX:
        return start, stop
    held = taken.whole[-WHOLE_MAX]
    if stop is None:
        return Row(held.number, held.row).place(0), None
    held = taken.whole[WHOLE_MAX]
    return start, Row(held.number, held.row).place(0)


def _last_time(before: Sequence[HeldLedger], taken: LanePart) -> int | None:
    """Return the greatest event time that stays: in ledgers *before* and in the first part."""
    first = taken.parts[0].held.number
    rows = [held.row for held in [*before, *taken.changed] if held.number <= first]
    last: int | None = None
    for row in rows:
        last = greater(last, row.last_event_time)
    return last


async def _keep(lease: LaneLease, rows: LaneRows) -> None:
    """Renew the lease; without it the transaction that cuts the lane fails."""
    with suppress(LedgerError):
        await lease.keep(rows)


class Truncation:
    """Deletes messages of a topic; see Topics.truncate."""

    def __init__(
        self,
        context: TopicContext,
        topic: TopicRecord,
        start: Start,
        stop: Start | None,
        *,
        partition: int | None,
        lane: int | None,
        force: bool,
    ) -> None:
        self._context = context
        self._topic = topic
        self._start = start
        self._stop = stop
        self._force = force
        self._leases: tuple[CheckLease, ...] = ()
        self._opener = context.opener
        self._starts = PlaceFinder(self._opener)
        self._options = ReadOptions(
            partitions=None if partition is None else [partition],
            lanes=None if lane is None else [lane],
        )
        self._options.check([topic])
        if topic.order != "event-time" and any(isinstance(at, EventTime) for at in (start, stop)):
            raise BadTopic(
                "it is not ordered by event time: name a time of writing, a message or a position",
                topic=topic.name,
            )
        for place in (start, stop):
            check_timed(place, topic)

    async def plan(self) -> Truncated:
        """Return the outcome without deleting. Raises as Topics.truncate, except TopicBusy."""
        lanes: list[LaneTruncated] = []
        for known in await self._lanes():
            found, _, _, taken = await self._look(known)
            if taken.messages:
                lanes.append(self._of(known).outcome(taken, found))
        return Truncated(topic=self._topic.name, lanes=lanes)

    async def run(self, on_removed: OnRemoved) -> Truncated:
        """Delete, lane by lane. Raises as Topics.truncate."""
        try:
            async with self._announced():
                return await self._run(on_removed)
        except LeaseLost as lost:  # this process was away for longer than its session
            raise LostRace(f"nothing more was deleted: {lost}", topic=self._topic.name) from lost

    @asynccontextmanager
    async def _announced(self) -> AsyncIterator[None]:
        """Let no compaction begin during the block; see metadata/jobs.py."""
        truncation_id = f"truncation-{secrets.token_hex(16)}"
        name = truncation_lease(self._topic.uid, truncation_id)
        with translated(self._context.catalogue.timeout_s):
            held = await self._context.ledgers.session.grant(name, owner=truncation_id)
        self._leases = (held.check,)
        try:
            yield
        finally:
            await held.release()

    async def _run(self, on_removed: OnRemoved) -> Truncated:
        done: list[LaneTruncated] = []
        await self._settle()
        await self._close_idle()
        lanes = await self._lanes()
        for known in lanes:
            found, _, stop, taken = await self._look(known)
            if taken.messages:
                await self._check(known.lane, found, stop, taken)
        for known in lanes:
            went = await self._truncate(known, on_removed)
            done += [] if went is None else [went]
        return Truncated(topic=self._topic.name, lanes=done)

    async def check_there(self) -> None:
        """Raise BadTopic unless there is such a lane."""
        if not [each for each in await self._lanes() if not each.record.deleted]:
            raise BadTopic("there is no such lane", topic=self._topic.name)

    async def delete_lanes(self) -> None:
        """Delete the lanes, which must be empty by now. Raises as Topics.delete_lane."""
        for known in await self._lanes():
            partition, lane = known.lane.partition, known.lane.lane
            async with self._of(known).hold(force=self._force) as rows:
                with translated(self._context.catalogue.timeout_s):
                    ops = await unnaming(self._context.store, self._topic, partition, lane)
                await rows.delete(ops)

    # --- lanes -------------------------------------------------------------------------

    async def _lanes(self) -> list[KnownLane]:
        lanes = LaneSet(
            catalogue=self._context.catalogue,
            opener=self._opener,
            topics=[self._topic],
            options=self._options,
        )
        known = await lanes.lanes()
        chosen = narrow([each.lane for each in known], self._start, self._stop)
        return [each for each in known if each.lane in chosen]

    def _of(self, known: KnownLane) -> LaneTruncation:
        return LaneTruncation(self._context.ledgers, self._topic, known.lane, self._opener)

    async def _look(self, known: KnownLane) -> tuple[LaneHoldings, Place, Place | None, LanePart]:
        """Return a lane, the places to cut between, and the part between them."""
        with translated(self._context.catalogue.timeout_s):
            found = await read_holdings(self._context.store, self._topic, known.lane.partition)
        held = next(each for each in found if each.lane == known.lane.lane)
        known = known._replace(record=held.record or known.record)
        begin = await self._begin(known, self._start, behind=False)
        stop: Place | None = None
        if self._stop is not None:
            end = await self._begin(known, self._stop, behind=True)
            stop = None if end.since is not None else end.place
        start = begin.place
        if begin.since is not None:  # the lane has nothing so late
            start = stop = Place(known.record.current + 2)
        return held, start, stop, await self._of(known).plan(held, start, stop)

    async def _begin(self, known: KnownLane, at: Start, *, behind: bool) -> LaneStart:
        """Return a place. Raises Gap if it was removed, since naming it may be a mistake."""
        begin = await self._starts.find(known, at, after=behind)
        if begin.gap is not None:
            raise begin.gap
        return begin

    async def _check(
        self, lane: LaneRef, found: LaneHoldings, stop: Place | None, taken: LanePart
    ) -> None:
        """Raise TopicBusy if a writer, a job, a cut or the compacted set needs the messages.

        The transaction that deletes them checks that no cut was made since.
        """
        last = taken.parts[-1].held
        first = taken.parts[0].held.number
        owner = found.owner if found.owner is not None and not found.owner.closing else None
        if _takes_lane(stop, taken) and owner is not None and not self._force:
            who = f"{owner.producer or 'a producer'}, process {owner.process_id} on {owner.host}"
            raise _busy(lane, f"is written by {who}: close it, or end it by force")
        with translated(self._context.catalogue.timeout_s):
            place = found.partition, found.lane
            cuts = await read_cut_pins(self._context.store, self._topic.uid, [place])
            pins = await read_pins(self._context.store, self._topic)
            compacted = await read_set(self._context.store, self._topic.uid)
        for pin in pins:
            is_here = (pin.partition, pin.lane) == (found.partition, found.lane)
            if is_here and pin.holder != HOLDER and pin.number <= last.number:
                raise _busy(lane, f"is needed by {pin.holder}: wait for its end")
        start = (first, *taken.parts[0].start)
        for pin in cuts.pins:
            if pin.stop is None or start < pin.stop:
                raise _busy(lane, f"is needed by {pin.holder}")
        taken.leases = self._leases
        taken.checks = cuts.checks
        for horizon in compacted.set.horizons if compacted is not None else ():
            is_here = (horizon.partition, horizon.lane) == (found.partition, found.lane)
            if is_here and first <= horizon.number:
                raise _busy(
                    lane,
                    "is compacted up to a later place, and what is deleted would stay there: "
                    f"quire compact {self._topic.name} --drop",
                )

    async def _settle(self) -> None:
        """Settle what jobs have shown, since rows that are not settled are not cut."""
        with translated(SETTLE_S):
            await settle_topic(self._context.store, self._topic.uid)

    async def _close_idle(self) -> None:
        """Close lanes without a writer, so that their contents are final."""
        with translated(self._context.catalogue.timeout_s):
            lanes = await read_holdings(self._context.store, self._topic)
        for each in lanes:
            is_open = any(held.row.state == "open" for held in each.ledgers)
            if each.owner is None and is_open:
                with suppress(ProducerBusy):  # a producer took it meanwhile
                    await close_lane(self._context.ledgers, self._topic, each.partition, each.lane)

    # --- doing -------------------------------------------------------------------------

    async def _truncate(self, known: KnownLane, on_removed: OnRemoved) -> LaneTruncated | None:
        """Delete the part of a lane; return the outcome, `None` if there was nothing."""
        done: LaneTruncated | None = None
        attempts = ATTEMPTS
        while True:
            found, start, stop, taken = await self._look(known)
            if not taken.messages:
                return done
            await self._check(known.lane, found, stop, taken)
            lost, step = None, None
            try:
                step = await self._step(known, start, stop, taken)
            except LostRace as race:
                lost = race
                await self._settle()
            if step is not None:
                done = _both(done, step, is_end=stop is None)
                on_removed(step.ledgers)
                continue
            attempts -= 1
            if not attempts:
                raise LostRace(
                    f"{known.lane} is changed by others", topic=known.lane.topic
                ) from lost

    async def _step(
        self, known: KnownLane, start: Place, stop: Place | None, taken: LanePart
    ) -> LaneTruncated | None:
        """Delete what one transaction can; return `None` if the lane has changed meanwhile."""
        lane = self._of(known)
        if _takes_lane(stop, taken):
            async with lane.hold(force=self._force) as rows:
                found, start, stop, taken = await self._look(known)
                taken = await lane.plan(found, *limited(taken, start, stop))
                if stop is not None or not taken.parts:
                    return None  # it was closed meanwhile
                await self._check(known.lane, found, stop, taken)  # recovery may have taken long
                await lane.truncate(rows, taken)
                return lane.outcome(taken, found)
        found, start, stop, taken = await self._look(known)
        taken = await lane.plan(found, *limited(taken, start, stop))
        if not taken.parts or _takes_lane(stop, taken):
            return None  # it has changed meanwhile
        await self._check(known.lane, found, stop, taken)  # reading the rest may have taken long
        return lane.outcome(taken, found) if await lane.punch(taken) else None


def _both(before: LaneTruncated | None, step: LaneTruncated, *, is_end: bool) -> LaneTruncated:
    """Return the sum of two steps; at the end of a lane they go backwards, within it forwards."""
    if before is None:
        return step
    return msgspec.structs.replace(
        step if is_end else before,
        ledgers=before.ledgers + step.ledgers,
        messages=before.messages + step.messages,
    )


def _takes_lane(stop: Place | None, taken: LanePart) -> bool:
    """True if the lane must be held: the part reaches its end, or an open ledger."""
    return stop is None or any(part.held.row.state == "open" for part in taken.parts)


def _busy(lane: LaneRef, why: str) -> TopicBusy:
    return TopicBusy(f"{lane} {why}", topic=lane.topic)

"""Messages deleted out of one lane.

Between two places that lie in closed ledgers, one transaction changes rows, whoever writes the
lane. From a place to the end, the lane is taken as its next writer would take it:

    lease ──► claim ──► recover and close ──► state at the place ──► ledger with this state
          └──► one transaction: the lane goes on in that ledger, and what is behind the place goes

So the next writer finds the last event time and the numbers of producers as they were at the
place, and readers see all of it or nothing. Whoever wrote the lane is fenced for good. Killed
anywhere, the lane is as it was, or done; doing it again does what is left. Where very many
ledgers go, they go in several such steps, the last of the lane first.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from ledger_client.background import Background
from ledger_client.client import Client
from ledger_client.errors import LedgerError, MetadataUnavailable, NoSuchLedger
from ledger_client.topics.errors import TopicBusy, TopicError
from ledger_client.topics.keeping.cut_rows import Cut, cut_ops
from ledger_client.topics.keeping.holdings import Held, LaneHoldings
from ledger_client.topics.keeping.ledger_scan import LedgerScan, counted
from ledger_client.topics.keeping.truncation import (
    WHOLE_MAX,
    LaneTruncated,
    Part,
    parts_of,
)
from ledger_client.topics.lanes.lane_choice import hold_lane
from ledger_client.topics.lanes.lane_lease import LaneLease
from ledger_client.topics.lanes.lane_ledgers import LaneEnd, find_end
from ledger_client.topics.lanes.lane_rows import Beside, LaneRows
from ledger_client.topics.lanes.lane_state import LaneState, greater
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.lanes.ledger_rows import Row
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.reading.opening import LedgerOpener, settle
from ledger_client.topics.reading.places import LaneRef, Place
from ledger_client.topics.reading.times import place_of
from ledger_client.translation import translated
from metadata.store import Op
from metadata.topics import REMOVED_MAX, TopicRecord, writer_lease


class LaneTruncation:
    """Deletes messages of one lane. Calls raise as lane.open_lane() does.

    Args:
        client: whose bookies and metadata.
        topic: the topic.
        lane: which.
        opener: opens ledgers for looking.
    """

    def __init__(
        self, client: Client, topic: TopicRecord, lane: LaneRef, opener: LedgerOpener
    ) -> None:
        self._client = client
        self._topic = topic
        self._lane = lane
        self._opener = opener
        self._limit_s = client.options.metadata_timeout_s

    # --- looking -----------------------------------------------------------------------

    async def plan(self, found: LaneHoldings, start: Place, stop: Place | None) -> Cut:
        """Return what goes between two places, *stop* None: up to the end of the lane.

        Of a ledger that is written what is confirmed by now counts.
        """
        ledgers = [await self._known(held) for held in found.ledgers]
        ledgers = [held for held in ledgers if held.row.state != "prepared"]
        parts = parts_of(ledgers, start, stop)
        last = found.record.current if found.record is not None else -1
        cut = Cut(parts=parts, whole=[], changed=[], messages=0)
        for part in parts:
            # The last ledger of the lane tells its next writer what it must know.
            keeps_row = stop is not None and part.held.number == last
            left = await self._left(part, until=part.start if part is parts[0] else None, cut=cut)
            cut.messages += part.held.row.messages - left.row.messages
            (cut.changed if left.row.messages or keeps_row else cut.whole).append(left)
        if parts and stop is None:
            before = [held for held in ledgers if held.number < parts[0].held.number]
            if start.number < 0:
                cut.state = LaneState()  # the lane begins anew
            cut.state = cut.state or await self._state_after(before)
            cut.state.last_event_time = _last_time(before, cut)
        return cut

    async def _state_after(self, ledgers: Sequence[Held]) -> LaneState:
        """Return the lane's state behind *ledgers*; those that a job wrote tell none."""
        for held in reversed(ledgers):
            row = Row(held.number, held.row)
            with suppress(NoSuchLedger):
                scan = LedgerScan(self._lane, row, until=(held.row.entries, 0))
                if (state := (await scan.run(self._opener)).state) is not None:
                    return state
        return LaneState()

    async def _left(self, part: Part, *, until: tuple[int, int] | None, cut: Cut) -> Held:
        """Return what is left of a ledger, and learn the lane's state before *until*."""
        if part.is_whole and until is None:
            return part.held._replace(row=msgspec.structs.replace(part.held.row, messages=0))
        left = part.cut()
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
                raise  # a person deleted it, and its row can go
        if until is not None:
            cut.state = scan.state
        return left._replace(row=counted(left.row, scan.figures))

    async def _known(self, held: Held) -> Held:
        """Return a ledger with the entries it has now."""
        if held.row.state != "open":
            return held
        reader = await self._opener.open(held.row.ledger_id)
        try:
            entries = await settle(reader) + 1
        finally:
            reader.close()
        row = msgspec.structs.replace(held.row, entries=entries)
        scan = await LedgerScan(self._lane, Row(held.number, row)).run(self._opener)
        return held._replace(row=counted(row, scan.figures))

    # --- between two places --------------------------------------------------------------

    async def punch(self, cut: Cut) -> bool:
        """Delete what lies in closed ledgers; False: rows have changed, look again."""
        stop = cut.parts[-1].held
        behind = stop.number, stop.row.base_version
        if cut.whole and cut.whole[-1].number == stop.number:
            behind = stop.number + 1, stop.row.base_version + stop.row.entries
        ops = await cut_ops(self._client.catalogue, self._lane, cut, *behind)
        return await self._client.catalogue.transact(ops, limit_s=self._limit_s) is not None

    # --- to the end ----------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, *, force: bool) -> AsyncIterator[LaneRows]:
        """Hold the lane for the block, closed. *force*: whoever writes it is ended.

        Raises:
            ProducerBusy: somebody writes it.
        """
        partition, lane = self._lane.partition, self._lane.lane
        if force:
            await self._end_lease()
        async with hold_lane(
            self._client.store,
            self._topic,
            partition,
            access="exclusive",
            producer="",
            lane=lane,
            limit_s=self._limit_s,
            owner=f"truncation-{secrets.token_hex(16)}",
            is_closing=True,
        ) as lease:
            rows = LaneRows(self._client.catalogue, self._topic, partition, lane)
            await rows.claim(None, writer=lease.owner)
            async with Background() as nursery:
                nursery.start_soon(_keep, lease, rows)
                await self._close(rows, await find_end(self._client, rows))
                yield rows

    async def _close(self, rows: LaneRows, last: LaneEnd) -> None:
        row, end = last.unclosed, last.end
        if row is None or end is None:
            return
        if last.next_version != row.base_version + end.last_entry + 1:
            raise TopicBusy(
                self._topic.name,
                partition=self._lane.partition,
                lane=self._lane.lane,
                why=f"ends in ledger {row.ledger_id}, which was deleted by itself: let a producer "
                "write the lane first",
            )
        await rows.close(row, end)

    async def truncate(self, rows: LaneRows, cut: Cut) -> None:
        """Delete all from the first part of *cut* on; the lane is held, and closed."""
        following = rows.record.current + 1, rows.record.next_version

        async def ops() -> Sequence[Op]:
            return await cut_ops(self._client.catalogue, self._lane, cut, *following)

        state = cut.state or LaneState()
        rows.beside = Beside(ops, state.last_event_time)
        async with Background() as nursery:
            last = LaneEnd(state, rows.record.next_version, None, None)
            writer = LaneWriter(self._client, rows, last, nursery)
            limit_s = self._client.options.append_timeout_s
            with trio.move_on_after(limit_s) as scope:
                await writer.open()
            if scope.cancelled_caught:
                raise MetadataUnavailable(f"the lane was not cut within {limit_s:g} s")
            nursery.start_soon(writer.run)
            await writer.close()

    async def _end_lease(self) -> None:
        name = writer_lease(self._topic.uid, self._lane.partition, self._lane.lane)
        with translated(self._limit_s):
            for lease in await self._client.store.leases(name):
                await self._client.store.release(lease)

    def told(self, cut: Cut, found: LaneHoldings) -> LaneTruncated:
        """Return *cut* for who asked for it."""
        first = cut.parts[0]
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
            ledgers=len(cut.whole),
            messages=cut.messages,
            last_kept=last and last._replace(partition=self._lane.partition),
            owner=found.owner,
        )


def limited(cut: Cut, start: Place, stop: Place | None) -> tuple[Place, Place | None]:
    """Return the places nearer to each other if more goes than one transaction takes."""
    if len(cut.whole) <= WHOLE_MAX:
        return start, stop
    held = cut.whole[-WHOLE_MAX]
    if stop is None:
        return place_of(Row(held.number, held.row), 0), None
    held = cut.whole[WHOLE_MAX]
    return start, place_of(Row(held.number, held.row), 0)


def _last_time(before: Sequence[Held], cut: Cut) -> int | None:
    """Return the greatest event time of what stays: of ledgers *before*, and in the first part."""
    first = cut.parts[0].held.number
    rows = [held.row for held in [*before, *cut.changed] if held.number <= first]
    last: int | None = None
    for row in rows:
        last = greater(last, row.last_event_time)
    return last


async def _keep(lease: LaneLease, rows: LaneRows) -> None:
    """Keep the lease; who cuts the lane learns by itself that it cannot."""
    with suppress(LedgerError):
        await lease.keep(rows)

"""The rows of one lane, as its writer of one epoch changes them.

Every change is one transaction that replaces the version of the LaneRecord which this writer put
last. So a writer whose lane was taken over can change nothing any more.

If a change's outcome is unknown, the record shows it: this epoch has one writer, so if the version
moved and the epoch did not, the change was made. Until that is known the same change is tried
again, and no other one is made.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import trio

from ledger_client.errors import (
    LedgerError,
    MetadataBroken,
    MetadataUnavailable,
    NoSuchTopic,
    ProducerBusy,
    ProducerFenced,
    TopicError,
    lane_text,
)
from ledger_client.ledgers.catalogue import CHANGE_S, RETRY_S, Catalogue
from ledger_client.topics.lanes.lane_state import End, Figures, greater
from metadata.errors import BadRecord
from metadata.pointers import read_lane, read_lane_row, resolve_lane
from metadata.records import LedgerRecord, encode_record, ledger_key
from metadata.store import ABSENT, Check, Delete, Op, Put
from metadata.time.tick_rows import lanes_changed
from metadata.topics import (
    LaneLedger,
    LaneName,
    LaneRecord,
    TopicRecord,
    decode_lane,
    decode_lane_name,
    decode_topic,
    encode_row,
    lane_key,
    lane_ledger_key,
    lane_name_key,
    topic_key,
)

T = TypeVar("T")
Found = tuple[LedgerRecord, int]
"""A ledger's record and its version."""
Others = Callable[[], Awaitable[Sequence[Op]]]
NewLedger = Callable[[TopicRecord], Awaitable[LedgerRecord]]
"""Makes the record of a ledger for a topic, and stores nothing."""
FRESH_S = 5.0
"""How long the settings that claim() read serve for the first ledger."""


class Beside(NamedTuple):
    """Further changes that `turn` makes in the same transaction as the lane's own rows."""

    ops: Others
    last_event_time: int | None
    """last event time of the lane afterwards"""


class Claim(NamedTuple):
    """What claim() was asked for."""

    producer: str
    writer: str
    lane_name: str
    is_back: bool
    first: NewLedger | None


class LaneRows:
    """LaneRecord and LaneLedgers of a lane.

    Any call may raise MetadataUnavailable and MetadataBroken, ProducerFenced when another client
    took the lane over, and NoSuchTopic. Changes go on trying while the store is away: the caller
    sets the deadline, and must change nothing after it.
    """

    def __init__(self, catalogue: Catalogue, topic: TopicRecord, partition: int, lane: int) -> None:
        self.topic = topic
        self.partition = partition
        self.lane = lane
        self.record = LaneRecord(epoch=0)
        self.is_changing = False
        """A change is under way, or was cut short: its outcome is unknown, make no other."""
        self.beside: Beside | None = None
        """further changes of the next turn()"""
        self._version = ABSENT
        self._topic_read_at = -math.inf
        """when claim() checked the topic, for the first ledger; afterwards, never"""
        self._claimed_with: LedgerRecord | None = None
        """the ledger that claim() prepared; afterwards, none"""
        self._catalogue = catalogue
        self._key = lane_key(topic.uid, partition, lane)

    @property
    def version(self) -> int:
        """Version of the LaneRecord that this writer put last; changes of the lane check it."""
        return self._version

    async def refresh_clock(self) -> None:
        """Ask the store for its time, unless the last answer is recent."""
        await self._catalogue.refresh_clock()

    @property
    def key(self) -> str:
        """Key of the lane's record."""
        return self._key

    @property
    def _now_ms(self) -> int:
        return self._catalogue.clock.now_ms()

    # --- looking -----------------------------------------------------------------------

    async def row(self, number: int) -> LaneLedger | None:
        """Return the row of the ledger with this number in the lane."""
        if number < 0:
            return None
        key = self._ledger_key(number)
        found = await self._catalogue.ask(lambda store: read_lane_row(store, key))
        return None if found is None else found.ledger

    async def open_row(self) -> LaneLedger | None:
        """Read the lane without claiming it; return the row of its open ledger, if any."""
        found = await self._catalogue.ask(lambda store: read_lane(store, self._key))
        if found is not None:
            self.record, self._version = found.record, found.version
        row = await self.row(self.record.current)
        return row if row is not None and row.state == "open" else None

    async def verify(self, *, limit_s: float = float("inf")) -> None:
        """Raise ProducerFenced or NoSuchTopic unless the lane is still this writer's."""
        await self._found(limit_s)

    async def look(self, ledger_id: int) -> Found:
        """Return the record of a ledger. Raises MetadataUnavailable after CHANGE_S."""
        with trio.move_on_after(CHANGE_S):
            return await self._catalogue.get(ledger_id)
        raise MetadataUnavailable(f"metadata: no answer in {CHANGE_S:g} s")

    async def refresh_topic(self) -> int:
        """Read the topic's settings again; return the version of its record."""
        key = topic_key(self.topic.name)
        found = await self._catalogue.read(key)
        topic = None if found is None else _sound(decode_topic, key, found.value)
        if found is None or topic is None or topic.uid != self.topic.uid:
            raise NoSuchTopic(self.topic.name)
        if topic.state != "active":
            raise NoSuchTopic(self.topic.name)
        self.topic = topic
        return found.version

    async def renew_topic(self) -> None:
        """Read the topic's settings again, unless claim() did a moment ago. Raises NoSuchTopic."""
        read_at, self._topic_read_at = self._topic_read_at, -math.inf
        if trio.current_time() >= read_at + FRESH_S:
            await self.refresh_topic()

    async def _found(self, limit_s: float = float("inf")) -> tuple[LaneRecord, int]:
        """Return the lane's record, which is of this epoch, and its version."""
        found = await self._catalogue.read(self._key, limit_s=limit_s)
        if found is None:
            raise NoSuchTopic(self.topic.name)
        record = _sound(decode_lane, self._key, found.value)
        if record.epoch != self.record.epoch:
            raise self._fenced(record)
        return record, found.version

    def _fenced(self, record: LaneRecord) -> TopicError:
        if record.writer != self.record.writer:
            return ProducerFenced(self.topic.name, partition=self.partition, lane=self.lane)
        where = lane_text(self.partition, self.lane)
        return TopicError(f"{where} was closed in its writer's absence", topic=self.topic.name)

    def _ledger_key(self, number: int) -> str:
        return lane_ledger_key(self.topic.uid, self.partition, self.lane, number)

    # --- changing ----------------------------------------------------------------------

    async def claim(
        self,
        producer: str | None,
        *,
        writer: str = "",
        is_back: bool = False,
        lane_name: str = "",
        topic_version: int | None = None,
        first: NewLedger | None = None,
    ) -> None:
        """Become the lane's writer: raise its epoch, and remove a ledger that was prepared.

        A rival may claim the lane next.

        Args:
            producer: the lane's owner if it is new, "" or `None` for none.
            writer: identifies the claimer; "" to claim the lane only to close it.
            is_back: fail with ProducerFenced unless *writer* was the last to claim it.
            lane_name: given to a new lane.
            topic_version: of the topic's record, if it was read lately; saves a read of it.
            first: makes the ledger that a new lane prepares with its claim; see take_claimed().

        Raises:
            MetadataUnavailable: at once, without another attempt; the epoch may be raised.
            ProducerBusy: another lane has the name by now.
            LedgerError: as *first* does; nothing was changed.
        """
        claim = Claim(producer or "", writer, lane_name, is_back, first)
        if topic_version is not None:
            try:
                if await self._claim(claim, topic_version):
                    return
            except MetadataUnavailable:
                raise
            except LedgerError:
                pass  # only if it holds for the topic as it is now
        while not await self._claim(claim, await self.refresh_topic()):
            pass

    async def _claim(self, claim: Claim, topic_version: int) -> bool:
        """Try it once; False if a row has another version than was read."""
        found = await self._catalogue.read(self._key)
        if found is None:
            record, version = LaneRecord(epoch=0, producer=claim.producer), ABSENT
        else:
            record, version = _sound(decode_lane, self._key, found.value), found.version
        if record.pending is not None:
            await self._resolve()
            return False
        is_new = version == ABSENT or record.deleted
        naming = await self._naming(claim.lane_name) if is_new else []
        if record.deleted:
            record = msgspec.structs.replace(record, producer=claim.producer, deleted=False)
        if claim.is_back and record.writer != claim.writer:
            raise self._fenced(record)
        after = msgspec.structs.replace(
            record,
            epoch=record.epoch + 1,
            writer=claim.writer or record.writer,
            holds_ticks=False,  # what its last writer wanted to show, it cannot show any more
        )
        ops: list[Op] = [Put(self._key, encode_row(after), version)]
        ops += lanes_changed(self.topic) if record.holds_ticks else []
        ops.append(Check(topic_key(self.topic.name), topic_version))
        ops += naming
        ledger = None
        if found is not None:
            ops += await self._removal(record.current + 1)
        elif claim.first is not None:
            ledger = await claim.first(self.topic)
            ops += self._preparation(ledger, after)
        versions = await self._catalogue.transact(ops)
        if versions is None:
            return False
        self.record, self._version = after, versions[0]
        self._claimed_with = ledger
        self._topic_read_at = trio.current_time() if ledger is None else -math.inf
        return True

    def take_claimed(self) -> LedgerRecord | None:
        """Return, once, the ledger that claim() prepared, if it did."""
        ledger, self._claimed_with = self._claimed_with, None
        return ledger

    async def hold_ticks(self, *, hold: bool = True) -> bool:
        """Hold the topic's ticks back until the lane's record changes next, or hold them no more.

        Returns False if another client changed the record meanwhile.

        Raises:
            MetadataUnavailable: at once, without another attempt; ticks may be held.
        """
        after = msgspec.structs.replace(self.record, holds_ticks=hold)
        put = Put(self._key, encode_row(after), self._version)
        versions = await self._catalogue.transact([put, *lanes_changed(self.topic)])
        if versions is None:
            return False
        self.record, self._version = after, versions[0]
        return True

    async def _resolve(self) -> None:
        """Decide whether rows that a job put behind the lane belong to it."""
        uid, partition, lane = self.topic.uid, self.partition, self.lane
        await self._catalogue.ask(lambda store: resolve_lane(store, uid, partition, lane))

    async def _naming(self, name: str) -> list[Op]:
        """Return the operations that name a new lane, none for "". Raises ProducerBusy."""
        if not name:
            return []
        key = lane_name_key(self.topic.uid, self.partition, name)
        found = await self._catalogue.read(key)
        if found is None:
            return [Put(key, encode_row(LaneName(self.lane)), ABSENT)]
        lane = _sound(decode_lane_name, key, found.value).lane
        if lane == self.lane:
            return []
        raise ProducerBusy(
            self.topic.name,
            partition=self.partition,
            lane=lane,
            owner="another producer",
            owner_shares=True,
            shares=True,
        )

    async def delete(self, ops: Sequence[Op]) -> None:
        """Mark the lane, which is empty, as deleted; with *ops* in the same transaction."""
        after = msgspec.structs.replace(self.record, producer="", deleted=True)
        await self._change(after, ops)

    async def prepare(self, ledger: LedgerRecord, *, instead_of: int | None = None) -> None:
        """Create the next ledger, record and row, in the place of one made before."""
        ops: list[Op] = [] if instead_of is None else [Delete(ledger_key(instead_of))]
        await self._change(self.record, ops + self._preparation(ledger, self.record))

    def _preparation(self, ledger: LedgerRecord, record: LaneRecord) -> list[Op]:
        """Return the operations that create the ledger after the current one of *record*."""
        row = LaneLedger(
            ledger_id=ledger.ledger_id,
            state="prepared",
            epoch=record.epoch,
            created_ms=ledger.created_ms,
        )
        return [
            Put(ledger_key(ledger.ledger_id), encode_record(ledger), ABSENT),
            Put(self._ledger_key(record.current + 1), encode_row(row)),
        ]

    async def turn(
        self,
        current: LaneLedger | None,
        end: End | None,
        following: LaneLedger,
        *,
        found: Found | None = None,
    ) -> None:
        """Close the *current* ledger at *end* and open the prepared one, in one transaction.

        Without *current* nothing is closed. *found* is the current ledger's record as read a
        moment ago; it saves the first attempt a read.

        Raises:
            LedgerFenced: another client recovers the current ledger.
            LedgerClosed: another client closed it at another entry.
        """
        closed = None if current is None or end is None else end.close(current, self._now_ms)
        beside, sealing = self.beside, self._sealing(closed, end, found)
        last_event_time = beside.last_event_time if beside else self._last_event_time(end)
        after = msgspec.structs.replace(
            self.record,
            current=self.record.current + 1,
            next_version=following.base_version,
            last_event_time=last_event_time,
        )

        async def others() -> Sequence[Op]:
            return [*await sealing(), *(await beside.ops() if beside else ())]

        own: list[Op] = [Put(self._ledger_key(after.current), encode_row(following))]
        if current is None or current.epoch != following.epoch:
            own += lanes_changed(self.topic)
        if closed is not None:
            own.append(Put(self._ledger_key(self.record.current), encode_row(closed)))
        await self._change(after, own, others)
        self.beside = None

    async def close(self, current: LaneLedger, end: End) -> None:
        """Close the *current* ledger without opening another. Raises as turn()."""
        closed = end.close(current, self._now_ms)
        after = msgspec.structs.replace(
            self.record,
            next_version=closed.base_version + closed.entries,
            last_event_time=self._last_event_time(end),
        )
        own: list[Op] = [Put(self._ledger_key(self.record.current), encode_row(closed))]
        own += [*await self._removal(self.record.current + 1), *lanes_changed(self.topic)]
        await self._change(after, own, self._sealing(closed, end, None))

    async def share_first(self, current: LaneLedger) -> LaneLedger:
        """Record that the *current* ledger starts with the event time the last one ended with."""
        shared = msgspec.structs.replace(current, shares_first=True)
        await self._change(
            self.record, [Put(self._ledger_key(self.record.current), encode_row(shared))]
        )
        return shared

    async def note_start(self, current: LaneLedger, figures: Figures) -> LaneLedger:
        """Record the first times of the *current* ledger, which stays open."""
        begun = msgspec.structs.replace(
            current,
            first_timestamp=figures.first_timestamp,
            first_event_time=figures.first_event_time,
        )
        await self._change(
            self.record, [Put(self._ledger_key(self.record.current), encode_row(begun))]
        )
        return begun

    def _last_event_time(self, end: End | None) -> int | None:
        ended = None if end is None else end.figures.last_event_time
        return greater(self.record.last_event_time, ended)

    async def _removal(self, number: int) -> list[Op]:
        """Return the operations that remove this ledger if it is only prepared."""
        row = await self.row(number)
        if row is None or row.state != "prepared":
            return []
        return [Delete(self._ledger_key(number)), Delete(ledger_key(row.ledger_id))]

    def _sealing(self, closed: LaneLedger | None, end: End | None, found: Found | None) -> Others:
        """Return a function that makes the operations to seal the ledger's record.

        Its first call uses *found*, later ones read the record again.
        """
        lately = [found]

        async def ops() -> Sequence[Op]:
            if closed is None or end is None or end.is_sealed:
                return ()
            _, ops = await self._catalogue.sealing(
                closed.ledger_id,
                end.last_entry,
                end.length,
                reason=end.reason,
                found=lately.pop() if lately else None,
            )
            return ops

        return ops

    async def _change(
        self,
        after: LaneRecord,
        own: Sequence[Op],
        others: Others | None = None,
    ) -> None:
        """Put *after*, *own* rows and the operations of *others*, until they are known to be done.

        The rows of *others* have other writers too, so they are read again for each attempt.
        """
        assert not self.is_changing
        self.is_changing = True
        try:
            await self._change_until_made(after, own, others)
        except LedgerError:
            # The lane has another writer, or the ledger's record another version than an attempt
            # that is still under way names: the change cannot be made any more.
            self.is_changing = False
            raise
        self.is_changing = False

    async def _change_until_made(
        self,
        after: LaneRecord,
        own: Sequence[Op],
        others: Others | None,
    ) -> None:
        doubtful = False
        while True:
            try:
                if doubtful and await self._was_made(after):
                    return
                ops: list[Op] = [Put(self._key, encode_row(after), self._version), *own]
                ops += [] if others is None else await others()
                doubtful = True
                versions = await self._catalogue.transact(ops, limit_s=CHANGE_S)
            except MetadataUnavailable:
                await trio.sleep(RETRY_S)
                continue
            if versions is not None:
                self.record, self._version = after, versions[0]
                return

    async def _was_made(self, after: LaneRecord) -> bool:
        _, version = await self._found()
        if version == self._version:
            return False
        self.record, self._version = after, version
        return True


def _sound(decode: Callable[[str, bytes], T], key: str, value: bytes) -> T:
    try:
        return decode(key, value)
    except BadRecord as wrong:
        raise MetadataBroken(f"metadata: {wrong}") from wrong

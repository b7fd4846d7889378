"""Follows the id of a message through rows, ledger record and bookies to where the message is.

    lanes of the partition ──► row of the ledger ──► its record ──► LAC ──► copies ──► conclusion
                          └──► none: deleted ranges, first ledgers of lanes, other topics

Only reads: it fences no ledger, takes no lease and changes no row. It costs the rows of one
partition, and one read of the entry at each of its bookies.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ledger_client.errors import (
    BadTopic,
    MessagesLost,
    MetadataUnavailable,
    NoSuchLedger,
    NoSuchTopic,
    ReplicasUnavailable,
    lane_text,
)
from ledger_client.ledgers.catalogue import LedgerInfo, translated
from ledger_client.ledgers.copies import Copies, ask_copies
from ledger_client.ledgers.replica_reads import LedgerSource, ask_confirmed
from ledger_client.ledgers.settling import SETTLE_S
from ledger_client.message_id import NOT_BATCHED, MessageId
from ledger_client.topics.context import TopicContext
from ledger_client.topics.lanes.ledger_rows import LedgerRows, Row, kept_messages
from ledger_client.topics.messages import Message, MessageBatch, open_batch
from ledger_client.topics.positions import LaneRef, Place
from ledger_client.topics.retention.holdings import HeldLedger, LaneHoldings, read_holdings
from ledger_client.topics.retention.job_rows import read_holds
from ledger_client.topics.retention.retention import plan_retention, spell
from ledger_client.topics.tracing.compacted_view import compacted_view
from ledger_client.topics.tracing.deleted_topic import last_deletion
from ledger_client.topics.tracing.key_search import search_key
from ledger_client.topics.tracing.whereabouts import (
    Conclusion,
    Keeping,
    KeySearch,
    LedgerCondition,
    Repair,
    TickStanding,
    Traced,
    TracedLedger,
    TracedMessage,
    TracedWriter,
    Verdict,
    Whereabouts,
    conclude,
    stand_to_ticks,
)
from metadata.records import (
    LedgerRecord,
    LedgerState,
    decode_underreplicated,
    underreplicated_key,
)
from metadata.time.calls import NewestTick, TickNow
from metadata.topics import RemovedLedgers, TopicRecord, decode_owner, writer_lease

TICK_TIMEOUT_S = 3.0
ATTEMPTS = 3
LATER_MAX = 1_000_000
"""Messages that are read to find the later message of a key."""
"""Looks at the rows, while the ledger is removed under them."""
ID_MAX = (1 << 63) - 1
INDEX_MAX = 1 << 32
"""More messages than an entry can have."""
_THERE: frozenset[Verdict] = frozenset({"readable", "unconfirmed", "unreadable", "unknown"})
"""The verdicts about messages that are there, or may be."""
_COMPACTED: frozenset[Verdict] = frozenset({*_THERE, "removed", "ledger deleted"})
"""The verdicts about messages that compaction may have kept."""
_CONDITIONS: dict[LedgerState, LedgerCondition] = {
    LedgerState.OPEN: "open",
    LedgerState.IN_RECOVERY: "in recovery",
    LedgerState.CLOSED: "closed",
}


async def trace(context: TopicContext, name: str, message_id: MessageId) -> Traced:
    """Return where a message of a topic is, which may have been deleted.

    Raises:
        NoSuchTopic: there is none, and the events of its namespace know of no deletion.
        BadTopic, MetadataUnavailable, MetadataBroken: as Trace.run().
    """
    found = await context.catalogue.find(name)
    if found is not None and found[0].state == "active":
        return await Trace(context, found[0], message_id).run()
    deleted_ms = await last_deletion(context, name)
    if found is None and deleted_ms is None:
        raise NoSuchTopic(name)
    report = Whereabouts(
        topic=name,
        message_id=message_id,
        at_ms=await context.catalogue.now_ms(),
        verdict="topic deleted",
        why="the topic was deleted with all its messages",
        deleted_ms=deleted_ms,
    )
    return Traced(report, -1, None, None)


class Trace:
    """The trace of one message of a topic.

    Args:
        context: the client's.
        topic: the topic's record, read just now.
        message_id: the message.
    """

    def __init__(self, context: TopicContext, topic: TopicRecord, message_id: MessageId) -> None:
        self._context = context
        self._topic = topic
        self._id = message_id
        self._message: Message | None = None
        self._place: Place | None = None
        self._report = self._unknown(0)

    async def run(self) -> Traced:
        """Return where the message is.

        Raises:
            BadTopic: the id is none, or that of a duplicate whose original is in an unknown place.
            MetadataUnavailable, MetadataBroken: the store did not answer, or a row is damaged.
        """
        self._check()
        now_ms = await self._context.catalogue.now_ms()
        self._report = self._unknown(now_ms)
        if self._id.partition not in self._topic.partition_indexes:
            self._conclude(Conclusion("no such message", self._no_partition()))
            return self._traced()
        for _ in range(ATTEMPTS):
            if await self._look():
                break
            self._report = self._unknown(now_ms)
        if self._report.lane is not None and self._report.verdict in _COMPACTED:
            lane = self._lane_ref(self._report.lane)
            self._report.compacted = await compacted_view(
                self._context, self._topic, lane, self._id, self._message, self._find_latest
            )
        self._report.ticks = await self._ticks()
        return self._traced()

    async def _ticks(self) -> TickStanding | None:
        """Return how an acknowledged message stands to ticks, `None` if it has no timestamp."""
        message, leader = self._message, self._context.leader
        if message is None or not message.timestamp or self._report.verdict != "readable":
            return None
        try:
            tick = await leader.ask(NewestTick(self._topic.uid), TickNow, timeout_s=TICK_TIMEOUT_S)
        except MetadataUnavailable as failure:
            why = f"no leader says which tick is the newest: {failure}"
            return TickStanding(timestamp=None, is_reached=False, why=why)
        writer = None if tick.lane is None else await self._writer_of(*tick.lane)
        return stand_to_ticks(message.timestamp, tick, writer)

    async def _find_latest(self, key: bytes) -> KeySearch:
        """Return the newest message of *key* that compacted readers get."""
        return await search_key(
            self._context,
            self._topic,
            key,
            partitions=[self._id.partition],
            messages_max=LATER_MAX,
            compacted=True,
        )

    def _check(self) -> None:
        """Raise BadTopic unless the id may be that of a message."""
        if not isinstance(self._id, MessageId) or max(self._id) > ID_MAX:
            raise BadTopic(f"{self._id!r} is not the id of a message", topic=self._topic.name)
        if self._id.ledger_id < 0:
            reason = f"{self._id} is a duplicate, and nothing says where the original is"
            raise BadTopic(f"{reason}: search its key with --key", topic=self._topic.name)
        if self._id.entry_id < 0 or self._id.batch_index < NOT_BATCHED:
            raise BadTopic(f"{self._id!r} is not the id of a message", topic=self._topic.name)

    def _unknown(self, at_ms: int) -> Whereabouts:
        """Return what is known of the message before anything is looked up."""
        return Whereabouts(
            topic=self._topic.name,
            message_id=self._id,
            at_ms=at_ms,
            verdict="unknown",
            why="the rows of its ledger kept changing",
            waits_for="another look",
        )

    def _traced(self) -> Traced:
        is_there = self._report.verdict in _THERE
        place = self._place if is_there else None
        return Traced(self._report, self._topic.uid, place, self._message)

    def _no_partition(self) -> str:
        indexes, wanted = self._topic.partition_indexes, self._id.partition
        if not self._topic.partitions:
            return f"the topic has no partitions: its ids end with :-1, not :{wanted}"
        return f"there is no partition {wanted}: the topic has {indexes[0]} to {indexes[-1]}"

    def _conclude(self, conclusion: Conclusion) -> None:
        self._report.verdict, self._report.why, self._report.waits_for = conclusion

    async def _look(self) -> bool:
        """Look once; False if the ledger was removed meanwhile."""
        with translated(self._context.catalogue.timeout_s):
            lanes = await read_holdings(self._context.store, self._topic, self._id.partition)
        for lane in lanes:
            for held in lane.ledgers:
                if held.row.ledger_id == self._id.ledger_id:
                    return await self._in_ledger(lanes, lane, held)
        await self._without_row(lanes)
        return True

    # --- a ledger of a lane ----------------------------------------------------------------

    async def _in_ledger(
        self, lanes: Sequence[LaneHoldings], lane: LaneHoldings, held: HeldLedger
    ) -> bool:
        row = Row(held.number, held.row)
        skip = max(self._id.batch_index, 0)
        self._place = row.place(self._id.entry_id)._replace(skip=skip)
        self._report.lane, self._report.version = lane.lane, self._place.version
        self._report.writer = await self._writer(lane)
        self._report.keeping = await self._keeping(lanes, lane, held)
        self._report.repair = await self._repair()
        try:
            record, _ = await self._context.ledgers.catalogue.get(row.ledger.ledger_id)
            await self._in_record(lane, row, record)
        except NoSuchLedger:
            if await self._rows(lane.lane).at(held.number) is None:
                return False
            self._ledger_deleted(row)
        return True

    def _ledger_deleted(self, row: Row) -> None:
        name = f"ledger {row.ledger.ledger_id}"
        self._report.ledger = TracedLedger(
            ledger_id=row.ledger.ledger_id, number=row.number, state="deleted", confirmed=None
        )
        why = f"{name} is gone while its row is there: somebody deleted it (`quire ledger delete`)"
        self._conclude(Conclusion("ledger deleted", why))

    async def _in_record(self, lane: LaneHoldings, row: Row, record: LedgerRecord) -> None:
        """Look at a ledger. Raises NoSuchLedger if it is deleted meanwhile."""
        if row.ledger.state == "prepared":
            self._report.ledger = _traced_ledger(row, record, None)
            name = f"ledger {row.ledger.ledger_id}"
            why = f"{name} is prepared as the next of its lane, and nothing is written to it yet"
            self._conclude(Conclusion("not begun", why, "its writer"))
            return
        source = self._source(record)
        confirmed = await self._confirmed(source)
        self._report.ledger = _traced_ledger(row, source.record, confirmed)
        if self._is_deleted(row, INDEX_MAX):
            self._conclude(self._deleted(row))
            return
        bookies = await self._context.ledgers.list_bookies()
        limbo = {each.bookie_id for each in bookies if each.limbo}
        copies = await ask_copies(source, self._id.entry_id, limbo)
        self._report.copies = copies.of_bookies
        self._conclude(
            conclude(self._report.ledger, self._report.writer, self._id.entry_id, copies)
        )
        if copies.payload is not None:
            self._open(lane, row, copies)

    async def _confirmed(self, source: LedgerSource) -> int | None:
        """Return the last entry that readers get, `None` if no bookie answers.

        The last confirmed entry of an open ledger lags acknowledgements, so it is asked for twice.
        """
        confirmed: int | None = None
        for is_last in (False, True):
            if source.record.state is LedgerState.CLOSED:
                return source.record.last_entry
            try:
                confirmed = await ask_confirmed(source)
            except ReplicasUnavailable:
                return confirmed
            if confirmed >= self._id.entry_id or is_last:
                break
            await trio.sleep(SETTLE_S)
            source.record, _ = await self._context.ledgers.catalogue.get(*source.name)
        return confirmed

    def _source(self, record: LedgerRecord) -> LedgerSource:
        ledgers = self._context.ledgers
        return LedgerSource(record, bookies=ledgers.bookies, options=ledgers.options)

    def _is_deleted(self, row: Row, count: int) -> bool:
        """True if the message was deleted, or all *count* messages of the entry that is named."""
        entry, index = self._id.entry_id, self._id.batch_index
        start, stop = (0, count) if index == NOT_BATCHED else (index, index + 1)
        return not kept_messages(row.ledger.removed, entry, start, stop)

    def _deleted(self, row: Row) -> Conclusion:
        ledger_id = row.ledger.ledger_id
        why = f"it was deleted out of ledger {ledger_id} on purpose (`quire topic truncate`)"
        return Conclusion("deleted", f"{why}; readers go on behind it without a gap")

    def _open(self, lane: LaneHoldings, row: Row, copies: Copies) -> None:
        """Take the entry apart, and find the message in it."""
        assert copies.payload is not None
        place = row.place(self._id.entry_id)
        try:
            payload, stamp = memoryview(copies.payload), row.ledger.stamp
            batch = open_batch(self._lane_ref(lane.lane), place, payload, stamp)
        except MessagesLost as lost:
            self._conclude(Conclusion("unreadable", f"its bookies have it, but {lost}"))
            return
        index = max(self._id.batch_index, 0)
        if batch is None:
            why = f"entry {place.entry} holds no messages: it is a note of the lane's writer"
            self._conclude(Conclusion("no such message", why))
        elif index >= batch.count:
            has = "1 message" if batch.count == 1 else f"{batch.count} messages"
            self._conclude(
                Conclusion("no such message", f"entry {place.entry} has {has}, from index 0 on")
            )
        elif self._is_deleted(row, batch.count):
            self._conclude(self._deleted(row))
        else:
            self._found(batch, index)

    def _found(self, batch: MessageBatch, index: int) -> None:
        self._message = batch.messages[index]
        self._report.message = TracedMessage(
            key=self._message.key,
            size=None if self._message.value is None else len(self._message.value),
            publish_time=self._message.publish_time,
            event_time=self._message.event_time,
            timestamp=self._message.timestamp,
            producer=self._message.producer,
            sequence=self._message.sequence,
        )

    # --- beside the ledger -----------------------------------------------------------------

    def _lane_ref(self, lane: int) -> LaneRef:
        topic = self._topic
        is_ordered = topic.order == "event-time"
        return LaneRef(0, self._id.partition, lane, topic.name, topic.uid, is_ordered)

    def _rows(self, lane: int) -> LedgerRows:
        timeout_s = self._context.catalogue.timeout_s
        return LedgerRows(self._context.store, self._lane_ref(lane), timeout_s=timeout_s)

    async def _writer(self, lane: LaneHoldings) -> TracedWriter | None:
        """Return the lane's writer, `None` if nobody holds the lane."""
        if lane.owner is None or lane.owner.closing:
            return None
        return await self._writer_of(lane.partition, lane.lane)

    async def _writer_of(self, partition: int, lane: int) -> TracedWriter | None:
        """Return who holds the lease of a lane now, `None` for nobody."""
        name = writer_lease(self._topic.uid, partition, lane)
        with translated(self._context.catalogue.timeout_s):
            leases = [each for each in await self._context.store.leases(name) if each.name == name]
            if not leases:
                return None
            owner = decode_owner(name, leases[0].value)
        if owner.closing:
            return None
        return TracedWriter(
            producer=owner.producer,
            host=owner.host,
            process_id=owner.process_id,
            since_ms=owner.since_ms,
            lease_s=leases[0].expires_in_s,
        )

    async def _keeping(
        self, lanes: Sequence[LaneHoldings], lane: LaneHoldings, held: HeldLedger
    ) -> Keeping | None:
        """Return why retention keeps the ledger, and until when."""
        places = [(each.partition, each.lane) for each in lanes]
        with translated(self._context.catalogue.timeout_s):
            holds = await read_holds(self._context.store, self._topic, places)
        now_ms = self._report.at_ms
        for fate in plan_retention(lanes, self._topic.retention, now_ms=now_ms, pins=holds.pins):
            if (fate.lane, fate.number) == (lane.lane, held.number):
                return Keeping(why=fate.why, due_ms=fate.due_ms)
        return None

    async def _repair(self) -> Repair | None:
        key = underreplicated_key(self._id.ledger_id)
        with translated(self._context.catalogue.timeout_s):
            found = await self._context.store.get(key)
            mark = None if found is None else decode_underreplicated(key, found.value)
        if mark is None:
            return None
        return Repair(
            reason=mark.reason,
            since_ms=mark.since_ms,
            attempts=mark.attempts,
            last_failure=mark.last_failure,
        )

    # --- a ledger of no lane ---------------------------------------------------------------

    async def _without_row(self, lanes: Sequence[LaneHoldings]) -> None:
        ledger_id = self._id.ledger_id
        try:
            info = await self._context.ledgers.info(ledger_id)
        except NoSuchLedger:
            pass
        else:
            self._conclude(Conclusion("no such message", self._elsewhere(info)))
            return
        for lane in lanes:
            for gone in await self._rows(lane.lane).removals():
                if gone.ledger_id <= ledger_id <= gone.last_ledger_id:
                    self._report.lane = lane.lane
                    self._conclude(self._deleted_with(lane.lane, gone))
                    return
        shortened = [lane for lane in lanes if _begins_after(lane, ledger_id)]
        if shortened:
            self._removed(shortened)
            return
        where = f"partition {self._id.partition}" if self._topic.partitions else "the topic"
        why = f"{where} has no ledger {ledger_id}, and none of its lanes lost one of that id"
        self._report.deleted_ms = await last_deletion(self._context, self._topic.name)
        if self._report.deleted_ms is not None:
            why = f"{why}; a former topic of this name may have had it"
        self._conclude(Conclusion("no such message", why))

    def _elsewhere(self, info: LedgerInfo) -> str:
        """Return why a ledger that exists is in no lane of the partition."""
        name, custom = f"ledger {info.ledger_id}", info.custom
        if not custom.get("topic"):
            return f"{name} belongs to no topic"
        partition = custom.get("partition", "")
        if custom["topic"] != self._topic.name:
            return f"{name} is of topic {custom['topic']}"
        if partition == str(self._id.partition):
            return f"{name} is in no lane: a job has not shown it, or compaction made it"
        return f"{name} is of partition {partition}"

    def _deleted_with(self, lane: int, gone: RemovedLedgers) -> Conclusion:
        where = lane_text(self._id.partition, lane)
        ledgers = f"ledger {gone.ledger_id} of {where} was"
        if gone.ledger_id != gone.last_ledger_id:
            ledgers = f"ledgers {gone.ledger_id} to {gone.last_ledger_id} of {where} were"
        why = f"{ledgers} deleted on purpose (`quire topic truncate`)"
        return Conclusion("deleted", f"{why}; readers go on behind it without a gap")

    def _removed(self, lanes: Sequence[LaneHoldings]) -> None:
        """Conclude that the ledger was removed at the beginning of one of *lanes*."""
        where = " or ".join(lane_text(each.partition, each.lane) for each in lanes)
        begins = "of which nothing is left"
        if len(lanes) == 1:
            self._report.lane = lanes[0].lane
        firsts = [lane.ledgers[0] for lane in lanes if lane.ledgers]
        if firsts:
            begins = f"where ledger {min(each.row.ledger_id for each in firsts)} is the first left"
        if len(lanes) == 1 and firsts and firsts[0].row.state != "prepared":
            first = MessageId(firsts[0].row.ledger_id, 0, self._id.partition)
            self._report.first_left = first
        why = f"ledger {self._id.ledger_id} is gone, as are the oldest of {where}, {begins}"
        self._conclude(Conclusion("removed", f"{why}; they are removed {self._rules()}"))

    def _rules(self) -> str:
        """Return by which rules the topic's ledgers are removed, without those too young for it."""
        kept, age_ms = self._topic.retention, self._report.at_ms - self._topic.created_ms
        rules: list[str] = []
        if 0 <= kept.age_s * 1000 <= age_ms:
            rules.append(f"{spell(kept.age_s)} after their close")
        if kept.size >= 0:
            rules.append(f"while the partition has more than {kept.size:,} bytes")
        return " or ".join([*rules, "by `quire topic purge`"])


def _begins_after(lane: LaneHoldings, ledger_id: int) -> bool:
    """True if ledgers were removed at a lane's beginning, and this one may be among them."""
    if lane.record is None or lane.record.deleted:
        return False
    if not lane.ledgers:
        return lane.record.current >= 0
    first = lane.ledgers[0]
    return first.number > 0 and ledger_id < first.row.ledger_id


def _traced_ledger(row: Row, record: LedgerRecord, confirmed: int | None) -> TracedLedger:
    is_prepared = row.ledger.state == "prepared"
    return TracedLedger(
        ledger_id=record.ledger_id,
        number=row.number,
        state="prepared" if is_prepared else _CONDITIONS[record.state],
        confirmed=confirmed,
        write_quorum=record.write_quorum,
        ack_quorum=record.ack_quorum,
        created_ms=row.ledger.created_ms or record.created_ms,
        closed_ms=row.ledger.closed_ms,
    )

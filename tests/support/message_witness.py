"""Producers and readers of topics that tell a history everything they are asked and answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from event import mark_of
from history import Recorder
from message_events import (
    GapTold,
    LaneTaken,
    LossTold,
    Message,
    MessagesAcknowledged,
    MessagesRead,
    MessagesRefused,
    MessagesSent,
    ReadBegun,
    ReadEnded,
)
from replaced import replaced

from ledger_client.errors import (
    EntryLost,
    EventTimeBack,
    Gap,
    LedgerError,
    MessagesLost,
    NoSuchEntry,
    PayloadTooLarge,
    SendUnknown,
)
from ledger_client.message_id import MessageId
from ledger_client.topics import messages as topic_messages
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import RangeReader

if TYPE_CHECKING:
    from ledger_client.topics.context import TopicContext
    from ledger_client.topics.producing.partition_writer import Ticket
    from ledger_client.topics.producing.producer import Producer
    from ledger_client.topics.reading.reader import TopicReader


class Draft(NamedTuple):
    """A message that an application wants to send; no other has the same value."""

    value: bytes
    key: bytes | None = None
    event_time: int | None = None
    sequence: int | None = None
    """None: the producer has no name, or counts by itself"""

    @property
    def message(self) -> Message:
        """The message as a history records it."""
        return Message(
            mark_of(self.value),
            -1 if self.sequence is None else self.sequence,
            self.event_time,
            None if self.key is None else mark_of(self.key),
        )


Outcomes = list[LedgerError | None]


def _details(draft: Draft) -> dict[str, Any]:
    return {"key": draft.key, "event_time": draft.event_time, "sequence": draft.sequence}


class Teller:
    """Tells a history of one session of a producer; *name*: the producer's."""

    def __init__(self, history: Recorder, topic: str, session: str, name: str = "") -> None:
        self.history = history
        self.topic = topic
        self.session = session
        self.name = name

    # Each way to send returns what became of each message: None, or why it is not known to be
    # kept. Those after the last that is told of were not sent.

    async def send(self, producer: Producer, drafts: Sequence[Draft], writer: str) -> Outcomes:
        """Send one message after the other, each once the one before is durable."""
        outcomes: Outcomes = []
        for draft in drafts:
            self._sent(writer, [draft])
            try:
                message_id = await producer.send(draft.value, **_details(draft))
            except LedgerError as failure:
                self._refused(writer, [draft], failure)
                return [*outcomes, failure]
            self._acknowledged(writer, [draft], [message_id])
            outcomes.append(None)
        return outcomes

    async def send_together(
        self, producer: Producer, drafts: Sequence[Draft], writer: str
    ) -> Outcomes:
        """Send messages at once, each with a ticket."""
        tickets: list[Ticket | LedgerError] = []
        for draft in drafts:
            self._sent(writer, [draft])
            try:
                tickets.append(producer.send_nowait(draft.value, **_details(draft)))
            except LedgerError as refusal:
                tickets.append(refusal)
                break
        return [
            await self._settled(draft, ticket, writer)
            for draft, ticket in zip(drafts, tickets, strict=False)
        ]

    async def _settled(
        self, draft: Draft, ticket: Ticket | LedgerError, writer: str
    ) -> LedgerError | None:
        try:
            if isinstance(ticket, LedgerError):
                raise ticket
            message_id = await ticket.message_id()
        except LedgerError as failure:
            self._refused(writer, [draft], failure)
            return failure
        self._acknowledged(writer, [draft], [message_id])
        return None

    async def send_many(self, producer: Producer, drafts: Sequence[Draft], writer: str) -> Outcomes:
        """Send messages by one call."""
        self._sent(writer, drafts)
        try:
            ids = await producer.send_many(
                [draft.value for draft in drafts],
                keys=[draft.key for draft in drafts],
                event_times=[draft.event_time for draft in drafts],
                sequence=drafts[0].sequence,
            )
        except LedgerError as failure:
            # Of one call, the first messages may be kept whatever became of the last ones.
            unknown = not isinstance(failure, EventTimeBack | PayloadTooLarge)
            self._refused(writer, drafts, failure, unknown=unknown)
            return [failure] * len(drafts)
        self._acknowledged(writer, drafts, list(ids))
        return [None] * len(drafts)

    def taken(self, lane: LaneWriter) -> None:
        """The session has a lane."""
        self.history.add(
            LaneTaken(
                topic=self.topic,
                session=self.session,
                producer=self.name,
                partition=lane.partition,
                lane=lane.lane,
                epoch=lane.epoch,
                last_sequence=lane.last_sequence(self.name) if self.name else -1,
            )
        )

    def _sent(self, writer: str, drafts: Sequence[Draft]) -> None:
        self.history.add(
            MessagesSent(
                topic=self.topic,
                session=self.session,
                writer=writer,
                producer=self.name,
                messages=[draft.message for draft in drafts],
            )
        )

    def _acknowledged(self, writer: str, drafts: Sequence[Draft], ids: Sequence[MessageId]) -> None:
        self.history.add(
            MessagesAcknowledged(
                topic=self.topic,
                session=self.session,
                writer=writer,
                marks=[draft.message.mark for draft in drafts],
                ids=list(ids),
            )
        )

    def _refused(
        self,
        writer: str,
        drafts: Sequence[Draft],
        failure: LedgerError,
        *,
        unknown: bool = False,
    ) -> None:
        back = failure if isinstance(failure, EventTimeBack) else None
        self.history.add(
            MessagesRefused(
                topic=self.topic,
                session=self.session,
                writer=writer,
                marks=[draft.message.mark for draft in drafts],
                reason=type(failure).__name__,
                unknown=unknown or isinstance(failure, SendUnknown),
                event_time=None if back is None else back.event_time,
                last_event_time=None if back is None else back.last_event_time,
            )
        )


TELLER: ContextVar[Teller | None] = ContextVar("TELLER", default=None)
"""Whose session the calling task works for; the tasks of its producer inherit it."""


@contextmanager
def lanes_told() -> Iterator[None]:
    """Report the lanes that each session takes to its witness, within the block."""
    opened = LaneWriter.open

    async def open_and_tell(lane: LaneWriter) -> None:
        await opened(lane)
        teller = TELLER.get()
        if teller is not None and teller.topic == lane.topic:
            teller.taken(lane)

    with replaced(LaneWriter, "open", open_and_tell):
        yield


class Audience:
    """Tells a history what one reader gets. *reader* names one run through the lanes."""

    def __init__(self, history: Recorder, topic: str, reader: str) -> None:
        self._history = history
        self._topic = topic
        self.reader = reader

    def begun(
        self,
        *,
        first: MessageId | None = None,
        inclusive: bool = True,
        latest: bool = False,
        reverse: bool = False,
        partitions: Sequence[int] | None = None,
        whole: bool = False,
    ) -> None:
        self._history.add(
            ReadBegun(
                topic=self._topic,
                reader=self.reader,
                first=first,
                inclusive=inclusive,
                latest=latest,
                reverse=reverse,
                partitions=None if partitions is None else list(partitions),
                whole=whole,
            )
        )

    async def read(self, reader: TopicReader) -> None:
        """Tell everything that *reader* gives, gaps too, until its end. Raises other errors."""
        while True:
            try:
                found = await reader.next_messages()
            except Gap as gap:
                self._gap(gap)
                continue
            if not found:
                self._history.add(ReadEnded(topic=self._topic, reader=self.reader))
                return
            self._got([each.id for each in found], [_message(each) for each in found])

    async def read_batches(self, reader: TopicReader) -> None:
        """As read(), by Arrow batches."""
        batches: AsyncIterator[object] = reader.read_batches(rows_min=1)
        while True:
            try:
                batch = await anext(batches)
            except Gap as gap:
                self._gap(gap)
            except StopAsyncIteration:
                self._history.add(ReadEnded(topic=self._topic, reader=self.reader))
                return
            else:
                self._got(*_columns(batch))

    async def read_ranges(self, context: TopicContext) -> None:
        """As read(), by a plan of ranges, as Spark and replays do. Gaps are raised."""
        plan = await plan_read(context, self._topic)
        async with aclosing(RangeReader(context).batches(plan.ranges)) as ranges:
            async for each in ranges:
                found = each.messages
                self._got([one.id for one in found], [_message(one) for one in found])
        self._history.add(ReadEnded(topic=self._topic, reader=self.reader))

    def lost(self, failure: EntryLost | MessagesLost | NoSuchEntry) -> None:
        """Record that the reader was told that an entry is lost."""
        ledger = -1 if failure.ledger_id is None else failure.ledger_id
        self._history.add(
            LossTold(
                topic=self._topic, reader=self.reader, ledger_id=ledger, entry=failure.entry_id
            )
        )

    def _got(self, ids: list[MessageId], messages: list[Message]) -> None:
        self._history.add(
            MessagesRead(topic=self._topic, reader=self.reader, ids=ids, messages=messages)
        )

    def _gap(self, gap: Gap) -> None:
        self._history.add(
            GapTold(
                topic=self._topic,
                reader=self.reader,
                partition=gap.partition,
                lane=gap.lane,
                position=gap.position,
                first=gap.first,
            )
        )


def _message(found: topic_messages.Message) -> Message:
    assert found.value is not None
    key = None if found.key is None else mark_of(found.key)
    return Message(mark_of(found.value), found.sequence, found.event_time, key)


def _columns(batch: object) -> tuple[list[MessageId], list[Message]]:
    """Return ids and messages of a RecordBatch, which tells no sequence numbers."""
    table: dict[str, list[object]] = batch.to_pydict()  # type: ignore[attr-defined]
    names = ("ledger_id", "entry_id", "partition", "batch_index")
    ids = [MessageId(*map(_int, row)) for row in zip(*(table[n] for n in names), strict=True)]
    times = batch.column("event_time").cast("int64").to_pylist()  # type: ignore[attr-defined]
    found = zip(_marks(table["value"]), times, _marks(table["key"]), strict=True)
    return ids, [Message(mark or 0, -1, time, key) for mark, time, key in found]


def _marks(column: Iterable[object]) -> Iterator[int | None]:
    return (mark_of(each) if isinstance(each, bytes) else None for each in column)


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value

"""What can go wrong with a topic, and what the caller should do next.

TopicError                   is a LedgerError
├── NoSuchTopic              it does not exist, or was deleted
├── TopicExists              the name is taken
├── BadTopic                 the name or a setting cannot be; the message says which
├── BadSchema                the definition of its values cannot be used; read them as bytes
├── SchemaPackageMissing     a package for values of this kind is missing; the message names it
├── TopicBusy                somebody needs what is to be deleted; the message says what to do
├── ProducerBusy             the lane is another producer's; wait, take over, or choose "shared"
├── ProducerFailed           this producer takes nothing any more; open a new one
│   ├── ProducerFenced       another producer took the lane over; stop writing
│   └── ProducerClosed       it was closed
├── SendUnknown              the messages may or may not be kept: a named producer sends again
├── BufferFull               send_nowait found no room; wait with send(), or flush()
├── MessageTooLarge          the message does not fit a frame
├── EventTimeBack            the event time is lower than one the lane has already
├── RowsUnordered            a job's rows are not in order of event time: sort them
├── TooManyLedgers           a job staged more than one transaction shows: use fewer tasks
├── SinkBatchDiffers         a stream's checkpoint does not go with the topic: name the sink anew
├── JobLost                  the job's lease is over; what it staged is not shown: run it again
├── TailLost                 no bookie has the end of a lane: bring one back, or give it up
├── CompactedSetLost         what compaction left is not whole: compact again, or read without it
├── BadBatch                 an entry of the topic is no batch: damage, or a foreign writer
└── Gap                      the position was removed; the first there is, is named

A lost or slow bookie, a roll or a metadata store that is away are dealt with where they
happen; what remains of them is raised as ledger_client/errors.py says.
"""

from __future__ import annotations

from ledger_client.errors import LedgerError
from ledger_client.topics.message_id import MessageId


class TopicError(LedgerError):
    """Root of what topics raise."""

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(f"topic {topic}: {message}")
        self.topic = topic


class NoSuchTopic(TopicError):
    """There is no such topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"no such topic; make it: quire topic create {topic}", topic=topic)


class TopicExists(TopicError):
    """A topic of this name exists already."""

    def __init__(self, topic: str) -> None:
        super().__init__("exists already", topic=topic)


class BadTopic(TopicError):
    """The name, or what was asked of the topic, cannot be."""


class BadSchema(TopicError):
    """The definition of the topic's schema cannot be understood, or gives no columns."""


class SchemaPackageMissing(TopicError):
    """Values of this kind are decoded by a package that is not installed."""


class TopicBusy(TopicError):
    """Somebody needs what is to be deleted out of a lane. Nothing was deleted of it."""

    def __init__(self, topic: str, *, partition: int, lane: int, why: str) -> None:
        super().__init__(f"lane {lane} of partition {partition} {why}", topic=topic)
        self.partition = partition
        self.lane = lane


class ProducerBusy(TopicError):
    """Another producer has the lane."""

    def __init__(self, topic: str, *, partition: int, lane: int, owner: str) -> None:
        super().__init__(
            f"lane {lane} of partition {partition} is written by {owner}; "
            'wait for it (access="wait"), take it over ("take-over"), or share it ("shared")',
            topic=topic,
        )
        self.partition = partition
        self.lane = lane
        self.owner = owner


class ProducerFailed(TopicError):
    """The producer takes no more messages. What it acknowledged stays readable."""


class ProducerFenced(ProducerFailed):
    """Another producer took the lane over. Nothing more of this one is acknowledged."""

    def __init__(self, topic: str, *, partition: int, lane: int) -> None:
        super().__init__(f"lane {lane} of partition {partition} was taken over", topic=topic)
        self.partition = partition
        self.lane = lane


class ProducerClosed(ProducerFailed):
    """The producer was closed."""

    def __init__(self, topic: str) -> None:
        super().__init__("the producer is closed", topic=topic)


class SendUnknown(TopicError):
    """Messages were sent and not acknowledged: they may or may not be kept.

    The cause tells why. A producer with a name sends them again with their sequence numbers,
    and they are kept once.
    """

    def __init__(self, topic: str, *, partition: int, lane: int, count: int, reason: str) -> None:
        super().__init__(
            f"lane {lane} of partition {partition}: {count} messages, outcome unknown: {reason}",
            topic=topic,
        )
        self.partition = partition
        self.lane = lane
        self.count = count


class BufferFull(TopicError):
    """The producer holds as much as it may of what is not acknowledged."""

    def __init__(self, topic: str, *, size_max: int) -> None:
        super().__init__(f"{size_max} bytes are not acknowledged yet", topic=topic)
        self.size_max = size_max


class MessageTooLarge(TopicError):
    """A message does not fit a frame. Nothing of the call was sent."""

    def __init__(self, topic: str, *, size: int, size_max: int) -> None:
        super().__init__(
            f"a message of {size} bytes with key and headers; at most {size_max} bytes fit",
            topic=topic,
        )
        self.size = size
        self.size_max = size_max


class EventTimeBack(TopicError):
    """The topic is ordered by event time, and this one is lower than the last. Not sent."""

    def __init__(
        self, topic: str, *, partition: int, lane: int, event_time: int, last_event_time: int
    ) -> None:
        super().__init__(
            f"lane {lane} of partition {partition}: event time {event_time} ns is lower than "
            f"the last accepted, {last_event_time} ns",
            topic=topic,
        )
        self.partition = partition
        self.lane = lane
        self.event_time = event_time
        self.last_event_time = last_event_time


class RowsUnordered(TopicError):
    """The topic is ordered by event time, and the rows of a job are not. Nothing is shown."""

    def __init__(self, topic: str, *, partition: int, event_time: int, before: int) -> None:
        super().__init__(
            f"partition {partition}: event time {event_time} ns comes after {before} ns in the "
            "rows to be written; order all of them by event time first, in Spark: "
            'orderBy("event_time")',
            topic=topic,
        )
        self.partition = partition
        self.event_time = event_time
        self.before = before


class TooManyLedgers(TopicError):
    """A job staged more ledgers than can be shown at once. Nothing is shown."""

    def __init__(self, topic: str, *, count: int, count_max: int, what: str) -> None:
        super().__init__(
            f"{count} {what}, and at most {count_max} can be shown at once; write with fewer "
            "tasks, in Spark: coalesce(n), or let ledgers be larger: "
            f"quire topic alter {topic} --roll-size",
            topic=topic,
        )
        self.count = count
        self.count_max = count_max


class SinkBatchDiffers(TopicError):
    """A batch of a stream is no repetition of the one that the topic has. It is not written."""

    def __init__(self, topic: str, *, query: str, batch_id: int, last: str) -> None:
        super().__init__(
            f"the stream begins again with batch {batch_id}, and the topic has it up to {last} "
            f"(query {query}): its checkpoint was set back, moved or copied. Go on with the "
            "checkpoint that wrote last, or write all of this one's batches anew, beside what is "
            "there, with the option sinkName and a name that was not used before",
            topic=topic,
        )
        self.query = query
        self.batch_id = batch_id


class JobLost(TopicError):
    """Nobody could tell any more that the job lives. Nothing that it staged is in the topic."""

    def __init__(self, topic: str, *, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id} is over: {reason}; run it again", topic=topic)
        self.job_id = job_id


class TailLost(TopicError):
    """No bookie has an entry that the lane's next writer must read. Nothing was given up."""

    def __init__(
        self, topic: str, *, partition: int, lane: int, ledger_id: int, entry_id: int
    ) -> None:
        super().__init__(
            f"lane {lane} of partition {partition}: no bookie has entry {entry_id} of ledger "
            f"{ledger_id}, which its next writer must read; bring a bookie back that had it, "
            "or give up the ledger with all its messages, after which the lane goes on: "
            f"quire ledger delete {ledger_id} --force",
            topic=topic,
        )
        self.partition = partition
        self.lane = lane
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class CompactedSetLost(TopicError):
    """A ledger of what compaction left is gone; readers do not take older messages instead."""

    def __init__(self, topic: str, *, reason: str, ledger_id: int = -1) -> None:
        super().__init__(f"the compacted messages are lost: {reason}", topic=topic)
        self.ledger_id = ledger_id
        """-1: there is no set any more."""


class BadBatch(TopicError):
    """An entry is not a batch that this version can read."""

    def __init__(self, topic: str, *, ledger_id: int, entry_id: int, reason: str) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id}: {reason}", topic=topic)
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class Gap(TopicError):
    """The messages at the position were removed; reading can go on at *first*.

    *missing* counts the entries of the lane in between, None where nobody knows.
    """

    def __init__(
        self,
        topic: str,
        *,
        partition: int,
        lane: int,
        position: MessageId,
        first: MessageId | None,
        missing: int | None,
    ) -> None:
        where = "nothing is left" if first is None else f"the first that is left is {first}"
        count = "" if missing is None else f" ({missing} entries are gone)"
        super().__init__(
            f"lane {lane} of partition {partition}: {position} was removed{count}; {where}",
            topic=topic,
        )
        self.partition = partition
        self.lane = lane
        self.position = position
        self.first = first
        self.missing = missing

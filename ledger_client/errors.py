"""Every error that may be raised, and what the caller should do next.

LedgerError
├── Retryable                nothing is wrong with the request; try again later
│   ├── NotEnoughBookies     too few healthy bookies for the ensemble, or racks
│   ├── BookieUnavailable    one bookie cannot be reached or does not answer
│   ├── ReplicasUnavailable  too few bookies answer to read an entry, or to recover a ledger
│   └── MetadataUnavailable  the metadata store did not answer in time
├── WriterFailed             this writer takes no more entries; open a new ledger
│   ├── AckQuorumLost        too few of its bookies are left to acknowledge
│   ├── LedgerFenced         another client recovered the ledger; stop writing
│   └── LedgerClosed         the ledger is sealed; open a new one to append
├── OutcomeUnknown           the entries may or may not be in the ledger: read it; also SendUnknown
├── LedgerExists             the ledger id is taken
├── NoSuchLedger             there is no such ledger, or it was deleted
├── NoSuchEntry              the entry is past the end, or no replica knows it
├── EntryLost                every replica of the entry is missing or damaged
├── PayloadTooLarge          an entry or a message does not fit a frame
├── WrongPassword            the password is not the ledger's
├── BadAddress               the cluster's address cannot be understood, or is not a bookie's
├── AccessDenied             a bookie refuses the login, or its certificate is not trusted
├── MetadataBroken           metadata is damaged or refuses; a person must look
├── Busy                     another task or thread takes from this reader: open one for each
├── NotOpen                  an `await` or an `async with` is missing; the message says where
├── ClientClosed             the client is closed; connect again
├── ReaderClosed             the reader is closed; open another
├── DrainRefused             the bookie cannot be decommissioned as asked; `reason` says why
├── BadGroup                 the request does not suit the group; the message says why
├── BadCut                   there is no such cut, or it cannot be made so; the message says why
├── TimeRefused              the cluster's time cannot be reset so; it moves forward only
├── CommitRefused            partitions are another member's by now: their messages come again
├── MemberRemoved            the group removed this consumer, or it was started elsewhere
├── TopicError               errors that concern a topic
│   ├── NoSuchTopic          it does not exist, or was deleted
│   ├── TopicExists          the name is taken
│   ├── BadTopic             the name or a setting is invalid; the message says which
│   ├── BadValue             a message's value is not what was asked for: read it as bytes
│   ├── BadSchema            its values cannot be decoded; read them as bytes, or install `package`
│   ├── TopicBusy            producers, groups or jobs use the messages: the message says which
│   ├── ProducerBusy         the lane is another producer's; wait, take over, or choose "shared"
│   ├── ProducerFailed       this producer takes nothing any more; open a new one
│   │   ├── ProducerFenced   another producer took the lane over; stop writing
│   │   └── ProducerClosed   it was closed
│   ├── NotSent              the time for a send is over, and it went nowhere: send again
│   ├── SendUnknown          the messages may or may not be kept: a named producer sends again
│   ├── BufferFull           send_nowait found no room; wait with send(), or flush()
│   ├── EventTimeBack        the event time is lower than one the lane has already
│   ├── SequenceBack         the number was passed over, and a greater one is accepted
│   ├── JobLost              the job's lease is over; its staged ledgers are not shown: run it again
│   ├── ReplayConflict       the name, range or target of a replay does not fit it: see the message
│   ├── WritersSilent        writers did not leave their ledgers: see whether they are paused
│   ├── MessagesLost         messages are damaged, or no bookie has them; a person must look
│   └── Gap                  the position was removed; the first remaining message is named
└── SparkError               Spark failed, or an option, a column or a value is invalid
    └── SparkMissing         PySpark or Java is missing or too old: install it

All are exported by ledger_client. Each message is one line and names the ids, which are
attributes too. A lost or slow bookie, a roll, or a metadata store that is away for a moment is
dealt with inside; only a lasting failure is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledger_client.ledger_errors import (
    AckQuorumLost as AckQuorumLost,
    BookieUnavailable as BookieUnavailable,
    Busy as Busy,
    DrainRefused as DrainRefused,
    EntryLost as EntryLost,
    LedgerClosed as LedgerClosed,
    LedgerExists as LedgerExists,
    LedgerFenced as LedgerFenced,
    NoSuchEntry as NoSuchEntry,
    NoSuchLedger as NoSuchLedger,
    NotEnoughBookies as NotEnoughBookies,
    OutcomeUnknown as OutcomeUnknown,
    PayloadTooLarge as PayloadTooLarge,
    ReplicasUnavailable as ReplicasUnavailable,
    WriterFailed as WriterFailed,
    WrongPassword as WrongPassword,
)
from ledger_client.message_id import MessageId
from metadata.errors import (
    AccessDenied as AccessDenied,
    BadAddress as BadAddress,
    BadGroup as BadGroup,
    LedgerError as LedgerError,
    MetadataBroken as MetadataBroken,
    MetadataUnavailable as MetadataUnavailable,
    Retryable as Retryable,
    TimeRefused as TimeRefused,
)
from native.checksum import Checksum

NAMED_MAX = 3
"""Writers, or groups, that an error names."""


def lane_text(partition: int, lane: int) -> str:
    """Name a lane as errors do: the only partition of a topic has no number for its users."""
    return f"lane {lane}" if partition < 0 else f"lane {lane} of partition {partition}"


class NotOpen(LedgerError, AttributeError):
    """Something is used that connect(), producer() or the like returned, and was not opened."""

    @classmethod
    def yet(cls, what: str, call: str) -> NotOpen:
        """*what* is the noun, and *call* what is awaited to get one."""
        return cls(
            f"the {what} is not open yet: write `{what} = await {call}`, "
            f"or `async with {call} as {what}:`"
        )


class ClientClosed(LedgerError, RuntimeError):
    """The client was closed, or ended with an error, which is the cause. Connect again."""

    def __init__(self, message: str = "the client is closed; connect again") -> None:
        super().__init__(message)


class ReaderClosed(LedgerError):
    """The reader was closed, or its block ended. Open another, at its position() if you like."""

    def __init__(self, message: str = "the reader is closed; open another to go on") -> None:
        super().__init__(message)


class TopicError(LedgerError):
    """Root of the errors of topics. `topic` is the topic's name."""

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(f"topic {topic}: {message}")
        self.topic = topic

    @classmethod
    def too_many(
        cls, topic: str, *, count: int, count_max: int, what: str, advice: str | None = None
    ) -> TopicError:
        """A job has more ledgers or lanes than can be shown at once. Nothing is shown."""
        if advice is None:
            advice = (
                "write with fewer tasks, in Spark: coalesce(n), or let ledgers be larger: "
                f"quire topic alter {topic} --roll-size"
            )
        told = f"{count} {what}, and at most {count_max} can be shown at once; {advice}"
        return cls(told, topic=topic)


class NoSuchTopic(TopicError):
    """The topic does not exist, was deleted, or is being deleted."""

    def __init__(self, topic: str) -> None:
        advice = (
            f"no such topic; `quire topic list` shows all, `quire topic create {topic}` makes it"
        )
        if "*" in topic:
            advice = "the pattern matches no topic; `quire topic list` shows all"
        super().__init__(advice, topic=topic)


class TopicExists(TopicError):
    """A topic of this name exists already."""

    def __init__(self, topic: str) -> None:
        super().__init__("exists already", topic=topic)


class BadTopic(TopicError):
    """The name or a setting is invalid; the message says which."""


class BadValue(TopicError):
    """The value of a message is no text, no JSON of the kind asked for, or cannot be decoded.

    The message's own `value` has its bytes.

    Attributes:
        message_id: the message.
    """

    def __init__(self, topic: str, message_id: MessageId, reason: str) -> None:
        super().__init__(f"the value of message {message_id} {reason}", topic=topic)
        self.message_id = message_id


class BadSchema(TopicError):
    """The topic's schema cannot be understood, or gives no columns.

    Attributes:
        reason: what is wrong, without the topic's name.
        package: the missing package that decodes values of this kind; `None` if none is missing.
    """

    def __init__(self, message: str, *, topic: str, package: str | None = None) -> None:
        super().__init__(message, topic=topic)
        self.reason = message
        self.package = package

    @classmethod
    def unreadable(cls, topic: str, wrong: Exception) -> BadSchema:
        """The definition cannot be parsed, or a field of it has no column type."""
        reason = next(iter(str(wrong).strip().splitlines()), type(wrong).__name__)
        return cls(f"its schema cannot be read: {reason}", topic=topic)


class TopicBusy(TopicError):
    """A producer, a group, another job or the compacted set uses the messages; nothing was lost.

    Attributes:
        owner: the process that uses them, empty if it is none.
        groups: the groups for which the deletion of the topic was refused, sorted.
    """

    def __init__(
        self, message: str, *, topic: str, owner: str = "", groups: Sequence[str] = ()
    ) -> None:
        super().__init__(message, topic=topic)
        self.owner = owner
        self.groups = tuple(groups)

    @classmethod
    def consumed(cls, topic: str, groups: Sequence[str]) -> TopicBusy:
        """Members of these groups name the topic."""
        others = len(groups) - NAMED_MAX
        named = ", ".join(groups[:NAMED_MAX]) + (f" and {others} more" if others > 0 else "")
        who = f"group {named} consumes it; stop its"
        if len(groups) > 1:
            who = f"groups {named} consume it; stop their"
        return cls(f"{who} members, or force the deletion (--force)", topic=topic, groups=groups)


class ProducerBusy(TopicError):
    """Another producer writes the lane; `owner` identifies it."""

    def __init__(
        self,
        topic: str,
        *,
        partition: int,
        lane: int,
        owner: str,
        owner_shares: bool = False,
        shares: bool = False,
    ) -> None:
        """Take who writes the lane, whether with shared access, and whether that was asked for."""
        advice = 'wait for it (access="wait"), or take it over ("take-over")'
        if owner_shares:
            advice += ', or share it ("shared")'
        if owner_shares and shares:  # a name has one lane, and one producer at a time
            advice = "wait until it has left, or use another producer name or lane name"
        super().__init__(
            f"{lane_text(partition, lane)} is written by {owner}; {advice}", topic=topic
        )
        self.partition = partition
        self.lane = lane
        self.owner = owner


class ProducerFailed(TopicError):
    """The producer takes no more messages. Acknowledged messages stay readable."""


class ProducerFenced(ProducerFailed):
    """Another producer took the lane over. Nothing more of this one is acknowledged."""

    def __init__(self, topic: str, *, partition: int, lane: int) -> None:
        super().__init__(f"{lane_text(partition, lane)} was taken over", topic=topic)
        self.partition = partition
        self.lane = lane


class ProducerClosed(ProducerFailed):
    """The producer was closed, or its block ended. Open a new one to go on."""

    def __init__(self, topic: str) -> None:
        super().__init__("the producer is closed; open another to go on", topic=topic)


class NotSent(TopicError):
    """The time for a send was over before a bookie could get the message. It never will."""

    def __init__(self, topic: str, *, timeout_s: float, reason: str) -> None:
        super().__init__(f"not sent in {timeout_s:g} s: {reason}; send it again", topic=topic)
        self.timeout_s = timeout_s


class SendUnknown(TopicError, OutcomeUnknown):
    """Messages were sent and not acknowledged: they may or may not be kept.

    The cause is the reason. A producer with a name sends them again with their sequence
    numbers, and they are kept once. Of the attributes of OutcomeUnknown, the ids are -1.
    """

    def __init__(self, topic: str, *, partition: int, lane: int, count: int, reason: str) -> None:
        LedgerError.__init__(
            self,
            f"topic {topic}: {lane_text(partition, lane)}: {count} "
            f"message{'s' * (count != 1)}, outcome unknown: {reason}",
        )
        self.topic = topic
        self.first_entry = self.last_entry = -1
        self.partition = partition
        self.lane = lane
        self.count = count


class BufferFull(TopicError):
    """The producer's buffer is full of messages that are not acknowledged. Not sent."""

    def __init__(self, topic: str, *, size_max: int) -> None:
        super().__init__(f"{size_max} bytes are not acknowledged yet", topic=topic)
        self.size_max = size_max


class EventTimeBack(TopicError):
    """The topic is ordered by event time, and this one is lower than the last. Not sent."""

    def __init__(
        self, topic: str, *, partition: int, lane: int, event_time: int, last_event_time: int
    ) -> None:
        super().__init__(
            f"{lane_text(partition, lane)}: event time {event_time} ns is lower than "
            f"the last accepted, {last_event_time} ns",
            topic=topic,
        )
        self.partition = partition
        self.lane = lane
        self.event_time = event_time
        self.last_event_time = last_event_time


class SequenceBack(TopicError):
    """A named producer passed this message's number over, and accepted a greater one. Not sent.

    Sent with that number, it would pass for a duplicate of a message that is kept.
    """

    def __init__(self, topic: str, *, partition: int, sequence: int, next_sequence: int) -> None:
        super().__init__(
            f"partition {partition}: number {sequence} was passed over, and the next is "
            f"{next_sequence}: send messages in the order of their numbers, and one that was not "
            "sent again before those behind it",
            topic=topic,
        )
        self.partition = partition
        self.sequence = sequence
        self.next_sequence = next_sequence


class WritersSilent(TopicError):
    """Writers were asked to go on in another ledger, and did not in time. Nothing was lost.

    All other open ledgers of the topic were closed.

    Attributes:
        writers: partition, lane and description of each writer.
    """

    def __init__(self, topic: str, *, writers: Sequence[tuple[int, int, str]], count: int) -> None:
        named = ", ".join(
            f"{lane_text(partition, lane)} is written by {who}"
            for partition, lane, who in writers[:NAMED_MAX]
        )
        if len(writers) > NAMED_MAX:
            named += f", and {len(writers) - NAMED_MAX} more"
        super().__init__(
            f"{len(writers)} of {count} open ledgers are not closed, as their writers did not"
            f" answer in time: {named}. They are paused, cut off, or of a version that"
            f" cannot do it; once they go on or have ended, run `quire topic roll {topic}` again",
            topic=topic,
        )
        self.writers = tuple(writers)


class JobLost(TopicError):
    """The job lost its lease, or another one was faster. Its staged ledgers are not shown."""

    def __init__(
        self, topic: str, *, job_id: str, reason: str, advice: str = "run it again"
    ) -> None:
        super().__init__(f"job {job_id} is over: {reason}; {advice}", topic=topic)
        self.job_id = job_id


class ReplayConflict(TopicError):
    """A replay cannot be made, continued or confirmed as asked; the message says what to do.

    Its name is another replay's, messages of its range were removed, or the target holds other
    messages than it sends.
    """

    @classmethod
    def differs(
        cls, topic: str, *, part: str, sent: Checksum, found: Checksum, ordered: bool = True
    ) -> ReplayConflict:
        """The target was read back, and its messages are not those that were sent."""
        were, are = (each.text if ordered else each.total_text for each in (sent, found))
        return cls(
            f"{part}: {found.count} messages {are} were read back, and {sent.count} "
            f"messages {were} were sent",
            topic=topic,
        )


class MessagesLost(TopicError):
    """Messages that should be there are damaged, or no bookie has them.

    Attributes:
        ledger_id: the ledger they were in, -1 if it is not known.
        entry_id: the entry, -1 if all of the ledger is meant.
    """

    def __init__(
        self, message: str, *, topic: str, ledger_id: int = -1, entry_id: int = -1
    ) -> None:
        super().__init__(message, topic=topic)
        self.ledger_id = ledger_id
        self.entry_id = entry_id

    @classmethod
    def tail(
        cls, topic: str, *, partition: int, lane: int, ledger_id: int, entry_id: int
    ) -> MessagesLost:
        """No bookie has an entry that the lane's next writer must read. Nothing was given up."""
        text = (
            f"{lane_text(partition, lane)}: no bookie has entry {entry_id} of ledger "
            f"{ledger_id}, which its next writer must read; bring a bookie back that had it, "
            "or give up the ledger with all its messages, after which the lane goes on: "
            f"quire ledger delete {ledger_id} --force"
        )
        return cls(text, topic=topic, ledger_id=ledger_id, entry_id=entry_id)

    @classmethod
    def compacted(cls, topic: str, *, reason: str, ledger_id: int = -1) -> MessagesLost:
        """A compacted ledger is gone; readers do not fall back to older messages."""
        text = f"the compacted messages are lost: {reason}"
        return cls(text, topic=topic, ledger_id=ledger_id)

    @classmethod
    def batch(cls, topic: str, *, ledger_id: int, entry_id: int, reason: str) -> MessagesLost:
        """An entry is not a batch that this version can read: damage, or a foreign writer."""
        text = f"entry {entry_id} of ledger {ledger_id}: {reason}"
        return cls(text, topic=topic, ledger_id=ledger_id, entry_id=entry_id)


class Gap(TopicError):
    """The messages at the position were removed; reading can go on at *first*.

    *missing* counts the entries of the lane in between; `None` if their number is unknown. Of what
    a lost member of a shared or key-shared group had, it counts those with messages that nobody was
    done with.
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
            f"{lane_text(partition, lane)}: {position} was removed{count}; {where}",
            topic=topic,
        )
        self.partition = partition
        self.lane = lane
        self.position = position
        self.first = first
        self.missing = missing


class SparkError(LedgerError):
    """Spark did not start, a job failed, or an option, a column or a value is invalid.

    The message says which. What a task was to write is not shown.
    """

    @classmethod
    def option(cls, name: str, reason: str) -> SparkError:
        """An option of the source or sink is invalid."""
        return cls(f"option {name!r}: {reason}")

    @classmethod
    def unordered(cls, topic: str, *, partition: int, event_time: int, before: int) -> SparkError:
        """The topic is ordered by event time, and the rows are not. Nothing is shown."""
        return cls(
            f"topic {topic}: partition {partition}: event time {event_time} ns comes after "
            f"{before} ns in the rows to be written; order all of them by event time first, in "
            'Spark: orderBy("event_time")'
        )


class SparkMissing(SparkError):
    """PySpark or Java is not installed, does not run, or is too old."""


class BadCut(LedgerError):
    """There is no such cut, or it cannot be made so; nothing was changed.

    Attributes:
        cut: its name.
    """

    def __init__(self, message: str, *, cut: str) -> None:
        super().__init__(f"cut {cut}: {message}")
        self.cut = cut

    @classmethod
    def unknown(cls, cut: str) -> BadCut:
        """Return the error for a name that no cut has."""
        return cls("there is none of this name; `quire cut list` shows all", cut=cut)


class CommitRefused(LedgerError):
    """Partitions are not this member's, or not any more; other partitions were committed.

    So it is with messages of a shared group that are another member's, or acknowledged before.

    Attributes:
        group: name of the group.
        parts: (topic's uid, partition) of each. Below 0, a uid stands for a topic of which nothing
            is read any more.

    Args:
        topics: the names of topics by uid, as far as they are known.
    """

    def __init__(
        self,
        group: str,
        parts: Sequence[tuple[int, int]],
        *,
        reason: str = "",
        topics: Mapping[int, str] | None = None,
    ) -> None:
        named = [_partition_of((topics or {}).get(uid, ""), part) for uid, part in parts[:5]]
        more = [f"{len(parts) - 5} more"] if len(parts) > 5 else []
        why = reason or "not this member's, or not any more"
        super().__init__(f"group {group}: {', '.join([*named, *more])}: {why}")
        self.group = group
        self.parts = tuple(parts)


def _partition_of(topic: str, partition: int) -> str:
    if topic and partition < 0:  # it has none
        return topic
    return f"partition {partition} of {topic}" if topic else f"partition {partition}"


class MemberRemoved(LedgerError):
    """The consumer is no member of its group any more, and cannot go on; open a new one."""

    def __init__(self, group: str, member: str, reason: str) -> None:
        super().__init__(f"member {member} of group {group}: {reason}")
        self.group = group
        self.member = member

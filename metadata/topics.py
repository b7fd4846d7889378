"""Topics, their lanes and the lanes' ledgers, as readable JSON.

key or lease                                    value
----------------------------------------------  --------------------------------------
topics/<namespace>/<name>                       TopicRecord; uids come from the counter "topics"
topic-events/<namespace>/<20 digits>            TopicEvent: not yet published on the
                                                namespace's __events topic
topic-event-last/<namespace>                    LastEvent: the number of the namespace's last
lanes/<uid>/<partition>/<lane>                  LaneRecord
lane-ledgers/<uid>/<partition>/<lane>/<number>  LaneLedger: the lane's ledgers, in order
lane-removals/<uid>/<partition>/<lane>          LaneRemovals: ledgers deleted out of the lane
lane-names/<uid>/<partition>/<name>             LaneName: the lane of a named producer
lane-rolls/<uid>/<partition>/<lane>/<ledger>    LaneRoll: the lane's writer is asked to leave this
                                                ledger, and to go on in another one
writers/<uid>/<partition>/<lane>                a lease, held by the lane's writer: LaneOwner

uid, number and ledger have 20 digits, partition + 1 and lane 10. A topic that is deleted and
created again gets another uid, so its data cannot be confused with the former topic's.

A lane's writer is the one that made its epoch. Every change of a lane's row or of its ledgers'
rows is one transaction that expects the version of the LaneRecord which the writer wrote last. The
lease only shows others that the lane is in use; nothing depends on its time.

The transaction that makes a change also writes its event and the number of the last event.
Numbers rise in the order of the changes, so a publisher can publish each event once.

Messages can be deleted out of a lane. If a ledger keeps other messages, its row lists the deleted
ones. If not, its row and record are removed, and LaneRemovals records that this was intended.
Versions and numbers of deleted messages are never reused.

One transaction creates the record of a ledger (metadata/records.py) and its row here, and one
removes both. So a crash leaves neither a ledger without a topic nor a row without a ledger.

Decoders raise BadRecord, naming the key, for a record that breaks a rule above. Unknown fields
are ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from metadata.errors import BadRecord
from metadata.records import decode_row

TOPICS = "topics/"
TOPIC_EVENTS = "topic-events/"
LAST_EVENTS = "topic-event-last/"
LANES = "lanes/"
LANE_LEDGERS = "lane-ledgers/"
LANE_REMOVALS = "lane-removals/"
LANE_NAMES = "lane-names/"
LANE_ROLLS = "lane-rolls/"
WRITERS = "writers/"
TOPIC_COUNTER = "topics"
EVENTS_NAME = "__events"
PARTITIONS_MAX = 10_000
GROWTHS_MAX = 100
REMOVED_MAX = 64
"""Ranges that are deleted out of one ledger."""
REMOVALS_MAX = 4000
"""Ranges of ledgers that are deleted out of one lane, apart from each other."""
INFINITE = -1
NONE = -1

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
Limit = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Timestamp = Annotated[int, msgspec.Meta(ge=0)]  # msgspec bounds no integer beyond 63 bits
TIMESTAMP_MAX = (1 << 64) - 1

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


class RollPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a lane rolls to its next ledger: at the first limit reached, not before age_min_s.

    A lane of a topic ordered by event time rolls only where the event time rises, and at
    twice *size* in any case.
    """

    size: Annotated[int, msgspec.Meta(ge=1)] = 100_000_000
    """Roll to the next ledger after this many payload bytes."""
    entries: Count = 0
    """Roll after this many entries (batches); 0 for no limit."""
    age_s: Seconds = 4 * 3600.0
    """Roll at this age, if the ledger holds anything; 0 for no limit."""
    age_min_s: Seconds = 0.0
    """Never roll before this age, whatever the other limits say."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long closed ledgers are kept. Exceeding either limit removes the oldest ones."""

    age_s: Annotated[float, msgspec.Meta(ge=-1)] = 7 * 24 * 3600.0
    """Remove ledgers that were closed longer ago than this; -1 for no limit."""
    size: Limit = INFINITE
    """Remove the oldest ledgers of a partition that holds more bytes; -1 for no limit."""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The format of a topic's values, for its readers. Writing does not check it."""

    kind: Literal["bytes", "string", "json", "avro", "protobuf"] = "bytes"
    """Format of the values; quire stores bytes either way."""
    definition: str = ""
    """A JSON Schema, an Avro schema, or an encoded protobuf definition."""


class Growth(msgspec.Struct, frozen=True, array_like=True):
    """The partitions from *first* on were added to a topic *at_ms*, by the store's clock."""

    first: Count
    at_ms: Count


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. If it is not partitioned, its only partition is -1.

    Every ledger has *replication* bookies (E = Qw) and needs *ack_quorum* acknowledgements.
    """

    name: str
    """namespace/name"""
    uid: Count
    partitions: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)] = 0
    """Number of partitions; it can grow, never shrink. 0 for a topic without partitions."""
    replication: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Copies of each message, on different bookies."""
    ack_quorum: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Copies that must be durable before a message is acknowledged."""
    order: Literal["none", "event-time"] = "none"
    """event-time: refuse messages with a lower event time than the last one of their lane."""
    timesync: bool = False
    """Give each message a unique timestamp of the cluster's oracle, later than all before it."""
    compression: Literal["none", "zstd", "lz4"] = "none"
    """Compression of batches, unless a producer chooses its own."""
    roll: RollPolicy = RollPolicy()
    retention: Retention = Retention()
    schema: Schema = Schema()
    properties: dict[str, str] = {}
    """Free text kept with the topic, for applications."""
    created_ms: Count = 0
    grown: Annotated[list[Growth], msgspec.Meta(max_length=GROWTHS_MAX)] = []
    """when partitions were added; the oldest of more than GROWTHS_MAX growths count as one"""
    created_timestamp: Timestamp = 0
    """when a topic with timesync was created, in the cluster's time; 0 without timesync"""
    altered_timestamp: Timestamp = 0
    """when it was altered last; 0 if it never was"""
    deleted_timestamp: Timestamp = 0
    """when its deletion began; 0 before that"""
    state: Literal["active", "deleting"] = "active"

    def __post_init__(self) -> None:
        split_topic(self.name)
        if self.ack_quorum > self.replication:
            raise ValueError("ack quorum <= replication does not hold")

    @property
    def partition_indexes(self) -> range:
        """The partitions of MessageIds: 0 and up, or -1 alone."""
        return range(self.partitions) if self.partitions else range(-1, 0)

    def begun_ms(self, partition: int) -> int:
        """Return when a partition came into being, by the store's clock."""
        times = [each.at_ms for each in self.grown if each.first <= partition]
        return times[-1] if times else self.created_ms


class TopicEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a topic in a namespace."""

    kind: Literal["created", "altered", "deleted"]
    topic: str
    at_ms: Count
    record: TopicRecord
    """after the event; for a deleted topic, before it"""
    timestamp: Timestamp = 0
    """of the event, in the cluster's time; 0 if the topic has no timesync"""


class LastEvent(msgspec.Struct, frozen=True):
    """How many events a namespace had."""

    number: Count = 0


class PendingEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end that a lane gets if a pointer shows its rows (metadata/pointers.py)."""

    pointer: str
    current: Number
    next_version: Count
    last_event_time: Nanoseconds | None = None


class LaneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One writer's sequence of ledgers in a partition.

    *epoch* rises with every takeover. Ledgers are numbered from 0. *current* is the number of the
    open ledger, -1 for none; those before it are closed, the one after it may be prepared.
    """

    epoch: Count
    producer: str = ""
    """the named producer whose lane it is; "" for any"""
    writer: str = ""
    """the writer of the epoch, one run of one process: a writer that returns after a failure
    sees whether another one wrote meanwhile"""
    current: Number = NONE
    next_version: Count = 0
    """version of the next ledger's first entry, if its number is known"""
    last_event_time: Nanoseconds | None = None
    """the greatest event time of all closed ledgers"""
    deleted: bool = False
    """deleted and empty; the lane may be reused. Numbers and versions continue, so that no
    position in it ever repeats"""
    pending: PendingEnd | None = None
    """rows of a job follow *current*, and a pointer decides whether they belong to the lane"""
    holds_ticks: bool = False
    """a job is about to show messages in the topic, with a timestamp allotted after this was
    stored; no tick reaches it before they are shown, or the lane is claimed anew"""

    @property
    def ended(self) -> LaneRecord:
        """The record once its pending rows belong to the lane."""
        end = self.pending
        if end is None:
            return self
        return msgspec.structs.replace(
            self,
            current=end.current,
            next_version=end.next_version,
            last_event_time=end.last_event_time,
            pending=None,
            holds_ticks=False,
        )


class Removed(msgspec.Struct, frozen=True, array_like=True):
    """Messages that were deleted out of a ledger.

    From after the first *skip* messages of *entry* to after the first *stop_skip* messages of
    *stop_entry*.
    """

    entry: Count
    skip: Count
    stop_entry: Count
    stop_skip: Count

    def __post_init__(self) -> None:
        if (self.entry, self.skip) >= (self.stop_entry, self.stop_skip):
            raise ValueError("a range of deleted messages ends before it begins")


class LaneLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger of a lane. Counts and last times are set once it is closed.

    An open ledger with messages has its first times, those of its first batch. The version of
    an entry is base_version + entry id. Messages and times do not include deleted messages;
    entries and bytes do.
    """

    ledger_id: Count
    state: Literal["prepared", "open", "closed"]
    base_version: Number = NONE
    epoch: Count = 0
    """epoch of the lane when the ledger was begun"""
    created_ms: Count = 0
    closed_ms: Count = 0
    entries: Count = 0
    messages: Count = 0
    size: Count = 0
    """payload bytes"""
    first_timestamp: Timestamp = 0
    last_timestamp: Timestamp = 0
    stamp: Timestamp = 0
    """timestamp of all its messages, which a job showed; 0: each batch has its own"""
    first_event_time: Nanoseconds | None = None
    last_event_time: Nanoseconds | None = None
    shares_first: bool = False
    """the previous ledger ends with the event time with which this one begins"""
    named_ms: Count = 0
    """Unix time of the last message of a named producer, here or before; 0: none. The last
    ledger of a lane holds their sequence numbers."""
    removed: Annotated[list[Removed], msgspec.Meta(max_length=REMOVED_MAX)] = []
    """ranges deleted out of it, in order and not adjacent"""
    pointer: str = ""
    """the pointer that shows this ledger, which is stored as prepared until then; "" for none"""

    def __post_init__(self) -> None:
        if max(self.first_timestamp, self.last_timestamp, self.stamp) > TIMESTAMP_MAX:
            raise ValueError("a timestamp has more than 64 bits")


class RemovedLedgers(msgspec.Struct, frozen=True, array_like=True):
    """Ledgers of a lane that were deleted: from *number* to before *stop_number*."""

    number: Count
    stop_number: Count
    version: Count
    """version of the first entry"""
    stop_version: Count
    """version of the first entry after them"""
    ledger_id: Count
    """id of the first ledger"""
    last_ledger_id: Count


class LaneRemovals(msgspec.Struct, frozen=True):
    """The ledgers deleted out of a lane, in order and not adjacent."""

    ranges: Annotated[list[RemovedLedgers], msgspec.Meta(max_length=REMOVALS_MAX)] = []


class LaneName(msgspec.Struct, frozen=True):
    """The lane of a named producer in a partition."""

    lane: Count


class LaneRoll(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the writer of a lane, to go on in another ledger than the one in the key.

    It means nothing once that ledger is closed. Who asks removes it; one that was left behind
    does no harm.
    """

    asked_ms: Count = 0


class LaneOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The writer of a lane, as its lease shows it to others."""

    producer: str
    host: str = ""
    process_id: int = 0
    since_ms: Count = 0
    shared: bool = False
    """others may write other lanes of the partition"""
    closing: bool = False
    """it only closes an abandoned lane, which is quick"""


TopicRow = (
    TopicRecord
    | TopicEvent
    | LastEvent
    | LaneRecord
    | LaneLedger
    | LaneRemovals
    | LaneName
    | LaneRoll
    | LaneOwner
)


def split_topic(name: str) -> tuple[str, str]:
    """Return namespace and name of "namespace/name". Raises ValueError."""
    namespace, slash, local = name.partition("/")
    if not slash or not _NAME.fullmatch(namespace) or not _NAME.fullmatch(local):
        raise ValueError(
            f"{name!r} is not namespace/name, each 1 to 200 letters, digits, '_', '-' or '.'"
        )
    return namespace, local


def topic_key(name: str) -> str:
    """Return the key of a topic. Raises ValueError if *name* is not a valid name."""
    split_topic(name)
    return TOPICS + name


def namespace_prefix(namespace: str) -> str:
    """Return the prefix of the keys of a namespace's topics."""
    return f"{TOPICS}{namespace}/"


def event_key(namespace: str, number: int) -> str:
    """Return the key of an event that is not published yet."""
    return f"{TOPIC_EVENTS}{namespace}/{number:020d}"


def last_event_key(namespace: str) -> str:
    """Return the key of the number of the namespace's last event."""
    return LAST_EVENTS + namespace


def topic_prefix(kind: str, uid: int) -> str:
    """Return the prefix of a topic's keys of one *kind*, such as LANES."""
    return f"{kind}{uid:020d}/"


def partition_prefix(kind: str, uid: int, partition: int) -> str:
    """Return the prefix of a partition's keys of one *kind*, such as LANES.

    Partition -1 stands for the only one of a topic without partitions.
    """
    return f"{topic_prefix(kind, uid)}{partition + 1:010d}/"


def lane_key(uid: int, partition: int, lane: int) -> str:
    """Return the key of a lane's record."""
    return f"{partition_prefix(LANES, uid, partition)}{lane:010d}"


def lane_ledgers_prefix(uid: int, partition: int, lane: int) -> str:
    """Return the prefix of the keys of a lane's ledgers."""
    return f"{partition_prefix(LANE_LEDGERS, uid, partition)}{lane:010d}/"


def lane_ledger_key(uid: int, partition: int, lane: int, number: int) -> str:
    """Return the key of a lane's ledger; keys order as numbers do."""
    return f"{lane_ledgers_prefix(uid, partition, lane)}{number:020d}"


def lane_removals_key(uid: int, partition: int, lane: int) -> str:
    """Return the key of a lane's removals."""
    return f"{partition_prefix(LANE_REMOVALS, uid, partition)}{lane:010d}"


def lane_name_key(uid: int, partition: int, name: str) -> str:
    """Return the key of the lane that has a name."""
    return partition_prefix(LANE_NAMES, uid, partition) + name


def lane_rolls_prefix(uid: int, partition: int, lane: int) -> str:
    """Return the prefix of the keys of requests to a lane's writer; the ledger's id follows."""
    return f"{partition_prefix(LANE_ROLLS, uid, partition)}{lane:010d}/"


def lane_roll_key(uid: int, partition: int, lane: int, ledger_id: int) -> str:
    """Return the key of the request to leave a ledger."""
    return f"{lane_rolls_prefix(uid, partition, lane)}{ledger_id:020d}"


def partition_of_name(key: str) -> tuple[int, str]:
    """Return the partition and the name of a LaneName's key. Raises BadRecord."""
    _, _, partition, name = key.split("/", 3)
    return last_number(partition) - 1, name


def last_number(key: str) -> int:
    """Return the number at the end of a key: a lane, or a ledger of one. Raises BadRecord."""
    digits = key.rpartition("/")[2]
    if not (digits.isascii() and digits.isdigit()):
        raise BadRecord(f"{key!r} does not end with a number")
    return int(digits)


def lane_of(key: str) -> tuple[int, int]:
    """Return partition and lane of a LaneRecord's key or a writer's lease. Raises BadRecord."""
    partition = last_number(key.rpartition("/")[0])
    return partition - 1, last_number(key)


def writer_lease(uid: int, partition: int, lane: int) -> str:
    """Return the name of the lease that a lane's writer holds."""
    return f"{partition_prefix(WRITERS, uid, partition)}{lane:010d}"


def encode_row(row: TopicRow) -> bytes:
    """Return *row* as the JSON to store."""
    return msgspec.json.encode(row)


def decode_topic(key: str, value: bytes) -> TopicRecord:
    """Return the topic stored at *key*. Raises BadRecord."""
    return decode_row(key, value, TopicRecord)


def decode_event(key: str, value: bytes) -> TopicEvent:
    """Return the event stored at *key*. Raises BadRecord."""
    return decode_row(key, value, TopicEvent)


def decode_last_event(key: str, value: bytes) -> LastEvent:
    """Return the number of a namespace's last event. Raises BadRecord."""
    return decode_row(key, value, LastEvent)


def decode_lane(key: str, value: bytes) -> LaneRecord:
    """Return the lane stored at *key*. Raises BadRecord."""
    return decode_row(key, value, LaneRecord)


def decode_lane_ledger(key: str, value: bytes) -> LaneLedger:
    """Return the ledger of a lane stored at *key*. Raises BadRecord."""
    return decode_row(key, value, LaneLedger)


def decode_lane_removals(key: str, value: bytes) -> LaneRemovals:
    """Return a lane's removals, stored at *key*. Raises BadRecord."""
    return decode_row(key, value, LaneRemovals)


def decode_lane_name(key: str, value: bytes) -> LaneName:
    """Return the LaneName stored at *key*. Raises BadRecord."""
    return decode_row(key, value, LaneName)


def decode_lane_roll(key: str, value: bytes) -> LaneRoll:
    """Return the request stored at *key*. Raises BadRecord."""
    return decode_row(key, value, LaneRoll)


def decode_owner(name: str, value: bytes) -> LaneOwner:
    """Return the holder of the lease *name* of a lane. Raises BadRecord."""
    return decode_row(name, value, LaneOwner)

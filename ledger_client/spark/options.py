"""The options of a read by Spark, parsed from strings, and the offsets of a streaming query.

option                      meaning
--------------------------  --------------------------------------------------------------
cluster                     the cluster's URL; else QUIRE_CLUSTER, else this host's port 3181
topic, topics               namespace/name, one or several with commas
startingIds, endingIds      "earliest", "latest", a message id (ledger:entry:partition[:batch]),
                            or JSON: a position as TopicReader.position() returns it, or an
                            offset of a streaming query
startingVersion, endingV…   an entry of each lane
startingTime, endingTime    publish time: ISO 8601, or Unix milliseconds
startingTimestamp, ending…  timestamps of the topic
startingEventTime, ending…  ISO 8601, or Unix nanoseconds
startingCut, endingCut      names of cuts: begin after what it has, end with what it has
asOf                        only the messages up to this timestamp, the same rows whenever they
                            are read, while they are kept: a timestamp, or ISO 8601. It is in the
                            past, and the topics have timesync
startingInclusive, ending…  whether the named place belongs to the range; true
partitions                  only these numbers, with commas
lanes                       only these numbers or names, with commas; or a JSON list, where a
                            number in quotes is a name too: ["7", "a,b", 3]
columns                     only these columns, with commas, in this order
compacted                   only the latest message per key from the compacted part; false
mode                        for values that do not match the schema: "permissive" makes their
                            columns null, "failfast" raises
failOnDataLoss              whether removed messages are an error; true
rowsPerBatch                minimum rows of an Arrow batch, unless it has 4 MiB or nothing is
                            left; 10000
bytesPerPartition           approximate bytes that a task reads; 128 MiB
minPartitions               minimum number of tasks; by default this machine's cores
maxMessagesPerTrigger       of a streaming query: approximate messages of a micro-batch
maxBytesPerTrigger          the same in bytes
group                       of a streaming query: the group that has the query's progress, for
                            others to see. A new query begins there if no other option says where

Names match in any case. At most one option says where to begin, and one where to end.

An offset is JSON that Spark keeps in its checkpoint:

    {"shop/orders": {"uid": 7, "0/0": "3:1200:17:881:5203", "0/1": "0:4:0:884:4"}}

It has for each topic its uid and, for each partition/lane, the place: the ledger's number in the
lane, entry, messages of the entry before the place, ledger id, version. A lane without a place
is read from its first message; if that was removed, messages are missing (failOnDataLoss).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec

from ledger_client.errors import BadTopic, SparkError
from ledger_client.message_id import MessageId
from ledger_client.topics.positions import LanePlace, Place, Position, Version
from ledger_client.topics.reading.options import Start
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from metadata.cuts import check_cut
from metadata.groups.rows import check_group

Offset = Mapping[str, Mapping[str, str | int]]
"""An offset from Spark; JSON in its checkpoints."""
NewOffset = dict[str, dict[str, str | int]]
"""An offset for Spark, which wants dictionaries."""
_LANE = re.compile(r"(-1|\d{1,10})/(\d{1,10})", re.ASCII)
_PLACE = re.compile(r"(-1|\d{1,19}):(\d{1,19}):(\d{1,19}):(-1|\d{1,19}):(-1|\d{1,19})", re.ASCII)

DEFAULT_CLUSTER = "bookie://127.0.0.1:3181"
ROWS_PER_BATCH = 10_000
ROWS_MAX = 50_000
BYTES_PER_PARTITION = 128 << 20
_PLACES = ("Ids", "Version", "Time", "Timestamp", "EventTime", "Cut")
_BOUNDS = tuple(f"{end}{place}" for end in ("starting", "ending") for place in _PLACES)
_NAMES = (
    *("asOf", "cluster", "topic", "topics", "partitions", "lanes", "columns", "compacted", "mode"),
    *("failOnDataLoss", "rowsPerBatch", "bytesPerPartition", "minPartitions"),
    *("maxMessagesPerTrigger", "maxBytesPerTrigger", "group", "path"),
    *(*_BOUNDS, "startingInclusive", "endingInclusive"),
)
_NUMBER = re.compile(r"-?\d{1,20}", re.ASCII)
_LONG_MAX = (1 << 63) - 1
T = TypeVar("T")


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a read, validated."""

    cluster: str
    topics: tuple[str, ...]
    start: Start | None = None
    inclusive: bool = True
    end: Start | None = None
    end_inclusive: bool = True
    starting_cut: str = ""
    """the cut after which the read begins; "" for none"""
    ending_cut: str = ""
    """the cut with which it ends; "" for none"""
    as_of: Timestamp | datetime | None = None
    """the moment up to which messages are read"""
    partitions: tuple[int, ...] | None = None
    lanes: tuple[int | str, ...] | None = None
    columns: tuple[str, ...] | None = None
    compacted: bool = False
    mode: Literal["permissive", "failfast"] = "permissive"
    fail_on_data_loss: bool = True
    rows_per_batch: int = ROWS_PER_BATCH
    bytes_per_partition: int = BYTES_PER_PARTITION
    partitions_min: int | None = None
    messages_max: int | None = None
    """messages of a micro-batch"""
    bytes_max: int | None = None
    group: str = ""
    """the group that a streaming query commits to; "" for none"""

    @property
    def on_gap(self) -> Literal["raise", "skip"]:
        """Whether removed messages raise or are skipped."""
        return "raise" if self.fail_on_data_loss else "skip"


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options that Spark passes.

    Raises:
        SparkError: an option is invalid; the message names it.
    """
    options = GivenOptions(given, _NAMES)
    rows = options.one("rowsPerBatch", _count, ROWS_PER_BATCH)
    options.refuse_blank("asOf", "group", "partitions", "lanes", *_BOUNDS)
    _check_as_of(options)
    return SourceOptions(
        cluster=options.cluster(),
        topics=options.topics(),
        start=options.place("starting"),
        inclusive=options.one("startingInclusive", _truth, True),
        end=options.place("ending"),
        end_inclusive=options.one("endingInclusive", _truth, True),
        starting_cut=options.one("startingCut", _cut, ""),
        ending_cut=options.one("endingCut", _cut, ""),
        as_of=options.one("asOf", _as_of, None),
        partitions=options.one("partitions", _numbers, None),
        lanes=options.one("lanes", _lanes, None),
        columns=options.one("columns", _words, None),
        compacted=options.one("compacted", _truth, False),
        mode=options.one("mode", _mode, "permissive"),
        fail_on_data_loss=options.one("failOnDataLoss", _truth, True),
        rows_per_batch=min(rows, ROWS_MAX),
        bytes_per_partition=options.one("bytesPerPartition", _count, BYTES_PER_PARTITION),
        partitions_min=options.one("minPartitions", _count, None),
        messages_max=options.one("maxMessagesPerTrigger", _count, None),
        bytes_max=options.one("maxBytesPerTrigger", _count, None),
        group=options.one("group", _group, ""),
    )


class GivenOptions:
    """Options as Spark passes them, restricted to known *names*."""

    def __init__(self, given: Mapping[str, str], names: Sequence[str]) -> None:
        """Raises SparkError for an unknown name."""
        known = {name.lower(): name for name in names}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in known:
                raise SparkError.option(name, _unknown(name, known))
            self._values[known[name.lower()]] = value.strip()

    def text(self, name: str) -> str:
        """Return the option's text, "" if it is not set."""
        return self._values.get(name, "")

    def refuse_blank(self, *names: str) -> None:
        """Raise SparkError if one of these is set to nothing: without it other rows would be read.

        That is what a variable that is not set leaves of an option.
        """
        for name in names:
            if self._values.get(name) == "":
                raise SparkError.option(name, "it is empty; set it, or leave it out")

    def cluster(self) -> str:
        """Return the URL of the cluster."""
        return self.text("cluster") or os.environ.get("QUIRE_CLUSTER") or DEFAULT_CLUSTER

    def one(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Parse an option. Raises SparkError if *parse* raises ValueError."""
        text = self._values.get(name, "")
        if not text:
            return default
        try:
            return parse(text)
        except ValueError as wrong:
            raise SparkError.option(name, str(wrong)) from wrong

    def topics(self) -> tuple[str, ...]:
        """Return the names of the topics. Raises SparkError."""
        both = [self.text(name) for name in ("topic", "topics", "path")]
        names = tuple(name.strip() for text in both for name in text.split(",") if name.strip())
        if not names:
            raise SparkError.option(
                "topic", "which topic is to be read? namespace/name, or several with ,"
            )
        if len(set(names)) < len(names):
            raise SparkError.option("topic", "a topic is named twice")
        return names

    def place(self, end: str) -> Start | None:
        """Return the begin or end of the range, `None` if unset or a cut. Raises SparkError."""
        named = [f"{end}{place}" for place in _PLACES if self.text(f"{end}{place}")]
        if not named:
            return None
        if len(named) > 1:
            raise SparkError.option(named[1], f"it is said by {named[0]} already")
        if named[0] == f"{end}Cut":
            return None
        parse = _PARSERS[named[0].removeprefix(end)]
        return self.one(named[0], parse, None)


def _unknown(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    if near:
        return f"there is none of this name; is {known[near[0]]} meant?"
    return f"there is none of this name; there are {', '.join(sorted(known.values()))}"


# --- values -------------------------------------------------------------------------


def _truth(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 0 < int(text) <= _LONG_MAX:
        raise ValueError(f"{text!r} is no count from 1 on")
    return int(text)


def _check_as_of(options: GivenOptions) -> None:
    """Raise SparkError if other options exclude asOf."""
    if not options.text("asOf"):
        return
    if named := [f"ending{place}" for place in _PLACES if options.text(f"ending{place}")]:
        raise SparkError.option("asOf", f"{named[0]} says already where the read ends")
    if options.one("compacted", _truth, False):
        raise SparkError.option("asOf", "what is compacted is of no moment; read all messages")


def _as_of(text: str) -> Timestamp | datetime:
    if _NUMBER.fullmatch(text):
        return _timestamp(text)
    _nanoseconds(text)  # it is a point of time
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _cut(text: str) -> str:
    check_cut(text)
    return text


def _group(text: str) -> str:
    check_group(text)
    return text


def _mode(text: str) -> Literal["permissive", "failfast"]:
    if text.lower() == "permissive":
        return "permissive"
    if text.lower() == "failfast":
        return "failfast"
    raise ValueError(f"{text!r} is neither permissive nor failfast")


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if len(set(words)) < len(words):
        raise ValueError(f"{text!r} names a column twice")
    return words


def _numbers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(_NUMBER.fullmatch(word) for word in words):
        raise ValueError(f"{text!r} are no numbers with commas")
    return tuple(map(int, words))


def _lanes(text: str) -> tuple[int | str, ...]:
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=tuple[int | str, ...])
        except msgspec.MsgspecError as wrong:
            raise ValueError(f"{text!r} is no list of lanes: {wrong}") from wrong
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f'{text!r} has a comma too many; lanes without a name are [""]')
    return tuple(int(word) if _NUMBER.fullmatch(word) else word for word in words)


def _whole(text: str, low: int, high: int) -> int:
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise ValueError(f"{text!r} is no number from {low} to {high}")
    return int(text)


def _nanoseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no point of time: 2024-05-01T12:00Z, or a number") from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def _publish_time(text: str) -> Start:
    if _NUMBER.fullmatch(text):
        return PublishTime(_whole(text, 0, _LONG_MAX))
    return PublishTime(-(-_nanoseconds(text) // 1_000_000))


def _event_time(text: str) -> Start:
    if _NUMBER.fullmatch(text):
        return EventTime(_whole(text, -_LONG_MAX - 1, _LONG_MAX))
    return EventTime(_nanoseconds(text))


def _timestamp(text: str) -> Timestamp:
    """Accept the number as Spark shows it too, negative if it exceeds a signed long."""
    return Timestamp(_whole(text, -_LONG_MAX - 1, (1 << 64) - 1) % (1 << 64))


def _version(text: str) -> Start:
    return Version(_whole(text, 0, _LONG_MAX))


def _ids(text: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.startswith(("[", "{")):
        return parse_position(text)
    return MessageId.parse(text)


def parse_position(text: str) -> Position:
    """Parse a position from JSON: Position.to_json(), or an offset of a streaming query.

    Raises:
        ValueError: the text is neither.
    """
    try:
        if text.startswith("["):  # position() itself, as JSON
            return Position(msgspec.json.decode(text, type=tuple[LanePlace, ...]))
        if "quire" in msgspec.json.decode(text, type=dict[str, msgspec.Raw]):
            return Position.from_json(text)
        return position_of(msgspec.json.decode(text, type=dict[str, dict[str, str | int]]))
    except msgspec.MsgspecError as wrong:
        raise ValueError(f"it is no position: {wrong}") from wrong


_PARSERS: dict[str, Callable[[str], Start | None]] = {
    "Ids": _ids,
    "Version": _version,
    "Time": _publish_time,
    "Timestamp": _timestamp,
    "EventTime": _event_time,
}


def offset_of(position: Iterable[LanePlace], uids: Mapping[str, int]) -> NewOffset:
    """Return a position as an offset; *uids* also has the topics without lanes yet."""
    offset: NewOffset = {name: {"uid": uids[name]} for name in sorted(uids)}
    for each in sorted(position):
        lane = f"{each.partition}/{each.lane}"
        offset.setdefault(each.topic, {"uid": each.uid})[lane] = ":".join(map(str, each.place))
    return offset


def position_of(offset: Offset) -> Position:
    """Return an offset as a position.

    Raises:
        ValueError: it is not an offset.
    """
    found: list[LanePlace] = []
    for topic, uid in _uids(offset).items():
        lanes = offset[topic]
        named = [lane for lane in lanes if lane != "uid"]
        found += [_lane_place(topic, uid, lane, lanes[lane]) for lane in named]
    return Position(sorted(found))


def check_topics(offset: Offset, uids: Mapping[str, int]) -> None:
    """Check that an offset belongs to these topics, by their uids.

    Raises:
        ValueError: it is not an offset.
        BadTopic: a topic was deleted and created again since.
    """
    for topic, uid in _uids(offset).items():
        if uids.get(topic, uid) != uid:
            reason = "the offset is of another topic of this name, which was deleted"
            raise BadTopic(reason, topic=topic)


def _uids(offset: Offset) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic, lanes in offset.items():
        uid = lanes.get("uid") if isinstance(lanes, Mapping) else None
        if not isinstance(uid, int):
            raise ValueError(f"the offset of {topic} has no uid")  # noqa: TRY004 - it came as JSON
        found[topic] = uid
    return found


def _lane_place(topic: str, uid: int, lane: str, text: str | int) -> LanePlace:
    where, place = _LANE.fullmatch(lane), _PLACE.fullmatch(str(text))
    if where is None or place is None:
        raise ValueError(f"{topic}: {lane!r}: {text!r} is no place in a lane")
    return LanePlace(topic, uid, int(where[1]), int(where[2]), Place(*map(int, place.groups())))

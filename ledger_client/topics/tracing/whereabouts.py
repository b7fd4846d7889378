"""Where one message is: what the metadata and the bookies say of it, and the conclusion. No I/O.

    ledger prepared ──► not begun
    ledger not closed, entry above the LAC ──► unconfirmed, not written, or unknown
    ledger closed, entry above its last one ──► beyond the end
    entry at or below either ──► readable, unreadable, or unknown
    range of deleted messages ──► deleted            ledger gone ──► removed, or ledger deleted
    readable, with a timestamp ──► a tick has reached it, or who holds the next tick back

An entry is called absent only if enough bookies deny it. A bookie that does not answer, or may have
lost records, leaves the question open: the verdict is "unknown" then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from ledger_client.ledgers.copies import Copies, EntryCopy
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import Place
from metadata.time.calls import TickNow

Verdict = Literal[
    "readable", "unconfirmed", "not written", "not begun", "beyond the end", "deleted", "removed",
    "ledger deleted", "topic deleted", "no such message", "unreadable", "unknown",
]  # fmt: skip
SILENT_S = 1.0
"""A producer that reports its lanes does so each 200 ms."""
LedgerCondition = Literal["prepared", "open", "in recovery", "closed", "deleted"]
CompactedState = Literal["kept", "replaced", "dropped", "not yet", "unknown"]


class TracedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of a message."""

    ledger_id: int
    number: int
    """number of the ledger in its lane"""
    state: LedgerCondition
    """deleted: only its row in the lane is left"""
    confirmed: int | None
    """the last entry that readers get; -1 for none, `None` if no bookie answered"""
    write_quorum: int = 0
    """wanted copies of each entry"""
    ack_quorum: int = 0
    """copies with which an entry is acknowledged"""
    created_ms: int = 0
    closed_ms: int = 0


class TracedWriter(msgspec.Struct, frozen=True, kw_only=True):
    """The present writer of the message's lane."""

    producer: str
    host: str
    process_id: int
    since_ms: int
    lease_s: float
    """unless it is renewed, its lease is over in so many seconds"""


class TracedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message itself, without its value."""

    key: bytes | None
    size: int | None
    """bytes of the value, `None` for a null value"""
    publish_time: int
    event_time: int | None
    timestamp: int
    producer: str
    sequence: int


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger is marked for repair."""

    reason: str
    since_ms: int
    attempts: int
    last_failure: str


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """Why the message's ledger is kept, and until when."""

    why: str
    due_ms: int | None
    """Unix time of its removal in ms, if known; a quota or a pin may change it"""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What readers of the compacted topic get instead of the message.

    state     meaning
    --------  --------------------------------------------------------------
    kept      it is the latest of its key there
    replaced  they get *newest*, a later message of its key
    dropped   they get nothing: it had no key, or its key was deleted
    not yet   its ledger is not compacted yet, so they get it
    unknown   the compacted messages could not be read; *why* has the reason
    """

    generation: int
    state: CompactedState
    why: str
    newest: MessageId | None = None
    """the newest message of its key"""


class TickStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Whether readers in the order of timestamps get an acknowledged message yet.

    They get it once a tick of its topic has reached its timestamp.
    """

    timestamp: int | None
    """of the topic's newest tick, 0 if there is none yet; `None` if no leader says"""
    is_reached: bool
    """the tick is not below the message"""
    why: str
    """the same in words for people"""
    made_s: float = 0.0
    """how long ago that tick was made"""
    holder: str = ""
    """what holds the next tick back; "" if nothing does, or the message is reached"""
    partition: int | None = None
    """of the lane that holds it back; `None` if no lane does"""
    lane: int | None = None
    silent_s: float = 0.0
    """how long that lane's producer has reported nothing"""
    writer: TracedWriter | None = None
    """that lane's producer; `None` if nobody writes it"""


class GroupStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a group is done with the message.

    state         meaning
    ------------  ----------------------------------------------------------
    to come       the group goes on at or before it
    passed        the group's progress is after it
    held          *member* of a shared group has it and has not acknowledged it
    dead letter   it failed too often and was sent to the group's dead letters
    """

    group: str
    mode: str
    state: Literal["to come", "passed", "held", "dead letter"]
    member: str = ""
    """who has it; "" for nobody"""
    deliveries: int = 0
    """of a message that is held: how often it was delivered, the delivery under way included"""
    dead_letter: MessageId | None = None


class Whereabouts(msgspec.Struct, kw_only=True):
    """Where a message is, and why readers get it or not; from Topics.why()."""

    topic: str
    message_id: MessageId
    at_ms: int
    """the store's time"""
    verdict: Verdict
    why: str
    """the verdict's reason, in words for people"""
    waits_for: str = ""
    """what has to happen for readers to get it; "" if nothing will change that"""
    lane: int | None = None
    version: int = -1
    """of its entry in the lane"""
    ledger: TracedLedger | None = None
    writer: TracedWriter | None = None
    message: TracedMessage | None = None
    """`None` if no bookie served it"""
    copies: Sequence[EntryCopy] = ()
    repair: Repair | None = None
    keeping: Keeping | None = None
    deleted_ms: int | None = None
    """Unix time in ms at which a topic of this name was deleted last, of a message that is in no
    topic of the name now; `None` if the events of its namespace do not say"""
    first_left: MessageId | None = None
    """of a message that was removed: the entry with which its lane begins now"""
    ticks: TickStanding | None = None
    """of an acknowledged message of a topic with timesync"""
    compacted: Compacted | None = None
    groups: Sequence[GroupStanding] = ()
    """those that consume its partition"""

    @property
    def is_answered(self) -> bool:
        """False if the bookies leave the answer open, or the message is lost."""
        return self.verdict not in {"unknown", "unreadable"}


class UnreadLane(msgspec.Struct, frozen=True):
    """A lane that was not searched to its end."""

    partition: int
    lane: int
    reason: str


class KeySearch(msgspec.Struct, kw_only=True):
    """The newest messages of a key, one of each lane at most, the newest first.

    They are ordered by timestamp and by the time at which their producer sent them.
    """

    topic: str
    key: bytes
    partitions: Sequence[int]
    """that were searched; by default the one to which producers send the key now"""
    newest: list[MessageId] = []
    searched: int = 0
    """messages that were read"""
    unread: list[UnreadLane] = []
    """lanes in which the key may have other messages, or newer ones"""

    @property
    def is_complete(self) -> bool:
        """True if every lane was searched down to the key, its beginning, or *since*."""
        return not self.unread


class KeyWhereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the newest messages of a key are; from Topics.why_key()."""

    search: KeySearch
    messages: Sequence[Whereabouts]
    """the newest first, of one lane each"""

    @property
    def is_answered(self) -> bool:
        """False if the key may have newer messages, or one of these is in doubt or lost."""
        return self.search.is_complete and all(each.is_answered for each in self.messages)


class Traced(NamedTuple):
    """The whereabouts of a message, its place, and itself."""

    report: Whereabouts
    uid: int
    """of its topic; -1 if that was deleted"""
    place: Place | None
    """`None` if there is no such message, or not any more"""
    message: Message | None
    """`None` if no bookie served it"""


class Conclusion(NamedTuple):
    """A verdict with its reason, and what a reader waits for."""

    verdict: Verdict
    why: str
    waits_for: str = ""


def conclude(
    ledger: TracedLedger, writer: TracedWriter | None, entry: int, copies: Copies
) -> Conclusion:
    """Return the conclusion about an entry that was asked for at its bookies."""
    confirmed = ledger.confirmed
    if confirmed is not None and entry <= confirmed:
        return _confirmed(ledger, entry, copies)
    if ledger.state == "closed":
        end = "without entries" if not confirmed or confirmed < 0 else f"after entry {confirmed}"
        why = f"ledger {ledger.ledger_id} was closed {end}: entry {entry} was never acknowledged"
        return Conclusion("beyond the end", why)
    if confirmed is None:
        why = f"no bookie says how far ledger {ledger.ledger_id} is confirmed"
        return Conclusion("unknown", why, _answers(copies))
    if copies.payload is not None:
        return _unconfirmed(ledger, writer, copies)
    if copies.is_absent(ledger.write_quorum, ledger.ack_quorum):
        why = f"{_reach(ledger)}, and no bookie has entry {entry}"
        return Conclusion("not written", why, _next(ledger, writer))
    why = f"{_reach(ledger)}, and too few bookies deny that they have entry {entry}"
    return Conclusion("unknown", why, _answers(copies))


def _confirmed(ledger: TracedLedger, entry: int, copies: Copies) -> Conclusion:
    """Return the conclusion about an entry that was acknowledged."""
    told = f"entry {entry} is acknowledged"
    sound, wanted = copies.count("sound"), ledger.write_quorum
    if sound:
        from_some = "" if sound == wanted else f" from {sound} of {wanted} copies"
        return Conclusion("readable", f"{told}, and readers get it{from_some}")
    if copies.count("unknown"):
        is_silent = copies.count("unknown") == len(copies.of_bookies)
        why = "none of its bookies answers" if is_silent else "no bookie that answers has it"
        return Conclusion("unknown", f"{told}, but {why}", _answers(copies))
    remedy = "a bookie with a sound copy to come back"
    return Conclusion("unreadable", f"{told}, but no bookie has a sound copy", remedy)


def _unconfirmed(ledger: TracedLedger, writer: TracedWriter | None, copies: Copies) -> Conclusion:
    """Return the conclusion about an entry that is there, but not confirmed."""
    sound, needed = copies.count("sound"), ledger.ack_quorum
    where = f"it is on {', '.join(copies.bookies('sound'))}"
    if sound < needed:
        where = f"{where}, {sound} of {needed} copies that acknowledge it"
    why = f"{where}, and {_reach(ledger)}"
    if ledger.state == "in recovery" or writer is None:
        return Conclusion("unconfirmed", why, _next(ledger, writer))
    if sound < needed:
        return Conclusion("unconfirmed", why, "its writer, which needs more of its bookies")
    news = "its writer's next message, or a moment of silence"
    return Conclusion("unconfirmed", why, f"{news}; if the writer died, the closing of its lane")


def stand_to_ticks(message: int, tick: TickNow, writer: TracedWriter | None) -> TickStanding:
    """Return how a message with the timestamp *message* stands to the topic's newest tick.

    *writer*: of the lane that holds the next tick back.
    """
    if message <= tick.timestamp:
        why = "readers in the order of timestamps get it: a tick has reached it"
        return TickStanding(timestamp=tick.timestamp, is_reached=True, why=why, made_s=tick.held_s)
    partition, lane = tick.lane or (None, None)
    newest = "the topic has no tick yet"
    if tick.timestamp:
        newest = f"the newest tick, of {tick.held_s:.1f} s ago, is below it"
    why = f"readers in the order of timestamps do not get it yet: {newest}"
    return TickStanding(
        timestamp=tick.timestamp,
        is_reached=False,
        why=f"{why}; {_held(tick, writer)}",
        made_s=tick.held_s,
        holder=tick.holder,
        partition=partition,
        lane=lane,
        silent_s=tick.silent_s,
        writer=writer,
    )


def _held(tick: TickNow, writer: TracedWriter | None) -> str:
    """Return what the next tick waits for."""
    if not tick.holder:
        return "the next one is due"
    if tick.lane is None:
        return f"the next one waits for {tick.holder}"
    if writer is None:
        return f"{tick.holder} holds the next one back: nobody writes it, and it is closed soon"
    who = writer.producer or "a producer"
    if writer.host:
        who = f"{who} on {writer.host}, process {writer.process_id}"
    if tick.silent_s < SILENT_S:
        return f"the next one waits for {tick.holder}, which is written by {who}"
    silent = f"has not reported it for {tick.silent_s:.1f} s"
    return f"{tick.holder} holds the next one back: {who}, {silent}"


def _reach(ledger: TracedLedger) -> str:
    if ledger.confirmed is None or ledger.confirmed < 0:
        return f"nothing of ledger {ledger.ledger_id} is confirmed yet"
    return f"ledger {ledger.ledger_id} is confirmed up to entry {ledger.confirmed}"


def _next(ledger: TracedLedger, writer: TracedWriter | None) -> str:
    """Return what decides about the end of a ledger that is not closed."""
    if ledger.state == "in recovery":
        again = f"`quire ledger recover {ledger.ledger_id}` completes one that was cut short"
        return f"the recovery of its ledger, which decides about the entry; {again}"
    if writer is None:
        return "the leader: it closes a lane without a writer within a minute, and decides then"
    return "its writer"


def _answers(copies: Copies) -> str:
    names = copies.bookies("unknown")
    return f"an answer of {', '.join(names)}: start them" if names else "an answer of its bookies"

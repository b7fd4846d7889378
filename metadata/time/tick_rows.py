"""The rows of ticks: their ledgers, which lanes changed, and which changes hold ticks back.

key or lease            value
----------------------  --------------------------------------------------------------
ticks/<uid>/<number>    TickLedger: a ledger of the topic's ticks; numbers rise by 1
time/lanes              TimedTopic: where a lane was opened or closed last, in any topic
time-lanes/<uid>        TimedTopic: the same of one topic with timesync
time-ddl/<uid>/<token>  a lease of a client that alters or deletes the topic now: TickHold

uid and number have 20 digits. The transaction that opens or closes a lane of such a topic puts the
last two rows, and so does one with which a job begins or ends to hold ticks back, or shows
messages. So whoever checks the version of ``time/lanes`` knows that the lanes are still open, and
closed, and hold ticks, as they were when that version was read. The row changes when a change of
the topic holds ticks back, too: see tick_holds.py.

Only the leader makes ledgers of ticks, each together with a check of its term and of the topic's
record. A new leader recovers the last one, which fences the one before, and goes on in the next.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from metadata.records import decode_row
from metadata.store import Put
from metadata.topics import Count, TopicRecord, topic_prefix

TICKS = "ticks/"
TIME_LANES = "time/lanes"
LANES_OF_TOPIC = "time-lanes/"
TIME_DDL = "time-ddl/"


class TickLedger(msgspec.Struct, frozen=True):
    """A ledger of a topic's ticks."""

    ledger_id: Count
    after: Annotated[int, msgspec.Meta(ge=0)]
    """the topic's last tick in the ledgers before it, 0 for none; this one has later ones"""


class TimedTopic(msgspec.Struct, frozen=True):
    """A topic with timesync."""

    name: str


class TickHold(msgspec.Struct, frozen=True):
    """An alteration or deletion of a topic that is under way."""

    topic: str
    below: Annotated[int, msgspec.Meta(ge=0)]
    """the topic gets no tick above this timestamp; that of the change is later"""
    kind: str = ""
    """what is done to the topic: altered or deleted"""
    host: str = ""
    process_id: int = 0


def ticks_prefix(uid: int) -> str:
    """Return the prefix of the keys of a topic's tick ledgers."""
    return topic_prefix(TICKS, uid)


def tick_ledger_key(uid: int, number: int) -> str:
    """Return the key of a topic's tick ledger; keys order as numbers do."""
    return f"{ticks_prefix(uid)}{number:020d}"


def lanes_of_topic_key(uid: int) -> str:
    """Return the key of the row that changes with the lanes of a topic."""
    return f"{LANES_OF_TOPIC}{uid:020d}"


def hold_prefix(uid: int) -> str:
    """Return the prefix of the names of leases that hold a topic's ticks back."""
    return topic_prefix(TIME_DDL, uid)


def lanes_changed(topic: TopicRecord) -> list[Put]:
    """Return the operations that note a change of the lanes of a topic, none without timesync."""
    if not topic.timesync:
        return []
    value = msgspec.json.encode(TimedTopic(topic.name))
    return [Put(TIME_LANES, value), Put(lanes_of_topic_key(topic.uid), value)]


def decode_tick_ledger(key: str, value: bytes) -> TickLedger:
    """Return the tick ledger stored at *key*. Raises BadRecord."""
    return decode_row(key, value, TickLedger)


def decode_timed_topic(key: str, value: bytes) -> TimedTopic:
    """Return the topic named at *key*. Raises BadRecord."""
    return decode_row(key, value, TimedTopic)

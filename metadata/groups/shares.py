"""What members of a shared group hold, as readable JSON.

key                                value
---------------------------------  ------------------------------------------------------------
shares/<group>/<member>/<id>       ShareRecord: messages that the member has, and which are done
share-wants/<group>/<member>       Wanted: the member has nothing to do

The member that a partition is assigned to takes entries from the group's progress on, in one
transaction with the share that holds them. From then on a message is in one share at a time, until
it is acknowledged. Each change of a share expects its version, so who lost it changes nothing:

    taken        Check(row of the partition's member), Put(progress), Put(share)
    acknowledged Put(share), or Delete(share) once all of its messages are
    given        Check(row of a member), Delete(its want), Put(share), Put(share of that member)
    adopted      Check(the former member has no row), Delete(its share), Put(share)

A share under FREE belongs to nobody; no member has this name.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from metadata.groups.assignment import Part
from metadata.groups.rows import (
    SLOTS,
    LaneProgress,
    Partition,
    Wanted,
    check_group,
    member_key,
    members_prefix,
    progress_prefix,
)
from metadata.records import decode_row
from metadata.store import MetadataStore, items_under
from metadata.topics import Count

SHARES = "shares/"
SHARE_WANTS = "share-wants/"
FREE = "~"
ENTRIES_MAX = 256
"""Entries in one share."""
MESSAGES_MAX = 1 << 20
"""Messages in one share; a share of one entry has as many as its entry."""

Entries = Annotated[list[Count], msgspec.Meta(min_length=1, max_length=ENTRIES_MAX)]


class ShareRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of consecutive entries of a ledger, which one member has."""

    topic: Count
    """its uid"""
    partition: Partition
    lane: Count
    number: Count
    """of the ledger in its lane"""
    ledger_id: Count
    entry: Count
    """the first entry"""
    version: Count
    """of the first entry in its lane"""
    counts: Entries
    """messages of each entry; 0 for an entry without any"""
    done: bytes
    """a bit for each message, from the lowest of the first byte on: acknowledged, or elsewhere"""
    run: str = ""
    """the member's run that took it; "" if it was not taken yet"""
    deliveries: Count = 0
    """of messages that are not in *tries*"""
    is_blind: bool = False
    """the last of these deliveries is the member's own, which may not have taken place yet"""
    tries: dict[int, Count] = {}
    """deliveries by the message's index"""

    @property
    def first(self) -> LaneProgress:
        """The place before its first entry."""
        return LaneProgress(self.lane, self.number, self.entry, 0, self.ledger_id, self.version)

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """Its place among all shares, in the order of their lanes."""
        return self.topic, self.partition, self.lane, self.number, self.entry

    def __post_init__(self) -> None:
        messages = sum(self.counts)
        if messages > MESSAGES_MAX:
            raise ValueError(f"{messages} messages in one share")
        if len(self.done) != (messages + 7) // 8:
            raise ValueError(f"{len(self.done)} bytes of bits for {messages} messages")
        if any(not 0 <= index < messages for index in self.tries):
            raise ValueError("deliveries of a message that is not in the share")


def shares_prefix(group: str) -> str:
    """Return the prefix of the keys of a group's shares. Raises ValueError."""
    check_group(group)
    return f"{SHARES}{group}/"


def held_prefix(group: str, member: str) -> str:
    """Return the prefix of the keys of a member's shares; *member* may be FREE."""
    return f"{shares_prefix(group)}{member}/"


def share_key(group: str, member: str, share: str) -> str:
    """Return the key of a share."""
    return held_prefix(group, member) + share


def holder_of(key: str) -> str:
    """Return the member in the key of a share."""
    return key.split("/")[2]


def wants_prefix(group: str) -> str:
    """Return the prefix of the keys of members without work. Raises ValueError."""
    check_group(group)
    return f"{SHARE_WANTS}{group}/"


def group_prefixes(group: str) -> tuple[str, ...]:
    """Return the prefixes of all rows of a group but its own; members come first."""
    own = wants_prefix(group), shares_prefix(group)
    return members_prefix(group), *own, progress_prefix(group)


def want_key(group: str, member: str) -> str:
    """Return the key of a member without work."""
    return wants_prefix(group) + member


def decode_want(key: str, value: bytes) -> Wanted:
    """Return which topics a member without work wants. Raises BadRecord."""
    return decode_row(key, value, Wanted)


def row_of_holder(group: str, key: str) -> str | None:
    """Return the key of the row of a share's member, `None` if it belongs to nobody."""
    holder = holder_of(key)
    return None if holder == FREE else member_key(group, holder)


def decode_share(key: str, value: bytes) -> ShareRecord:
    """Return the share stored at *key*. Raises BadRecord."""
    return decode_row(key, value, ShareRecord)


async def shares_of(store: MetadataStore, group: str, uid: int) -> list[ShareRecord]:
    """Return what members of a group have of a topic. Raises MetadataError.

    Messages that pass from one member to another meanwhile may be missing.
    """
    rows = await items_under(store, shares_prefix(group))
    shares = (decode_share(key, found.value) for key, found in rows)
    return [share for share in shares if share.topic == uid]


def slot_part(topic: int, partition: int, slot: int) -> Part:
    """Return what a key-shared group assigns for a slot of a partition."""
    return Part(topic, max(partition, 0) * SLOTS + slot)

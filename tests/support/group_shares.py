"""Shares of messages, as a member of a shared group has them."""

from __future__ import annotations

from ledger_client.groups.share import Share
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import NO_HEADERS, Message
from metadata.groups.shares import ShareRecord


def share_of(keys: str, *, name: str = "s", topic: int = 1, entry: int = 0) -> Share:
    """Return a share of one entry with a message for each letter, which is its key."""
    record = ShareRecord(
        topic=topic,
        partition=0,
        lane=0,
        number=0,
        ledger_id=topic,
        entry=entry,
        version=entry,
        counts=[len(keys)],
        done=bytes((len(keys) + 7) // 8),
    )
    share = Share(record, name, is_blind=True)
    share.messages = [
        Message(
            MessageId(topic, entry, 0, at), key.encode(), b"%d" % (entry * 10 + at), None, 0, 0,
            NO_HEADERS, "", -1, entry,
            "shop/orders", 0,
        )
        for at, key in enumerate(keys)
    ]  # fmt: skip
    return share

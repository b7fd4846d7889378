"""Whose ledgers are: which topic's, and what for, as metadata says.

A ledger of a topic stands in a row of its lane, in the topic's compacted set, or in the rows
of what a job has staged. One that stands nowhere there is somebody's own.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from metadata.compaction import COMPACTED, decode_set
from metadata.jobs import STAGED, decode_staged
from metadata.store import MetadataStore, pages
from metadata.topics import LANE_LEDGERS, TOPICS, decode_lane_ledger, decode_topic

Part = Literal["messages", "compacted", "staged", "plain"]


class Owner(msgspec.Struct, frozen=True, order=True):
    """Whose a ledger is. *topic* is empty for a plain ledger."""

    topic: str
    part: Part
    """messages of the topic, survivors of its compaction, or what a job has not shown yet"""


PLAIN = Owner("", "plain")


class Owners(msgspec.Struct):
    """The owners of all ledgers of topics."""

    topics: set[str]
    by_ledger: dict[int, Owner]

    def of(self, ledger_id: int) -> Owner:
        """Return whose the ledger is, which is there."""
        return self.by_ledger.get(ledger_id, PLAIN)


async def read_owners(store: MetadataStore) -> Owners:
    """Read whose every ledger is. Costs a read for each thousand rows.

    Raises:
        MetadataError: the store cannot be asked, or holds what it should not.
    """
    names: dict[int, str] = {}
    async for page in pages(store, TOPICS):
        for key, row in page:
            topic = decode_topic(key, row.value)
            names[topic.uid] = topic.name
    owners = Owners(set(names.values()), {})
    async for page in pages(store, STAGED):
        for key, row in page:
            staged = decode_staged(key, row.value)
            owners.by_ledger[staged.ledger_id] = _owner(names, key, "staged")
    async for page in pages(store, LANE_LEDGERS):
        for key, row in page:
            ledger = decode_lane_ledger(key, row.value)
            owners.by_ledger[ledger.ledger_id] = _owner(names, key, "messages")
    async for page in pages(store, COMPACTED):
        for key, row in page:
            made = decode_set(key, row.value)
            owner = _owner(names, key, "compacted")
            owners.by_ledger |= {each.ledger_id: owner for each in made.ledgers}
            owners.by_ledger |= {each.ledger_id: owner for each in made.retired}
    return owners


def _owner(names: dict[int, str], key: str, part: Part) -> Owner:
    uid = int(key.split("/")[1])
    return Owner(names.get(uid, f"(topic {uid}, which is being deleted)"), part)

"""Ledgers of a topic taken away: the row and the ledger's record by one transaction.

So a crash leaves neither a ledger that no topic knows nor a row without its ledger. The
bookies free the space when they collect garbage next. Two who remove the same, or a repair
that changes a ledger's record meanwhile, are told by the versions: what is left is looked at
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.jobs.job import read_pins
from ledger_client.topics.keeping.holdings import read_holdings
from ledger_client.topics.keeping.retention import Before, Fate, plan_purge
from ledger_client.translation import translated
from metadata.errors import VersionConflict
from metadata.records import ledger_key
from metadata.store import ABSENT, Check, CheckLease, Delete, MetadataStore, Op
from metadata.topics import lane_ledger_key

BATCH_COUNT = 40
"""Ledgers that one transaction removes."""
ATTEMPTS_MAX = 5
OnRemoved = Callable[[int], None]


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge did, or would do."""

    topic: str
    removed: list[Fate]
    kept: list[Fate]
    """the first ledger of each lane that is still there, if there is one, and why"""

    @property
    def messages(self) -> int:
        """How many messages are gone."""
        return sum(fate.ledger.messages for fate in self.removed)

    @property
    def size(self) -> int:
        """How many payload bytes are gone, of one copy."""
        return sum(fate.ledger.size for fate in self.removed)


async def plan(
    catalogue: TopicCatalogue,
    name: str,
    before: Before,
    *,
    partition: int | None = None,
    lane: int | None = None,
) -> tuple[int, Purged]:
    """Return the topic's uid and what a purge would do. Raises NoSuchTopic."""
    topic, _ = await catalogue.get(name)
    with translated(catalogue.timeout_s):
        lanes = await read_holdings(catalogue.store, topic, partition)
        pins = await read_pins(catalogue.store, topic)
    lanes = [each for each in lanes if lane is None or each.lane == lane]
    fates = plan_purge(lanes, before, now_ms=await catalogue.now_ms(), pins=pins)
    return topic.uid, Purged(topic=name, removed=going(fates), kept=_first_kept(fates))


def going(fates: Sequence[Fate]) -> list[Fate]:
    """Return those that go."""
    return [fate for fate in fates if fate.goes]


async def remove(
    catalogue: TopicCatalogue,
    uid: int,
    fates: Sequence[Fate],
    *,
    checks: Sequence[CheckLease] = (),
    on_removed: OnRemoved | None = None,
) -> list[Fate]:
    """Remove ledgers of the topic *uid*, in this order; return those that went here.

    What somebody else removed meanwhile is passed over.

    Raises:
        MetadataUnavailable, MetadataBroken: what was not reached is still there, whole.
        LeaseLost: one of *checks* is over.
    """
    removed: list[Fate] = []
    for start in range(0, len(fates), BATCH_COUNT):
        batch = fates[start : start + BATCH_COUNT]
        gone = await _remove_batch(catalogue, uid, batch, checks)
        if gone is None:
            break  # somebody changes them without end: the rest is for another time
        removed += gone
        if on_removed is not None:
            on_removed(len(gone))
    return removed


async def _remove_batch(
    catalogue: TopicCatalogue, uid: int, fates: Sequence[Fate], checks: Sequence[CheckLease]
) -> list[Fate] | None:
    for _ in range(ATTEMPTS_MAX):
        ops: list[Op] = list(checks)
        there: list[Fate] = []
        try:
            with translated(catalogue.timeout_s):
                for fate in fates:
                    removal = await _removal(catalogue.store, uid, fate)
                    ops += removal
                    there += [fate] if removal else []
                if there:
                    await catalogue.store.transact(ops)
        except VersionConflict:
            continue
        return there
    return None


async def _removal(store: MetadataStore, uid: int, fate: Fate) -> list[Op]:
    """Return what removes a ledger and its row; nothing when the row is gone."""
    row = lane_ledger_key(uid, fate.partition, fate.lane, fate.number)
    found = await store.get(row)
    if found is None or found.version != fate.version:
        return []
    key = ledger_key(fate.ledger.ledger_id)
    record = await store.get(key)
    ledger = Check(key, ABSENT) if record is None else Delete(key, record.version)
    return [Delete(row, fate.version), ledger]


def _first_kept(fates: Sequence[Fate]) -> list[Fate]:
    kept: dict[tuple[int, int], Fate] = {}
    for fate in fates:
        if not fate.goes:
            kept.setdefault((fate.partition, fate.lane), fate)
    return list(kept.values())

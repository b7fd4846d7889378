"""Marks on ledgers that want repair: made, added to, taken off.

Several may have something to say of a ledger, and nothing of it is forgotten: a mark that
exists is added to, by compare-and-set. Who takes a mark off names the version that it
dealt with.
"""

from __future__ import annotations

import msgspec

from ledger_client.marks import marking
from ledger_client.repair.outcome import Outcome
from metadata.errors import VersionConflict
from metadata.records import (
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    underreplicated_key,
)
from metadata.store import CheckLease, Delete, MetadataStore, Put

REASON_SIZE_MAX = 500


class Mark(msgspec.Struct, frozen=True):
    """A mark and its version in the store."""

    content: UnderReplicated
    version: int

    @property
    def key(self) -> str:
        """Where it is stored."""
        return underreplicated_key(self.content.ledger_id)

    def removal(self) -> Delete:
        """Return the op that takes it off, if nobody added to it."""
        return Delete(self.key, expected=self.version)


async def read_mark(store: MetadataStore, ledger_id: int) -> Mark | None:
    """Return a ledger's mark, None when there is none. Raises MetadataError."""
    key = underreplicated_key(ledger_id)
    found = await store.get(key)
    if found is None:
        return None
    return Mark(decode_underreplicated(key, found.value), found.version)


async def add_mark(
    store: MetadataStore,
    mark: UnderReplicated,
    check: CheckLease | None = None,
    *,
    anew: bool = False,
) -> None:
    """Mark a ledger, or add to its mark; nothing is written when that says it all.

    A mark that cannot be decoded is written over.

    Args:
        store: where marks are.
        mark: what is to be said.
        check: the lease by which the caller may say it.
        anew: write in any case. Who looked at the ledger before cannot take the mark off then.

    Raises:
        LeaseLost: the lease is over.
        MetadataError: the store is away or refuses.
    """
    checks = [] if check is None else [check]
    while True:
        marked = await marking(store, mark)
        if not (marked.says_more or anew):
            return
        try:
            await store.transact([*checks, marked.put])
        except VersionConflict:
            continue
        return


async def note_outcome(
    store: MetadataStore, dealt_with: Mark, outcome: Outcome, check: CheckLease
) -> None:
    """Write into a mark why the ledger is not whole, for people and for other workers.

    Damage is taken out only of the mark that was *dealt_with*: in one that was written since,
    the same entries may have been damaged again.

    Raises:
        MetadataError: the store is away, the lease is over, or the mark was changed.
    """
    mark = await read_mark(store, dealt_with.content.ledger_id)
    if mark is None:
        return
    damaged = mark.content.damaged
    if outcome.damaged is not None and mark.version == dealt_with.version:
        damaged = outcome.damaged
    content = msgspec.structs.replace(
        mark.content,
        damaged=damaged,
        last_failure=outcome.reason[:REASON_SIZE_MAX],
        attempts=mark.content.attempts + (outcome.again_s is None),
    )
    if content != mark.content:
        await store.transact([check, Put(mark.key, encode_record(content), mark.version)])


def size_on(record: LedgerRecord, bookie_ids: set[str]) -> int:
    """Return how many payload bytes these bookies have of a closed ledger, roughly; else 0."""
    entries = record.last_entry + 1
    if record.state is not LedgerState.CLOSED or entries <= 0:
        return 0
    ends = [*(fragment.first_entry for fragment in record.fragments[1:]), entries]
    places = sum(
        len(bookie_ids.intersection(fragment.bookies)) * (end - fragment.first_entry)
        for fragment, end in zip(record.fragments, ends, strict=True)
    )
    copies = record.write_quorum / record.ensemble_size
    return round(record.length / entries * places * copies)

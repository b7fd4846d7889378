"""Marks on ledgers that need repair.

Several processes may report one ledger, and no report gets lost: a further one is merged
into the existing mark by compare-and-set. Removing a mark names the version that was
dealt with, so a newer report survives.
"""

from __future__ import annotations

import msgspec

from ledger_client.ledgers.records import marking
from metadata.errors import VersionConflict
from metadata.records import (
    DamagedRun,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    underreplicated_key,
)
from metadata.store import CheckLease, Delete, MetadataStore, Put

REASON_SIZE_MAX = 500


class StoredMark(msgspec.Struct, frozen=True):
    """A mark and its version in the store."""

    content: UnderReplicated
    version: int

    @property
    def key(self) -> str:
        """Its key in the metadata store."""
        return underreplicated_key(self.content.ledger_id)

    def removal(self) -> Delete:
        """Return the op that removes it, unless a report was added since."""
        return Delete(self.key, expected=self.version)


async def read_mark(store: MetadataStore, ledger_id: int) -> StoredMark | None:
    """Return a ledger's mark, or `None` if it has none. Raises MetadataError."""
    key = underreplicated_key(ledger_id)
    found = await store.get(key)
    if found is None:
        return None
    return StoredMark(decode_underreplicated(key, found.value), found.version)


async def add_mark(
    store: MetadataStore,
    mark: UnderReplicated,
    check: CheckLease | None = None,
    *,
    anew: bool = False,
) -> None:
    """Mark a ledger, or merge into its mark; writes nothing if that adds nothing.

    A mark that cannot be decoded is overwritten.

    Args:
        store: where marks are kept.
        mark: the report.
        check: the lease that entitles the caller to report.
        anew: write in any case, so that a worker that looked at the ledger before cannot
            remove the mark.

    Raises:
        LeaseLost: the lease is over.
        MetadataError: the store refused or is unavailable.
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
    store: MetadataStore, dealt_with: StoredMark, outcome: RepairOutcome, check: CheckLease
) -> None:
    """Record in a mark why its ledger is not whole, for operators and for other workers.

    Damage is cleared, and bookies are called whole, only if the mark is still the one *dealt_with*:
    in a newer one, the same entries may have been damaged again.

    Raises:
        MetadataError: the store is unavailable, the lease is over, or the mark was changed.
    """
    mark = await read_mark(store, dealt_with.content.ledger_id)
    if mark is None:
        return
    damaged, whole = mark.content.damaged, mark.content.whole
    if mark.version == dealt_with.version:
        damaged = damaged if outcome.damaged is None else outcome.damaged
        whole = whole if outcome.whole is None else outcome.whole
    content = msgspec.structs.replace(
        mark.content,
        damaged=damaged,
        whole=whole,
        last_failure=outcome.reason[:REASON_SIZE_MAX],
        attempts=mark.content.attempts + (outcome.again_s is None),
    )
    if content != mark.content:
        await store.transact([check, Put(mark.key, encode_record(content), mark.version)])


def size_on(record: LedgerRecord, bookie_ids: set[str]) -> int:
    """Estimate the payload bytes that these bookies hold of a closed ledger; 0 if it is open."""
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


# --- The outcome of an attempt ----------------------------------------------------------


AGAIN_S = 1.0
"""Pause after the ledger, its mark or the cluster changed under a repair."""


class RepairOutcome(msgspec.Struct, frozen=True):
    """How a repair ended. Without a *reason*, the ledger is whole and its mark is gone."""

    reason: str = ""
    """why it is not whole, in one line"""
    again_s: float | None = None
    """try again after this time, as nothing failed; `None`: after a growing pause"""
    damaged: list[DamagedRun] | None = None
    """the part of the mark's damage that remains; `None` if it was not examined"""
    whole: list[str] | None = None
    """the bookies that hold all that they should; `None` if they were not asked"""


WHOLE = RepairOutcome()


def joined(reasons: list[str]) -> str:
    """Join the non-empty *reasons*, each once, in one line."""
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))

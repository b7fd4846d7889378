"""Changes of a ledger's record and of its repair mark.

These functions compute the new record; catalogue.py stores it by compare-and-set.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from ledger_client.errors import LedgerClosed, LedgerFenced
from metadata.errors import BadRecord
from metadata.records import (
    DamagedRun,
    Fragment,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    underreplicated_key,
)
from metadata.store import ABSENT, MetadataStore, Put


def with_fragment(
    record: LedgerRecord, expected_last: Fragment, fragment: Fragment
) -> LedgerRecord:
    """Return *record* continued with *fragment*; *record* itself if that is its last one.

    The last fragment may begin later than expected, on the same bookies: readers stated entries
    before it (stated()). Then *fragment* begins no earlier than that.

    Raises:
        LedgerFenced: its last fragment is neither *fragment* nor *expected_last*.
    """
    last = record.fragments[-1]
    if _goes_on(fragment, last):
        return record
    if not _goes_on(expected_last, last):
        raise LedgerFenced(record.ledger_id)
    first_entry = max(last.first_entry, fragment.first_entry)
    kept = record.fragments
    if last.first_entry == first_entry:
        kept = kept[:-1]
    return msgspec.structs.replace(
        record, fragments=[*kept, Fragment(first_entry, fragment.bookies)]
    )


def _goes_on(fragment: Fragment, last: Fragment) -> bool:
    """True if *last* is *fragment*, or what statements of readers made of it."""
    return last.bookies == fragment.bookies and last.first_entry >= fragment.first_entry


def stated(record: LedgerRecord, last_entry: int) -> LedgerRecord:
    """Return *record* with the statement that entries up to *last_entry* are confirmed.

    It is a fragment on the same bookies that begins after the entry, as one does that a writer
    begins: all before it is confirmed.
    """
    fragments, last = record.fragments, record.fragments[-1]
    if last.first_entry > last_entry:
        return record
    if len(fragments) > 1 and fragments[-2].bookies == last.bookies:
        fragments = fragments[:-1]  # one statement is enough
    return msgspec.structs.replace(
        record, fragments=[*fragments, Fragment(last_entry + 1, last.bookies)]
    )


def fragments_up_to(last_entry: int, fragments: list[Fragment]) -> list[Fragment]:
    """Return the fragments of a ledger that ends at *last_entry*.

    Fragments that begin after it hold nothing; the first stays in any case.
    """
    return [f for f in fragments if f.first_entry <= max(last_entry, 0)]


def grown(record: LedgerRecord, expected_last: Fragment, fragment: Fragment) -> LedgerRecord:
    """As with_fragment(), for a ledger that must be open.

    Raises:
        LedgerFenced: another client recovers it.
        LedgerClosed: another client sealed it.
    """
    if record.state is LedgerState.CLOSED:
        raise LedgerClosed(record.ledger_id, record.last_entry)
    if record.state is not LedgerState.OPEN:
        raise LedgerFenced(record.ledger_id)
    return with_fragment(record, expected_last, fragment)


def sealed(record: LedgerRecord, last_entry: int, length: int) -> LedgerRecord:
    """Return *record* closed at *last_entry*; *record* itself if it is already.

    Raises:
        LedgerFenced: another client recovers it, or entries after *last_entry* were stated, so that
            it must be recovered.
        LedgerClosed: another client sealed it at another end.
    """
    if record.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(record.ledger_id)
    if record.state is LedgerState.CLOSED:
        if (record.last_entry, record.length) != (last_entry, length):
            raise LedgerClosed(record.ledger_id, record.last_entry)
        return record
    if record.fragments[-1].first_entry > last_entry + 1:
        raise LedgerFenced(record.ledger_id)
    return msgspec.structs.replace(
        record,
        state=LedgerState.CLOSED,
        last_entry=last_entry,
        length=length,
        fragments=fragments_up_to(last_entry, record.fragments),
    )


Reason = Literal["bookie lost", "draining", "ensemble changed", "damaged", "limbo", "check"]


def new_mark(
    ledger_id: int, reason: Reason, bookies: Iterable[str], damaged: Iterable[DamagedRun]
) -> UnderReplicated:
    """Return a repair mark made now. Without *bookies*, copies may be missing anywhere."""
    now_ms = time.time_ns() // 1_000_000
    return UnderReplicated(ledger_id, reason, now_ms, sorted(set(bookies)), [*damaged])


def merged(known: UnderReplicated, mark: UnderReplicated) -> UnderReplicated:
    """Return the union of both marks, so that no report is lost."""
    anywhere = not (known.bookies and mark.bookies)
    bookies = [] if anywhere else sorted({*known.bookies, *mark.bookies})
    damaged = [*known.damaged, *(run for run in mark.damaged if run not in known.damaged)]
    whole = [bookie for bookie in known.whole if mark.bookies and bookie not in mark.bookies]
    return msgspec.structs.replace(
        known, bookies=bookies, damaged=damaged, size=max(known.size, mark.size), whole=whole
    )


class Marking(NamedTuple):
    """The operation that marks a ledger, unless another client marks it first.

    *says_more* is False if the stored mark contains the new one.
    """

    put: Put
    says_more: bool


async def marking(store: MetadataStore, mark: UnderReplicated) -> Marking:
    """Return the operation that adds *mark* to the stored mark. Raises MetadataError.

    A stored mark that cannot be decoded is overwritten.
    """
    key = underreplicated_key(mark.ledger_id)
    found = await store.get(key)
    if found is None:
        return Marking(Put(key, encode_record(mark), ABSENT), says_more=True)
    try:
        known = decode_underreplicated(key, found.value)
    except BadRecord:
        return Marking(Put(key, encode_record(mark), found.version), says_more=True)
    content = merged(known, mark)
    return Marking(Put(key, encode_record(content), found.version), content != known)

"""The fragments of a ledger: how they grow, and where they end."""

from __future__ import annotations

import msgspec

from ledger_client.errors import LedgerClosed, LedgerFenced
from metadata.records import Fragment, LedgerRecord, LedgerState


def with_fragment(
    record: LedgerRecord, expected_last: Fragment, fragment: Fragment
) -> LedgerRecord:
    """Return *record* going on with *fragment*; *record* itself when it does so already.

    Raises:
        LedgerFenced: its last fragment is neither *fragment* nor *expected_last*.
    """
    last = record.fragments[-1]
    if last == fragment:
        return record
    if last != expected_last:
        raise LedgerFenced(record.ledger_id)
    kept = record.fragments
    if last.first_entry == fragment.first_entry:
        kept = kept[:-1]
    return msgspec.structs.replace(record, fragments=[*kept, fragment])


def fragments_up_to(last_entry: int, fragments: list[Fragment]) -> list[Fragment]:
    """Return the fragments of a ledger that ends at *last_entry*.

    Those that begin after it hold nothing; the first stays in any case.
    """
    return [f for f in fragments if f.first_entry <= max(last_entry, 0)]


def grown(record: LedgerRecord, expected_last: Fragment, fragment: Fragment) -> LedgerRecord:
    """Return what with_fragment() does, for a ledger that must be open.

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
    """Return *record* closed at this end; *record* itself when it is so already.

    Raises:
        LedgerFenced: another client recovers it.
        LedgerClosed: another client sealed it at another end.
    """
    if record.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(record.ledger_id)
    if record.state is LedgerState.CLOSED:
        if (record.last_entry, record.length) != (last_entry, length):
            raise LedgerClosed(record.ledger_id, record.last_entry)
        return record
    return msgspec.structs.replace(
        record,
        state=LedgerState.CLOSED,
        last_entry=last_entry,
        length=length,
        fragments=fragments_up_to(last_entry, record.fragments),
    )

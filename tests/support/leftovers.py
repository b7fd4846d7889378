"""The entries that a dead writer left on bookies in memory, laid out by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memory_bookie import MemoryLedger
from memory_cluster import MemoryCluster

from metadata.records import Fragment, LedgerRecord, LedgerState, encode_record, ledger_key
from native.digest import Digest
from native.link import add_frame

ADD_HEADER_SIZE = 28
LEDGER_ID = 7


def payload(entry_id: int) -> bytes:
    """Return the payload of entry *entry_id* of such a ledger."""
    return b"entry %d" % entry_id


def length(last_entry: int) -> int:
    """Payload bytes up to *last_entry*."""
    return sum(len(payload(i)) for i in range(last_entry + 1))


def stored(entry_id: int, confirmed: int) -> bytes:
    """The entry, sent when *confirmed* was the last confirmed one."""
    lac = min(entry_id - 1, confirmed)
    frame = add_frame(Digest(), LEDGER_ID, entry_id, lac, length(entry_id), payload(entry_id))
    return frame[ADD_HEADER_SIZE:]


def leave(
    cluster: MemoryCluster,
    held: Mapping[str, Iterable[int]],
    *,
    quorums: tuple[int, int, int] = (3, 3, 2),
    confirmed: int = -1,
    fragments: Sequence[Fragment] = (),
    state: LedgerState = LedgerState.OPEN,
) -> int:
    """Make a ledger that nobody closed; return its id.

    *held*: which entries each bookie has; a bookie that is not named does not
    know the ledger. *fragments*: by default one, of b1, b2, ....
    """
    first = [f"b{number}" for number in range(1, quorums[0] + 1)]
    record = LedgerRecord(LEDGER_ID, *quorums, state, list(fragments) or [Fragment(0, first)])
    cluster.store.change(ledger_key(LEDGER_ID), encode_record(record))
    for name, entry_ids in held.items():
        ledger = cluster.bookies[name].ledgers[LEDGER_ID] = MemoryLedger()
        ledger.key = Digest().master_key
        for entry_id in entry_ids:
            ledger.entries[entry_id] = stored(entry_id, confirmed)
    return LEDGER_ID

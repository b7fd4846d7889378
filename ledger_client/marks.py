"""What is said of a ledger that wants repair, when several have something to say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from metadata.errors import BadRecord
from metadata.records import (
    DamagedRun,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    underreplicated_key,
)
from metadata.store import ABSENT, MetadataStore, Put

Reason = Literal["bookie lost", "draining", "ensemble changed", "damaged", "limbo", "check"]


def new_mark(
    ledger_id: int, reason: Reason, bookies: Iterable[str], damaged: Iterable[DamagedRun]
) -> UnderReplicated:
    """Return a mark made now; no *bookies*: copies may be missing anywhere."""
    now_ms = time.time_ns() // 1_000_000
    return UnderReplicated(ledger_id, reason, now_ms, sorted(set(bookies)), [*damaged])


def merged(known: UnderReplicated, mark: UnderReplicated) -> UnderReplicated:
    """Return *known* with what *mark* adds: nothing that was reported is forgotten."""
    anywhere = not (known.bookies and mark.bookies)
    bookies = [] if anywhere else sorted({*known.bookies, *mark.bookies})
    damaged = [*known.damaged, *(run for run in mark.damaged if run not in known.damaged)]
    return msgspec.structs.replace(
        known, bookies=bookies, damaged=damaged, size=max(known.size, mark.size)
    )


class Marking(NamedTuple):
    """The change that marks a ledger, if nobody else marks it meanwhile.

    *says_more* is False when the mark that is there says all of it.
    """

    put: Put
    says_more: bool


async def marking(store: MetadataStore, mark: UnderReplicated) -> Marking:
    """Return what adds *mark* to what the store says of its ledger. Raises MetadataError.

    A mark that cannot be read is written over.
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

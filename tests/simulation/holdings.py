"""The end of a simulation: what every bookie holds, entry by entry, read from its engine."""

from __future__ import annotations

from collections.abc import Iterator

from history import Replica, digest_of

from ledger_client.ledgers.entries import DIGESTS
from native.digest import Digest
from native.engine import Engine, Request
from native.errors import CoreError
from native.frame import Opcode
from native.link import check_entries

_BATCH_HEADER_SIZE = 36
_SIZE_MAX = 5 << 20


def replica(engine: Engine, bookie: str, ledger: int) -> Replica:
    """Return the sound entries of *ledger* that *engine* holds."""
    entries: dict[int, int] = {}
    for first, last in _runs(engine, ledger):
        entries.update(_read_run(engine, ledger, first, last))
    return Replica(ledger=ledger, bookie=bookie, entries=entries)


def _runs(engine: Engine, ledger: int) -> list[tuple[int, int]]:
    try:
        return engine.runs(ledger)
    except CoreError:
        return []


def _read_run(engine: Engine, ledger: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    digest = Digest(DIGESTS["crc32c"], b"")
    while first <= last:
        asked = Request(
            Opcode.BATCH_READ,
            ledger_id=ledger,
            entry_id=first,
            count_max=last - first + 1,
            size_max=_SIZE_MAX,
        )
        frame = engine.answer(asked, use_disk=True, size_max=_SIZE_MAX)
        assert frame is not None
        body = frame[_BATCH_HEADER_SIZE:]
        found = check_entries(digest, body, ledger, first, last - first + 1)
        for number, (at, size) in enumerate(zip(found.offsets, found.sizes, strict=True)):
            yield first + number, digest_of(body[at : at + size])
        first += max(found.count, 1)  # past an entry that is damaged

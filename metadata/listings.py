"""Ledgers, repairs and bookies as metadata lists them, for operators and repair."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from metadata.errors import BadRecord, NotLeader
from metadata.leadership import holder
from metadata.records import (
    COOKIES,
    COORDINATOR,
    DRAINING,
    LEDGERS,
    RACKS,
    REPAIRS,
    UNDERREPLICATED,
    Leader,
    LedgerRecord,
    RackReport,
    RepairProgress,
    UnderReplicated,
    decode_leader,
    decode_ledger,
    decode_racks,
    decode_repair,
    decode_underreplicated,
    ledger_key,
    parse_ledger_key,
)
from metadata.store import Item, MetadataStore, is_last, leases_under

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Listing(Generic[T]):
    """An async iterator over the records under a prefix, with one page in memory at a time.

    It may be abandoned at any time. A record that cannot be decoded raises BadRecord; with a set
    *unreadable*, it is skipped, logged once and its key added there. Raises MetadataError.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        decode: Callable[[str, bytes], T],
        *,
        unreadable: set[str] | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._decode = decode
        self._unreadable = unreadable
        self._after = ""
        self._page: deque[Item] = deque()
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            if not self._page and not self._is_over:
                page = await self._store.list(self._prefix, after=self._after)
                self._page.extend(page)
                self._is_over = is_last(page)
            if not self._page:
                raise StopAsyncIteration
            self._after, found = self._page.popleft()
            try:
                return self._decode(self._after, found.value)
            except BadRecord as wrong:
                self._pass_over(wrong)

    def _pass_over(self, wrong: BadRecord) -> None:
        if self._unreadable is None:
            raise wrong
        if self._after not in self._unreadable:
            self._unreadable.add(self._after)
            _log.warning("passed over: %s", wrong)


def ledger_records(
    store: MetadataStore, *, unreadable: set[str] | None = None
) -> Listing[LedgerRecord]:
    """Return an iterator over every ledger, by rising id. *unreadable*: see Listing."""
    return Listing(store, LEDGERS, decode_ledger, unreadable=unreadable)


SPARSE = 20
"""Ledgers of a page for one that is wanted, above which ledgers are read one by one."""
PROBE_COUNT = 200


async def ledger_values(
    store: MetadataStore, ledger_ids: Sequence[int]
) -> AsyncIterator[dict[int, bytes | None]]:
    """Yield the stored records of *ledger_ids*, which rise; `None` for those without one.

    It reads pages where they are dense among all ledgers, and otherwise each by itself, so that it
    costs as much as is asked for. Raises MetadataError.
    """
    place = singles = 0
    while place < len(ledger_ids):
        first = ledger_ids[place]
        if singles:
            singles -= 1
            found = await store.get(ledger_key(first))
            yield {first: None if found is None else found.value}
            place += 1
            continue
        after = ledger_key(first - 1) if first else ""
        page = await store.list(LEDGERS, after=after, limit=PROBE_COUNT)
        known = {parse_ledger_key(key): item.value for key, item in page}
        last = max(known, default=ledger_ids[-1])
        covered = ledger_ids[place : bisect_right(ledger_ids, last)]
        yield {each: known.get(each) for each in covered}
        place += len(covered)
        singles = PROBE_COUNT if len(covered) * SPARSE < len(page) else 0


async def list_marks(
    store: MetadataStore, *, unreadable: set[str] | None = None
) -> list[UnderReplicated]:
    """Return the ledgers that want repair, by rising id. *unreadable*: see Listing.

    Raises MetadataError.
    """
    marks = Listing(store, UNDERREPLICATED, decode_underreplicated, unreadable=unreadable)
    return [mark async for mark in marks]


async def list_marked(store: MetadataStore) -> set[int]:
    """Return the ledgers that have a mark, readable or not. Raises MetadataError."""
    keys = [key async for key in Listing(store, UNDERREPLICATED, _key)]
    digits = (key.removeprefix(UNDERREPLICATED) for key in keys)
    return {int(each) for each in digits if each.isascii() and each.isdigit()}


async def list_repairs(store: MetadataStore) -> list[RepairProgress]:
    """Return the repairs and moves under way, by rising ledger. Raises MetadataError.

    A lease that cannot be decoded is skipped, since it only reports progress.
    """
    found: list[RepairProgress] = []
    for lease in await leases_under(store, REPAIRS):
        with suppress(BadRecord):
            found.append(decode_repair(lease.name, lease.value))
    return found


async def leader(store: MetadataStore) -> Leader | None:
    """Return the current leader, or None. Raises MetadataError."""
    lease = await holder(store, COORDINATOR)
    return None if lease is None else decode_leader(lease.name, lease.value)


async def not_leader(store: MetadataStore) -> NotLeader:
    """Return the refusal of a request that only the leader answers. Raises MetadataError."""
    found = await leader(store)
    if found is None:
        return NotLeader()
    return NotLeader(bookie_id=found.bookie_id, address=found.address)


async def rack_report(store: MetadataStore) -> RackReport | None:
    """Return the leader's last count of ledgers on too few racks. Raises MetadataError.

    `None` if no bookie states a rack, the leader has not counted yet, or the row is unreadable.
    """
    found = await store.get(RACKS)
    if found is None:
        return None
    with suppress(BadRecord):
        return decode_racks(RACKS, found.value)
    return None


async def list_draining(store: MetadataStore) -> set[str]:
    """Return the bookies that are being decommissioned. Raises MetadataError."""
    return {key.removeprefix(DRAINING) async for key in Listing(store, DRAINING, _key)}


async def list_cookies(store: MetadataStore) -> set[str]:
    """Return the bookies that have a cookie: formatted and not decommissioned."""
    return {key.removeprefix(COOKIES) async for key in Listing(store, COOKIES, _key)}


def _key(key: str, _value: bytes) -> str:
    return key

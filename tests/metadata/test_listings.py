"""Ledgers read where they are wanted."""

from __future__ import annotations

import trio
from hypothesis import given, settings, strategies as st
from memory_store import MemoryStore

from metadata.listings import PROBE_COUNT, ledger_values
from metadata.records import ledger_key
from metadata.store import Page, Versioned

ids = st.sets(st.integers(0, 3000), max_size=40)


@settings(deadline=None)
@given(ids, ids, st.sampled_from([1, 7, 300]))
def test_each_ledger_is_read_or_found_missing(some: set[int], more: set[int], step: int) -> None:
    stored = {number * step for number in some | {0}}
    wanted = sorted({number * step for number in more} | set(range(5)))

    async def read() -> dict[int, bytes | None]:
        store = MemoryStore()
        for number in stored:
            store.change(ledger_key(number), b"%d" % number)
        return {
            each: value
            async for values in ledger_values(store, wanted)
            for each, value in values.items()
        }

    expected = {each: b"%d" % each if each in stored else None for each in wanted}
    assert trio.run(read) == expected


class Counting(MemoryStore):
    """Counts the records that it read."""

    read = 0

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        page = await super().list(prefix, after=after, limit=limit)
        self.read += len(page)
        return page

    async def get(self, key: str) -> Versioned | None:
        self.read += 1
        return await super().get(key)


async def test_few_ledgers_among_many_cost_as_much_as_there_are_few() -> None:
    store = Counting()
    for number in range(50_000):
        store.change(ledger_key(number), b"")
    few = [*range(0, 50_000, 500)]
    assert sum([len(values) async for values in ledger_values(store, few)]) == 100
    assert store.read <= 100 + PROBE_COUNT
    store.read = 0
    assert sum([len(v) async for v in ledger_values(store, range(20_000))]) == 20_000
    assert store.read < 20_000 + PROBE_COUNT

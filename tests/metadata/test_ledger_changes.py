"""Which ledgers changed since the last question."""

from __future__ import annotations

import pytest
from memory_store import CHANGES_MAX, MemoryStore

from metadata.errors import MetadataUnavailable
from metadata.ledger_changes import LedgerChanges
from metadata.records import LEDGERS, ledger_key


async def test_at_first_any_may_have_changed_and_then_those_that_did() -> None:
    store = MemoryStore()
    await store.put(ledger_key(1), b"")
    changes = LedgerChanges(store)
    assert await changes.take() is None
    assert await changes.take() == set()
    await store.put(ledger_key(2), b"")
    await store.put(ledger_key(1), b"x")
    await store.delete(ledger_key(2))
    await store.put("ledgers/nonsense", b"")
    await store.put("topics/x", b"")
    assert await changes.take() == {1, 2}
    assert await changes.take() == set()
    changes.forget()
    assert await changes.take() is None


async def test_a_long_answer_is_taken_whole() -> None:
    store = MemoryStore()
    changes = LedgerChanges(store)
    await changes.take()
    for number in range(2500):
        await store.put(ledger_key(number), b"")
    assert await changes.take() == set(range(2500))
    assert await changes.take() == set()


async def test_a_log_that_does_not_reach_back_means_any() -> None:
    store = MemoryStore()
    changes = LedgerChanges(store)
    await changes.take()
    for number in range(CHANGES_MAX + 1):
        store.change(f"{LEDGERS}{number}", b"")
    assert await changes.take() is None
    assert await changes.take() == set()


async def test_nothing_is_lost_by_a_question_that_failed() -> None:
    store = MemoryStore()
    changes = LedgerChanges(store)
    await changes.take()
    await store.put(ledger_key(1), b"")
    store.available = False
    with pytest.raises(MetadataUnavailable):
        await changes.take()
    store.available = True
    assert await changes.take() == {1}

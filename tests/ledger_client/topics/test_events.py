from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel
from memory_store import MemoryStore

from ledger_client.errors import LedgerError
from ledger_client.topics.catalogue import Alteration, TopicCatalogue
from ledger_client.topics.events import event_ops, pending_events, publish_events
from metadata.store import Op, Versions
from metadata.topics import TopicRecord, decode_event, event_key


class Shelf:
    """What was told, by a producer whose lane is one at a time and knows its last sequence."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes | None, bytes]] = []
        self.sent = 0
        self.fails_at: int | None = None
        self._lane = trio.Lock()

    @asynccontextmanager
    async def open_sender(self, namespace: str) -> AsyncIterator[Shelf]:
        assert namespace == "shop"
        async with self._lane:
            yield self

    async def send_many(
        self, values: list[bytes], *, keys: list[bytes | None], sequence: int
    ) -> None:
        for number, (key, value) in enumerate(zip(keys, values, strict=True), sequence):
            await self.send(value, key, number)

    async def send(self, value: bytes, key: bytes | None, sequence: int) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += 1
        if self.sent == self.fails_at:
            raise LedgerError("no bookie answers")
        if not self.messages or sequence > self.messages[-1][0]:
            self.messages.append((sequence, key, value))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def changes(store: MemoryStore) -> int:
    """Three changes of two topics; return how many."""
    catalogue = TopicCatalogue(store, timeout_s=1.0)
    await catalogue.create(TopicRecord(name="shop/orders", uid=0))
    await catalogue.create(TopicRecord(name="shop/returns", uid=0))
    await catalogue.alter("shop/orders", Alteration(compression="lz4"))
    return 3


async def test_events_are_told_in_order_with_what_changed(store: MemoryStore, changes: int) -> None:
    """TD-02: enough to make the same topics elsewhere."""
    shelf = Shelf()
    assert await publish_events(store, "shop", shelf.open_sender) == changes
    assert [(sequence, key) for sequence, key, _ in shelf.messages] == [
        (1, b"shop/orders"),
        (2, b"shop/returns"),
        (3, b"shop/orders"),
    ]
    last = decode_event("k", shelf.messages[-1][2])
    assert (last.kind, last.record.compression) == ("altered", "lz4")
    assert await pending_events(store) == []
    assert await publish_events(store, "shop", shelf.open_sender) == 0


async def test_with_nothing_to_tell_no_producer_is_opened(store: MemoryStore) -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def note(namespace: str) -> AsyncIterator[Shelf]:
        opened.append(namespace)
        yield Shelf()

    assert await publish_events(store, "shop", note) == 0
    assert opened == []


@pytest.mark.parametrize("fails_at", [1, 2, 3])
async def test_what_could_not_be_told_is_told_later_and_nothing_twice(
    store: MemoryStore, changes: int, fails_at: int
) -> None:
    shelf = Shelf()
    shelf.fails_at = fails_at
    with pytest.raises(LedgerError):
        await publish_events(store, "shop", shelf.open_sender)
    assert len(await pending_events(store)) == changes
    await publish_events(store, "shop", shelf.open_sender)
    assert [sequence for sequence, _, _ in shelf.messages] == [1, 2, 3]


async def test_who_was_killed_between_telling_and_removing_does_no_harm(
    store: MemoryStore, changes: int
) -> None:
    shelf = Shelf()
    (first, *_) = await pending_events(store)
    async with shelf.open_sender("shop") as sender:
        await sender.send(first.value, b"shop/orders", 1)
    await publish_events(store, "shop", shelf.open_sender)
    assert [sequence for sequence, _, _ in shelf.messages] == [1, 2, 3]


async def test_two_tellers_at_once_tell_each_event_once(store: MemoryStore, changes: int) -> None:
    shelf = Shelf()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish_events, store, "shop", shelf.open_sender)
        nursery.start_soon(publish_events, store, "shop", shelf.open_sender)
    assert [sequence for sequence, _, _ in shelf.messages] == [1, 2, 3]


async def test_a_damaged_event_is_told_as_it_is_and_keeps_no_other(
    store: MemoryStore, changes: int
) -> None:
    store.change(event_key("shop", 1), b"{")
    shelf = Shelf()
    assert await publish_events(store, "shop", shelf.open_sender) == changes
    assert shelf.messages[0] == (1, None, b"{")


async def test_what_comes_while_telling_is_told_too(store: MemoryStore, changes: int) -> None:
    shelf = Shelf()
    record = TopicRecord(name="shop/late", uid=9)
    ops = await event_ops(store, "created", record)

    class Slow(Shelf):
        async def send(self, value: bytes, key: bytes | None, sequence: int) -> None:
            if sequence == 3:
                await store.transact(ops)
            await shelf.send(value, key, sequence)

    await publish_events(store, "shop", Slow().open_sender)
    assert [key for _, key, _ in shelf.messages][-1] == b"shop/late"


async def test_events_with_a_gap_between_them_keep_their_numbers(
    store: MemoryStore, changes: int
) -> None:
    """Numbers of one call follow each other, and another publisher may have removed some."""
    await store.delete(event_key("shop", 2))
    shelf = Shelf()
    assert await publish_events(store, "shop", shelf.open_sender) == 2
    assert [sequence for sequence, _, _ in shelf.messages] == [1, 3]


async def test_changes_of_one_namespace_by_one_client_do_not_collide(store: MemoryStore) -> None:
    catalogue = TopicCatalogue(store, timeout_s=1.0)
    transact, tried = store.transact, 0

    async def count(ops: Sequence[Op]) -> Versions:
        nonlocal tried
        tried += 1
        await trio.lowlevel.checkpoint()
        return await transact(ops)

    store.transact = count  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        for number in range(20):
            wanted = TopicRecord(name=f"shop/t{number}", uid=0)
            nursery.start_soon(catalogue.create, wanted)
    assert tried == 20
    assert len(await pending_events(store)) == 20

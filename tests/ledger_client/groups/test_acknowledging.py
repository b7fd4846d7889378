"""Acknowledgements on their way to the store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from group_shares import share_of
from memory_store import MemoryStore
from shared_shop import ORDERS, rows, send, shop
from trio.testing import MockClock

from ledger_client import CommitRefused
from ledger_client.groups import holdings as holdings_module
from ledger_client.groups.acknowledging import Saver
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share_rows import ShareRows
from metadata.groups.shares import SHARES
from metadata.store import Op, Versions


async def test_an_acknowledgement_during_the_store_of_another_of_its_share_is_durable(
    autojump_clock: MockClock,
) -> None:
    """The change under way does not have it, though it makes the share complete."""
    store, holdings = MemoryStore(), Holdings(by_key=False)
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = share_of("ab")
    (share.row_version,) = await store.transact([rows.put(share)])
    holdings.add(share)
    saver = Saver("billing", rows, holdings)
    transact = store.transact

    async def answer_late(ops: Sequence[Op]) -> list[int]:
        versions = await transact(ops)
        await trio.sleep(1)
        return versions

    store.transact = answer_late  # type: ignore[method-assign]

    async def ack(index: int) -> None:
        holdings.finish(share, index)
        saver.change(share)
        assert await saver.saved({share}) == set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(saver.run)
        async with trio.open_nursery() as acks:
            acks.start_soon(ack, 0)
            await trio.sleep(0.5)
            acks.start_soon(ack, 1)
        assert [key for key in store.values if key.startswith(SHARES)] == []
        assert holdings.shares == {}
        nursery.cancel_scope.cancel()


async def test_an_acknowledgement_is_refused_if_the_member_is_removed_before_it_is_stored(
    autojump_clock: MockClock,
) -> None:
    """A machine that was frozen goes on with its messages before it learns of that."""
    store, holdings = MemoryStore(), Holdings(by_key=False)
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = share_of("ab")
    (share.row_version,) = await store.transact([rows.put(share)])
    holdings.add(share)
    saver = Saver("billing", rows, holdings)
    holdings.finish(share, 0)
    saver.change(share)
    holdings.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(saver.run)
        assert await saver.saved({share}) == {share}
        await saver.settle()
        assert await saver.flush() == {share.part}
        assert await saver.flush() == set()
        nursery.cancel_scope.cancel()


async def test_what_is_acknowledged_may_be_acknowledged_again(autojump_clock: MockClock) -> None:
    """While its share is here, and when it is done with."""
    async with (
        shop() as (cluster, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 4)
        messages = await consumer.poll(wait_s=5)
        while len(messages) < 4:
            messages += await consumer.poll(wait_s=5)
        await consumer.ack(messages[0])
        await consumer.ack(messages[0])
        await consumer.ack([messages[1], messages[1]])
        consumer.ack_nowait(messages)
        await consumer.ack(messages)
        assert rows(cluster) == []
        await consumer.ack(messages)
        consumer.ack_nowait(messages[3])
        await consumer.flush()


async def test_an_acknowledgement_whose_wait_was_cancelled_may_be_made_again(
    autojump_clock: MockClock,
) -> None:
    """Then it is durable when the call returns."""
    async with (
        shop() as (cluster, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 1)
        message = await anext(consumer)
        transact = cluster.store.transact

        async def slowly(ops: Sequence[Op]) -> Versions:
            await trio.sleep(1)
            return await transact(ops)

        cluster.store.transact = slowly  # type: ignore[method-assign]
        with trio.move_on_after(0.5) as cut:
            await consumer.ack(message)
        assert cut.cancelled_caught
        assert rows(cluster) != []
        await consumer.ack(message)
        assert rows(cluster) == []


async def test_an_acknowledgement_that_came_too_late_stays_refused(
    autojump_clock: MockClock,
) -> None:
    """The message comes again: who acknowledged it must not believe that it is done."""
    async with (
        shop() as (cluster, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        await send(client, 0, 1)
        message = await anext(consumer)
        (key,) = rows(cluster)
        await cluster.store.delete(key)
        for _ in range(2):
            with pytest.raises(CommitRefused, match="another member's by now"):
                await consumer.ack(message)


async def test_acknowledgements_are_not_remembered_for_ever(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdings_module, "ACKED_MAX", 2)
    async with (
        shop() as (_, client),
        client.consumer(ORDERS, group="a", mode="shared", start="earliest") as consumer,
    ):
        messages = []
        for number in range(3):
            await send(client, number, number + 1)
            messages.append(await anext(consumer))
            await consumer.ack(messages[-1])
        await consumer.ack(messages[1:])
        with pytest.raises(CommitRefused, match="acknowledged before"):
            await consumer.ack(messages[0])

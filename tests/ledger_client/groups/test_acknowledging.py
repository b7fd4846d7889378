"""Acknowledgements on their way to the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import trio
from group_shares import share_of
from memory_store import MemoryStore
from shared_shop import ORDERS, rows, send, shop, value
from trio.testing import MockClock

from ledger_client import CommitRefused
from ledger_client.groups import holdings as holdings_module
from ledger_client.groups.acknowledging import Saver
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share import Share
from ledger_client.groups.share_rows import ShareRows
from metadata.groups.rows import GROUP_MEMBERS
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


class Rounds(ShareRows):
    """Rows of which each save waits until it is told what is lost, or is cancelled."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "billing", "m", run="r", timeout_s=5)
        self.begun = 0
        self.ends, self.outcomes = trio.open_memory_channel[set[Share]](10)

    async def save(self, shares: Iterable[Share]) -> set[Share]:
        self.begun += 1
        return await self.outcomes.receive()


async def test_who_waits_for_two_rounds_learns_what_either_lost(autojump_clock: MockClock) -> None:
    """A share of the one under way was lost, and one that changed meanwhile is stored."""
    rows = Rounds()
    saver = Saver("billing", rows, Holdings(by_key=False))
    first, second = share_of("ab"), share_of("cd")

    async def tell() -> None:
        await trio.sleep(1)
        await rows.ends.send({first})
        await rows.ends.send(set())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(saver.run)
        saver.change(first)
        await trio.sleep(1)
        saver.change(second)
        nursery.start_soon(tell)
        assert await saver.saved({first, second}) == {first}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_begun", [False, True])
async def test_who_waits_stores_it_if_nobody_else_does_any_more(
    autojump_clock: MockClock, is_begun: bool
) -> None:
    """The consumer's tasks are cancelled before what was acknowledged is stored."""
    rows = Rounds()
    saver = Saver("billing", rows, Holdings(by_key=False))
    share = share_of("ab")
    lost: list[set[Share]] = []

    async def wait() -> None:
        lost.append(await saver.saved({share}))

    async with trio.open_nursery() as waiting:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(saver.run)
            await trio.sleep(1)
            saver.change(share)
            if is_begun:
                await trio.sleep(1)
                assert rows.begun == 1
            waiting.start_soon(wait)
            waiting.start_soon(wait)
            if is_begun:
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert lost == []  # a round that was cut off has stored nothing
        await rows.ends.send({share})
    assert lost == [{share}, {share}]


@pytest.mark.parametrize("is_waited_for", [False, True])
async def test_a_cancelled_consumer_stores_what_was_acknowledged_and_leaves_at_once(
    autojump_clock: MockClock, is_waited_for: bool
) -> None:
    async with shop() as (cluster, client):
        await send(client, 0, 10)
        transact = cluster.store.transact

        async def late(ops: Sequence[Op]) -> Versions:
            await trio.sleep(0.2)
            return await transact(ops)

        with trio.CancelScope() as scope:
            async with client.consumer(
                ORDERS, group="billing", mode="shared", start="earliest"
            ) as consumer:
                message = await anext(consumer)
                await trio.sleep(1)
                cluster.store.transact = late  # type: ignore[method-assign]
                consumer.ack_nowait(message)
                if is_waited_for:
                    await trio.sleep(0.1)  # the change is under way
                scope.cancel()
                began = trio.current_time()
                await trio.sleep(1)
        assert trio.current_time() - began < 2
        cluster.store.transact = transact  # type: ignore[method-assign]
        assert not [key for key in cluster.store.values if key.startswith(GROUP_MEMBERS)]
        async with client.consumer(ORDERS, group="billing", mode="shared") as consumer:
            came = [value(each) for each in await consumer.poll(wait_s=30)]
        assert value(message) not in came and len(came) == 9


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

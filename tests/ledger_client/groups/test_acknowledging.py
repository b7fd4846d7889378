"""Acknowledgements on their way to the store."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from group_shares import share_of
from memory_store import MemoryStore
from trio.testing import MockClock

from ledger_client.groups.acknowledging import Saver
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share_rows import ShareRows
from metadata.groups.shares import SHARES
from metadata.store import Op


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

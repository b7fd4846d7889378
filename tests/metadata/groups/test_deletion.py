"""Deletions of groups that fail half-way: nobody goes on from what is left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from coordinator_rig import Rig, candidate, led
from trio.testing import MockClock

from metadata.errors import BadGroup, MetadataUnavailable, VersionConflict
from metadata.groups.assignment import Part
from metadata.groups.calls import DeleteGroup
from metadata.groups.coordinator import REBALANCE_S, Coordinator
from metadata.groups.hosted import FINISH_S
from metadata.groups.rows import group_key, progress_key
from metadata.store import Check, Op, Put, Versions


async def half_deleted(rig: Rig, after: int) -> None:
    """Delete a group with a member and progress; the store is away after so many transactions."""
    await rig.join("a")
    await rig.live(3, "a")
    for partition in range(4):
        await rig.store.put(progress_key("billing", Part(1, partition)), b"{}")
    transact, left = rig.store.transact, [None] * after

    async def cut_off(ops: Sequence[Op]) -> Versions:
        if not left:
            raise MetadataUnavailable("the store is away")
        left.pop()
        return await transact(ops)

    rig.store.transact = cut_off  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable, match="the store is away"):
        await rig.coordinator.answer(DeleteGroup("billing", force=True))
    with pytest.raises(MetadataUnavailable, match="the store is away"):
        await rig.join("b")
    rig.store.transact = transact  # type: ignore[method-assign]


@pytest.mark.parametrize("after", range(4))
async def test_who_joins_a_group_whose_deletion_failed_half_way_founds_it_anew(
    autojump_clock: MockClock, after: int
) -> None:
    """Nothing is left of its progress, which would pass messages over in some partitions."""
    async with led() as rig:
        await half_deleted(rig, after)
        await rig.join("b")
        assert not [key for key in await rig.rows() if key.startswith("progress/")]
        await rig.live(3, "b")
        assert await rig.members() == {"b"}
        assert await rig.parts("b") == {0, 1, 2, 3}


@pytest.mark.parametrize("joins", [True, False])
async def test_a_deletion_whose_leader_died_half_way_is_finished_by_the_next(
    autojump_clock: MockClock, joins: bool
) -> None:
    """It reads what is left like any other group, and who joins would go on from that."""
    async with led() as rig:
        await half_deleted(rig, 2)
    assert [key for key in await rig.rows() if key.startswith("progress/")]
    second = Coordinator(rig.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate(rig.store, "b2").run, second.lead)
        await trio.sleep(12)
        rig.coordinator = second
        if joins:
            await rig.join("b")
            assert not [key for key in await rig.rows() if key.startswith("progress/")]
            await rig.live(3, "b")
            assert await rig.parts("b") == {0, 1, 2, 3}
        else:
            await trio.sleep(FINISH_S + 2 * REBALANCE_S)
            assert await rig.rows() == []
        nursery.cancel_scope.cancel()


async def test_nobody_stores_progress_of_a_group_while_it_is_deleted(
    autojump_clock: MockClock,
) -> None:
    """It would be left behind, and the next group of this name go on from there."""
    async with led() as rig:
        await rig.join("a")
        await rig.live(3, "a")
        found = await rig.store.get(group_key("billing"))
        assert found is not None
        transact, tried = rig.store.transact, list[str]()

        async def meet(ops: Sequence[Op]) -> Versions:
            done = await transact(ops)
            put = Put(progress_key("billing", Part(1, 0)), b"{}")
            assert len(tried) < 10
            try:
                await transact([Check(group_key("billing"), found.version), put])
            except VersionConflict:
                tried.append("refused")
            else:
                tried.append("stored")
            return done

        rig.store.transact = meet  # type: ignore[method-assign]
        await rig.coordinator.answer(DeleteGroup("billing", force=True))
        assert tried == ["refused"] * 3
        assert await rig.rows() == []


async def test_a_deletion_that_failed_half_way_may_be_asked_for_again(
    autojump_clock: MockClock,
) -> None:
    """Without force, too: its members were removed already."""
    async with led() as rig:
        await half_deleted(rig, 1)
        await rig.coordinator.answer(DeleteGroup("billing"))
        assert await rig.rows() == []
        with pytest.raises(BadGroup, match="no group billing"):
            await rig.coordinator.answer(DeleteGroup("billing"))


async def test_a_deletion_that_failed_half_way_is_finished_by_itself(
    autojump_clock: MockClock,
) -> None:
    """Else its members would stay as they are, and nobody would notice one that is lost."""
    async with led() as rig:
        await half_deleted(rig, 0)
        await trio.sleep(FINISH_S + 2 * REBALANCE_S)
        assert await rig.rows() == []
        assert not await rig.beat("a")

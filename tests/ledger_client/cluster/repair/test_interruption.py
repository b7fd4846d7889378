from __future__ import annotations

import itertools

import pytest
import trio
from memory_cluster import memory_cluster
from repair_rig import adds, check_whole, lay_out, lose, mark, mark_of, unmarked, worker
from trio.testing import MockClock

from metadata.listings import list_repairs

ALL = [(0, 9)]


class Fuse(trio.abc.Instrument):
    """Cancels a scope after a number of steps of all tasks."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.scope = trio.CancelScope()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()


@pytest.mark.parametrize(
    "stride",
    [
        pytest.param(7, id="some moments"),
        pytest.param(1, id="every moment", marks=pytest.mark.long),
    ],
)
async def test_a_worker_killed_at_any_moment_leaves_the_old_list_or_the_new_one(
    autojump_clock: MockClock, stride: int
) -> None:
    """TB-46: a repair happens whole or not at all, and another worker ends it."""
    for steps in itertools.count(1, stride):
        async with memory_cluster(4) as cluster, cluster.client() as client:
            held = {"b1": ALL, "b2": [(0, 4)], "b3": ALL, "b4": [(5, 9)]}
            lay_out(cluster, [(0, "b1 b2 b3"), (5, "b1 b4 b3")], held)
            lose(cluster, "b3")
            before = cluster.record(1)
            await mark(cluster)
            fuse = Fuse(steps)
            trio.lowlevel.add_instrument(fuse)
            with fuse.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(worker(cluster, client).run)
                    await unmarked(cluster)
                    nursery.cancel_scope.cancel()
            trio.lowlevel.remove_instrument(fuse)
            assert not await list_repairs(cluster.store), "the claim is given back"
            if cluster.record(1) == before:
                assert mark_of(cluster) is not None
            else:
                check_whole(cluster)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker(cluster, client, owner="w2").run)
                await unmarked(cluster)
                nursery.cancel_scope.cancel()
            check_whole(cluster)
            assert len(cluster.record(1).fragments) == 1
            assert adds(cluster, "b2") <= 10
            if fuse.left > 0:
                return

"""Requests to the leader, whose host may not answer any more."""

from __future__ import annotations

import pytest
import trio
from group_rig import ORDERS, send
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.errors import MetadataUnavailable
from ledger_client.ledgers.leader_calls import ATTEMPT_S
from metadata.groups.calls import DescribeGroups, GroupPage
from native.frame import Opcode, Request


@pytest.mark.parametrize("timeout_s", [ATTEMPT_S / 3, ATTEMPT_S, 3 * ATTEMPT_S])
@pytest.mark.parametrize("cuts", ["the caller", "its time"])
async def test_a_leader_that_was_silent_is_looked_up_again_however_little_time_there_is(
    autojump_clock: MockClock, timeout_s: float, cuts: str
) -> None:
    """Whoever always asks for a second would ask one that is gone for ever."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leading = cluster.lead("b1")
        calls = client._context.leader
        await calls.ask(DescribeGroups(), GroupPage, timeout_s=10)
        cluster.bookies["b1"].delay_s = silent
        leading.cancel()
        cluster.lead("b2")
        await trio.sleep(60)
        with trio.fail_after(30):
            while True:
                try:
                    with trio.move_on_after(timeout_s if cuts == "the caller" else 3600) as scope:
                        limit_s = 3600 if cuts == "the caller" else timeout_s
                        await calls.ask(DescribeGroups(), GroupPage, timeout_s=limit_s)
                except MetadataUnavailable:
                    continue
                if not scope.cancelled_caught:
                    break


async def test_a_member_stays_one_with_a_new_leader_though_it_waits_for_a_second_at_a_time(
    autojump_clock: MockClock,
) -> None:
    """As `quire consume` does. Its reports find the new leader before its session is over."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leading = cluster.lead("b1")
        await client.topics.create(ORDERS, 2)
        async with client.consumer(ORDERS, group="billing") as consumer:
            assert await consumer.poll(wait_s=5) == []
            cluster.bookies["b1"].delay_s = silent
            leading.cancel()
            await trio.sleep(60)
            cluster.lead("b2")
            for _ in range(60):
                assert await consumer.poll(wait_s=1) == []
            ((member,),) = [(await client.groups.describe("billing")).members]
            assert member.member == consumer._membership.member
            await send(client, 0, 5)
            got = 0
            with trio.fail_after(60):
                while got < 5:
                    got += len(await consumer.poll(wait_s=1))


def silent(request: Request) -> float:
    """Return the delay of a bookie that answers no calls."""
    return 3600.0 if request.opcode == Opcode.CALL else 0.0

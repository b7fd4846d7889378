"""Questions to several bookies: who is asked again, and who is given up."""

from __future__ import annotations

import trio
from leftovers import LEDGER_ID, leave
from memory_cluster import memory_cluster
from trio.testing import MockClock

from native.frame import Code, Opcode, Request


async def test_a_bookie_that_is_on_its_way_back_is_waited_for(autojump_clock: MockClock) -> None:
    async with (
        memory_cluster(3) as cluster,
        cluster.client() as client,
        trio.open_nursery() as nursery,
    ):
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(10)))
        for name in ("b1", "b2"):
            cluster.kill(name)
        start = trio.current_time()

        async def start_again() -> None:
            await trio.sleep(3)
            cluster.revive("b2")

        nursery.start_soon(start_again)
        assert (await client.recover_ledger(LEDGER_ID)).last_entry == 9
        assert 3 <= trio.current_time() - start < 6


async def test_a_bookie_with_too_much_to_do_is_asked_again(autojump_clock: MockClock) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        leave(cluster, {"b1": range(10)}, quorums=(1, 1, 1))
        left = 5

        def busy(_request: Request) -> int:
            nonlocal left
            left -= 1
            return Code.TOO_MANY if left >= 0 else Code.OK

        cluster.bookies["b1"].read_fault = busy
        assert (await client.recover_ledger(LEDGER_ID)).last_entry == 9


async def test_answers_that_are_not_needed_leave_nothing_behind(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(10)))
        reading = (Opcode.READ, Opcode.BATCH_READ)
        cluster.bookies["b3"].delay_s = lambda r: 7.0 if r.opcode in reading else 0.0
        await client.recover_ledger(LEDGER_ID)
        session = client._bookies.connection("b3")._session
        assert session is not None
        assert list(session.replies) == []
        await trio.sleep(10)  # the late answers find nobody, and the connection stands
        assert cluster.bookies["b3"].connections == 1

"""Fencing: the coverage rule, the floor, and bookies that do not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations

import pytest
import trio
from leftovers import LEDGER_ID, leave
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Options
from ledger_client.errors import RecoveryIncomplete
from ledger_client.recovery.fencing import GRACE_S, covers, floor
from metadata.records import Fragment, LedgerRecord, LedgerState
from native.frame import Code, Opcode, Request

QUORUMS = [
    (size, write, ack)
    for size in range(1, 6)
    for write in range(1, size + 1)
    for ack in range(1, write + 1)
]


def subsets(size: int) -> Iterator[set[int]]:
    members = range(size)
    sized = (combinations(members, count) for count in range(size + 1))
    return map(set, chain.from_iterable(sized))


def test_the_fence_holds_exactly_when_the_unknown_bookies_cannot_acknowledge_an_entry() -> None:
    """TB-43: the coverage rule, for each set of bookies that did not answer."""
    for size, write, ack in QUORUMS:
        write_sets = [[(entry + i) % size for i in range(write)] for entry in range(size)]
        for unknown in subsets(size):
            could_acknowledge = any(
                unknown.issuperset(acknowledging)
                for write_set in write_sets
                for acknowledging in combinations(write_set, ack)
            )
            assert covers(size, write, ack, unknown) is not could_acknowledge


def test_the_last_confirmed_entry_is_at_least_the_one_before_the_last_fragment() -> None:
    assert floor(ledger_with_fragments(0), []) == -1
    assert floor(ledger_with_fragments(0), [-1, 4, 2]) == 4
    assert floor(ledger_with_fragments(0, 10), [-1, -1]) == 9
    assert floor(ledger_with_fragments(0, 10), [11]) == 11


def ledger_with_fragments(*starts: int) -> LedgerRecord:
    fragments = [Fragment(start, ["b1", "b2", "b3"]) for start in starts]
    return LedgerRecord(1, 3, 3, 2, LedgerState.OPEN, fragments)


async def test_one_bookie_too_few_is_named_with_what_it_said(autojump_clock: MockClock) -> None:
    """BK-07: (Qw - Qa) + 1 of each write set must be fenced; here that is one of three."""
    options = Options(request_timeout_s=4, read_timeout_s=4)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        leave(cluster, {"b1": range(3)}, quorums=(3, 3, 3))
        cluster.kill("b1")
        await client._bookies.connection("b2").ready()
        cluster.bookies["b2"].answering = False
        cluster.bookies["b3"].read_code = Code.IO_ERROR
        with pytest.raises(RecoveryIncomplete) as failure:
            await client.recover_ledger(LEDGER_ID)
        assert failure.value.entry_id is None
        assert failure.value.reasons["b2"] == "no answer in 4 s"
        assert failure.value.reasons["b3"] == "I/O error"
        assert sorted(failure.value.reasons) == ["b1", "b2", "b3"]
        cluster.bookies["b2"].answering = True
        assert (await client.recover_ledger(LEDGER_ID)).last_entry == -1  # b1 cannot have acked


async def test_a_bookie_that_answers_soon_after_saves_reading_what_is_confirmed(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": (), "b2": (), "b3": range(100)}, confirmed=98)
        cluster.bookies["b3"].delay_s = late_fence(GRACE_S / 2)
        await client.recover_ledger(LEDGER_ID)
        assert sorted(cluster.bookies["b1"].entries(LEDGER_ID)) == [99]


async def test_nobody_waits_for_more_than_the_grace(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2"), range(100)))
        cluster.bookies["b3"].delay_s = late_fence(5.0)
        start = trio.current_time()
        await client.recover_ledger(LEDGER_ID)
        assert trio.current_time() - start < 2 * GRACE_S


def late_fence(delay_s: float) -> Callable[[Request], float]:
    return lambda request: delay_s if request.opcode == Opcode.READ else 0.0

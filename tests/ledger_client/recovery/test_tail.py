"""The tail: the absence rule, and how much is read at once."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from leftovers import LEDGER_ID, leave
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import BookieUnavailable
from ledger_client.recovery.tail import STRIPED_WIDTH_MAX, Tail, absent, is_negative
from ledger_client.source import LedgerSource
from native.digest import Digest
from native.frame import Code, Opcode
from native.link import Response


def test_an_entry_is_absent_exactly_when_no_ack_quorum_can_have_it() -> None:
    """TB-43: the absence rule, for each set of replicas that deny the entry."""
    for write in range(1, 6):
        for ack in range(1, write + 1):
            for negatives in every_subset(range(write)):
                could_have_it = any(
                    negatives.isdisjoint(holders) for holders in combinations(range(write), ack)
                )
                assert absent(write, ack, len(negatives)) is not could_have_it


def test_only_an_explicit_no_is_a_negative() -> None:
    assert is_negative(response(Code.NO_ENTRY))
    assert is_negative(response(Code.NO_LEDGER))
    assert not is_negative(BookieUnavailable("b1", "no answer in 10 s"))
    others = set(Code) - {Code.NO_ENTRY, Code.NO_LEDGER}
    assert not any(is_negative(response(code)) for code in others)


def response(code: int) -> Response:
    return Response(Opcode.BATCH_READ, code, 1, 0, 7, 0, False, b"")


def every_subset(members: range) -> list[set[int]]:
    counts = range(len(members) + 1)
    return [set(some) for some in chain(*(combinations(members, count) for count in counts))]


@pytest.mark.parametrize(
    ("quorums", "counts"),
    [((3, 3, 2), [100]), ((3, 2, 2), [1, 2, 4, 8, STRIPED_WIDTH_MAX, STRIPED_WIDTH_MAX])],
)
async def test_questions_grow_with_what_was_found(
    autojump_clock: MockClock, quorums: tuple[int, int, int], counts: list[int]
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(100)), quorums=quorums)
        tail = Tail(source_of(cluster, client), 0)
        found = [await tail.next() for _ in counts]
        assert [sum(map(len, batches)) for batches in found] == counts


async def test_large_entries_of_a_striped_ledger_are_asked_for_one_by_one(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        async with client.create_ledger(3, 2, 2, ledger_id=LEDGER_ID) as ledger:
            await ledger.append_many([bytes(1 << 20)] * 5)
        tail = Tail(source_of(cluster, client), 0)
        assert [len(await tail.next()) for _ in range(6)] == [1, 1, 1, 1, 1, 0]
        assert await tail.next() == []


async def test_nothing_is_waited_for_behind_the_end(autojump_clock: MockClock) -> None:
    """Entry 3 is absent; that nobody knows of the entries after it does not matter."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(3)), quorums=(3, 2, 2))
        for bookie in cluster.bookies.values():
            bookie.read_fault = lambda r: Code.IO_ERROR if r.entry_id > 3 else Code.OK
        assert (await client.recover_ledger(LEDGER_ID)).last_entry == 2


def source_of(cluster: MemoryCluster, client: Client) -> LedgerSource:
    return LedgerSource(
        cluster.record(LEDGER_ID),
        digest=Digest(),
        bookies=client._bookies,
        options=client.options,
    )

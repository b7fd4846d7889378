"""Fencing, and the tail above the last confirmed entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations

import pytest
import trio
from leftovers import LEDGER_ID, leave
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.errors import BookieUnavailable, ReplicasUnavailable
from ledger_client.ledgers.inquiry import (
    GRACE_S,
    STRIPED_WIDTH_MAX,
    Tail,
    absent,
    covers,
    floor,
    is_negative,
)
from ledger_client.ledgers.replica_reads import LedgerSource
from metadata.records import Fragment, LedgerRecord, LedgerState
from native.frame import Code, Opcode, Request
from native.link import Response


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
        assert (await client.ledgers.recover(LEDGER_ID)).last_entry == 9
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
        assert (await client.ledgers.recover(LEDGER_ID)).last_entry == 9


async def test_answers_that_are_not_needed_leave_nothing_behind(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2", "b3"), range(10)))
        reading = (Opcode.READ, Opcode.BATCH_READ)
        cluster.bookies["b3"].delay_s = lambda r: 7.0 if r.opcode in reading else 0.0
        await client.ledgers.recover(LEDGER_ID)
        session = client._context.ledgers.bookies.connections["b3"]._session
        assert session is not None
        assert list(session.replies) == []
        await trio.sleep(10)  # the late answers find nobody, and the connection stands
        assert cluster.bookies["b3"].connections == 1


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
        await client._context.ledgers.bookies.connections["b2"].ready()
        cluster.bookies["b2"].answering = False
        cluster.bookies["b3"].read_code = Code.IO_ERROR
        with pytest.raises(ReplicasUnavailable) as failure:
            await client.ledgers.recover(LEDGER_ID)
        assert failure.value.entry_id == -1
        assert failure.value.reasons["b2"] == "no answer in 4 s"
        assert failure.value.reasons["b3"] == "I/O error"
        assert sorted(failure.value.reasons) == ["b1", "b2", "b3"]
        await trio.sleep(5)  # its connection is given up
        cluster.bookies["b2"].answering = True
        assert (await client.ledgers.recover(LEDGER_ID)).last_entry == -1  # b1 cannot have acked


async def test_a_bookie_that_answers_soon_after_saves_reading_what_is_confirmed(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, {"b1": (), "b2": (), "b3": range(100)}, confirmed=98)
        cluster.bookies["b3"].delay_s = late_fence(GRACE_S / 2)
        await client.ledgers.recover(LEDGER_ID)
        assert sorted(cluster.bookies["b1"].entries(LEDGER_ID)) == [99]


async def test_nobody_waits_for_more_than_the_grace(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leave(cluster, dict.fromkeys(("b1", "b2"), range(100)))
        cluster.bookies["b3"].delay_s = late_fence(5.0)
        start = trio.current_time()
        await client.ledgers.recover(LEDGER_ID)
        assert trio.current_time() - start < 2 * GRACE_S


def late_fence(delay_s: float) -> Callable[[Request], float]:
    return lambda request: delay_s if request.opcode == Opcode.READ else 0.0


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
        async with client.ledgers.create(3, 2, 2, ledger_id=LEDGER_ID) as ledger:
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
        assert (await client.ledgers.recover(LEDGER_ID)).last_entry == 2


def source_of(cluster: MemoryCluster, client: Client) -> LedgerSource:
    return LedgerSource(
        cluster.record(LEDGER_ID),
        bookies=client._context.ledgers.bookies,
        options=client._context.options,
    )

"""The rules of recovery, each against its definition by brute force."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

from ledger_client.errors import BookieUnavailable
from ledger_client.recovery.fencing import covers, floor
from ledger_client.recovery.tail import absent, is_negative
from metadata.records import Fragment, LedgerRecord, LedgerState
from native.frame import Code, Opcode
from native.link import Response

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


def test_an_entry_is_absent_exactly_when_no_ack_quorum_can_have_it() -> None:
    """TB-43: the absence rule, for each set of replicas that deny the entry."""
    for write in range(1, 6):
        for ack in range(1, write + 1):
            for negatives in subsets(write):
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


def test_the_last_confirmed_entry_is_at_least_the_one_before_the_last_fragment() -> None:
    assert floor(ledger_with_fragments(0), []) == -1
    assert floor(ledger_with_fragments(0), [-1, 4, 2]) == 4
    assert floor(ledger_with_fragments(0, 10), [-1, -1]) == 9
    assert floor(ledger_with_fragments(0, 10), [11]) == 11


def response(code: int) -> Response:
    return Response(Opcode.BATCH_READ, code, 1, 0, 7, 0, False, b"")


def ledger_with_fragments(*starts: int) -> LedgerRecord:
    fragments = [Fragment(start, ["b1", "b2", "b3"]) for start in starts]
    return LedgerRecord(1, 3, 3, 2, LedgerState.OPEN, fragments)

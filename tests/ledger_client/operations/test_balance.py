from __future__ import annotations

from hypothesis import given, strategies as st

from ledger_client.operations.balance import (
    TOLERANCE,
    LedgerShares,
    Levels,
    Shelf,
    plan_moves,
    shares_of,
)
from metadata.records import Fragment, LedgerRecord, LedgerState

MIB = 1 << 20
NAMES = [f"b{number}" for number in range(1, 7)]

shelves = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        *(st.builds(Shelf, st.just(name), st.sampled_from([True] * 4 + [False])) for name in NAMES)
    ).map(lambda made: list(made[:count]))
)
holders = st.sets(st.sampled_from(NAMES), min_size=1, max_size=3)
ledgers = st.lists(st.tuples(holders, st.integers(0, 1000)), max_size=40).map(
    lambda drawn: [
        LedgerShares(number, dict.fromkeys(sorted(names), size))
        for number, (names, size) in enumerate(drawn)
    ]
)


def closed(*fragments: Fragment, length: int, entries: int, write_quorum: int) -> LedgerRecord:
    return LedgerRecord(
        ledger_id=7,
        ensemble_size=len(fragments[0].bookies),
        write_quorum=write_quorum,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        fragments=list(fragments),
        last_entry=entries - 1,
        length=length,
    )


@given(ledgers, shelves)
def test_copies_are_moved_and_never_two_lie_on_one_bookie(
    drawn: list[LedgerShares], places: list[Shelf]
) -> None:
    held = {ledger.ledger_id: set(ledger.sizes) for ledger in drawn}
    takers = {shelf.bookie_id for shelf in places if shelf.takes}
    for move in plan_moves(drawn, places):
        assert move.source in held[move.ledger_id]
        assert move.target not in held[move.ledger_id]
        assert move.target in takers
        held[move.ledger_id] ^= {move.source, move.target}
    assert {number: len(names) for number, names in held.items()} == {
        ledger.ledger_id: len(ledger.sizes) for ledger in drawn
    }


@given(ledgers, shelves)
def test_in_the_end_bookies_are_level_or_no_move_helps(
    drawn: list[LedgerShares], places: list[Shelf]
) -> None:
    levels = Levels(drawn, places)
    before = levels.spread
    for move in plan_moves(drawn, places):
        squares = sum(size * size for size in levels.sizes.values())
        levels.make(move)
        assert sum(size * size for size in levels.sizes.values()) < squares
    assert levels.spread <= before
    assert levels.spread <= TOLERANCE or levels.best_move() is None


def test_a_new_bookie_gets_its_part() -> None:
    old = [LedgerShares(n, dict.fromkeys(NAMES[:3], MIB)) for n in range(100)]
    moves = plan_moves(old, [Shelf(name) for name in NAMES[:4]])
    levels = Levels(old, [Shelf(name) for name in NAMES[:4]])
    for move in moves:
        levels.make(move)
    assert {move.target for move in moves} == {"b4"}
    assert levels.spread <= TOLERANCE
    assert len(moves) <= 75


def test_level_bookies_are_left_alone() -> None:
    even = [LedgerShares(n, {NAMES[n % 3]: 95 + n % 3 * 5}) for n in range(300)]
    assert plan_moves(even, [Shelf(name) for name in NAMES[:3]]) == []


def test_a_full_bookie_gives_and_takes_nothing() -> None:
    everything = [LedgerShares(n, {"b1": 10}) for n in range(10)]
    places = [Shelf("b1"), Shelf("b2", takes=False), Shelf("b3", free=25)]
    moves = plan_moves(everything, places)
    assert [(move.source, move.target) for move in moves] == [("b1", "b3")] * 2


def test_shares_follow_the_fragments() -> None:
    record = closed(
        Fragment(0, ["b1", "b2"]),
        Fragment(25, ["b1", "b3"]),
        length=1000,
        entries=100,
        write_quorum=2,
    )
    assert shares_of(record).sizes == {"b1": 1000, "b2": 250, "b3": 750}
    striped = closed(Fragment(0, ["b1", "b2", "b3"]), length=900, entries=10, write_quorum=2)
    assert shares_of(striped).sizes == {"b1": 600, "b2": 600, "b3": 600}
    empty = closed(Fragment(0, ["b1"]), length=0, entries=0, write_quorum=1)
    assert shares_of(empty).sizes == {"b1": 0}

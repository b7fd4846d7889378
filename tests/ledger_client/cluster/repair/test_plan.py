from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, strategies as st

from ledger_client.cluster.repair.plan import (
    Holding,
    RepairCopy,
    RepairPlan,
    Runs,
    common,
    count,
    fragment_ends,
    holds_all,
    plan_repair,
    run_of,
    striped,
    union,
    wanted,
    without,
)
from metadata.records import Fragment, LedgerRecord, LedgerState

NAMES = [f"b{number}" for number in range(1, 8)]


def record(
    *fragments: tuple[int, str],
    last: int = 9,
    write_quorum: int | None = None,
    state: LedgerState = LedgerState.CLOSED,
) -> LedgerRecord:
    """A ledger with fragments such as (0, "b1 b2 b3")."""
    lists = [Fragment(first, bookies.split()) for first, bookies in fragments]
    size = len(lists[0].bookies)
    return LedgerRecord(
        ledger_id=1,
        ensemble_size=size,
        write_quorum=write_quorum or size,
        ack_quorum=1,
        state=state,
        fragments=lists,
        last_entry=last if state is LedgerState.CLOSED else -1,
        length=100 * (last + 1) if state is LedgerState.CLOSED else 0,
    )


def whole(*names: str, last: int = 9) -> list[Holding]:
    return [Holding(name, [(0, last)]) for name in names]


def empty(*names: str) -> list[Holding]:
    return [Holding(name) for name in names]


def test_a_whole_ledger_needs_nothing() -> None:
    ledger = record((0, "b1 b2 b3"))
    plan = plan_repair(ledger, [*empty("b4"), *whole("b5", "b3", "b2", "b1")])
    assert plan == RepairPlan([], ledger.fragments)


def test_the_copy_of_a_lost_bookie_goes_to_another_in_its_place() -> None:
    plan = plan_repair(record((0, "b1 b2 b3")), [*whole("b1", "b3"), *empty("b4")])
    assert plan == RepairPlan([RepairCopy("b4", [(0, 9)])], [Fragment(0, ["b1", "b4", "b3"])])


def test_a_gap_is_filled_where_it_is() -> None:
    holdings = [*whole("b1", "b3"), Holding("b2", [(0, 3), (6, 9)]), *empty("b4")]
    plan = plan_repair(record((0, "b1 b2 b3")), holdings)
    assert plan == RepairPlan([RepairCopy("b2", [(4, 5)])], [Fragment(0, ["b1", "b2", "b3"])])


def test_after_an_ensemble_change_those_that_hold_most_get_the_rest() -> None:
    """TB-09: the copy of the whole ledger is completed on one bookie."""
    holdings = [*whole("b1", "b2"), Holding("b3", [(0, 5)]), Holding("b4", [(6, 9)])]
    plan = plan_repair(record((0, "b1 b2 b3"), (6, "b1 b4 b2")), holdings)
    assert plan == RepairPlan([RepairCopy("b3", [(6, 9)])], [Fragment(0, ["b1", "b3", "b2"])])


def test_what_an_interrupted_copy_left_is_used() -> None:
    holdings = [*whole("b1", "b2"), *empty("b4", "b5"), Holding("b6", [(0, 4)])]
    plan = plan_repair(record((0, "b1 b2 b3")), holdings)
    assert plan == RepairPlan([RepairCopy("b6", [(5, 9)])], [Fragment(0, ["b1", "b2", "b6"])])


def test_a_bookie_that_is_to_be_emptied_loses_its_place_once_there_is_another() -> None:
    draining = Holding("b3", [(0, 9)], stays=False)
    ledger = record((0, "b1 b2 b3"))
    plan = plan_repair(ledger, [*whole("b1", "b2"), draining, *empty("b4")])
    assert plan == RepairPlan([RepairCopy("b4", [(0, 9)])], [Fragment(0, ["b1", "b2", "b4"])])
    plan = plan_repair(ledger, [*whole("b1", "b2"), draining])
    assert plan.fragments == ledger.fragments
    assert plan.copies == []
    assert plan.blocked == "no bookie can take the place of b3"


def test_with_too_few_bookies_those_there_are_get_everything() -> None:
    """TB-45: degraded, not refused."""
    ledger = record((0, "b1 b2 b3"), (5, "b1 b4 b3"))
    plan = plan_repair(ledger, [Holding("b1", [(0, 9)]), Holding("b2", [(0, 3)])])
    assert plan.copies == [RepairCopy("b2", [(4, 9)])]
    assert plan.fragments == [Fragment(0, ["b1", "b2", "b3"]), Fragment(5, ["b1", "b2", "b3"])]
    assert plan.blocked == "no bookie can take the place of b3"


def test_a_bookie_that_does_not_say_what_it_holds_keeps_its_place() -> None:
    holdings = [*whole("b1"), Holding("b2", None), *empty("b4")]
    plan = plan_repair(record((0, "b1 b2 b3")), holdings)
    assert plan.copies == [RepairCopy("b4", [(0, 9)])]
    assert plan.fragments == [Fragment(0, ["b1", "b2", "b4"])]
    assert plan.blocked == "b2 did not report what it holds"


def test_a_bookie_in_limbo_is_refilled_and_gets_nothing_new() -> None:
    listed = record((0, "b1 b2 b3"))
    limbo = Holding("b3", [(0, 1)], takes=False)
    plan = plan_repair(listed, [*whole("b1", "b2"), limbo])
    assert plan == RepairPlan([RepairCopy("b3", [(2, 9)])], listed.fragments)
    limbo = Holding("b4", [], takes=False)
    assert plan_repair(listed, [*whole("b1", "b2"), limbo]).blocked


def test_a_read_only_bookie_is_filled_only_when_there_is_no_other() -> None:
    full = Holding("b3", [(0, 8)], full=True)
    plan = plan_repair(record((0, "b1 b2 b3")), [*whole("b1", "b2"), full, *empty("b4")])
    assert plan == RepairPlan([RepairCopy("b4", [(0, 9)])], [Fragment(0, ["b1", "b2", "b4"])])
    plan = plan_repair(record((0, "b1 b2 b3")), [*whole("b1", "b2"), full])
    assert plan == RepairPlan([RepairCopy("b3", [(9, 9)])], [Fragment(0, ["b1", "b2", "b3"])])


def test_a_ledger_that_is_written_keeps_its_last_fragment() -> None:
    ledger = record((0, "b1 b2"), (6, "b1 b3"), state=LedgerState.OPEN)
    plan = plan_repair(ledger, [Holding("b1", [(0, 9)]), *empty("b4")])
    assert plan.copies == [RepairCopy("b4", [(0, 5)])]
    assert plan.fragments == [Fragment(0, ["b1", "b4"]), Fragment(6, ["b1", "b3"])]


def test_an_empty_ledger_only_needs_names() -> None:
    plan = plan_repair(record((0, "b1 b2"), last=-1), [*empty("b1", "b4")])
    assert plan == RepairPlan([], [Fragment(0, ["b1", "b4"])])


def test_striped_entries_go_to_who_takes_the_place() -> None:
    ledger = record((0, "b1 b2 b3"), write_quorum=2, last=5)
    shares = [wanted(ledger, ledger.fragments[0], 5, index) for index in range(3)]
    assert shares == [[(0, 0), (2, 3), (5, 5)], [(0, 1), (3, 4)], [(1, 2), (4, 5)]]
    holdings = [Holding("b1", shares[0]), Holding("b2", shares[1]), *empty("b4")]
    plan = plan_repair(ledger, holdings)
    assert plan == RepairPlan([RepairCopy("b4", shares[2])], [Fragment(0, ["b1", "b2", "b4"])])


# --- against brute force ------------------------------------------------------------------


def drawn(chance: random.Random) -> tuple[LedgerRecord, list[Holding]]:
    """A ledger with any history, and bookies that hold anything of it."""
    size = chance.randint(1, 4)
    last = chance.randint(-1, 12)
    starts = [0, *sorted(chance.sample(range(1, max(last, 1) + 1), min(2, max(last, 0))))]
    count = chance.randint(1, len(starts))
    lists = [(start, " ".join(chance.sample(NAMES, size))) for start in starts[:count]]
    ledger = record(
        *lists,
        last=last,
        write_quorum=size if chance.random() < 0.6 else chance.randint(1, size),
        state=chance.choice([LedgerState.CLOSED] * 3 + [LedgerState.OPEN]),
    )
    alive = chance.sample(NAMES, chance.randint(0, len(NAMES)))
    return ledger, [holding(chance, name, last) for name in alive]


def holding(chance: random.Random, name: str, last: int) -> Holding:
    held = union((e, e) for e in range(last + 1) if chance.random() < chance.choice([0.1, 0.9, 1]))
    return Holding(
        name,
        None if chance.random() < 0.1 else held,
        stays=chance.random() < 0.85,
        takes=chance.random() < 0.9,
        full=chance.random() < 0.1,
        rack=chance.choice(["", "r1", "r2"]),
    )


def places(ledger: LedgerRecord) -> dict[int, set[str]]:
    """For each entry that does not move any more: the bookies that should hold it."""
    found: dict[int, set[str]] = {}
    size = ledger.ensemble_size
    for fragment, end in fragment_ends(ledger):
        for entry in range(fragment.first_entry, end + 1):
            chosen = {fragment.bookies[(entry + i) % size] for i in range(ledger.write_quorum)}
            found[entry] = chosen
    return found


def carried_out(holdings: list[Holding], plan: RepairPlan) -> dict[str, Runs]:
    after = {holding.bookie_id: holding.runs or [] for holding in holdings}
    for copy in plan.copies:
        after[copy.target] = union(after[copy.target], copy.runs)
    return after


def held(after: dict[str, Runs], name: str, entry: int) -> bool:
    return not without([(entry, entry)], after.get(name, []))


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_that_is_carried_out_makes_the_ledger_whole_and_never_worse(seed: int) -> None:
    """TB-44: every entry ends on its write quorum of different bookies that stay."""
    chance = random.Random(seed)
    for _ in range(25):
        ledger, holdings = drawn(chance)
        plan = plan_repair(ledger, holdings)
        mended = msgspec.structs.replace(ledger, fragments=plan.fragments)
        check(ledger, mended, holdings, plan)


def check(
    ledger: LedgerRecord, mended: LedgerRecord, holdings: list[Holding], plan: RepairPlan
) -> None:
    known = {holding.bookie_id: holding for holding in holdings}
    after = carried_out(holdings, plan)
    before = places(ledger)
    for copy in plan.copies:
        assert known[copy.target].stays
        assert copy.runs == without(copy.runs, known[copy.target].runs or [])
    for entry, bookies in places(mended).items():
        for new in bookies - before[entry]:
            assert held(after, new, entry), (entry, new)
        readable = sum(held(after, b, entry) for b in bookies if b in known)
        was = sum(held(after, b, entry) for b in before[entry] if b in known and known[b].stays)
        assert readable >= min(was, ledger.write_quorum)
        if not plan.blocked:
            assert all(known[b].stays and held(after, b, entry) for b in bookies)
            assert len(bookies) == ledger.write_quorum
    able = [h for h in holdings if h.stays and h.takes and not h.full]
    if all(h.runs is not None for h in holdings) and len(able) >= ledger.ensemble_size:
        assert not plan.blocked
    if ledger.state is not LedgerState.CLOSED:
        assert mended.fragments[-1] == ledger.fragments[-1]
    if not plan.blocked and ledger.state is LedgerState.CLOSED:
        later = [msgspec.structs.replace(h, runs=after[h.bookie_id]) for h in holdings]
        assert plan_repair(mended, later) == RepairPlan([], mended.fragments), "it is stable"
        if ledger.ensemble_size == ledger.write_quorum:
            assert len(mended.fragments) == 1


# --- racks --------------------------------------------------------------------------------


def on_racks(racks: dict[str, str], holdings: list[Holding]) -> list[Holding]:
    return [msgspec.structs.replace(h, rack=racks[h.bookie_id]) for h in holdings]


RACKS = {"b1": "r1", "b2": "r2", "b3": "r3", "b4": "r1", "b5": "r2", "b6": "r3", "b7": "r3"}


@pytest.mark.parametrize("lost", ["b1", "b2", "b3"])
@pytest.mark.parametrize("seed", range(5))
def test_a_lost_copy_goes_to_the_rack_that_has_none(lost: str, seed: int) -> None:
    ledger = record((0, "b1 b2 b3"))
    staying = [name for name in ("b1", "b2", "b3") if name != lost]
    holdings = on_racks(RACKS, [*empty("b4", "b5", "b6", "b7"), *whole(*staying)])
    random.Random(seed).shuffle(holdings)
    plan = plan_repair(ledger, holdings)
    (fragment,) = plan.fragments
    assert {RACKS[name] for name in fragment.bookies} == {"r1", "r2", "r3"}
    assert [copy.runs for copy in plan.copies] == [[(0, 9)]]


def test_a_lost_copy_goes_to_a_used_rack_if_there_is_no_other() -> None:
    ledger = record((0, "b3 b6"))
    plan = plan_repair(ledger, on_racks(RACKS, [*whole("b3"), *empty("b7")]))
    assert plan.fragments == [Fragment(0, ["b3", "b7"])] and not plan.blocked


def test_a_whole_ledger_on_one_rack_is_not_copied() -> None:
    ledger = record((0, "b3 b6"))
    plan = plan_repair(ledger, on_racks(RACKS, [*whole("b3", "b6"), *empty("b1", "b2")]))
    assert plan == RepairPlan([], ledger.fragments)


def test_a_gap_is_filled_where_it_is_whatever_the_rack() -> None:
    ledger = record((0, "b3 b6"))
    holdings = [*whole("b3"), Holding("b6", [(0, 8)]), *empty("b1", "b2")]
    plan = plan_repair(ledger, on_racks(RACKS, holdings))
    assert plan == RepairPlan([RepairCopy("b6", [(9, 9)])], ledger.fragments)


def test_a_striped_place_goes_to_a_rack_that_its_write_sets_lack() -> None:
    ledger = record((0, "b1 b2 b3"), write_quorum=2)
    shares = [striped(0, 9, index=i, ensemble_size=3, write_quorum=2) for i in range(3)]
    holdings = [Holding("b1", shares[0]), Holding("b2", shares[1]), *empty("b4", "b5", "b6")]
    plan = plan_repair(ledger, on_racks(RACKS, holdings))
    assert plan.fragments == [Fragment(0, ["b1", "b2", "b6"])]


entries = st.sets(st.integers(0, 30))


def runs(ids: set[int]) -> Runs:
    """The runs of *ids*, the slow way."""
    found: Runs = []
    for entry_id in sorted(ids):
        if found and found[-1][1] == entry_id - 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    return found


@given(entries, entries)
def test_runs_behave_as_sets_of_entries_do(a: set[int], b: set[int]) -> None:
    assert union(runs(a), runs(b)) == runs(a | b)
    assert without(runs(a), runs(b)) == runs(a - b)
    assert common(runs(a), runs(b)) == runs(a & b)
    assert count(runs(a)) == len(a)


@given(st.integers(0, 20), st.integers(-1, 40), st.integers(1, 6), st.data())
def test_a_place_of_the_ensemble_has_the_entries_whose_write_set_it_is_in(
    first: int, last: int, ensemble_size: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, ensemble_size))
    for index in range(ensemble_size):
        expected = {
            e
            for e in range(first, last + 1)
            if index in {(e + i) % ensemble_size for i in range(write_quorum)}
        }
        found = striped(
            first, last, index=index, ensemble_size=ensemble_size, write_quorum=write_quorum
        )
        assert union(found) == runs(expected)
        assert count(found) == len(expected)


def test_a_run_that_ends_before_it_begins_is_empty() -> None:
    assert run_of(0, -1) == []
    assert run_of(3, 3) == [(3, 3)]


@pytest.mark.parametrize(
    ("bookie", "runs", "whole", "while_open"),
    [
        ("b1", [(0, 9)], True, False),
        ("b1", [(0, 8)], False, False),
        ("b1", [(1, 9)], False, False),
        ("b2", [(0, 4)], True, True),
        ("b2", [(0, 3)], False, False),
        ("b3", [(5, 9)], True, False),
        ("b7", [], True, True),
    ],
)
def test_a_bookie_holds_all_if_it_has_its_part_of_each_fragment(
    bookie: str, runs: Runs, whole: bool, while_open: bool
) -> None:
    """Of the fragment that is written nobody knows what belongs there."""
    fragments = (0, "b1 b2"), (5, "b1 b3")
    assert holds_all(record(*fragments), bookie, runs) == whole
    written = record(*fragments, state=LedgerState.OPEN)
    assert holds_all(written, bookie, runs) == while_open

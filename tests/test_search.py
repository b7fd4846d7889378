"""The search: what it prints, keeps and returns, with kinds that only pretend to search."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import search_command
import search_fuzz
import search_mutants
import search_pytest
import search_simulation
import search_turn
from campaign import Finding as Simulated, Task
from click.testing import CliRunner, Result
from mutant import Mutant
from run_seed import VARIABLE
from runner import Outcome, Runner, Verdict, verdict
from search_processes import HUNG, Ended, Processes, Stopped
from search_report import ROOT, Finding, Report
from search_turn import Search, Turn
from seed_list import KeptSeed, kept
from worlds import WORLDS

if TYPE_CHECKING:
    from tests.conftest import Collected

FOUND = Finding("storms", "a wet bookie", "python rain.py 7", "line 1\nline 2")


class Clock:
    """Time that passes by so much whenever somebody looks at it, however busy the machine is."""

    def __init__(self) -> None:
        self.step = 0.001
        self.time = time.time
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += self.step
        return self._now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """How long a search thinks that it takes."""
    clock = Clock()
    for module in (search_command, search_simulation, search_turn):
        monkeypatch.setattr(module, "time", clock)
    return clock


def search(monkeypatch: pytest.MonkeyPatch, kind: Search, *words: str) -> Result:
    """Run the command with *kind* in place of all kinds."""
    monkeypatch.setattr(search_command, "KINDS", dict.fromkeys(search_command.KINDS, kind))
    return CliRunner().invoke(search_command.main, ["--minutes", "0.01", *words])


def turn(kind: str, said: list[str], *, seconds: float = 60, seed: int = 7) -> Turn:
    return Turn(kind, seed, seconds, Report(said.append), Processes())


# --- the command ----------------------------------------------------------------------------


def test_a_finding_is_printed_with_the_line_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find(turn: Turn) -> None:
        turn.count("puddles", 3)
        turn.report.find(FOUND)

    result = search(monkeypatch, find, "--seed", "12", "--json", "storms")
    assert result.exit_code == 1
    assert "seed 12\n" in result.output
    assert "FOUND by storms: a wet bookie\n    line 1\n" in result.output
    assert "  repeat: python rain.py 7\n" in result.output
    assert "storms: 3 puddles\n" in result.output
    summary = json.loads(result.output.splitlines()[-1])
    assert summary["tried"] == {"storms": {"puddles": 3}}
    assert summary["found"] == [
        {"kind": "storms", "title": "a wet bookie", "repeat": "python rain.py 7"}
    ]


def test_without_a_finding_the_search_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    result = search(monkeypatch, lambda turn: turn.count("puddles"), "cuts")
    assert result.exit_code == 0
    assert "0 found, 0 undecided" in result.output


def test_a_search_that_tried_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_storms(turn: Turn) -> None:
        turn.count("puddles", turn.kind == "storms")

    result = search(monkeypatch, only_storms)
    assert result.exit_code == 3
    assert "fuzz: NOTHING was tried\n" in result.output


def test_what_is_undecided_is_said_and_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubt(turn: Turn) -> None:
        turn.count("undecided")
        turn.report.doubt(FOUND)

    result = search(monkeypatch, doubt, "mutants")
    assert result.exit_code == 0
    assert "undecided: a wet bookie\n  repeat: python rain.py 7\n" in result.output
    assert "0 found, 1 undecided" in result.output


def test_without_a_kind_all_share_the_time(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    clock.step = 0.0
    seconds: dict[str, float] = {}

    def note(turn: Turn) -> None:
        seconds[turn.kind] = turn.seconds
        turn.count("looks")

    result = search(monkeypatch, note)
    assert result.exit_code == 0
    assert list(seconds) == ["simulation", "examples", "mutants", "fuzz", "storms", "cuts"]
    assert seconds["simulation"] == pytest.approx(0.1)
    assert seconds["cuts"] == pytest.approx(0.6)  # nobody used any


def test_an_interrupted_search_prints_what_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(turn: Turn) -> None:
        turn.count("puddles", 4)
        signal.raise_signal(signal.SIGINT)

    result = search(monkeypatch, interrupted, "storms")
    assert result.exit_code == 130
    assert "interrupted\nstorms: 4 puddles\n" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["fuzz"],  # how long?
        ["--minutes", "0", "fuzz"],
        ["--minutes", "1", "moon"],
        ["--minutes", "1", "simulation", "moon"],
        ["--minutes", "1", "simulation", "--plant", "moon"],
        ["--minutes", "1", "mutants", "moon"],
        ["--minutes", "1", "fuzz", "moon"],
        ["--minutes", "1", "examples", "tests/moon.py"],
        ["--minutes", "1", "fuzz", "--plant", "no_floor"],
        ["--minutes", "1", "mutants", "--changed", "no-such-revision"],
        ["fuzz", "--repeat", "frames", "no-such-file"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_refused(words: list[str]) -> None:
    assert CliRunner().invoke(search_command.main, words).exit_code == 2


def test_a_plant_that_a_seed_shows_is_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(turn: Turn) -> None:
        turn.count("seeds")
        turn.report.show(turn.plant, 77, "python replay.py 77")

    words = ["simulation", "--plant", "no_floor"]
    result = search(monkeypatch, show, *words)
    assert result.exit_code == 0
    assert "no_floor: shown by 77\n" in result.output
    assert search(monkeypatch, lambda turn: turn.count("seeds"), *words).exit_code == 1


# --- processes ------------------------------------------------------------------------------


def sleeper(path: Path) -> list[str]:
    """A process that starts another one, in a session of its own, which notes its id."""
    inner = f"import os, time; open({str(path)!r}, 'w').write(str(os.getpid())); time.sleep(99)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], "
    return [sys.executable, "-c", f"{code}start_new_session=True)"]


def lives(path: Path) -> bool:
    state = Path(f"/proc/{path.read_text()}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_at_its_deadline_a_process_goes_with_all_that_it_started(tmp_path: Path) -> None:
    path = tmp_path / "id"
    ended = Processes().run(sleeper(path), folder=tmp_path, seconds=2)
    assert ended.code == HUNG
    assert not path.exists() or not lives(path)


def test_an_interrupted_search_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "id"
    code = f"""
import sys
sys.path[:0] = {[str(ROOT / "tests" / each) for each in ("support", "simulation", "mutants")]!r}
import search_command
from pathlib import Path
def wait(turn):
    turn.count("looks")
    turn.processes.run({sleeper(path)!r}, folder=Path({str(tmp_path)!r}), seconds=99)
search_command.KINDS = dict.fromkeys(search_command.KINDS, wait)
search_command.main(["--minutes", "1", "storms"])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    while not path.exists() or not path.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130
    assert "storms: 1 looks" in said
    assert not lives(path)


def test_nothing_starts_once_the_search_is_over(tmp_path: Path) -> None:
    processes = Processes()
    processes.stop()
    with pytest.raises(Stopped):
        processes.run(["true"], folder=tmp_path, seconds=9)


# --- mutants --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Verdict.SURVIVED),
        (1, Verdict.KILLED),
        (-11, Verdict.KILLED),
        (139, Verdict.KILLED),
        (HUNG, Verdict.UNDECIDED),
        (2, Verdict.BROKEN),
        (4, Verdict.BROKEN),
        (5, Verdict.BROKEN),
    ],
)
def test_only_a_test_that_fails_kills(code: int, expected: Verdict) -> None:
    assert verdict(code, "").verdict is expected


def test_each_verdict_is_counted_and_all_but_two_are_findings() -> None:
    said: list[str] = []
    mine = turn("mutants", said)
    mutant = Mutant(Path("bookie/x.patch"), "A promise.", "tests/x.py::test_y", Path("bookie/x.py"))
    for each in Verdict:
        search_mutants.tell(mine, mutant, Outcome(each, "so it is"))
    assert mine.report.tried == {"mutants": {each.value: 1 for each in Verdict}}
    assert len(mine.report.undecided) == 1
    assert len(mine.report.findings) == len(Verdict) - 2
    assert "  repeat: python tests/search.py --minutes 5 mutants bookie/x" in said[-1]


class FakeTree:
    """Tests end as *codes* says: by themselves, and with a mutant applied."""

    def __init__(self, codes: dict[str, tuple[int, int]]) -> None:
        self.codes = codes
        self.is_mutated = False

    def mutated(self, _mutant: Mutant) -> FakeTree:
        return self

    def __enter__(self) -> None:
        self.is_mutated = True

    def __exit__(self, *_: object) -> None:
        self.is_mutated = False

    def test(self, names: Sequence[str], *, seconds: float, processes: int = 0) -> Ended:
        assert seconds > 0
        assert processes >= 0
        codes = [self.codes[name][self.is_mutated] for name in names]
        return Ended(max(codes), "said")


def examined(codes: dict[str, tuple[int, int]], *, begin: int = 99) -> dict[str, Verdict]:
    """The verdicts on one mutant for each test; begins so many."""
    outcomes: dict[str, Verdict] = {}
    mutants = [Mutant(Path(f"bookie/{test}.patch"), "x", test, Path("x.py")) for test in codes]
    runner = Runner([FakeTree(codes)], seconds=9)  # type: ignore[list-item]
    runner.run(
        mutants,
        lambda mutant, outcome: outcomes.update({mutant.test: outcome.verdict}),
        lambda: len(outcomes) >= begin,
    )
    return outcomes


def test_a_mutant_is_killed_by_a_test_that_passes_without_it() -> None:
    assert examined({"good": (0, 1), "weak": (0, 0), "slow": (0, HUNG)}) == {
        "good": Verdict.KILLED,
        "weak": Verdict.SURVIVED,
        "slow": Verdict.UNDECIDED,
    }


def test_one_test_that_fails_anyway_does_not_spoil_the_others() -> None:
    assert examined({"good": (0, 1), "bad": (1, 1), "slow": (HUNG, 1)}) == {
        "good": Verdict.KILLED,
        "bad": Verdict.BROKEN,
        "slow": Verdict.UNDECIDED,
    }


def test_no_mutant_begins_when_the_time_is_over() -> None:
    codes = {f"test{number}": (0, 1) for number in range(30)}
    assert examined(codes, begin=0) == {}
    assert len(examined(codes, begin=20)) == 20


def test_mutants_are_chosen_by_what_they_change_and_what_notices() -> None:
    everything = search_mutants.chosen(turn("mutants", []))
    some = everything[0]
    test = some.test.partition("::")[0]
    for name in (some.name, str(some.file), test):
        chosen = search_mutants.chosen(Turn("mutants", 1, 1, Report(print), Processes(), (name,)))
        assert some.name in {each.name for each in chosen}
        assert len(chosen) < len(everything)
    other = search_mutants.chosen(turn("mutants", [], seed=8))
    assert {each.name for each in other} == {each.name for each in everything}
    assert other != everything


# --- simulation -----------------------------------------------------------------------------


def test_a_broken_promise_is_printed_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text("# kept\n")
    monkeypatch.setattr(search_simulation, "KEPT", path)
    said: list[str] = []
    mine = turn("simulation", said)
    mine.report.keeps = True
    told = "seed 8: 1 promises broken\ninvariant 3, ledger 1, entry 2: lost\n..."
    simulated = Simulated(8, told, frozenset({3}), Counter())
    search_simulation._tell(mine, "topic", simulated)
    assert "  repeat: python tests/simulation/replay.py 8 --world topic --shrink\n" in said[0]
    why = "found by the search: invariant 3, ledger 1, entry 2: lost"
    assert kept(path.read_text()) == [KeptSeed("topic", 8, why)]


def fake_campaign(raising: int) -> Callable[[Iterable[Task]], object]:
    """A campaign that runs nothing; a promise is broken by 9, and one seed raises."""

    def findings(tasks: Iterable[Task]) -> Iterator[Callable[[], Simulated]]:
        for task in tasks:
            told = "seed 9\ninvariant 1\n" if task.seed == 9 else ""
            simulated = Simulated(task.seed, told, frozenset(), Counter())
            yield partial(raises, "broken") if task.seed == raising else partial(same, simulated)

    @contextmanager
    def campaign(tasks: Iterable[Task]) -> Iterator[Iterator[Simulated]]:
        yield Called(findings(tasks))

    return campaign


class Called:
    """The results of calls; unlike a generator it goes on behind an exception, as a pool does."""

    def __init__(self, calls: Iterator[Callable[[], Simulated]]) -> None:
        self._calls = calls

    def __iter__(self) -> Called:
        return self

    def __next__(self) -> Simulated:
        return next(self._calls)()


def raises(why: str) -> Simulated:
    raise RuntimeError(why)


def same(simulated: Simulated) -> Simulated:
    return simulated


def clean(task: Task) -> Simulated:
    return Simulated(task.seed, "", frozenset(), Counter())


def broken(task: Task) -> Simulated:
    return Simulated(task.seed, "seed\ninvariant 2", frozenset({2}), Counter())


class Begun(Exception):
    """A simulation of a seed."""


def begin(seed: int, *, only: Sequence[int] | None = None) -> NoReturn:
    assert only is None
    raise Begun(seed)


@pytest.mark.parametrize("world", WORLDS)
def test_a_plant_is_looked_for_in_its_world_where_its_line_shows_it(
    monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    monkeypatch.setattr(search_simulation, "campaign", fake_campaign(raising=-1))
    monkeypatch.setattr(search_simulation, "_start_server", lambda: None)
    monkeypatch.setattr(search_simulation, "run_seed", clean)
    plant, said = next(iter(WORLDS[world].plants)), list[str]()
    mine = Turn("simulation", 7, 0.2, Report(said.append), Processes(), plant=plant)
    search_simulation.search(mine)
    assert mine.report.shown == {plant: [9]}
    assert set(mine.report.tried["simulation"]) == {f"seeds of {world}"}
    _, script, *words = said[0].rpartition("  repeat: ")[2].split()
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds to it
    monkeypatch.setitem(WORLDS, world, WORLDS[world]._replace(simulate=begin))
    with pytest.raises(Begun, match="9"):
        runpy.run_path(str(ROOT / script), run_name="__main__")


def test_a_seed_that_fails_without_the_plant_is_a_finding_and_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_simulation, "campaign", fake_campaign(raising=-1))
    monkeypatch.setattr(search_simulation, "_start_server", lambda: None)
    monkeypatch.setattr(search_simulation, "run_seed", broken)
    plant = next(iter(WORLDS["ledgers"].plants))
    mine = Turn("simulation", 7, 0.2, Report(print), Processes(), plant=plant)
    search_simulation.search(mine)
    assert not mine.report.shown
    assert [each.title for each in mine.report.findings] == ["ledgers 9: invariant 2"]


def test_all_seeds_are_tried_and_one_whose_simulation_raises_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_simulation, "campaign", fake_campaign(raising=12))
    monkeypatch.setattr(search_simulation, "_start_server", lambda: None)
    mine = Turn("simulation", 7, 0.2, Report(print), Processes(), ("ledgers",))
    search_simulation.search(mine)
    assert [each.title for each in mine.report.findings] == [
        "ledgers 9: invariant 1",
        "ledgers 12: the simulation raises",
    ]
    assert mine.report.tried["simulation"]["seeds of ledgers"] > 6


# --- pytest ---------------------------------------------------------------------------------

SAID = """\
__________________________ Some.test_z[a b] ___________________________
    def test_z():
E       assert 1 == 2
________________________________ test_y ________________________________
E       OSError
=========================== short test summary info ============================
FAILED tests/x/test_y.py::Some::test_z[a b]@group - assert 1 == 2
ERROR tests/x/test_y.py::test_y - OSError
1 failed, 11 passed, 5 deselected, 1 error in 1.2s
"""


def test_failed_tests_are_read_from_what_pytest_prints() -> None:
    assert search_pytest.outcome_of(SAID.replace("]@group", "]")) == (
        13,
        {
            "tests/x/test_y.py::Some::test_z[a b]": "assert 1 == 2",
            "tests/x/test_y.py::test_y": "OSError",
        },
    )
    assert "tests/x/test_y.py::Some::test_z[a b]" in search_pytest.outcome_of(SAID).failed
    assert search_pytest.outcome_of("no tests ran in 0.01s").ran == 0


class FakeProcesses(Processes):
    """pytest, which collects one test and fails it."""

    def __init__(self, said: str, code: int) -> None:
        super().__init__()
        self.ended = Ended(code, said)
        self.seeds: list[str | None] = []

    def run(self, command, *, folder, seconds, environment=os.environ) -> Ended:  # type: ignore[no-untyped-def]  # noqa: ANN001
        assert folder == ROOT
        if "--collect-only" in command:
            assert VARIABLE not in environment
            return Ended(0, "tests/x/test_y.py::test_y\n\n1 test collected in 0.01s\n")
        self.seeds.append(environment[VARIABLE])
        assert "--max-suite-reruns=0" in command
        return self.ended


def test_each_storm_has_another_seed_which_repeats_it() -> None:
    said: list[str] = []
    processes = FakeProcesses("FAILED tests/x/test_y.py::test_y - wet\n1 failed in 9s\n", 1)
    mine = Turn("storms", 40, 0.5, Report(said.append), processes)
    search_pytest.search_storms(mine)
    assert processes.seeds[:2] == ["40", "41"]
    line = "  repeat: QUIRE_SEED=40 QUIRE_STORM_S=12 pytest tests/x/test_y.py::test_y"
    assert line in said[0].splitlines()


def test_a_run_of_pytest_that_breaks_is_a_finding() -> None:
    for code in (2, 3, -11, HUNG):
        mine = Turn("cuts", 40, 0.1, Report(print), FakeProcesses("", code))
        search_pytest.search_cuts(mine)
        assert mine.report.findings[0].repeat.startswith("QUIRE_SEED=40 pytest ")


def test_a_failed_example_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    monkeypatch.setattr(search_pytest, "KEPT_EXAMPLES", path)
    said = "FAILED tests/x/test_y.py::test_y - assert 0\n1 failed in 9s\n"
    mine = Turn("examples", 3, 0.1, Report(print, keeps=True), FakeProcesses(said, 1))
    search_pytest.search_examples(mine)
    first = search_pytest.kept_examples(path.read_text())[0]
    assert first == ("tests/x/test_y.py::test_y", 3, "found by the search: assert 0")


@pytest.mark.facts
def test_the_storms_and_cuts_that_are_searched_are_there(collected: list[Collected]) -> None:
    for place in (*search_pytest.STORMS, *search_pytest.CUTS):
        assert any(re.match(rf"{re.escape(place)}(::|\[|$)", each.id) for each in collected)
    marked = [each for each in collected if each.id.startswith(search_pytest.STORMS)]
    assert len(marked) >= 4


# --- fuzz -----------------------------------------------------------------------------------


def test_an_input_that_is_found_stays_where_its_line_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(search_fuzz, "KEPT", tmp_path / "kept")
    found = tmp_path / "crash-0a"
    found.write_bytes(b"bad")
    said: list[str] = []
    report = Report(said.append, keeps=True)
    mine = Turn("fuzz", 1, 1, report, Processes(), build=tmp_path / "build")
    search_fuzz._find(mine, "frames", found, "x.c:7: runtime error: overflow\n")
    stays = tmp_path / "build" / "fuzz" / "frames" / "crash-0a"
    assert stays.read_bytes() == b"bad"
    assert f"  repeat: python tests/search.py fuzz --repeat frames {stays}\n" in said[0]
    assert (tmp_path / "kept" / "frames" / "crash-0a").read_bytes() == b"bad"

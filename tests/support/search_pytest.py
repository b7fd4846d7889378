"""Runs of pytest that QUIRE_SEED moves: examples, orders of tasks, storms and power cuts."""

from __future__ import annotations

import os
import random
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import NamedTuple

from run_seed import VARIABLE
from search_processes import HUNG, Ended
from search_report import ROOT, Finding
from search_turn import BadName, Turn

KEPT_EXAMPLES = ROOT / "tests" / "kept_examples.txt"
EXPRESSIONS = {
    "examples": "hypothesis",
    "orders": "not hypothesis and not slow and not real_processes and not facts",
}
"""Which tests draw examples, and of which others QUIRE_SEED moves the order of trio's tasks."""
WORDS = {"examples": "from hypothesis import", "orders": "async def test_"}
"""What a file with such tests has in it."""
FILES = 6
"""Files of tests in one run of pytest."""
RUN_S = 900
STORM_S = 60.0
STORM_S_MIN = 12.0
STORMS = (
    "tests/system/test_storms.py",
    "tests/system/test_topic_storms.py",
    "tests/system/test_group_storms.py",
    "tests/hosts/test_cuts.py",
    "tests/bench/test_figures.py",
    "tests/bench/test_compact.py",
    "tests/bench/test_metadata_load.py",
    "tests/bench/test_spark.py::test_a_topic_is_measured_beside_the_floor_of_the_same_rows",
    "tests/ledger_client/topics/producing/test_many_producers.py"
    "::test_the_queue_of_a_client_that_opens_much_is_no_outage[300-0.01]",
    "tests/ledger_client/jobs/staging/test_large_results.py",
    "tests/simulation/test_seeds.py::test_a_seed_gives_the_same_history_on_every_host",
    "tests/simulation/test_seeds.py"
    "::test_a_seed_gives_the_same_history_in_every_process[groups time]",
    "tests/ledger_client/cluster/repair/test_interruption.py"
    "::test_a_worker_killed_at_any_moment_leaves_the_old_list_or_the_new_one[every moment]",
    "tests/system/test_kills.py",
    "tests/system/test_failover.py::test_a_writer_goes_on_after_a_bookie_was_paused",
    "tests/system/test_failover.py"
    "::test_killing_as_many_bookies_as_an_acknowledgement_outlives_loses_nothing",
    "tests/system/test_groups.py::test_a_group_goes_on_after_its_leader_was_killed",
    "tests/system/test_ticks.py",
    "tests/system/test_topic_commands.py"
    "::test_what_a_killed_producer_left_goes_by_itself_also_when_the_leader_is_killed",
    "tests/system/test_topics.py",
    "tests/metadata/zookeeper/test_lost_sessions.py",
    "tests/system/test_replay.py"
    "::test_killed_at_any_moment_it_goes_on_and_each_message_is_there_once[1]",
    "tests/system/test_replay.py::test_killed_at_any_moment_its_files_have_each_message_once",
    "tests/system/test_time_storms.py",
    "tests/system/test_truncation_kills.py",
    "tests/system/test_spark_writes.py::test_a_driver_that_is_killed_leaves_the_topic_as_it_was",
    "tests/system/test_spark_writes.py::test_a_task_that_is_done_twice_at_once_leaves_each_row_once",
    "tests/system/test_spark_rows.py::test_executors_elsewhere_read_by_the_network_alone",
    "tests/system/test_replay_by_spark.py",
    "tests/system/test_compact.py::test_a_driver_that_is_killed_leaves_one_generation_whole[spark]",
    "tests/system/test_compact.py::test_an_executor_that_is_killed_is_tried_again",
    "tests/ledger_client/spark/test_streaming.py"
    "::test_a_query_that_is_killed_goes_on_where_it_was_and_writes_nothing_twice",
    "tests/system/test_demo.py::test_the_demo_loses_nothing_and_leaves_nothing[with Spark]",
    "tests/system/test_docs.py::test_what_a_page_shows_of_spark_runs_as_it_stands",
)
"""Storms, and what takes minutes: loads, results of the greatest size, kills of Spark's drivers."""
CUTS = (
    "tests/bookie/test_power_cut.py::test_a_power_cut_takes_nothing_that_was_promised[moved]",
    "tests/bookie/test_power_cut.py::test_what_a_start_finds_unsynced_is_lost_by_no_later_power_cut",
    "tests/system/test_power_cuts.py",
)
"""Power cuts that QUIRE_SEED moves, and those that take long."""

_FAILED = re.compile(
    r"^(?:FAILED|ERROR|RERUN) (?P<id>tests/\S.*?)(?: - (?P<why>.*))?$", re.MULTILINE
)
_COUNTED = re.compile(r"(\d+) (passed|failed|errors?)\b")
_GROUP = re.compile(r"@[\w-]+$")
_NOTHING_COLLECTED = 5


class Outcome(NamedTuple):
    """Of a run of pytest: how many tests it ran, and why those failed that did, by id."""

    ran: int
    failed: dict[str, str]


def outcome_of(said: str) -> Outcome:
    """Read what pytest printed."""
    failed = {_GROUP.sub("", m["id"]): m["why"] or "" for m in _FAILED.finditer(said)}
    last = next((line for line in reversed(said.splitlines()) if _COUNTED.search(line)), "")
    return Outcome(sum(int(number) for number, _ in _COUNTED.findall(last)), failed)


# --- examples, and orders of tasks ----------------------------------------------------------


def search_examples(turn: Turn) -> None:
    """Run tests with drawn examples and, in turn with them, others in another order of tasks.

    Names narrow it to files or folders of tests.
    """
    places = list(turn.names) or ["tests"]
    if missing := [place for place in places if not _path(place).exists()]:
        raise BadName(f"no test is at {' '.join(missing)}")
    chance = random.Random(turn.seed)
    kinds = {name: _files(places, word) for name, word in WORDS.items()}
    turns = {name: _shuffled(files, chance) for name, files in kinds.items() if files}
    for seed, name in zip(count(turn.seed), cycle(turns), strict=False):
        if seed > turn.seed and not turn.left_s:
            return
        files = list(islice(turns[name], min(FILES, len(kinds[name]))))
        words = ["-n2", "-m", EXPRESSIONS[name], *dict.fromkeys(files)]
        _run(turn, seed, words, counted=f"tests with other {name}", seconds=RUN_S)


def _path(place: str) -> Path:
    return ROOT / place.partition("::")[0]


def _files(places: Sequence[str], word: str) -> list[str]:
    """The files of tests in *places* that have *word* in them; a single test as it is named.

    To collect all tests takes longer than many a search.
    """
    found = [place for place in places if "::" in place]
    for place in sorted(set(places) - set(found)):
        path = _path(place)
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        found += [str(each.relative_to(ROOT)) for each in files if word in each.read_text()]
    return found


def _shuffled(files: list[str], chance: random.Random) -> Iterator[str]:
    while True:
        yield from chance.sample(files, len(files))


# --- storms and power cuts ------------------------------------------------------------------


def search_storms(turn: Turn) -> None:
    """Run each storm in turn, each time with another seed; names narrow it to some of them."""
    length = max(STORM_S_MIN, min(STORM_S, turn.seconds / 2))
    _one_by_one(turn, STORMS, "storms", {"QUIRE_STORM_S": f"{length:g}"})


def search_cuts(turn: Turn) -> None:
    """Cut the power of a bookie and of a cluster in turn, each time at other moments."""
    _one_by_one(turn, CUTS, "runs with power cuts", {})


def _one_by_one(turn: Turn, places: Sequence[str], counted: str, more: dict[str, str]) -> None:
    tests = _collected(turn, places)
    tests = [each for each in tests if not turn.names or any(n in each for n in turn.names)]
    if not tests:
        raise BadName(f"{turn.kind}: no test of it has {' or '.join(turn.names)} in its name")
    for number, test in enumerate(cycle(tests)):
        seed = turn.seed + number // len(tests)
        if number and not turn.left_s:
            return
        _run(turn, seed, ["-n0", test], counted=counted, seconds=RUN_S, more=more)


# --- running pytest -------------------------------------------------------------------------


def _run(
    turn: Turn,
    seed: int,
    words: Sequence[str],
    *,
    counted: str,
    seconds: float,
    more: dict[str, str] | None = None,
) -> None:
    """Run pytest once, moved by *seed*, and report each test that fails."""
    more = {VARIABLE: str(seed), **(more or {})}
    ended = _pytest(turn, words, more, seconds)
    outcome = outcome_of(ended.said)
    turn.count(counted, outcome.ran)
    prefix = " ".join(f"{name}={value}" for name, value in more.items())
    for test, why in outcome.failed.items():
        keep = Keep(test, seed, why) if turn.kind != "storms" else None
        repeat = f"{prefix} pytest {shlex.quote(test)}"
        title = f"{test} with {VARIABLE}={seed}"
        told = _told(ended.said, test) or why
        turn.report.find(Finding(turn.kind, title, repeat, told, keep))
    whole = f"{prefix} pytest {shlex.join(words)}"
    if ended.code == HUNG:
        title = f"not over after {seconds:g} s: {shlex.join(words)}"
        turn.report.find(Finding(turn.kind, title, whole, ended.said[-1000:]))
    elif ended.code not in (0, _NOTHING_COLLECTED) and not outcome.failed:
        title = f"pytest ended with {ended.code}"
        turn.report.find(Finding(turn.kind, title, whole, ended.said[-1000:]))


def _told(said: str, test: str) -> str:
    """The lines that pytest marks with E below the heading of *test*."""
    name = test.partition("::")[2].replace("::", ".")
    _, found, rest = said.partition(f"_ {name} _")
    lines = re.split(r"^_{5,} ", rest, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    return "\n".join(line for line in lines if found and line.startswith("E "))


def _collected(turn: Turn, words: Sequence[str]) -> list[str]:
    ended = _pytest(turn, ["-n0", "--collect-only", *words], {}, 300)
    if ended.code not in (0, _NOTHING_COLLECTED):
        raise BadName(f"pytest cannot collect {shlex.join(words)}:\n{ended.said[-2000:]}")
    return [line for line in ended.said.splitlines() if re.match(r"tests/\S+\.py::", line)]


def _pytest(turn: Turn, words: Sequence[str], more: dict[str, str], seconds: float) -> Ended:
    # What fails once is a finding: here nothing is tried a second time. *seconds* is the limit.
    command = [sys.executable, "-m", "pytest", "-q", "--max-suite-reruns=0"]
    command += ["-o", "timeout=0"]
    command += ["-p", "no:cacheprovider", *words]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return turn.processes.run(
        command, folder=ROOT, seconds=seconds, environment={**environment, **more}
    )


# --- kept examples --------------------------------------------------------------------------


@dataclass(frozen=True)
class Keep:
    """Appends a test and a seed to the kept examples."""

    test: str
    seed: int
    why: str

    def __call__(self) -> str:
        """Write the line, and return where."""
        why = " ".join(self.why.split())[:120] or "it failed"
        with KEPT_EXAMPLES.open("a") as file:
            file.write(f"{self.test} {self.seed} found by the search: {why}\n")
        return str(KEPT_EXAMPLES)


class KeptExample(NamedTuple):
    """A test that failed once with this QUIRE_SEED. *why*: what was wrong then."""

    test: str
    seed: int
    why: str


_KEPT = re.compile(
    r"(?P<test>tests/\S+\.py::[\w:]+(?:\[.*?\])?) (?P<seed>\d+) (?P<why>\S.*)",
)


def kept_examples(text: str) -> list[KeptExample]:
    """Return the examples that *text* names, as kept_examples.txt does.

    Raises:
        ValueError: a line names no test, no seed or no reason.
    """
    found: list[KeptExample] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        matched = _KEPT.fullmatch(line)
        if matched is None:
            raise ValueError(f"{line!r}: TESTID SEED WHY is expected")
        found.append(KeptExample(matched["test"], int(matched["seed"]), matched["why"]))
    return found

"""What the gate takes for granted about the tests themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from daemon_server import BOOKIE, ENVIRONMENT, can_fork
from environment import missing
from never_twice import NeverTwice, check_end, never_twice
from search_pytest import CUTS, STORMS

from ledger_client.errors import EntryLost

if TYPE_CHECKING:
    from tests.conftest import Collected

pytestmark = pytest.mark.facts

SETTINGS = Path(__file__).parents[1] / "pyproject.toml"
REVIEWED = Path(__file__).with_name("real_processes.txt")
TOTAL = "in all"


def listed() -> dict[str, int]:
    """The reviewed numbers: of each file, and of all."""
    lines = REVIEWED.read_text().splitlines()
    rows = [line.split(" ", 1) for line in lines if not line.startswith("#")]
    return {path: int(count) for count, path in rows}


def counted(collected: Sequence[Collected]) -> dict[str, int]:
    """The same of the tests that are there."""
    marked = [each.id for each in collected if "real_processes" in each.markers]
    found = Counter(test.partition("::")[0] for test in marked)
    return {path: found[path] for path in sorted(found)} | {TOTAL: len(marked)}


def differences(reviewed: dict[str, int], found: dict[str, int]) -> Iterator[str]:
    """Say of each number that is not as reviewed what is to be done."""
    for path in sorted({*reviewed, *found} - {TOTAL}):
        was, now = reviewed.get(path, 0), found.get(path, 0)
        if now < was:
            yield f"{path}: {now}, not {was}: lower the number in {REVIEWED.name}"
        elif now > was:
            yield (
                f"{path}: {now}, not {was}: write the new test on a virtual clock or in the "
                "simulation, or let another of this kind go for it"
            )


def test_the_tests_with_real_processes_are_counted(collected: Sequence[Collected]) -> None:
    """Each of them may be tried twice, so their number only falls."""
    reviewed, found = listed(), counted(collected)
    assert list(differences(reviewed, found)) == []
    assert found[TOTAL] == reviewed[TOTAL]


def test_what_takes_long_is_tried_by_the_search(collected: Sequence[Collected]) -> None:
    long = [each.id for each in collected if "long" in each.markers]
    assert long
    assert [each for each in long if not each.startswith((*STORMS, *CUTS))] == []


def test_the_machine_has_all_that_tests_need() -> None:
    assert missing() == []


# --- failures that are never tried a second time ------------------------------------------


def test_a_comparison_that_fails_decides_at_once_and_keeps_its_words() -> None:
    with pytest.raises(NeverTwice, match=r"\[1\] == \[2\]"), never_twice():
        assert [1] == [2]


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_entry_that_is_lost_decides_at_once(is_nested: bool) -> None:
    """Also out of a nursery."""
    lost: Exception = EntryLost(ledger_id=7, entry_id=3, reasons={})
    if is_nested:
        lost = ExceptionGroup("", [trio.TooSlowError(), ExceptionGroup("", [lost])])
    with pytest.raises(NeverTwice, match="entry 3"), never_twice():
        raise lost


def test_a_bound_that_was_missed_is_no_lost_data() -> None:
    with pytest.raises(trio.TooSlowError), never_twice():
        raise trio.TooSlowError
    with pytest.RaisesGroup(trio.TooSlowError), never_twice():
        raise ExceptionGroup("", [trio.TooSlowError()])


@pytest.mark.parametrize(
    ("code", "log"),
    [
        (-signal.SIGSEGV, ""),
        (-signal.SIGABRT, "free(): invalid pointer"),
        (1, "==7==ERROR: AddressSanitizer: heap-use-after-free"),
        (None, "native/link.c:9:5: runtime error: shift exponent 64 is too large"),
        (0, "bookie-2 was killed by SIGBUS; the others go on"),
    ],
)
def test_a_crash_and_a_finding_decide_at_once(code: int | None, log: str) -> None:
    with pytest.raises(NeverTwice):
        check_end(code, log)


@pytest.mark.parametrize("code", [None, 0, 1, -signal.SIGKILL, -signal.SIGTERM])
def test_an_end_that_tests_bring_about_is_none_of_these(code: int | None) -> None:
    check_end(code, "bookie-2 was killed by SIGKILL; the others go on")


def test_no_process_is_forked_by_a_server_that_loaded_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test that puts a library before all others wants it in its bookies."""
    assert can_fork(BOOKIE, None)
    monkeypatch.setenv("LD_PRELOAD", "/slow_disk.so")
    assert not can_fork(BOOKIE, None)
    assert can_fork(BOOKIE, ENVIRONMENT)


def test_processes_of_tests_hash_strings_alike() -> None:
    """Else the order of a set, and with it a schedule, would be another one each time."""
    command = [sys.executable, "-c", "print(hash('a'))"]
    hashes = {subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout for _ in range(3)}
    assert len(hashes) == 1


def test_a_test_that_hangs_fails_and_those_after_it_run(tmp_path: Path) -> None:
    tests = "import time\ndef test_a():\n    time.sleep(600)\ndef test_b():\n    pass\n"
    (tmp_path / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-c", str(SETTINGS), "-n0", str(tmp_path)]
    command += ["-o", "timeout=2", "-p", "no:cacheprovider"]
    said = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout
    assert "time.sleep(600)" in said
    assert "1 failed, 1 passed" in said

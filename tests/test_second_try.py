"""Which failures may be tried a second time, and that the second try is alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from never_twice import NeverTwice, may_be_tried_again
from turns import Turns

SUPPORT = Path(__file__).parent / "support"
HOLDER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(SUPPORT)!r})
from turns import Turns
with Turns(Path(sys.argv[1])).taken(alone=sys.argv[2] == "alone"):
    print("has a turn", flush=True)
    sys.stdin.read()
"""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def shadowed(error: Exception, context: Exception) -> Exception:
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (None, True),
        (AssertionError("late"), True),
        (ExceptionGroup("", [OSError()]), True),
        (NeverTwice("lost"), False),
        (ExceptionGroup("", [OSError(), ExceptionGroup("", [NeverTwice("lost")])]), False),
        (caused(OSError(), NeverTwice("lost")), False),
        (shadowed(OSError(), NeverTwice("lost")), False),
    ],
    ids=["none", "late", "group", "lost", "lost in a group", "lost as a cause", "lost before"],
)
def test_only_what_may_be_the_machines_fault_is_tried_again(
    error: Exception | None, again: bool
) -> None:
    assert may_be_tried_again(error) is again


def holder(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(folder), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def has_turn(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "has a turn\n"


def waits(process: subprocess.Popen[str]) -> None:
    """Return once a process waits for a lock, as the system says."""
    while not is_blocked(process):
        assert process.poll() is None
        os.sched_yield()


def is_blocked(process: subprocess.Popen[str]) -> bool:
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {process.pid} " in line for line in locks)


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")
    assert process.returncode == 0


def test_a_second_try_is_alone_and_is_not_overtaken(tmp_path: Path) -> None:
    first, second = holder(tmp_path, "beside"), holder(tmp_path, "beside")
    has_turn(first)
    has_turn(second)
    alone = holder(tmp_path, "alone")
    waits(alone)
    late = holder(tmp_path, "beside")
    waits(late)
    end(first)
    end(second)
    has_turn(alone)
    waits(late)
    end(alone)
    has_turn(late)
    end(late)
    with Turns(tmp_path).taken(alone=True):
        pass

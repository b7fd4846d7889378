"""The number from which one run of the tests draws what it tries.

A commit has its own, so that each commit tries other seeds of the simulation and other
examples of hypothesis, and two runs of one commit try the same. As a script it prints the
number, which .ci/run exports for everything that it starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "QUIRE_SEED"
"""In the environment: the number to use, which repeats a run."""
_ROOT = Path(__file__).resolve().parents[2]


def run_seed() -> int:
    """Return the number of this run, and set the variable for the processes that it starts.

    Taken from the variable, else from the commit's id, else from the clock: a source
    archive has no commit.

    Raises:
        ValueError: the variable is not a whole number of 0 or more.
    """
    text = os.environ.get(VARIABLE) or str(_of_commit(_ROOT) or int(time.time()))
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE}={text}: give a whole number, or unset it")
    os.environ[VARIABLE] = text
    return int(text)


def _of_commit(folder: Path) -> int | None:
    try:
        told = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None  # no git here
    return int(told.stdout[:8], 16) if told.returncode == 0 else None


if __name__ == "__main__":
    sys.stdout.write(f"{run_seed()}\n")

"""See a simulation again: ``python tests/simulation/replay.py SEED [--world W] [--only 3,7,9]``.

Prints the steps as they were taken and every broken promise, and exits with 1 if there
are any. ``--world``: ledgers, topic, groups, time, ids or ending. ``--history`` prints what was
asked and answered too, ``--shrink`` looks for fewer steps first, ``--plant`` plants one of the
mistakes of the world, which are in plants.py and in files with names such as topic_plants.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

from history import fingerprint  # noqa: E402 - the path is set above
from shrinking import report, shrink  # noqa: E402
from worlds import WORLDS  # noqa: E402


def main() -> int:
    """Replay what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--only", help="numbers of steps, separated by commas, or none")
    parser.add_argument("--world", choices=sorted(WORLDS), default="ledgers")
    parser.add_argument("--plant", default="")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--history", action="store_true")
    asked = parser.parse_args()
    only = None if asked.only is None else _numbers(asked.only)
    world = WORLDS[asked.world]
    with world.plants[asked.plant]() if asked.plant else nullcontext():
        outcome = world.simulate(asked.seed, only=only)
        if asked.shrink and outcome.violations:
            outcome = shrink(outcome)
    write = sys.stdout.write
    if asked.history:
        write("".join(f"{event.at:9.3f} s  {event}\n" for event in outcome.history.events))
    write(f"{report(outcome, plant=asked.plant)}\nhistory {fingerprint(outcome.history)}\n")
    return 1 if outcome.violations else 0


def _numbers(text: str) -> list[int]:
    return [] if text == "none" else [int(number) for number in text.split(",")]


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:  # the same as in tests: tests/conftest.py
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())

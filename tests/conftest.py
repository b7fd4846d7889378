"""What every test expects of the process that it runs in, and which tests run beside others.

Folders of tests run in several processes (pytest-xdist), since most tests wait: for a
disk, for a lease, for processes of their own. A file, or a single test, runs in the
process of pytest itself, and so does everything under ``-s``, ``--pdb`` and ``-n 0``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from run_seed import VARIABLE, run_seed
from spark_session import spark

__all__ = ["spark"]  # a fixture

# A shell that starts pytest in the background has SIGINT ignored, in pytest and in
# every process that it starts. Tests of Ctrl-C need it to be as in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of processes. Where Python is told to keep no compiled code beside the
# sources, each would compile all of them: they share a folder that goes with this run.
if sys.dont_write_bytecode:
    compiled = tempfile.mkdtemp(prefix="quire-compiled-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = compiled
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# New examples each time. The gate gives pytest --hypothesis-seed, which repeats them; under CI
# hypothesis would otherwise try the same ones for ever.
settings.register_profile(
    "quire",
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is
)
settings.load_profile("quire")

# Set before pytest-xdist starts its workers, which must collect and draw the same.
RUN_SEED = run_seed()

WORKERS_MAX = 8
ID_SIZE_MAX = 80
HEAVY = {"bench", "simulation", "system"}
"""Folders whose tests take long, next to the others."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for each processor, since tests wait more than they compute; or none."""
    names = [Path(str(config.invocation_params.dir), each.split("::")[0]) for each in config.args]
    if config.getoption("capture") == "no" or not any(name.is_dir() for name in names):
        return 0
    return min(WORKERS_MAX, 2 * len(os.sched_getaffinity(0)))


def pytest_report_header() -> str:
    """Name the number from which this run draws."""
    return f"{VARIABLE}={RUN_SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Say how a failure is repeated that depends on what this run drew."""
    if exitstatus:
        repeat = f"{VARIABLE}={RUN_SEED} pytest --hypothesis-seed={RUN_SEED}"
        terminalreporter.write_line(f"try the same again: {repeat}")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long input by its size: a name is in the environment of all that a test starts."""
    if isinstance(val, bytes | str) and len(val) > ID_SIZE_MAX:
        return f"{argname} of {len(val)}"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run beside each other, let the long ones begin first: the end is short."""
    if hasattr(config, "workerinput"):
        items.sort(key=_lateness)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on where pytest-xdist does not see which tests belong together."""
    for item in session.items if hasattr(session.config, "workerinput") else ():
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError("this pytest-xdist cannot group tests under this pytest")


def _lateness(item: pytest.Item) -> tuple[bool, bool]:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return item.get_closest_marker("slow") is None, folder not in HEAVY

"""What every test expects of the process that it runs in, and which tests run beside others.

Folders of tests run in several processes (pytest-xdist), since most tests wait: for a
disk, for a lease, for processes of their own. A file, or a single test, runs in the
process of pytest itself, and so does everything under ``-s``, ``--pdb`` and ``-n 0``.

    Spark: one worker has a session, and
    one starts drivers ──────────────────┐   other real processes, on two workers
    facts, quick and slow, the slow      ├─► virtual clocks, on the other workers
    first, on the other workers ─────────┘
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import pytest
import trio
from environment import missing
from hypothesis import HealthCheck, settings
from never_twice import may_be_tried_again
from run_seed import VARIABLE, run_seed
from spark_session import own_spark, spark
from teller import Teller
from time_table import DEAREST_TITLE, TITLE, Stopwatch, TimeTable
from trio.testing import MockClock
from turns import Turns

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

__all__ = ["own_spark", "spark"]  # fixtures

# A shell that starts pytest in the background, or by nohup, has signals ignored, in pytest and
# in every process that it starts. Tests of Ctrl-C and of lost terminals need them to be as in a
# terminal. (Python ignores SIGPIPE in itself, and gives it back to what subprocess starts.)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# Tests start hundreds of processes. Where Python is told to keep no compiled code beside the
# sources, each would compile all of them: they share a folder that goes with this run.
if sys.dont_write_bytecode:
    compiled = tempfile.mkdtemp(prefix="quire-compiled-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = compiled
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The order of a set of strings goes by Python's hashes, which are drawn anew for each process. So
# workers, and all processes of tests, get the same; a test that runs in the process of pytest
# itself does only if this is set before: PYTHONHASHSEED=0 pytest -n0 ...
os.environ.setdefault("PYTHONHASHSEED", "0")

RUN_SEED = run_seed()
IS_MOVED = VARIABLE in os.environ
"""Whether this run tries something else than every run: tests/search.py."""

settings.register_profile(
    "quire",
    deadline=None,
    derandomize=not IS_MOVED,
    max_examples=100 if IS_MOVED else 40,  # the same 40 each time; others are for the search
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is
)
settings.load_profile("quire")

TESTS = Path(__file__).parent
CLOCKS = {"autojump_clock", "mock_clock"}
WORKERS_MAX = 8
FOLDERS_IN = "PYTEST_DEBUG_TEMPROOT"
"""In the environment, for pytest: where the folders of tests go."""
MEMORY = Path("/dev/shm")
MEMORY_SIZE_MIN = 8 << 30
ID_SIZE_MAX = 80
HEAVY = {"bench", "hosts", "interop", "simulation", "system"}
"""Folders whose tests take long, next to the others."""
HALVES = 8
"""The bit of a name's checksum by which tests with real processes take as long in each half."""
LISTING = "QUIRE_LIST_TESTS_IN"
"""In the environment: the file that takes what was collected."""


class Collected(NamedTuple):
    """A test of this repository: *id* as ``tests/x/test_y.py::test_z[param]``."""

    id: str
    markers: frozenset[str]


COLLECTED = pytest.StashKey[list[Collected]]()
TURNS = pytest.StashKey[str]()
FAILED = pytest.StashKey[bool]()
TABLE = TimeTable()
STOPWATCH = Stopwatch()


def pytest_configure(config: pytest.Config) -> None:
    """Let tests have their folders in memory, and draw other examples where QUIRE_SEED says so.

    Hypothesis reads its option after this, and pytest where folders go.
    """
    if has_memory_for_folders():
        os.environ.setdefault(FOLDERS_IN, str(MEMORY))
    if IS_MOVED and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(RUN_SEED)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Teller(config))


def has_memory_for_folders() -> bool:
    """Whether there is a file system in memory with room for what tests write.

    Most sync after each few bytes, and wait for the disk then.
    """
    if not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if "MemAvailable" in line)
    return min(found.f_bavail * found.f_frsize, available) >= MEMORY_SIZE_MIN


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three workers for two processors, since tests wait, too; or none.

    Each more makes all of them slower than it saves: they take caches from each other.
    """
    if config.getoption("capture") == "no" or not runs_folders(config):
        return 0
    return min(WORKERS_MAX, (3 * len(os.sched_getaffinity(0)) + 1) // 2)


def runs_folders(config: pytest.Config) -> bool:
    """Whether this run was asked for more than files and single tests."""
    names = [Path(str(config.invocation_params.dir), each.split("::")[0]) for each in config.args]
    return any(name.is_dir() for name in names)


def pytest_report_header() -> list[str]:
    """Name the number that this run is moved by, and what the machine lacks."""
    seeds = f"{VARIABLE}={RUN_SEED}" if IS_MOVED else f"{VARIABLE} is not set: the same as ever"
    return [seeds, *(f"MISSING HERE: {need}" for need in missing())]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the processor's time to each report, and note of a test that it failed."""
    report = yield
    vars(report)["processor_s"] = STOPWATCH.lap_s()
    if report.failed:
        item.stash[FAILED] = True
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time of all workers."""
    TABLE.add(report)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Say where the time went if --durations asks, and how a failure of a moved run is repeated."""
    if config.getoption("durations") is not None:
        terminalreporter.section(TITLE)
        for line in TABLE.lines():
            terminalreporter.write_line(line)
        terminalreporter.section(DEAREST_TITLE)
        for line in TABLE.dearest():
            terminalreporter.write_line(line)
    if exitstatus and IS_MOVED:
        terminalreporter.write_line(f"try the same again: {VARIABLE}={RUN_SEED} pytest")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long input by its size: a name is in the environment of all that a test starts."""
    if isinstance(val, bytes | str) and len(val) > ID_SIZE_MAX:
        return f"{argname} of {len(val)}"
    return None


# --- which tests, and when ------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Note all tests; leave out the long ones, order them, and say which may be tried twice.

    Where tests run beside each other those of Spark have two workers from the start, and of the
    others the long ones begin first, so that the end is short. Real processes, which wait a lot,
    come last, beside tests that compute all the time and cannot see how busy the machine is.
    """
    config.stash[COLLECTED] = [
        Collected(item.nodeid, frozenset(mark.name for mark in item.iter_markers()))
        for item in items
    ]
    if runs_folders(config) and not IS_MOVED:
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    for item in items:
        if is_real(item):
            again = pytest.mark.flaky(reruns=1, condition=may_be_tried_again)
            item.add_marker(again)
    yield  # deselects, and adds the group to the id of a test, where pytest-xdist looks for it
    if hasattr(config, "workerinput"):
        items.sort(key=_lateness)
        for item in filter(is_real, items):
            item._nodeid = f"{_without_group(item)}@{_worker_of(item)}"


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on where a plugin does not see what a test asks of it."""
    gc.freeze()  # thousands of tests that stay need no look at each collection
    for item in session.items:
        if isinstance(item, pytest.Function) and _has_hidden_clock(item):
            raise pytest.UsageError(f"{item.nodeid}: name the clock as an argument of the test")
    for item in session.items if hasattr(session.config, "workerinput") else ():
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError("this pytest-xdist cannot group tests under this pytest")
    if LISTING in os.environ:
        rows = [(each.id, sorted(each.markers)) for each in session.config.stash[COLLECTED]]
        Path(os.environ[LISTING]).write_text(json.dumps(rows))


def is_real(item: pytest.Item) -> bool:
    """Whether *item* kills real processes, cuts networks, or runs Spark, Prometheus or Java."""
    return item.get_closest_marker("real_processes") is not None


def _has_hidden_clock(item: pytest.Function) -> bool:
    """True if only a fixture names the virtual clock: pytest-trio would run it in real time."""
    return not CLOCKS.isdisjoint({*item.fixturenames} - {*item._fixtureinfo.argnames})


def _lateness(item: pytest.Item) -> tuple[bool, bool, bool, bool, bool]:
    folder = item.path.relative_to(TESTS).parts[0]
    has_spark = is_real(item) and "spark" in _groups(item)
    has_clock = not CLOCKS.isdisjoint(getattr(item, "fixturenames", ()))
    is_virtual = not is_real(item) and (has_clock or folder == "simulation")
    is_quick = item.get_closest_marker("slow") is None
    return not has_spark, is_virtual, is_real(item), is_quick, folder not in HEAVY


def _worker_of(item: pytest.Item) -> str:
    """The group of a test with real processes: those of Spark, or half of the others.

    A test stays with those of its own group and of its file.
    """
    groups = _groups(item)
    if "spark" in groups:
        return "real-spark" if "spark" in getattr(item, "fixturenames", ()) else "real-drivers"
    name = "_".join(sorted(map(str, groups))) or item.path.name
    return f"real-{crc32(name.encode()) >> HALVES & 1}"


def _groups(item: pytest.Item) -> set[object]:
    return {mark.args[0] for mark in item.iter_markers("xdist_group")}


def _without_group(item: pytest.Item) -> str:
    """As ``file::test[param]``: pytest-xdist puts ``@group`` behind it."""
    group = "_".join(sorted(map(str, _groups(item))))
    return item.nodeid.removesuffix(f"@{group}") if group else item.nodeid


# --- what tests are given -------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _chance(request: pytest.FixtureRequest) -> None:
    """Let chance be the same each time: the order in which trio takes tasks, and ``random``."""
    item = request.node
    seed = f"{item.path.relative_to(TESTS).as_posix()}::{item.name} {RUN_SEED}"
    random.seed(seed)
    trio._core._run._r.seed(seed)  # there is no other way


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give tests with real processes, and benchmarks, a folder on a disk.

    What it holds goes unless the test fails. The name of one in memory stays, as some tests use it
    for what they make elsewhere.
    """
    is_on_disk = is_real(request.node) or TESTS / "bench" in request.path.parents
    folder = Path(tempfile.mkdtemp(prefix=f"{tmp_path.name}-")) if is_on_disk else tmp_path
    yield folder
    if FAILED not in request.node.stash:
        shutil.rmtree(folder, ignore_errors=True)
        if not is_on_disk:
            folder.mkdir(exist_ok=True)


@pytest.fixture(autouse=True)
def _interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, also after a test whose PySpark has set a handler."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what goes to a thread run at once where the clock is virtual.

    Such a clock rushes on while a thread works: hours of heartbeats, for all of which the thread
    waits, as they hold Python's lock.
    """
    in_thread: Callable[..., Awaitable[object]] = trio.to_thread.run_sync

    async def run_sync(work: Callable[..., object], *args: object, **options: object) -> object:
        if not isinstance(trio.lowlevel.current_clock(), MockClock):
            return await in_thread(work, *args, **options)
        await trio.lowlevel.checkpoint()
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test that is tried a second time run alone."""
    if not is_real(request.node) or not hasattr(request.config, "workerinput"):
        yield
        return
    turns = Turns(Path(request.config.workerinput["quire_turns"]))
    with turns.taken(alone=getattr(request.node, "execution_count", 1) > 1):
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker in which folder all of them take turns."""
    config = node.config
    if TURNS not in config.stash:
        folder = tempfile.mkdtemp(prefix="quire-turns-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        config.stash[TURNS] = folder
    node.workerinput["quire_turns"] = config.stash[TURNS]


@pytest.fixture(scope="session")
def collected(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Collected]:
    """All tests of the repository, as this run found them, or another one that looks."""
    config = request.config
    if [Path(config.invocation_params.dir, each) for each in config.args] == [TESTS]:
        return config.stash[COLLECTED]
    listing = tmp_path_factory.mktemp("listing") / "tests.json"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n0", str(TESTS)]
    command += ["-p", "no:cacheprovider"]
    subprocess.run(
        command,
        cwd=TESTS.parent,
        env={**os.environ, LISTING: str(listing)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return [Collected(name, frozenset(marks)) for name, marks in json.loads(listing.read_text())]

"""A Spark session for the length of a block.

Python packages and Java are checked first, so that a missing one is reported in one line and not
by stack traces of two languages. What Spark prints goes to a file, and is shown only if Spark does
not start. When the block ends, for any reason, the JVM has ended too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio

from ledger_client.background import Background
from ledger_client.errors import SparkError, SparkMissing
from ledger_client.spark.failures import unwrapped

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

VERSION_MIN = 17
MODULE = "jdk.incubator.vector"
"""Spark loads it; reduced Java runtimes lack it."""
TRY_S = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_NEXT = f"install Java {VERSION_MIN} or later, or let JAVA_HOME name it"


def check_java() -> None:
    """Check that Spark can run on this machine's Java; takes a quarter of a second.

    Raises:
        SparkMissing: there is none, it does not run, it is of a version before 17, or it
            lacks a module.
    """
    java = _find()
    if _run(java, "--add-modules", MODULE, "-version").returncode == 0:
        version = _version(_run(java, "-version").stderr)
        if version is not None and version >= VERSION_MIN:
            return
    tried = _run(java, "-version")
    version = _version(tried.stderr)
    if tried.returncode != 0 or version is None:
        raise SparkMissing(f"{java} does not run: {_last_line(tried.stderr)}; {_NEXT}")
    if version < VERSION_MIN:
        raise SparkMissing(f"{java} is Java {version}, and Spark needs {VERSION_MIN}; {_NEXT}")
    raise SparkMissing(f"{java} lacks the module {MODULE}, which Spark needs; {_NEXT}")


def _find() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise SparkMissing(f"JAVA_HOME is {home}, and there is no bin/java in it; {_NEXT}")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise SparkMissing(f"there is no Java here, and Spark needs it; {_NEXT}")
    return found


def _run(java: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [java, *words], capture_output=True, text=True, timeout=TRY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise SparkMissing(f"{java} does not run: {failure}; {_NEXT}") from failure


def _version(text: str) -> int | None:
    found = _VERSION.search(text)
    return None if found is None else int(found[1])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"


SPARK_MIN = (4, 3)
STOP_S = 20.0
CONNECT_S = 5.0
_INSTALL = "pip install '.[spark]' in a clone of quire"
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}
# On one machine nothing should depend on how its host name resolves.
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_EXCEPTION = re.compile(r"^(?:\S+ )*?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_NOTHING: Mapping[str, str] = {}


@contextmanager
def start_spark(
    master: str = "local[*]", *, app: str = "quire", conf: Mapping[str, str] = _NOTHING
) -> Iterator[SparkSession]:
    """Start Spark for the block. A process can have one session at a time.

    Args:
        master: "local[N]" in this process's own JVM, or the URL of a cluster.
        app: name of the session.
        conf: settings of Spark that override ours: no UI, only errors logged, times in UTC.

    Raises:
        SparkMissing: PySpark or Java is not installed, or is too old.
        SparkError: Spark did not start, or this process has a session already.
    """
    check_spark()
    check_java()
    check_master(master)
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:  # PySpark offers no public way
        raise SparkError("a Spark session is open in this process already; use that one")
    kept = signal.getsignal(signal.SIGINT)  # Spark installs its own and never restores it
    with tempfile.TemporaryDirectory(prefix="quire-spark-") as name:
        folder = Path(name)
        try:
            with _environment(master, folder / "home"):
                yield _start(_settings(master, app, conf), folder / "spark.log")
        finally:
            with suppress(ValueError):  # not the main thread, which alone has handlers
                signal.signal(signal.SIGINT, kept)
            _stop()


def check_spark() -> None:
    """Raise SparkMissing unless PySpark is installed and new enough."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing(f"PySpark is not installed: {_INSTALL}")
    from pyspark.version import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) < SPARK_MIN:
        least = ".".join(map(str, SPARK_MIN))
        raise SparkMissing(f"PySpark {version} is too old, {least} is needed: {_INSTALL}")


def check_master(master: str) -> None:
    """Raise SparkError unless a spark:// master listens; Spark would retry for a minute.

    Other kinds of masters are not checked.
    """
    if not master.startswith("spark://"):
        return
    why = "it is none"
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, ValueError, OverflowError) as failure:
            why = str(failure)
        else:
            return
    raise SparkError(f"Spark's master {master} cannot be reached: {why}")


def _settings(master: str, app: str, conf: Mapping[str, str]) -> dict[str, str]:
    local = _LOCAL if master.startswith("local") else {}
    named = {"spark.master": master, "spark.app.name": app}
    return {**_QUIET, **local, **named, **conf}


@contextmanager
def _environment(master: str, home: Path) -> Iterator[None]:
    """Let workers run this Python, or on a cluster the one that PYSPARK_PYTHON names.

    Workers import from the current folder only if this process does: it may hold sources of
    quire that would shadow the installed package.
    """
    words: dict[str, str] = {}
    if "PYSPARK_PYTHON" not in os.environ or master.startswith("local"):
        words["PYSPARK_PYTHON"] = sys.executable
    if "SPARK_HOME" not in os.environ and master.startswith("local") and _furnish(home):
        words["SPARK_HOME"] = str(home)
    if not {"", str(Path.cwd())}.intersection(sys.path):
        words["PYTHONSAFEPATH"] = "1"
    kept = {name: os.environ.get(name) for name in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for name, word in kept.items():
            os.environ.pop(name)
            if word is not None:
                os.environ[name] = word


def _furnish(home: Path) -> bool:
    """Make *home* Spark's, without the PySpark that lies there as a zip; return whether it is.

    Workers would import that one instead of the same one that is installed, and compile it anew
    in each process, as Python keeps no compiled code of what is in a zip: a second of a processor
    for each query that is started.
    """
    spec = importlib.util.find_spec("pyspark")
    installed = Path(spec.origin).parent if spec is not None and spec.origin else home
    if not (installed / "jars").is_dir():
        return False
    home.mkdir()
    for each in ("bin", "jars", "sbin", "data"):
        (home / each).symlink_to(installed / each)
    return True


def _start(settings: Mapping[str, str], log: Path) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with log.open("wb") as output:
        try:
            gateway = launch_gateway(conf, {"stdout": output, "stderr": subprocess.STDOUT})  # type: ignore[no-untyped-call] # as it is
            session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, Py4JError, OSError) as failure:
            raise SparkError(f"Spark did not start: {_reason(failure, log)}") from failure
    return session


def _reason(failure: Exception, log: Path) -> str:
    """Return the message of the first exception in Spark's log."""
    found = _EXCEPTION.search(log.read_text(errors="replace"))
    if found is not None:
        return found[1].strip()
    with suppress(Exception):  # Py4J asks the JVM for the message, which may be gone
        return str(failure).splitlines()[0]
    return type(failure).__name__


def _stop() -> None:
    """Stop Spark and its JVM, so that the process can start another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway  # otherwise PySpark keeps it for ever
    session = SparkSession.getActiveSession() if gateway is not None else None
    with suppress(Exception):  # if the JVM is gone there is nothing to stop
        if session is not None:
            session.stop()
        elif SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
    if gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    _end(gateway.proc)
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End the JVM by closing its input, or after STOP_S by SIGKILL."""
    if process is None:
        return
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


LOOK_S = 0.2
"""Interval between reports of progress."""
T = TypeVar("T")


async def collected(
    spark: SparkContext, collect: Callable[[SparkContext], T], on_progress: Callable[[float], None]
) -> T:
    """Run *collect* in a thread and return its result; cancelling it ends the session's jobs.

    Raises:
        SparkError: Spark failed.
        LedgerError: as tasks raised it, if it is constructed from a message alone.
    """

    def run() -> T:
        with unwrapped():
            return collect(spark)

    async with Background() as nursery:
        nursery.start_soon(_watch, spark, on_progress)
        try:
            return await trio.to_thread.run_sync(run, abandon_on_cancel=True)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(spark.cancelAllJobs)
            raise


async def _watch(spark: SparkContext, on_progress: Callable[[float], None]) -> None:
    """Report the fraction of done tasks in the running stages."""
    tracker = spark.statusTracker()
    while True:
        await trio.sleep(LOOK_S)
        done, total = await trio.to_thread.run_sync(_tasks, tracker, abandon_on_cancel=True)
        if total:
            on_progress(done / total)


def _tasks(tracker: StatusTracker) -> tuple[int, int]:
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)

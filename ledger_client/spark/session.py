"""A Spark session with the data source ``quire``, for the length of a block.

What Spark needs is looked for first, so that what is missing is told in one line and not by a
stack of two languages. What Spark itself prints goes to a file, and is told only when it does
not start. At the end of the block, however it ends, the JVM is gone too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ledger_client.spark.errors import SparkFailed, SparkMissing
from ledger_client.spark.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MIN = (4, 3)
STOP_S = 20.0
CONNECT_S = 5.0
_INSTALL = "pip install 'quire[spark]'"
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}
# Of one machine: nothing depends on what its name resolves to.
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_EXCEPTION = re.compile(r"^(?:\S+ )*?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_NOTHING: Mapping[str, str] = {}


@contextmanager
def open_session(
    master: str = "local[*]", *, app: str = "quire", conf: Mapping[str, str] = _NOTHING
) -> Iterator[SparkSession]:
    """Start Spark for the block. One session at a time is in a process.

    Args:
        master: "local[N]" in this process's own JVM, or the URL of a cluster.
        app: what the session is called.
        conf: Spark's settings, over ours: no UI, errors alone in the log, times in UTC.

    Raises:
        SparkMissing: PySpark is not installed, or is too old.
        JavaMissing, JavaTooOld: see check_java().
        SparkFailed: Spark did not start, or one runs in this process already.
    """
    check_spark()
    check_java()
    check_master(master)
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:  # there is no other way
        raise SparkFailed("a Spark session is open in this process already; use that one")
    kept = signal.getsignal(signal.SIGINT)  # Spark puts its own in the place, for good
    with tempfile.TemporaryDirectory(prefix="quire-spark-") as folder, _python(master):
        try:
            yield _start(_settings(master, app, conf), Path(folder) / "spark.log")
        finally:
            with suppress(ValueError):  # another thread than the first: there is none of ours
                signal.signal(signal.SIGINT, kept)
            _stop()


def check_spark() -> None:
    """Raise SparkMissing unless there is a PySpark that is new enough."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing(f"PySpark is not installed: {_INSTALL}")
    from pyspark.version import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) < SPARK_MIN:
        least = ".".join(map(str, SPARK_MIN))
        raise SparkMissing(f"PySpark {version} is too old, {least} is needed: {_INSTALL}")


def check_master(master: str) -> None:
    """Raise SparkFailed unless a master of a Spark cluster listens; Spark would try for a minute.

    Of other kinds of clusters nothing is asked.
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
    raise SparkFailed(f"Spark's master {master} cannot be reached: {why}")


def _settings(master: str, app: str, conf: Mapping[str, str]) -> dict[str, str]:
    local = _LOCAL if master.startswith("local") else {}
    named = {"spark.master": master, "spark.app.name": app}
    return {**_QUIET, **local, **named, **conf}


@contextmanager
def _python(master: str) -> Iterator[None]:
    """Let workers run this Python; on a cluster, another if PYSPARK_PYTHON names one.

    They look for modules in the current folder only if this process does: there may be sources
    of quire in it, and what is installed is meant.
    """
    words: dict[str, str] = {}
    if "PYSPARK_PYTHON" not in os.environ or master.startswith("local"):
        words["PYSPARK_PYTHON"] = sys.executable
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


def _start(settings: Mapping[str, str], log: Path) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from ledger_client.spark import register

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with log.open("wb") as told:
        try:
            gateway = launch_gateway(conf, _popen(told))  # type: ignore[no-untyped-call] # as it is
            session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, Py4JError, OSError) as failure:
            raise SparkFailed(f"Spark did not start: {_reason(failure, log)}") from failure
    register(session)
    return session


def _popen(told: IO[bytes]) -> dict[str, Any]:
    return {"stdout": told, "stderr": subprocess.STDOUT}


def _reason(failure: Exception, log: Path) -> str:
    """Return what Spark says of the first exception in its log."""
    told = _EXCEPTION.search(log.read_text(errors="replace"))
    if told is not None:
        return told[1].strip()
    with suppress(Exception):  # what Py4J says it asks of the JVM, which may be gone
        return str(failure).splitlines()[0]
    return type(failure).__name__


def _stop() -> None:
    """End Spark and its JVM, and let the process start another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway  # PySpark keeps it for ever otherwise
    session = SparkSession.getActiveSession() if gateway is not None else None
    with suppress(Exception):  # the JVM may be gone: then so is all that it would stop
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
    """Let the JVM end: it does so when its input is closed, or else by SIGKILL."""
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

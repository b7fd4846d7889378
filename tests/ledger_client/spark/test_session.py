from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
import sortedcontainers
from daemons import wait_until_gone

from ledger_client.errors import SparkError, SparkMissing
from ledger_client.spark import open_session, session as sessions
from ledger_client.spark.session import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

IMPORTS = """
import sys
import ledger_client.spark, ledger_client.spark.session
import ledger_client.commands
sys.exit("pyspark" in sys.modules)
"""
INTERRUPTED = """
import time
from pyspark import SparkContext
from ledger_client.spark import open_session
with open_session("local[1]", conf={"spark.driver.memory": "512m"}) as session:
    def place(_):
        import pyspark, sortedcontainers
        return f"{sortedcontainers.__file__} {pyspark.__file__}"
    one = session.sparkContext.parallelize([1], 1)
    print(SparkContext._gateway.proc.pid, one.map(place).collect()[0], flush=True)
    one.map(lambda _: time.sleep(60)).collect()
"""


def some_java(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    java_file = folder / "bin" / "java"
    java_file.parent.mkdir()
    java_file.write_text(f"#!/bin/sh\n{script}\n")
    java_file.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))


def test_nothing_of_spark_is_imported_before_a_session_is_opened() -> None:
    assert subprocess.run([sys.executable, "-c", IMPORTS], check=False).returncode == 0


def test_a_machine_without_pyspark_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with (
        pytest.raises(SparkMissing, match=r"^PySpark is not installed: pip install '\.\[spark"),
        open_session(),
    ):
        pass


def test_a_pyspark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.version.__version__", "3.5.1")
    with pytest.raises(SparkMissing, match=r"^PySpark 3\.5\.1 is too old, 4\.3 is needed"):
        sessions.check_spark()


def test_a_machine_without_java_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match=r"^there is no Java here.*install Java 17"):
        sessions.check_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=f"^JAVA_HOME is {tmp_path}, and there is no bin/java"):
        sessions.check_java()


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("echo 'it is broken' >&2; exit 1", SparkMissing, "does not run: it is broken"),
        (
            """test $# = 1 || exit 1; echo 'openjdk version "11.0.2"' >&2""",
            SparkMissing,
            "is Java 11, and Spark needs 17",
        ),
        (
            """test $# = 1 || exit 1; echo 'java version "1.8.0_292"' >&2""",
            SparkMissing,
            "is Java 8, and Spark needs 17",
        ),
        (
            """test $# = 1 || exit 1; echo 'openjdk version "21.0.1"' >&2""",
            SparkMissing,
            "lacks the module jdk.incubator.vector",
        ),
    ],
)
def test_a_java_that_spark_cannot_run_on_is_told_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    kind: type[Exception],
    words: str,
) -> None:
    some_java(tmp_path, script, monkeypatch)
    with pytest.raises(kind, match=words) as told:
        sessions.check_java()
    assert "\n" not in str(told.value)


def test_a_java_that_is_good_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_java(tmp_path, """echo 'openjdk version "21.0.1"' >&2""", monkeypatch)
    sessions.check_java()


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_session_knows_the_source_and_stands_alone(spark: SparkSession) -> None:
    assert spark.range(3).count() == 3
    assert spark.dataSource is not None
    with pytest.raises(SparkError, match="open in this process already"), open_session():
        pass
    assert spark.range(3).count() == 3


@pytest.mark.slow
@pytest.mark.real_processes
def test_workers_take_what_is_installed_and_an_interrupted_session_leaves_no_jvm(
    tmp_path: Path,
) -> None:
    """Not sources in the current folder: an editable installation would find quire itself."""
    (tmp_path / "sortedcontainers.py").touch()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", INTERRUPTED],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        jvm, *places = process.stdout.readline().decode().split()
        # The installed PySpark has compiled code, and the zip that Spark names has none.
        assert places == [sortedcontainers.__file__, pyspark.__file__]
        time.sleep(1)  # into the job
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    wait_until_gone([int(jvm)])


@pytest.mark.parametrize(("own", "master"), [("/opt/spark", "local[2]"), (None, "spark://a:1")])
def test_a_spark_of_ones_own_and_that_of_a_cluster_are_used_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str | None, master: str
) -> None:
    if own is None:
        monkeypatch.delenv("SPARK_HOME", raising=False)
    else:
        monkeypatch.setenv("SPARK_HOME", own)
    home = tmp_path / "home"
    with sessions._environment(master, home):
        assert os.environ.get("SPARK_HOME") == own
    assert not home.exists()


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("spark://127.0.0.1:9", "spark://127.0.0.1:9 cannot be reached: .*refused"),
        ("spark://127.0.0.1", "cannot be reached"),
        ("spark://[::1]:70000", "cannot be reached"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_at_once(master: str, told: str) -> None:
    with pytest.raises(SparkError, match=told):
        check_master(master)


def test_one_of_several_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_master(f"spark://127.0.0.1:9,127.0.0.1:{listening.getsockname()[1]}")


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_session_that_cannot_start_says_why_in_a_line() -> None:
    script = (
        "from ledger_client.spark import open_session\n"
        "from ledger_client.errors import SparkError\n"
        "try:\n"
        "    with open_session('local[no]'): pass\n"
        "except SparkError as failure:\n"
        "    assert 'Could not parse Master URL' in str(failure), failure\n"
        "    assert '\\n' not in str(failure)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr

"""Spark's own cluster on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from daemons import DEADLINE_S, free_ports, wait_until_gone


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[str]:
    """A master and workers; yield the master's URL.

    Each worker has an address of its own, as Spark repeats no slow task on the same host.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    port = free_ports(2)
    environment = {**os.environ, "SPARK_HOME": str(home)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    url = f"spark://127.0.0.1:{port}"

    def start(stack: ExitStack, name: str, *words: str) -> Path:
        log = folder / f"{name}.log"
        process = stack.enter_context(_spark_class(home, environment, log, *words))
        stack.callback(wait_until_gone, [process.pid])
        stack.callback(process.kill)
        return log

    with ExitStack() as stack:
        master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
        log = start(stack, "master", *master, "--port", str(port), "--webui-port", str(port + 1))
        _wait_for(log, "I have been elected leader")
        for number in range(workers):
            worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g")
            work = (
                "--host",
                f"127.0.0.{number + 1}",
                "--work-dir",
                str(folder / f"work-{number}"),
                url,
            )
            log = start(stack, f"worker-{number}", *worker, "--webui-port", "0", *work)
            _wait_for(log, "Successfully registered with master")
        yield url


@contextmanager
def _spark_class(
    home: Path, environment: dict[str, str], log: Path, *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as told:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", *words],
            env=environment,
            stdout=told,
            stderr=told,
            start_new_session=True,
        )
    yield process
    process.kill()
    process.wait(DEADLINE_S)


def _wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while words not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)

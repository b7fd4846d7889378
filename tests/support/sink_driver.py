"""A driver that writes a topic, in a process of its own: sink_driver.py URL TOPIC HOW MASTER.

The frame has PARTS Spark partitions, each with ROWS rows "<part>.<number>". HOW is what happens
to the first attempt at each while its rows come:

    hang        all stop after half of their rows, for ever
    fail        part 0 fails, part 1 and whatever works beside it are killed
    straggle    part 0 stops after half of its rows, for ever, while others are done
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from spark_session import SHORT_LIVED

from ledger_client.spark import open_session

PARTS = 4
ROWS = 24
FILLER = 250_000
"""Bytes that come with each row: so that a few of them are staged at once."""


def expected() -> list[str]:
    return sorted(f"{part}.{number}" for part in range(PARTS) for number in range(ROWS))


def main(url: str, topic: str, how: str, master: str) -> None:
    conf = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4",  # so that a few rows are staged
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
    }
    with open_session(master, app="sink", conf=conf) as session:
        parts = session.sparkContext.parallelize(range(PARTS), PARTS)
        rows = parts.flatMap(lambda part: _rows(part, how))
        frame = session.createDataFrame(rows, schema="value string, headers map<string,binary>")
        print("writing", flush=True)  # noqa: T201  # the test waits for it
        frame.write.format("quire").options(cluster=url, topic=topic).mode("append").save()
    print("written", flush=True)  # noqa: T201


def _rows(part: int, how: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for number in range(ROWS):
        if number == ROWS // 2 and context.attemptNumber() == 0:
            _happen(how, part)
        yield f"{part}.{number}", {"filler": bytes(FILLER)}


def _happen(how: str, part: int) -> None:
    if how == "hang" or (how == "straggle" and part == 0):
        time.sleep(3600)
    elif how == "fail" and part == 0:
        raise RuntimeError("the first attempt fails")
    elif how == "fail" and part == 1:
        _kill_workers()


def _kill_workers() -> None:
    """Kill all processes that have the same parent as this one, and this one."""
    parent = os.getppid()
    own = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    for process_id in sorted(own, key=lambda each: each == os.getpid()):
        with suppress(OSError, ValueError, IndexError):
            told = Path(f"/proc/{process_id}/stat").read_text()
            if int(told.rpartition(")")[2].split()[1]) == parent:
                os.kill(process_id, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])

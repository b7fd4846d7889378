"""A real Prometheus over the files that ``quire monitoring`` writes, and what it answers."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from daemons import free_ports

DEADLINE_S = 30
INTERVAL_S = 1
INSTALL = "Debian and Ubuntu: apt-get install prometheus; else https://prometheus.io/download"


class Series(NamedTuple):
    """One series of an answer: its labels, and (Unix time, value) pairs."""

    labels: Mapping[str, str]
    points: list[tuple[float, float]]

    @property
    def is_told(self) -> bool:
        """True if there is any result."""
        return any(math.isfinite(value) for _, value in self.points)


def tool(name: str) -> str:
    """Return the path of prometheus or promtool."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed. {INSTALL}"
    return found


class Prometheus:
    """The HTTP API of a running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **fields: str | float) -> Any:  # noqa: ANN401 - whatever JSON says
        """Return the data of an answer. Raises AssertionError with what is wrong."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{fields}: {refused.read().decode()}") from refused

    def query(self, expr: str) -> list[Series]:
        """Return the current value of an expression."""
        found = self.get("query", query=expr)["result"]
        return [Series(each["metric"], [_point(each["value"])]) for each in found]

    def query_range(
        self, expr: str, start: float, end: float, *, step: float = INTERVAL_S
    ) -> list[Series]:
        """Return the values of an expression between two moments, in Unix seconds."""
        fields = {"start": start, "end": end, "step": step}
        found = self.get("query_range", query=expr, **fields)["result"]
        return [Series(each["metric"], [*map(_point, each["values"])]) for each in found]

    def names(self, prefix: str) -> set[str]:
        """Return the names of all metrics with *prefix* that were scraped."""
        return {name for name in self.get("label/__name__/values") if name.startswith(prefix)}

    def rules(self) -> list[dict[str, Any]]:
        """Return the alert rules, as the server has read them."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def wait_for(self, expr: str, *, within_s: float = DEADLINE_S) -> list[Series]:
        """Wait until *expr* has a value, and return it."""
        deadline = time.monotonic() + within_s
        while not (found := self.query(expr)):
            assert time.monotonic() < deadline, f"{expr} stayed empty for {within_s} s"
            time.sleep(0.2)
        return found


def _point(pair: tuple[float, str]) -> tuple[float, float]:
    return pair[0], float(pair[1])


def hasten(folder: Path) -> None:
    """Set the scrape interval of ``quire monitoring`` to a second, so that tests need not wait."""
    config = folder / "prometheus.yml"
    config.write_text(config.read_text().replace(": 10s", f": {INTERVAL_S}s"))


@contextmanager
def prometheus(folder: Path) -> Iterator[Prometheus]:
    """Run a server over the configuration in *folder* for the block."""
    port = free_ports(1)
    words = [
        tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(words, stdout=sink, stderr=sink)
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        _wait_ready(server, process, log)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)


def _wait_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(f"{server.url}/-/ready", timeout=1):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

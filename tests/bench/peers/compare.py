"""Compare quire with BookKeeper and Kafka on this machine: ``compare.py --help``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import click
import msgspec
import peer_frames
import peer_topics
from peer_page import Comparison, page
from peer_systems import (
    HERE,
    CannotCompare,
    Running,
    bookkeeper,
    classpath,
    kafka,
    quire,
)
from rich.console import Console

from ledger_client.commands.bench.disk import measure_floor

PAGE = HERE.parents[2] / "docs" / "peers.md"
FLOOR_SIZE = 256 << 20
Start = Callable[[Path], AbstractContextManager[Running]]


class Bench:
    """One comparison. Its data and its logs lie in *folder*."""

    def __init__(self, folder: Path, *, part: float, console: Console) -> None:
        self._folder = folder
        self._part = part
        self._console = console
        self._program = peer_frames.build(folder)

    def measure(self, rounds: int) -> Comparison:
        """Run all loads *rounds* times, each system alone. Raises CannotCompare. Blocks."""
        began = time.monotonic()
        jars = classpath(HERE / "bookkeeper" / "pom.xml", self._folder / "bookkeeper-jars")
        kafka_jars = classpath(HERE / "kafka" / "pom.xml", self._folder / "kafka-jars")
        floor = measure_floor(self._folder, FLOOR_SIZE)
        found = Comparison(
            cores=os.cpu_count() or 1,
            sync_ms=floor.sync.latency.p50_ms,
            floor_mb=floor.write_mb_per_s,
            rounds=rounds,
            minutes=0.0,
            systems=[],
            frames={"BookKeeper": [], "quire": []},
            topics=[],
        )
        peers: list[Start] = [partial(bookkeeper, jars=jars), quire]
        logs: list[Start] = [partial(kafka, jars=kafka_jars), quire]
        for number in range(1, rounds + 1):
            for start in peers:
                self._frames(found, number, start)
            for start in logs:
                self._topics(found, number, start)
        found.minutes = (time.monotonic() - began) / 60
        return found

    def _frames(self, found: Comparison, number: int, start: Start) -> None:
        with self._started(found, start) as bookie:
            for figure in peer_frames.run_all(self._program, bookie, part=self._part):
                found.frames.setdefault(bookie.system, []).append(figure)
                line = f"{figure.per_s:,.0f}/s, p99 {figure.p99_us / 1000:.2f} ms"
                self._say(f"round {number}  {bookie.system}  {figure.load}: {line}")

    def _topics(self, found: Comparison, number: int, start: Start) -> None:
        with self._started(found, start) as server:
            for figure in peer_topics.run_all(server, part=self._part, round_number=number):
                found.topics.append(figure)
                line = f"{figure.per_s:,.0f}/s"
                if figure.acked_p50:
                    line += f", acknowledged p50 {figure.acked_p50:.2f} ms"
                self._say(f"round {number}  {figure.client}  {figure.load}: {line}")

    @contextmanager
    def _started(self, found: Comparison, start: Start) -> Iterator[Running]:
        """Start a system in an empty folder, which is removed when the block ends."""
        with (
            tempfile.TemporaryDirectory(dir=self._folder) as folder,
            start(Path(folder)) as running,
        ):
            if running.system not in [each.system for each in found.systems]:
                found.systems.append(msgspec.structs.replace(running, address="", process_ids=[]))
            yield running

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


@click.command()
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option(
    "--part",
    type=click.FloatRange(0.001, 1),
    default=1.0,
    show_default=True,
    help="Of the entries and messages of each load: 0.01 tries it out.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(tempfile.gettempdir()),
    show_default=True,
    help="On the disk to measure; about 10 GB are used for a while.",
)
@click.option("--write", is_flag=True, help="Write docs/peers.md.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the page.")
def main(rounds: int, part: float, folder: Path, write: bool, as_json: bool) -> None:
    """Compare quire with BookKeeper and Kafka on this machine, each alone, in turn.

    Prints the page that docs/peers.md shows; progress goes to standard error. Run it while
    nothing else runs. Exit code 1 if something is missing or a system fails.
    """
    try:
        versions = peer_topics.versions()
        with tempfile.TemporaryDirectory(dir=folder, prefix="quire-peers-") as scratch:
            bench = Bench(Path(scratch), part=part, console=Console(stderr=True))
            found = bench.measure(rounds)
    except CannotCompare as missing:
        raise click.ClickException(str(missing)) from missing
    for client in ("confluent", "aiokafka"):
        found.systems.append(Running(client, versions[client], "client", "", []))
    text = page(found)
    if write:
        PAGE.write_text(text)
    click.echo(msgspec.json.encode(found).decode() if as_json else text)


if __name__ == "__main__":
    main()

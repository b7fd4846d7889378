"""The page that shows a comparison: docs/peers.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from peer_frames import LOADS as FRAME_LOADS, Figure
from peer_systems import Running
from peer_topics import LOADS as TOPIC_LOADS, TopicFigure

_HEAD = """# Beside BookKeeper and Kafka

Measured by `python tests/bench/peers/compare.py --write`, each system alone on the same machine, in
turn; medians of {rounds} round{s}.

The command fetches BookKeeper and Kafka from Maven Central, needs Java 17+, Maven, a C compiler and
`pip install confluent-kafka aiokafka`, and takes about {minutes} minutes a round. All
acknowledgements come after a sync of the disk, with one copy. The machine has {cores} cores, which
clients and servers share; its disk takes {sync_ms:.2f} ms to sync a block of 4 KiB and writes
{floor_mb:.0f} MB/s in synced groups.

| system | version | settings |
|---|---|---|
{systems}

## A bookie, in BookKeeper's v2 frames

The same program in C (`tests/bench/peers/load.c`) drives both, over one connection.

| load | | BookKeeper | quire | ratio |
|---|---|---|---|---|
{frames}

"CPU" is that of the bookie. "Written" counts all bytes to the disk for one byte of payload, until
the last acknowledgement.

## Topics, from Python

One partition. Clients have their default settings, but for bulk: Kafka's gather 1 MiB or 5 ms.

| load | | {clients} |
|---|---|{rules}|
{topics}
"""
T = TypeVar("T")


class Comparison(msgspec.Struct):
    """What was measured: figures of each system, and of the disk that day."""

    cores: int
    sync_ms: float
    floor_mb: float
    rounds: int
    minutes: float
    systems: list[Running]
    frames: dict[str, list[Figure]]
    topics: list[TopicFigure]


def page(found: Comparison) -> str:
    """Return *found* as a page in Markdown."""
    clients = list(dict.fromkeys(figure.client for figure in found.topics))
    systems = (f"| {each.system} | {each.version} | {each.settings} |" for each in found.systems)
    return _HEAD.format(
        rounds=found.rounds,
        s="s" if found.rounds > 1 else "",
        minutes=round(found.minutes / found.rounds),
        cores=found.cores,
        sync_ms=found.sync_ms,
        floor_mb=found.floor_mb,
        systems="\n".join(systems),
        frames="\n".join(_frame_rows(found.frames)),
        clients=" | ".join(clients),
        rules="|".join("---" for _ in clients),
        topics="\n".join(_topic_rows(found.topics, clients)),
    )


def _frame_rows(frames: dict[str, list[Figure]]) -> Iterable[str]:
    columns: list[tuple[str, Callable[[Figure], float], str]] = [
        ("entries/s", lambda figure: figure.per_s, ",.0f"),
        ("p50, ms", lambda figure: figure.p50_us / 1000, ".2f"),
        ("p99, ms", lambda figure: figure.p99_us / 1000, ".2f"),
        ("CPU, µs an entry", lambda figure: figure.cpu_us, ".2f"),
        ("written", lambda figure: figure.written, ".2f"),
        ("refused for a while", lambda figure: figure.refused, ",.0f"),
    ]
    for load in FRAME_LOADS:
        of_load = {
            name: [each for each in figures if each.load == load.name]
            for name, figures in frames.items()
        }
        for title, read, form in columns:
            values = [_median(of_load.get(name, ()), read) for name in ("BookKeeper", "quire")]
            if any(values):
                ratio = format(values[1] / values[0], ".2f") if all(values) else "-"
                yield f"{_row(load.name, title, values, form)} {ratio} |"


def _topic_rows(topics: Sequence[TopicFigure], clients: Sequence[str]) -> Iterable[str]:
    columns: list[tuple[str, Callable[[TopicFigure], float], str]] = [
        ("messages/s", lambda figure: figure.per_s, ",.0f"),
        ("acknowledged, p50 ms", lambda figure: figure.acked_p50, ".2f"),
        ("acknowledged, p99 ms", lambda figure: figure.acked_p99, ".2f"),
        ("at the follower, p50 ms", lambda figure: figure.followed_p50, ".2f"),
        ("at the follower, p99 ms", lambda figure: figure.followed_p99, ".2f"),
        ("CPU of the client, cores", lambda figure: figure.client_cores, ".2f"),
        ("CPU of the server, cores", lambda figure: figure.server_cores, ".2f"),
    ]
    for load in TOPIC_LOADS:
        of_load = {
            client: [each for each in topics if (each.load, each.client) == (load.name, client)]
            for client in clients
        }
        for title, read, form in columns:
            values = [_median(of_load[client], read) for client in clients]
            if any(values):
                yield _row(load.name, title, values, form)


def _median(figures: Iterable[T], read: Callable[[T], float]) -> float:
    values = [read(figure) for figure in figures]
    return statistics.median(values) if values else 0.0


def _row(load: str, title: str, values: Iterable[float], form: str) -> str:
    shown = (format(value, form) if value else "-" for value in values)
    return f"| {load} | {title} | {' | '.join(shown)} |"

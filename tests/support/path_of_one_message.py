"""Print the Python files and functions that one warm message enters, in one process.

    python tests/support/path_of_one_message.py           the lists
    python tests/support/path_of_one_message.py --write   the counts, into docs/design.md

A bookie runs in this process, so that both ends are traced. Everything is warmed up first. C is
not counted.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import click
import trio

import ledger_client
from bookie.config import BookieConfig
from bookie.daemon import run_bookie
from metadata.urls import open_store

TRIES = 60
PACKAGES = ("native", "metadata", "bookie", "ledger_client")
SOURCES = Path(ledger_client.__file__).parents[1]
PAGE = Path(__file__).resolve().parents[2] / "docs/design.md"
_TABLE = re.compile(r"(?<=<!-- paths -->\n).*?(?=<!-- end of paths -->)", re.DOTALL)


class Trace(NamedTuple):
    """The functions that one call entered, each with its file, in order."""

    name: str
    functions: list[tuple[str, str]]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.functions))


async def traced(name: str, call: Callable[[], Awaitable[object]]) -> Trace:
    """Run *call* a few times; return what any task of ours entered in every one of them.

    Now and then something else falls into a call, such as a lease that is renewed.
    """
    first, *others = [await _trace(name, call) for _ in range(TRIES)]
    always = set(first.functions).intersection(*(trace.functions for trace in others))
    return Trace(name, [each for each in first.functions if each in always])


async def _trace(name: str, call: Callable[[], Awaitable[object]]) -> Trace:
    entered: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SOURCES)):
            relative = file[len(str(SOURCES)) + 1 :]
            if relative.split("/")[0] in PACKAGES:
                entered[relative, frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return Trace(name, list(entered))


async def measure(folder: Path) -> list[Trace]:
    """The paths of a send, an append, a ledger read, and a topic read with its opening."""
    url = f"sqlite://{folder}/metadata.db"
    for name in ("journal", "ledgers"):
        (folder / name).mkdir()
    config = BookieConfig(
        data_folder=str(folder),
        journal_folder=str(folder / "journal"),
        ledger_folder=str(folder / "ledgers"),
        port=0,
        metrics_port=0,
        metadata=url,
        memtable_size=10 << 20,
        journal_size_max=16 << 20,
    )
    async with open_store(url) as store, trio.open_nursery() as nursery:
        ready = await nursery.start(run_bookie, config, store)
        async with ledger_client.connect("bookie://" + ready.address) as client:
            paths = [await path_of_send(client), *await paths_of_ledger(client)]
            drained = partial(drain, client)
            paths.append(await traced("a topic's three messages, opening included", drained))
        nursery.cancel_scope.cancel()
    return paths


async def path_of_send(client: ledger_client.Client) -> Trace:
    await client.topics.create("a/b")
    async with client.producer("a/b") as producer:
        for _ in range(2):
            await producer.send(b"warm")
        await trio.sleep(0.3)
        return await traced("producer.send", partial(producer.send, b"one", key=b"k"))


async def paths_of_ledger(client: ledger_client.Client) -> list[Trace]:
    async with client.ledgers.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
        await ledger.append(b"warm")
        await trio.sleep(0.3)
        append = await traced("ledger.append", partial(ledger.append, b"one"))
    async with client.ledgers.open(ledger.id) as reader:
        await reader.read(0, 0)
        await trio.sleep(0.2)
        return [append, await traced("ledger.read", partial(reader.read, 0, 1))]


async def drain(client: ledger_client.Client) -> None:
    async with client.reader("a/b") as reader:
        async for _ in reader:
            pass


def all_paths() -> list[Trace]:
    with tempfile.TemporaryDirectory(prefix="path-") as folder:
        return trio.run(measure, Path(folder))


def table(paths: list[Trace]) -> str:
    rows = [f"| {each.name} | {len(each.files)} | {len(each.functions)} |\n" for each in paths]
    return "| call | Python files | functions |\n|---|---|---|\n" + "".join(rows)


def main() -> None:
    paths = all_paths()
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(_TABLE.sub(lambda _: table(paths), PAGE.read_text()))
        return
    for path in paths:
        click.echo(f"== {path.name}: {len(path.files)} files, {len(path.functions)} functions")
        for file in path.files:
            click.echo(
                " ".join(["   ", file, *(n for other, n in path.functions if other == file)])
            )


if __name__ == "__main__":
    main()

"""One process that writes or reads a topic: run as a script, killed at any moment.

    python topic_worker.py produce|read|purge URL HISTORY TOPIC NAME [COUNT ACCESS [REST_S]]

A producer sends COUNT messages of NAME, which begins with "named" if the cluster is to know
it, and rests for REST_S after some. What earlier processes of this name were told, it learns
from their histories, which lie beside its own; everything else it sends again. A reader follows
the topic until the end of standard input. Who purges takes away what is some seconds old, until
then.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import trio
from chance import seed_process
from history import History, HistoryFile, Recorder
from message_events import MessagesAcknowledged, RowListed, RowRemoved
from message_witness import TELLER, Audience, Draft, Teller, lanes_told
from run_seed import run_seed

import ledger_client
from ledger_client import Client, Options
from ledger_client.errors import LedgerError
from ledger_client.topics.retention.removal import Purged
from ledger_client.topics.times import PublishTime

PATIENCE = Options(append_timeout_s=15, close_timeout_s=5, read_timeout_s=3, request_timeout_s=2)
TOGETHER = 40
PAUSE_S = 0.2
KEPT_MS = 4000
NOISE = random.Random(0).randbytes(3000)


def drafts_of(name: str, count: int) -> Iterator[Draft]:
    """Yield what *name* has to send, in order."""
    named = name.startswith("named")
    for number in range(count):
        size = (number * 2654435761 >> 7) % 400
        yield Draft(
            value=b"%s/%d/" % (name.encode(), number) + NOISE[:size],
            key=b"%d" % (number % 7),
            sequence=number if named else None,
        )


def acknowledged(paths: list[Path]) -> set[int]:
    """Return the marks of what was acknowledged, as these histories say."""
    events = History.merged(paths).events
    told = (event for event in events if isinstance(event, MessagesAcknowledged))
    return {mark for event in told for mark in event.marks}


async def produce(
    client: Client, history: Recorder, path: Path, topic: str, name: str, words: list[str]
) -> None:
    """Send everything that is not known to be kept."""
    count, access = int(words[0]), words[1]
    rest_s = float(words[2]) if len(words) > 2 else 0.0
    known = acknowledged(sorted(path.parent.glob(f"{name}-*.jsonl")))
    left = [draft for draft in drafts_of(name, count) if draft.message.mark not in known]
    session = 0
    while left:
        session += 1
        teller = Teller(history, topic, f"{path.stem} #{session}", name * name.startswith("named"))
        TELLER.set(teller)
        try:
            async with client.producer(
                topic,
                producer_name=teller.name,
                access=access,  # type: ignore[arg-type]  # checked by the producer
            ) as producer:
                while left:
                    batch = left[:TOGETHER]
                    outcomes = await teller.send_together(producer, batch, "w")
                    again = [d for d, failure in zip(batch, outcomes, strict=False) if failure]
                    left = again + batch[len(outcomes) :] + left[TOGETHER:]
                    if again:
                        break
                    await trio.sleep(rest_s)
        except LedgerError as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
        await trio.sleep(PAUSE_S)


async def read(client: Client, history: Recorder, path: Path, topic: str) -> None:
    """Follow the topic from its begin, and begin again after a failure."""
    run = 0
    while True:
        run += 1
        audience = Audience(history, topic, f"{path.stem} #{run}")
        audience.begun()
        try:
            async with client.reader(topic, follow=True) as reader:
                await audience.read(reader)
        except LedgerError as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
        await trio.sleep(PAUSE_S)


async def purge(client: Client, history: Recorder, topic: str) -> None:
    """Take old ledgers away, again and again; what will go is told before it does."""
    while True:
        before = PublishTime(time.time_ns() // 1_000_000 - KEPT_MS)
        try:
            tell_removed(
                history, topic, await client.topics.purge(topic, before=before, dry_run=True)
            )
            tell_removed(history, topic, await client.topics.purge(topic, before=before))
        except LedgerError as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
        await trio.sleep(PAUSE_S)


def tell_removed(history: Recorder, topic: str, purged: Purged) -> None:
    """Tell of ledgers that go, or are gone."""
    for fate in purged.removed:
        where = {"partition": fate.partition, "lane": fate.lane, "number": fate.number}
        history.add(RowListed(topic=topic, version=fate.version, row=fate.ledger, **where))
        history.add(RowRemoved(topic=topic, **where))


async def main(*command: str) -> None:
    """Do what the command says."""
    role, url, history, topic, name, *words = command
    path = Path(history)
    file = HistoryFile(path)
    async with ledger_client.connect(url, options=PATIENCE) as client:
        if role == "produce":
            await produce(client, file, path, topic, name, words)
            return
        async with trio.open_nursery() as nursery:
            if role == "read":
                nursery.start_soon(read, client, file, path, topic)
            else:
                nursery.start_soon(purge, client, file, topic)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    seed_process(f"{Path(sys.argv[3]).name} {run_seed()}")
    with lanes_told():
        trio.run(main, *sys.argv[1:])

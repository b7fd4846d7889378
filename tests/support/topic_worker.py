"""One process that writes or reads a topic: run as a script, killed at any moment.

    python topic_worker.py produce|read URL HISTORY TOPIC NAME [COUNT ACCESS]

A producer sends COUNT messages of NAME, which begins with "named" if the cluster is to know
it. What earlier processes of this name were told, it learns from their histories, which
lie beside its own; everything else it sends again. A reader follows the topic until the end
of standard input.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import trio
from history import History, HistoryFile, Recorder
from message_events import MessagesAcknowledged
from message_witness import TELLER, Audience, Draft, Teller, lanes_told

import ledger_client
from ledger_client import Options
from ledger_client.errors import LedgerError
from ledger_client.topics.client import TopicClient

PATIENCE = Options(append_timeout_s=15, close_timeout_s=5, read_timeout_s=3, request_timeout_s=2)
TOGETHER = 40
PAUSE_S = 0.2
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
    client: TopicClient, history: Recorder, path: Path, topic: str, name: str, words: list[str]
) -> None:
    """Send everything that is not known to be kept."""
    count, access = int(words[0]), words[1]
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
        except LedgerError as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
        await trio.sleep(PAUSE_S)


async def read(client: TopicClient, history: Recorder, path: Path, topic: str) -> None:
    """Follow the topic from its begin, and begin again after a failure."""
    run = 0
    while True:
        run += 1
        audience = Audience(history, topic, f"{path.stem} #{run}")
        audience.begun()
        try:
            async with client.topic_reader(topic, follow=True) as reader:
                await audience.read(reader)
        except LedgerError as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
        await trio.sleep(PAUSE_S)


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
            nursery.start_soon(read, client, file, path, topic)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    with lanes_told():
        trio.run(main, *sys.argv[1:])

"""Topics to replay in memory, and what a copy keeps of them."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ledger_client import Client
from ledger_client.topics.messages import Message
from metadata.topics import RollPolicy

SOURCE, TARGET = "shop/orders", "shop/copy"
CopiedFields = tuple[bytes | None, bytes | None, int | None, dict[str, bytes]]


def copied_fields(message: Message) -> CopiedFields:
    """The fields of a message that a copy keeps."""
    return message.key, message.value, message.event_time, dict(message.headers)


async def read(client: Client, name: str, **settings: object) -> list[Message]:
    async with client.reader(name, **settings) as reader:  # type: ignore[arg-type]
        return [message async for message in reader]


def lanes(messages: Sequence[Message]) -> dict[tuple[int, int], list[CopiedFields]]:
    found: dict[tuple[int, int], list[CopiedFields]] = {}
    for message in messages:
        found.setdefault((message.id.partition, message.lane), []).append(copied_fields(message))
    return found


def is_within(part: Sequence[CopiedFields], whole: Sequence[CopiedFields]) -> bool:
    """True if *part* is a subsequence of *whole*."""
    left = iter(whole)
    return all(message in left for message in part)


async def fill(client: Client, name: str, *, partitions: int = 0, producers: int = 2) -> None:
    """Several lanes of messages of every kind, in ledgers that end now and then."""
    await client.topics.create(name, partitions, roll=RollPolicy(entries=7))

    async def produce(number: int) -> None:
        async with client.producer(name, batch_messages=3 + number) as producer:
            for start in range(0, 60, 20):
                wanted = [f"{number} {start + i}".encode() for i in range(20)]
                await producer.send_many(
                    [None if i % 9 == 4 else value for i, value in enumerate(wanted)],
                    keys=[None if i % 5 == 0 else b"k%d" % (i % 7) for i in range(20)],
                    event_times=[None if i % 4 == 0 else i * 1000 + number for i in range(20)],
                    headers=[{"h": b"%d" % i, "n": b""} if i % 3 else None for i in range(20)],
                )

    async with trio.open_nursery() as nursery:
        for number in range(producers):
            nursery.start_soon(produce, number)

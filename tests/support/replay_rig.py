"""Topics to replay in memory, and what a copy keeps of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster
from topic_rig import ledger_ids, stored

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.topics.messages import Message
from metadata.jobs import IDS, PINS, SINKS, STAGED
from metadata.leadership import Term
from metadata.replays import ReplayMark, decode_mark
from metadata.sessions import SESSION_S
from metadata.topics import LANE_LEDGERS, RollPolicy, decode_lane_ledger

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


async def leader(cluster: MemoryCluster, client: Client) -> None:
    """Let leases of dead jobs run out, and the leader do its rounds."""
    await trio.sleep(SESSION_S + 1)
    term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=3600))
    keeper = Housekeeper(client._context, HousekeepingOptions())
    for _ in range(2):
        await keeper.look_after_all(term)


def check_nothing_left(cluster: MemoryCluster) -> None:
    left = [key for kind in (STAGED, PINS, IDS) for key in stored(cluster.store, kind)]
    assert left == []
    marks = [
        decode_mark(key, cluster.store.values[key].value) for key in stored(cluster.store, SINKS)
    ]
    assert all(mark == ReplayMark(batch_id=0, over=True) for mark in marks)
    rows = [item for item in cluster.store.values.items() if item[0].startswith(LANE_LEDGERS)]
    shown = {decode_lane_ledger(key, found.value).ledger_id for key, found in rows}
    assert set(ledger_ids(cluster.store)) <= shown


def make_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing fit one transaction, one row, or one step."""
    monkeypatch.setattr("ledger_client.jobs.staging.showing.DIRECT_OPS_MAX", 0)
    monkeypatch.setattr("ledger_client.jobs.staging.showing.STEP_COUNT", 1)
    monkeypatch.setattr("metadata.pointers.STEP_COUNT", 1)
    monkeypatch.setattr("metadata.paged.PAGE_SIZE", 200)
    monkeypatch.setattr("ledger_client.jobs.replay.rounds.PAGE_SIZE", 200)

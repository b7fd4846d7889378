"""Jobs that write a topic in memory, and what readers see of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memory_cluster import MemoryCluster
from topic_rig import ledger_ids

from ledger_client import Client
from ledger_client.jobs.staging.job import SealedLedger
from ledger_client.jobs.staging.staged_writer import JobPart, open_staged_writer
from ledger_client.jobs.staging.writing_job import SinkBatch, WritePlan, commit_write, plan_write
from ledger_client.ledgers.ledgers import Ledgers
from metadata.topics import TopicRecord, decode_lane_ledger, lane_ledgers_prefix
from native.batch import Columns

NAME = "shop/orders"


async def made(client: Client, **settings: object) -> TopicRecord:
    """Make the topic NAME, and nothing beside it: no topic of events."""
    copies = {"replication": 2, "ack_quorum": 2}
    wanted = TopicRecord(**{"name": NAME, "uid": 0, **copies, **settings})  # type: ignore[arg-type]
    return await client._context.catalogue.create(wanted)


class Row(NamedTuple):
    """A message to be written."""

    value: bytes
    event_time: int | None = None


def rows(*values: str, times: Sequence[int] | None = None) -> list[Row]:
    given: Sequence[int | None] = times or [None] * len(values)
    return [Row(value.encode(), time) for value, time in zip(values, given, strict=True)]


async def write_part(
    client: Ledgers,
    plan: WritePlan,
    index: int,
    messages: Mapping[int, Sequence[Row]],
    *,
    attempt: int = 0,
) -> list[SealedLedger]:
    """Write a part of a job: messages by partition."""
    part = JobPart(index=index, attempt=attempt)
    async with open_staged_writer(client, plan.stage, part=part) as writer:
        for partition, given in messages.items():
            await writer.write(partition, columns(given))
        return await writer.finish()


def columns(messages: Sequence[Row]) -> Columns:
    times = [message.event_time for message in messages]
    return Columns.of(
        [message.value for message in messages],
        event_times=None if set(times) == {None} else times,
    )


async def write_job(
    client: Ledgers,
    name: str,
    *parts: Mapping[int, Sequence[Row]],
    sink: SinkBatch | None = None,
) -> bool:
    """Write *parts* as one job, and show it."""
    plan = await plan_write(client, name)
    ledgers: list[SealedLedger] = []
    for index, messages in enumerate(parts):
        ledgers += await write_part(client, plan, index, messages)
    return await commit_write(client, plan, ledgers, mark=sink)


async def read_all(client: Client, name: str) -> list[str]:
    """The values of a topic; those of a lane in its order."""
    async with client.reader(name) as reader:
        return [message.value.decode() async for message in reader if message.value is not None]


async def ids_of(client: Client, name: str, *, lane: int | None = None) -> list[tuple[int, ...]]:
    """The ids of messages in the order of reading."""
    async with client.reader(name, lanes=None if lane is None else [lane]) as reader:
        return [tuple(message.id) async for message in reader]


def versions(cluster: MemoryCluster, topic: TopicRecord, lane: int = 0) -> list[tuple[int, int]]:
    """First and last version of each ledger of a lane of the only partition."""
    prefix = lane_ledgers_prefix(topic.uid, -1, lane)
    found = sorted((k, v.value) for k, v in cluster.store.values.items() if k.startswith(prefix))
    rows = [decode_lane_ledger(key, value) for key, value in found]
    return [(row.base_version, row.base_version + row.entries - 1) for row in rows]


def ledgers_count(cluster: MemoryCluster) -> int:
    return len(ledger_ids(cluster.store))

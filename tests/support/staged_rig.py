"""Jobs that write a topic in memory, and what readers see of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import trio
from cut_line import Cut
from lane_process import HASTY, Line, Process, shuffle_by
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from topic_rig import ledger_ids, stored

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.errors import LedgerError
from ledger_client.jobs.staging.job import SealedLedger
from ledger_client.jobs.staging.staged_writer import JobPart, open_staged_writer
from ledger_client.jobs.staging.writing_job import (
    WRITE_S,
    SinkBatch,
    WritePlan,
    commit_write,
    plan_write,
)
from ledger_client.ledgers.ledgers import Ledgers
from metadata.jobs import STAGED
from metadata.leadership import Term
from metadata.topics import (
    LANE_LEDGERS,
    TopicRecord,
    decode_lane_ledger,
    lane_ledgers_prefix,
)
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


async def write_by(cluster: MemoryCluster, line: Line, *parts: Mapping[int, Sequence[Row]]) -> bool:
    """Write *parts* as one job of the topic NAME, from a process with this way to the store.

    The process is gone afterwards.
    """
    process = Process(cluster)
    process.line = line
    async with process.client(HASTY) as client:
        return await write_job(client._context.ledgers, NAME, *parts)


async def write_until_cut(
    cluster: MemoryCluster, at: int, *parts: Mapping[int, Sequence[Row]], is_done: bool
) -> bool:
    """Write *parts* from a process that is gone at call *at* of the store; True if it was shown.

    *is_done*: the store carries that call out.
    """
    process = Process(cluster)
    process.line = Cut(cluster, at, is_done=is_done)
    async with process.client(HASTY) as doomed:
        with suppress(LedgerError):
            return await write_job(doomed._context.ledgers, NAME, *parts)
    return False


async def count_calls(cluster: MemoryCluster, *parts: Mapping[int, Sequence[Row]]) -> int:
    """Write *parts*, and return how many calls of the store that took."""
    line = Cut(cluster, 0, is_done=False)
    await write_by(cluster, line, *parts)
    return line.calls


async def storm_of_jobs(
    seed: int, losses: float, check: Callable[[MemoryCluster], None], *, rest_s: float
) -> None:
    """Let three jobs compete for lanes while answers of the store get lost.

    Each is tried three times, *rest_s* seconds apart. What it wrote must be there once, or not
    at all if nobody knows the outcome; *check* looks at the cluster at the end.
    """
    shuffle_by(seed)
    async with memory_cluster(3, seed=seed) as cluster, cluster.client() as client:
        await made(client, partitions=2)
        shown: dict[str, bool | None] = {}
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(_try_job, Process(cluster, losses=losses), name, rest_s, shown)
        await clean(cluster, client)
        seen = await read_all(client, NAME)
        check(cluster)
    for name, is_shown in shown.items():
        own = sorted(value for value in seen if value[0] == name)
        whole = [f"{name}{part}{p}" for part in range(2) for p in range(2)]
        assert own == whole if is_shown else own in (whole, [])


async def _try_job(
    process: Process, name: str, rest_s: float, shown: dict[str, bool | None]
) -> None:
    parts = [{p: rows(f"{name}{part}{p}") for p in range(2)} for part in range(2)]
    async with process.client(HASTY) as client:
        for _ in range(3):
            try:
                await write_job(client._context.ledgers, NAME, *parts, sink=SinkBatch(name, 0))
            except LedgerError:
                shown[name] = None
                await trio.sleep(rest_s)
            else:
                shown[name] = True  # now, or by an attempt before whose outcome was unknown
                return


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


async def clean(cluster: MemoryCluster, client: Client, *, wait_s: float = WRITE_S + 1) -> None:
    """Let the job's lease run out, and the leader do its rounds."""
    await trio.sleep(wait_s)
    term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=3600))
    keeper = Housekeeper(client._context, HousekeepingOptions())
    for _ in range(2):
        await keeper.look_after_all(term)


def check_ledgers(cluster: MemoryCluster) -> None:
    """Every ledger is one of a lane, and nothing is staged; versions have no hole."""
    items = [item for item in cluster.store.values.items() if item[0].startswith(LANE_LEDGERS)]
    lanes: dict[str, list[tuple[int, int]]] = {}
    for key, value in sorted(items):
        row = decode_lane_ledger(key, value.value)
        lanes.setdefault(key.rpartition("/")[0], []).append((row.base_version, row.entries))
    assert stored(cluster.store, STAGED) == []
    assert len(ledger_ids(cluster.store)) == len(items)
    for spans in lanes.values():
        for (base, entries), (following, _) in pairwise(spans):
            assert following == base + entries

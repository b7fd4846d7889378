"""What operators and other programs do with groups: commit, export, restore, reset, limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import BadGroup, BadTopic, Client, MetadataBroken, NoSuchTopic
from ledger_client.groups.exports import ExportedLane, GroupExport
from ledger_client.groups.groups import commit_read
from ledger_client.topics.positions import LanePlace, Position
from metadata.errors import BadRecord
from metadata.groups.calls import GroupReply, GroupRequest
from metadata.groups.coordinator import Coordinator
from metadata.groups.rows import GROUP_MEMBERS, GROUPS, PROGRESS, GroupRecord, group_key
from metadata.store import Versioned
from metadata.topics import LANE_LEDGERS, LANES

ORDERS = "shop/orders"


@asynccontextmanager
async def shop(partitions: int = 2) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS, partitions)
        await send(client, 0, 20)
        yield cluster, client


async def send(client: Client, first: int, stop: int) -> None:
    async with client.producer(ORDERS) as producer:
        for number in range(first, stop):
            await producer.send(b"%d" % number, key=b"%d" % number)


async def end(client: Client) -> Position:
    """Read everything, and return the places after it."""
    async with client.reader(ORDERS) as reader:
        async for _ in reader:
            pass
        return reader.position()


async def start(client: Client) -> Position:
    async with client.reader(ORDERS, start="earliest") as reader:
        return reader.position()


async def consumed(client: Client, group: str, wait_s: float = 5.0) -> list[int]:
    """Consume what is left for the group, and commit it."""
    values: list[int] = []
    async with client.consumer(ORDERS, group=group, start="earliest") as consumer:
        while messages := await consumer.poll(wait_s=wait_s):
            values += [int(message.value or b"") for message in messages]
    return sorted(values)


def rows(cluster: MemoryCluster) -> dict[str, object]:
    """All that is stored of groups."""
    prefixes = (GROUPS, GROUP_MEMBERS, PROGRESS)
    return {k: v for k, v in cluster.store.values.items() if k.startswith(prefixes)}


# --- programs that are no members ----------------------------------------------------------


async def test_a_program_that_is_no_member_commits_and_its_lag_shows(
    autojump_clock: MockClock,
) -> None:
    """The group is founded by the first commit."""
    async with shop() as (_, client):
        await client.groups.commit("spark", await start(client))
        assert [(each.group, each.state) for each in await client.groups.list()] == [
            ("spark", "empty")
        ]
        assert sum(lane.lag for lane in await client.groups.lag("spark")) > 0
        await client.groups.commit("spark", await end(client))
        assert [lane.lag for lane in await client.groups.lag("spark")] == [0, 0]
        assert await client.groups.committed("spark") == await end(client)


async def test_consumers_go_on_where_such_a_program_stopped(autojump_clock: MockClock) -> None:
    async with shop() as (_, client):
        await client.groups.commit("spark", await end(client))
        await send(client, 20, 30)
        assert await consumed(client, "spark") == list(range(20, 30))
        await client.groups.commit("spark", await end(client))


async def test_such_a_program_commits_nothing_while_the_group_has_members(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        places = await end(client)
        async with client.consumer(ORDERS, group="billing", auto_commit_s=None):
            await trio.sleep(5)
            before = rows(cluster)
            with pytest.raises(BadGroup, match="has members"):
                await client.groups.commit("billing", places)
            assert rows(cluster) == before


async def test_a_member_that_joins_during_such_a_commit_is_not_overtaken(
    autojump_clock: MockClock,
) -> None:
    """The commit checks the group's row, which every member changes."""
    async with shop() as (cluster, client):
        places = await end(client)
        await client.groups.commit("billing", await start(client))
        read = cluster.store.list
        async with trio.open_nursery() as nursery:

            async def join(*, task_status: trio.TaskStatus[None]) -> None:
                async with client.consumer(ORDERS, group="billing", auto_commit_s=None):
                    task_status.started()
                    await trio.sleep_forever()

            async def slow_list(prefix: str, **words: object) -> object:
                found = await read(prefix, **words)  # type: ignore[arg-type]
                if prefix.startswith(GROUP_MEMBERS) and not nursery.child_tasks:
                    await nursery.start(join)
                return found

            cluster.store.list = slow_list  # type: ignore[method-assign,assignment]
            with pytest.raises(BadGroup, match="has members"):
                await client.groups.commit("billing", places)
            committed = await client.groups.committed("billing")
            assert committed != places
            nursery.cancel_scope.cancel()


async def test_such_a_commit_goes_back_only_if_that_is_meant(autojump_clock: MockClock) -> None:
    async with shop() as (_, client):
        first, last = await start(client), await end(client)
        await client.groups.commit("spark", last)
        await client.groups.commit("spark", first)
        assert await client.groups.committed("spark") == last
        await client.groups.commit("spark", first, goes_back=True)
        assert await client.groups.committed("spark") == first


async def test_groups_of_another_mode_take_no_commit_of_such_a_program(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        record = msgspec.json.encode(GroupRecord(mode="shared"))
        await cluster.store.put(group_key("workers"), record)
        with pytest.raises(BadGroup, match="is used in mode shared"):
            await client.groups.commit("workers", await end(client))
        with pytest.raises(BadGroup, match="is used in mode shared"):
            await client.groups.export("workers")


# --- exports -------------------------------------------------------------------------------


async def test_a_group_goes_on_exactly_where_it_was_exported(autojump_clock: MockClock) -> None:
    """Through its document, also under another name; a dry run changes nothing."""
    async with shop() as (cluster, client):
        assert await consumed(client, "billing") == list(range(20))
        kept = GroupExport.parse((await client.groups.export("billing")).to_json())
        exported = {k: v for k, v in rows(cluster).items() if k.startswith(PROGRESS)}
        await send(client, 20, 30)
        assert await consumed(client, "billing") == list(range(20, 30))
        before = rows(cluster)
        planned = await client.groups.restore(kept, dry_run=True)
        assert rows(cluster) == before
        assert await client.groups.restore(kept) == planned
        places = await client.groups.committed("billing")
        assert places == planned
        assert await consumed(client, "billing") == list(range(20, 30))
        await client.groups.delete("billing")
        await client.groups.restore(kept)
        assert {k for k in rows(cluster) if k.startswith(PROGRESS)} == exported.keys()
        await client.groups.restore(kept, group="copy")
        assert await consumed(client, "copy") == list(range(20, 30))


async def test_an_export_is_not_restored_under_members(autojump_clock: MockClock) -> None:
    async with shop() as (cluster, client):
        assert await consumed(client, "billing") == list(range(20))
        kept = await client.groups.export("billing")
        async with client.consumer(ORDERS, group="billing", auto_commit_s=None):
            await trio.sleep(5)
            before = rows(cluster)
            with pytest.raises(BadGroup, match="has members"):
                await client.groups.restore(kept)
            assert rows(cluster) == before


async def test_only_an_export_is_restored(autojump_clock: MockClock) -> None:
    """Not its JSON, nor a name: what to give instead is said."""
    async with shop() as (cluster, client):
        await client.groups.commit("billing", await end(client))
        document, before = (await client.groups.export("billing")).to_json(), rows(cluster)
        for strange in ("billing", document, None):
            with pytest.raises(TypeError, match=r"restore takes what export\(\) returned, not"):
                await client.groups.restore(strange)  # type: ignore[arg-type]
        assert rows(cluster) == before


async def test_an_export_of_another_cluster_is_refused(autojump_clock: MockClock) -> None:
    async with shop() as (cluster, client):
        await client.groups.commit("billing", await end(client))
        kept = await client.groups.export("billing")
        before = rows(cluster)
        with pytest.raises(BadGroup, match="another cluster"):
            await client.groups.restore(msgspec.structs.replace(kept, cluster="elsewhere"))
        assert rows(cluster) == before


async def test_an_export_of_a_topic_that_was_made_anew_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await client.groups.commit("billing", await end(client))
        kept = await client.groups.export("billing")
        await client.topics.delete(ORDERS)
        with pytest.raises(NoSuchTopic):
            await client.groups.restore(kept)
        await client.topics.create(ORDERS, 2)
        before = rows(cluster)
        with pytest.raises(BadTopic, match="was deleted and created again"):
            await client.groups.restore(kept)
        assert rows(cluster) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"lane": 7},
        {"ledger_id": 4711},
        {"entry": 1 << 40},
        {"number": 9, "ledger_id": -1},
        {"version": 4711},
    ],
)
async def test_places_that_do_not_exist_are_not_imported(
    autojump_clock: MockClock, wrong: dict[str, int]
) -> None:
    async with shop() as (cluster, client):
        await client.groups.commit("billing", await end(client))
        kept = await client.groups.export("billing")
        first, *others = kept.partitions
        broken = msgspec.structs.replace(
            first, lanes=[msgspec.structs.replace(first.lanes[0], **wrong)]
        )
        before = rows(cluster)
        with pytest.raises(BadTopic, match="there is no place"):
            await client.groups.restore(msgspec.structs.replace(kept, partitions=[broken, *others]))
        far = msgspec.structs.replace(first, partition=9)
        with pytest.raises(BadTopic, match="no partition 9"):
            await client.groups.restore(msgspec.structs.replace(kept, partitions=[far]))
        ((lane, place),) = broken.places.items()
        nowhere = LanePlace(ORDERS, first.uid, first.partition, lane, place)
        with pytest.raises(BadTopic, match="there is no place"):
            await client.groups.commit("billing", [nowhere], goes_back=True)
        assert rows(cluster) == before


async def test_a_place_behind_the_messages_of_its_entry_is_not_imported(
    autojump_clock: MockClock,
) -> None:
    """An export may be edited; what reads such a place would pass messages over."""
    async with shop(1) as (cluster, client):
        async with client.producer(ORDERS, batch_messages=20) as producer:
            await producer.send_many([b"x"] * 20)
        async with client.reader(ORDERS, start="earliest") as reader:
            batch = (await anext(reader)).id.entry_id
        await client.groups.commit("billing", await end(client))
        kept = await client.groups.export("billing")
        before = rows(cluster)

        def edited(skip: int) -> GroupExport:
            (part,) = kept.partitions
            place = {"entry": batch, "skip": skip, "version": -1}
            lanes = [msgspec.structs.replace(each, **place) for each in part.lanes]
            return msgspec.structs.replace(
                kept, partitions=[msgspec.structs.replace(part, lanes=lanes)]
            )

        await client.groups.restore(edited(20), dry_run=True)
        with pytest.raises(BadTopic, match=f"behind the end of entry {batch}"):
            await client.groups.restore(edited(21))
        assert rows(cluster) == before


@pytest.mark.parametrize("what", ["a lane twice", "a partition is there twice"])
def test_an_export_that_contradicts_itself_is_refused(what: str) -> None:
    lane = ExportedLane(lane=0, number=-1, ledger_id=-1, entry=0, skip=0, version=-1)
    part = {"topic": ORDERS, "uid": 1, "partition": 0, "lanes": [lane]}
    twice = {**part, "lanes": [lane, lane]}
    parts = [twice] if "lane" in what else [part, part]
    text = msgspec.json.encode({"cluster": "c", "group": "g", "partitions": parts})
    with pytest.raises(BadGroup, match=what):
        GroupExport.parse(text)


async def test_places_that_were_read_are_committed_without_a_look_at_lanes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query of Spark commits with each of its batches, in thousands of lanes."""
    async with shop() as (cluster, client):
        places, read = await end(client), list[str]()
        get = cluster.store.get

        async def counted(key: str) -> Versioned | None:
            read.append(key)
            return await get(key)

        monkeypatch.setattr(cluster.store, "get", counted)
        await commit_read(client.groups, "spark", places)
        assert [key for key in read if key.startswith((LANES, LANE_LEDGERS))] == []
        assert await client.groups.committed("spark") == places


async def test_what_names_no_group_and_no_place_is_told(autojump_clock: MockClock) -> None:
    async with shop() as (_, client):
        await client.groups.commit("billing", await end(client))
        for call in (client.groups.describe, client.groups.lag, client.groups.export):
            with pytest.raises(BadGroup, match="named by a str, not 5"):
                await call(5)  # type: ignore[arg-type]
        with pytest.raises(BadGroup, match="not None"):
            await client.groups.reset("billing", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b"[" * 5000])
async def test_what_is_no_export_is_refused(text: bytes) -> None:
    with pytest.raises(BadGroup, match="no export of a group"):
        GroupExport.parse(text)


# --- names, limits, versions ---------------------------------------------------------------


async def test_a_group_that_does_not_exist_is_named_by_every_call(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        before = rows(cluster)
        for call in (
            client.groups.describe,
            client.groups.lag,
            client.groups.export,
            client.groups.delete,
        ):
            with pytest.raises(BadGroup, match="there is no group"):
                await call("nobody")
            with pytest.raises(BadGroup, match="is not a name"):
                await call("x" * 200)
        assert rows(cluster) == before


async def test_a_consumer_names_a_hundred_topics_at_most(autojump_clock: MockClock) -> None:
    """TD-57: names and patterns together."""
    async with shop() as (cluster, client):
        names = [f"shop/t{number}" for number in range(100)]
        async with client.consumer(names, group="billing", missing="wait"):
            pass
        before = rows(cluster)
        with pytest.raises(BadGroup, match="101 topics and patterns; it may name 100"):
            async with client.consumer([*names, "shop/*"], group="billing", missing="wait"):
                pass
        assert rows(cluster) == before


class Older(Coordinator):
    """A leader of a version without groups."""

    async def answer(self, request: GroupRequest) -> GroupReply:
        raise BadRecord("not a message of a call: Invalid value 'JoinGroup' - at `$.type`")


async def test_a_leader_that_knows_no_groups_is_reported_at_once(
    autojump_clock: MockClock,
) -> None:
    async with shop() as (cluster, client):
        await trio.sleep(1)
        cluster.bookies["b1"].coordinator = Older(cluster.store)
        began = trio.current_time()
        with pytest.raises(MetadataBroken, match="b1, which leads, does not know JoinGroup: upd"):
            async with client.consumer(ORDERS, group="billing", auto_commit_s=None):
                pass
        with pytest.raises(MetadataBroken, match="does not know DescribeGroups"):
            await client.groups.list()
        with pytest.raises(MetadataBroken, match="does not know FoundGroup"):
            await client.groups.commit("spark", ())
        assert trio.current_time() - began < 1

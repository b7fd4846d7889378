"""Retention and purges beside groups that hold them back."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from metadata_costs import CountingStore, small_cluster, store_of
from topic_rig import HOUR_MS, begun, lay_lane, ledger_ids, row
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.expiry import GROUPS_MS
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.groups.progress import Progress, encode_progress
from ledger_client.topics.positions import LanePlace, Place
from ledger_client.topics.retention.removal import planned_purge, remove_ledgers
from ledger_client.topics.times import PublishTime
from ledger_client.wire.joint_changes import JointChanges
from metadata.groups.assignment import Part
from metadata.groups.keeps import KeepRecord, decode_keeps, keeps_key
from metadata.groups.rows import (
    GroupRecord,
    MemberRecord,
    PartRun,
    Wanted,
    decode_progress,
    group_key,
    member_key,
    progress_key,
)
from metadata.leadership import Term
from metadata.store import Delete, Op, Versions
from metadata.topics import (
    LANE_LEDGERS,
    LANES,
    LaneRecord,
    Retention,
    TopicRecord,
    encode_row,
    lane_key,
    lane_ledger_key,
    last_number,
    topic_prefix,
)

DAY = Retention(age_s=86_400)
ORDERS = "shop/orders"


class Rig:
    """A leader's housekeeping, and groups that are rows only."""

    def __init__(self, cluster: MemoryCluster, client: Client, term: Term) -> None:
        self.store: CountingStore = store_of(cluster)
        self.client = client
        self.term = term
        self.hour = 100.0
        self.store.wall_ms = lambda: round(self.hour * HOUR_MS)
        options = HousekeepingOptions(interval_s=10)
        self.keeper = Housekeeper(client._context, options)

    async def laid(self, *, retention: Retention = DAY, lanes: int = 1) -> TopicRecord:
        """Create a topic with three closed ledgers in each lane, and one that is written."""
        wanted = TopicRecord(name=ORDERS, uid=0, retention=retention)
        topic = await self.client._context.catalogue.create(wanted)
        for lane in range(lanes):
            first = 100 + 10 * lane
            rows = [row(number, ledger_id=first + number) for number in range(3)]
            last = begun(3, ledger_id=first + 3)
            await lay_lane(self.store, topic, [*rows, last], lane=lane, written=True)
        return topic

    async def keep(self, topic: TopicRecord, *groups: str) -> None:
        row = msgspec.json.encode(KeepRecord(sorted(groups)))
        await self.store.put(keeps_key(topic.uid), row)
        for group in groups:
            await self.store.put(group_key(group), msgspec.json.encode(GroupRecord(keep=True)))

    async def commit(
        self, topic: TopicRecord, number: int, entry: int = 0, *, group: str = "billing"
    ) -> None:
        lanes = {0: Place(number, entry, 0, 100 + number)}
        await self.store.put(progress_key(group, Part(topic.uid, -1)), encode_progress(lanes))

    async def round(self) -> None:
        await self.keeper.look_after_all(self.term)

    async def later(self, topic: TopicRecord, *, hours: float = GROUPS_MS / HOUR_MS) -> list[int]:
        self.hour += hours
        await self.round()
        return self.left

    @property
    def left(self) -> list[int]:
        return ledger_ids(self.store)

    async def why(self) -> Sequence[tuple[str, str]]:
        lanes = (await self.client.topics.explain(ORDERS)).lanes
        return [(fate.reason, fate.why) for lane in lanes for fate in lane.ledgers]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with small_cluster(1) as cluster, cluster.client() as client:
        term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=86_400))
        yield Rig(cluster, client, term)


async def test_progress_alone_holds_nothing_back(rig: Rig) -> None:
    """TD-73."""
    topic = await rig.laid()
    await rig.commit(topic, 1)
    await rig.round()
    assert rig.left == [103]


@pytest.mark.parametrize("retention", [DAY, Retention(age_s=-1, size=0)], ids=["age", "size"])
async def test_what_a_group_has_not_committed_stays_until_it_has(
    rig: Rig, retention: Retention
) -> None:
    """TD-74: from the ledger of its next message on."""
    topic = await rig.laid(retention=retention)
    await rig.keep(topic, "billing")
    await rig.commit(topic, 1, 1)
    await rig.round()
    assert rig.left == [101, 102, 103]
    assert await rig.later(topic) == [101, 102, 103]
    await rig.commit(topic, 1, 2)
    assert await rig.later(topic) == [102, 103]
    await rig.commit(topic, 3)
    assert await rig.later(topic) == [103]


async def test_a_group_that_committed_nothing_keeps_everything(rig: Rig) -> None:
    """TD-74: of each lane, also of those that its progress does not name."""
    topic = await rig.laid(lanes=2)
    await rig.keep(topic, "billing")
    await rig.round()
    assert len(rig.left) == 8
    await rig.commit(topic, 2)
    assert await rig.later(topic) == [102, 103, 110, 111, 112, 113]


async def test_the_slowest_of_several_groups_counts(rig: Rig) -> None:
    topic = await rig.laid()
    await rig.keep(topic, "audit", "billing")
    await rig.commit(topic, 2, group="audit")
    await rig.commit(topic, 1)
    await rig.round()
    assert rig.left == [101, 102, 103]
    await rig.commit(topic, 3)
    assert await rig.later(topic) == [102, 103]


async def test_a_group_that_keeps_no_more_frees_at_once_what_it_kept(rig: Rig) -> None:
    topic = await rig.laid()
    await rig.keep(topic, "billing")
    await rig.round()
    assert len(rig.left) == 4
    await rig.keep(topic)
    assert await rig.later(topic, hours=0) == [103]


async def test_an_explanation_names_the_group(rig: Rig) -> None:
    """TD-74."""
    topic = await rig.laid()
    await rig.keep(topic, "billing")
    await rig.commit(topic, 1)
    words = "needed by group billing (quire group keep billing off ends it)"
    reasons = await rig.why()
    assert reasons[1:3] == [("kept", words)] * 2
    assert reasons[0][0] == "old"


async def test_a_purge_leaves_what_a_group_keeps(rig: Rig) -> None:
    topic = await rig.laid(retention=Retention())
    await rig.keep(topic, "billing")
    await rig.commit(topic, 1)
    purged = await rig.client.topics.purge(ORDERS)
    assert [fate.ledger.ledger_id for fate in purged.removed] == [100]
    assert [fate.reason for fate in purged.kept] == ["kept"]
    assert rig.left == [101, 102, 103]


@pytest.mark.parametrize("is_purge", [False, True], ids=["retention", "purge"])
async def test_no_removal_misses_a_reset_that_came_just_before(
    rig: Rig, is_purge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await rig.laid(retention=Retention() if is_purge else DAY)
    await rig.keep(topic, "billing")
    await rig.commit(topic, 2)
    transact = rig.store.transact
    resets: list[str] = []

    async def late(ops: Sequence[Op]) -> Versions:
        if not resets and any(isinstance(op, Delete) for op in ops):
            resets.append("billing")
            await rig.client.groups.reset("billing", "earliest", [ORDERS])
        return await transact(ops)

    monkeypatch.setattr(rig.store, "transact", late)
    if is_purge:
        await rig.client.topics.purge(ORDERS)
    else:
        await rig.round()
    assert resets
    assert len(rig.left) == 4


async def test_a_reset_that_comes_between_plan_and_removal_wins(rig: Rig) -> None:
    """The group goes back to ledgers that the plan removes."""
    topic = await rig.laid()
    await rig.keep(topic, "billing")
    await rig.commit(topic, 2)
    catalogue = rig.client._context.catalogue
    planned = await planned_purge(catalogue, ORDERS, PublishTime(99 * HOUR_MS))
    fates = planned.purged.removed
    assert len(fates) == 2
    await rig.client.groups.reset("billing", "earliest", [ORDERS])
    assert await remove_ledgers(catalogue, topic.uid, fates, checks=planned.checks) == []
    assert len(rig.left) == 4
    assert (await rig.why())[0][0] == "kept"


async def test_a_commit_that_goes_back_between_plan_and_removal_wins(rig: Rig) -> None:
    topic = await rig.laid()
    await rig.keep(topic, "billing")
    await rig.commit(topic, 1)
    part = Part(topic.uid, -1)
    member = MemberRecord(epoch=1, run="run", wanted=Wanted(), parts=[PartRun(topic.uid, -1, -1)])
    await rig.store.put(member_key("billing", "a"), msgspec.json.encode(member))
    progress = Progress(rig.store, JointChanges(rig.store), "billing", "a", "run", timeout_s=5)
    await progress.read_row()
    await progress.read([part])
    catalogue = rig.client._context.catalogue

    async def removed(commit: Place, *, goes_back: bool) -> int:
        planned = await planned_purge(catalogue, ORDERS, PublishTime(99 * HOUR_MS))
        await progress.commit({part: {0: commit}}, goes_back=goes_back)
        fates = planned.purged.removed
        return len(await remove_ledgers(catalogue, topic.uid, fates, checks=planned.checks))

    assert await removed(Place(0, 0, 0, 100), goes_back=True) == 0
    await progress.commit({part: {0: Place(1, 0, 0, 101)}})
    assert await removed(Place(2, 0, 0, 102), goes_back=False) == 1


async def test_a_reset_has_the_group_keep_topics_that_it_begins(rig: Rig) -> None:
    topic = await rig.laid()
    await rig.store.put(group_key("billing"), msgspec.json.encode(GroupRecord(keep=True)))
    await rig.client.groups.reset("billing", "earliest", [ORDERS])
    await rig.round()
    assert len(rig.left) == 4
    assert topic.uid > 0


@pytest.mark.parametrize("lanes", [3, 60])
async def test_rounds_cost_the_same_however_many_lanes_groups_keep(rig: Rig, lanes: int) -> None:
    topic = await rig.laid(lanes=lanes)
    await rig.keep(topic, "billing")
    await rig.round()
    assert len(rig.left) == 4 * lanes
    for hours in (0, GROUPS_MS / HOUR_MS):
        rig.hour += hours
        before = rig.store.cost.reads
        await rig.round()
        assert rig.store.cost.reads - before <= 30


async def test_a_deleted_topic_leaves_no_row_behind(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        cluster.lead("b1")
        await client.topics.create(ORDERS)
        async with client.consumer(ORDERS, group="billing", keep=True, start="earliest") as reader:
            await reader.poll(wait_s=3)
            assert [key for key in cluster.store.values if key.startswith("group-keeps/")]
        await client.topics.delete(ORDERS)
        keys = list(cluster.store.values)
        assert not [key for key in keys if key.startswith(("group-keeps/", topic_prefix(LANES, 1)))]


# --- at random ----------------------------------------------------------------------------


class Wanderer:
    """A group that goes forward and back at random, beside retention and purges."""

    def __init__(self, rig: Rig, topic: TopicRecord, seed: int) -> None:
        self.rig = rig
        self.topic = topic
        self.random = random.Random(seed)
        self.last = 3
        """number of the open ledger"""
        self.removed = 0
        self.wrong: list[str] = []
        self.rig.store.on_change = self.check

    def check(self, key: str, value: object) -> None:
        """Note a ledger that is removed while the group needs it; called with each change."""
        if value is not None or not key.startswith(LANE_LEDGERS):
            return
        self.removed += 1
        number, values = last_number(key), self.rig.store.values
        keepers = values.get(keeps_key(self.topic.uid))
        if keepers is None or not decode_keeps("", keepers.value).groups:
            return
        found = values.get(progress_key("billing", Part(self.topic.uid, -1)))
        lanes = [] if found is None else decode_progress("", found.value).lanes
        (place,) = [(each.number, each.entry) for each in lanes if each.lane == 0] or [(0, 0)]
        if (number, 2) > place:  # each ledger has two entries
            self.wrong.append(f"ledger {number} is removed, the group is at {place}")

    async def begin(self) -> None:
        """Let the lane be at its last ledger."""
        record = encode_row(LaneRecord(epoch=1, current=self.last))
        await self.rig.store.put(lane_key(self.topic.uid, -1, 0), record)

    async def pause(self) -> None:
        await trio.sleep(self.random.random() * 1.5)

    async def commit(self) -> None:
        while True:
            await self.pause()
            number = self.random.randrange(self.last + 1)
            place = Place(number, self.random.randrange(3), 0, 100 + number)
            where = LanePlace(ORDERS, self.topic.uid, -1, 0, place)
            goes_back = self.random.random() < 0.3
            await self.rig.client.groups.commit("billing", (where,), goes_back=goes_back)

    async def reset(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(5, 30))
            await self.rig.client.groups.reset("billing", "earliest", [ORDERS])

    async def roll(self) -> None:
        while True:
            await trio.sleep(1.5)
            for number, ledger in (
                (self.last, row(self.last)),
                (self.last + 1, begun(self.last + 1)),
            ):
                key = lane_ledger_key(self.topic.uid, -1, 0, number)
                await self.rig.store.put(key, encode_row(ledger))
            self.last += 1
            await self.begin()
            self.rig.hour += 1

    async def expire(self) -> None:
        while True:
            await self.pause()
            await self.rig.round()

    async def purge(self) -> None:
        while True:
            await self.pause()
            await self.rig.client.topics.purge(ORDERS)


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_removed_that_a_group_still_needs(
    seed: int, rig: Rig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TD-74: whatever comes between the looks at places and the removal."""
    topic = await rig.laid()
    await rig.keep(topic, "billing")
    wanderer = Wanderer(rig, topic, seed)
    await wanderer.begin()
    reach = rig.store._reach

    async def slowly() -> None:
        await trio.sleep(wanderer.random.random() * 0.1)
        await reach()

    monkeypatch.setattr(rig.store, "_reach", slowly)
    with trio.move_on_after(120):
        async with trio.open_nursery() as nursery:
            works = (
                wanderer.commit,
                wanderer.reset,
                wanderer.roll,
                wanderer.expire,
                wanderer.purge,
            )
            for work in works:
                nursery.start_soon(work)
    assert wanderer.wrong == []
    assert wanderer.removed > 3

"""Groups that hold back retention: the rows that name them, whoever leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from metadata.errors import BadGroup
from metadata.groups.assignment import Part
from metadata.groups.calls import (
    Beat,
    DeleteGroup,
    DescribeGroups,
    GroupPage,
    JoinGroup,
    KeepGroup,
    ReportIn,
)
from metadata.groups.coordinator import REBALANCE_S, Coordinator
from metadata.groups.keeps import (
    KEEPERS_MAX,
    KeepRecord,
    first_needed,
    going_back,
    keeps_key,
    read_keepers,
)
from metadata.groups.rows import (
    GroupRecord,
    LaneProgress,
    MemberRecord,
    ProgressRecord,
    Wanted,
    decode_member,
    group_key,
    member_key,
    progress_key,
)
from metadata.groups.shares import SHARES, ShareRecord, share_key
from metadata.leadership import Leadership
from metadata.records import COORDINATOR, Leader, encode_record
from metadata.store import Op, Page, Put, Versions
from metadata.topics import TopicRecord, encode_row, topic_key

ORDERS, VISITS = 1, 2


class Shop:
    """Two topics of two partitions, and a leader."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.coordinator = Coordinator(store)

    async def join(self, group: str, *, keep: bool | None = None, topic: str = "orders") -> None:
        wanted = Wanted(topics=[f"shop/{topic}"])
        record = MemberRecord(epoch=0, run="run", wanted=wanted, session_s=1800)
        await self.coordinator.answer(JoinGroup(group, "a", record, keep=keep))

    async def keep(self, group: str, *, keep: bool) -> None:
        await self.coordinator.answer(KeepGroup(group, keep))

    async def keepers(self, uid: int = ORDERS) -> list[str]:
        return list((await read_keepers(self.store, uid)).groups)

    async def commit(self, group: str, uid: int, *lanes: LaneProgress) -> None:
        row = msgspec.json.encode(ProgressRecord(lanes=list(lanes)))
        await self.store.put(progress_key(group, Part(uid, 0)), row)

    @asynccontextmanager
    async def led(self, name: str = "b1") -> AsyncIterator[None]:
        value = encode_record(Leader(name, f"{name}:3181", 0))
        leadership = Leadership(self.store, COORDINATOR, name, value=lambda: value)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leadership.run, self.coordinator.lead)
            await trio.sleep(1)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
async def shop(autojump_clock: MockClock) -> Shop:
    store = MemoryStore()
    for uid, name in ((ORDERS, "shop/orders"), (VISITS, "shop/visits")):
        record = TopicRecord(name=name, uid=uid, partitions=2)
        await store.put(topic_key(name), encode_row(record))
    return Shop(store)


class OrderedStore(MemoryStore):
    """Notes what was stored first: the row that names a group, or partitions of a member."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    async def transact(self, ops: list[Op] | tuple[Op, ...]) -> Versions:  # type: ignore[override]  # narrower
        for op in ops:
            if isinstance(op, Put) and op.key == keeps_key(ORDERS):
                self.order.append("named")
            if isinstance(op, Put) and op.key == member_key("billing", "a"):
                self.order.append("parts" if decode_member(op.key, op.value).parts else "joined")
        return await super().transact(ops)


async def test_a_group_that_keeps_is_named_before_a_member_gets_partitions(
    autojump_clock: MockClock,
) -> None:
    """TD-74."""
    store = OrderedStore()
    record = TopicRecord(name="shop/orders", uid=ORDERS, partitions=2)
    await store.put(topic_key("shop/orders"), encode_row(record))
    shop = Shop(store)
    async with shop.led():
        await shop.join("billing", keep=True)
        await trio.sleep(1)
        assert store.order == ["joined", "named", "parts"]


async def test_groups_keep_nothing_unless_they_say_so(
    shop: Shop, autojump_clock: MockClock
) -> None:
    """TD-73."""
    async with shop.led():
        await shop.join("billing")
        await trio.sleep(1)
        assert await shop.keepers() == []
        await shop.join("audit", keep=True)
        await trio.sleep(1)
        assert await shop.keepers() == ["audit"]
        assert await shop.keepers(VISITS) == []


async def test_a_group_keeps_until_it_is_switched_off_or_deleted(
    shop: Shop, autojump_clock: MockClock
) -> None:
    async with shop.led():
        for group in ("audit", "billing"):
            await shop.join(group, keep=True)
        await trio.sleep(1)
        assert await shop.keepers() == ["audit", "billing"]
        await shop.join("audit")  # leaves it as it is
        await trio.sleep(1)
        assert await shop.keepers() == ["audit", "billing"]
        await shop.keep("audit", keep=False)
        assert await shop.keepers() == ["billing"]
        await shop.coordinator.answer(DeleteGroup("billing", force=True))
        assert await shop.keepers() == []
        assert await shop.store.get(keeps_key(ORDERS)) is None


async def test_switched_on_it_keeps_what_members_read_and_what_was_begun(
    shop: Shop, autojump_clock: MockClock
) -> None:
    async with shop.led():
        await shop.join("billing")
        await trio.sleep(1)
        await shop.commit("billing", VISITS)
        await shop.keep("billing", keep=True)
        assert await shop.keepers() == ["billing"]
        assert await shop.keepers(VISITS) == ["billing"]
        page = await shop.coordinator.answer(DescribeGroups(group="billing"))
        assert isinstance(page, GroupPage)
        assert page.groups[0].keep
        with pytest.raises(BadGroup, match="no group"):
            await shop.keep("other", keep=True)


async def test_a_new_leader_goes_on_with_what_a_group_keeps(
    shop: Shop, autojump_clock: MockClock
) -> None:
    async with shop.led():
        await shop.join("billing", keep=True)
        await trio.sleep(1)
    await trio.sleep(60)
    async with shop.led("b2"):
        await trio.sleep(2 * REBALANCE_S)
        assert await shop.keepers() == ["billing"]
        await shop.coordinator.answer(ReportIn([Beat("billing", "a", "run", 9)]))
        await shop.keep("billing", keep=False)
        assert await shop.keepers() == []


async def test_what_a_former_leader_left_half_done_is_released(
    shop: Shop, autojump_clock: MockClock
) -> None:
    """It had deleted the group, or switched it off, and not yet removed its name."""
    off = msgspec.json.encode(GroupRecord(keep=False))
    await shop.store.put(group_key("off"), off)
    on = msgspec.json.encode(GroupRecord(keep=True))
    await shop.store.put(group_key("on"), on)
    names = msgspec.json.encode(KeepRecord(["gone", "off", "on"]))
    await shop.store.put(keeps_key(ORDERS), names)
    async with shop.led():
        await trio.sleep(2 * REBALANCE_S)
        assert await shop.keepers() == ["on"]


async def test_a_group_whose_record_is_damaged_keeps_what_it_kept(
    shop: Shop, autojump_clock: MockClock
) -> None:
    await shop.store.put(group_key("billing"), b"{")
    await shop.store.put(keeps_key(ORDERS), msgspec.json.encode(KeepRecord(["billing", "gone"])))
    async with shop.led():
        await trio.sleep(2 * REBALANCE_S)
        assert await shop.keepers() == ["billing"]


async def test_a_topic_that_too_many_groups_keep_is_refused(
    shop: Shop, autojump_clock: MockClock
) -> None:
    names = [f"g{number:04d}" for number in range(KEEPERS_MAX)]
    await shop.store.put(keeps_key(ORDERS), msgspec.json.encode(KeepRecord(names)))
    for name in names:
        await shop.store.put(group_key(name), msgspec.json.encode(GroupRecord(keep=True)))
    async with shop.led():
        await shop.join("billing")
        await trio.sleep(1)
        with pytest.raises(BadGroup, match="kept by 1000 groups"):
            await shop.keep("billing", keep=True)


async def test_a_group_needs_all_of_a_lane_in_which_it_committed_nothing(
    shop: Shop, autojump_clock: MockClock
) -> None:
    place = LaneProgress(3, 7, 40, 0, 107, 90)
    await shop.commit("billing", ORDERS, place)
    for partitions in ([0, 1], range(20)):
        needed = await first_needed(shop.store, "billing", ORDERS, partitions)
        assert needed[0] == {3: place}
        assert needed[1] == {}
        assert len(needed) == len(partitions)


async def test_what_goes_back_changes_rows_that_name_the_group(
    shop: Shop, autojump_clock: MockClock
) -> None:
    names = msgspec.json.encode(KeepRecord(["billing"]))
    await shop.store.put(keeps_key(ORDERS), names)
    before = (await read_keepers(shop.store, ORDERS)).check
    await shop.store.transact(await going_back(shop.store, "billing", [ORDERS, VISITS]))
    after = (await read_keepers(shop.store, ORDERS)).check
    assert before.expected != after.expected
    assert await going_back(shop.store, "other", [ORDERS]) == []


class TornStore(MemoryStore):
    """A store whose next listing of shares misses one that passes from member to member."""

    misses = False

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        page = await super().list(prefix, after=after, limit=limit)
        if prefix.startswith(SHARES) and self.misses:
            self.misses = False
            return []
        return page


@pytest.mark.parametrize("misses", [False, True])
async def test_a_shared_group_needs_what_members_have(misses: bool) -> None:
    """TD-74: also what passes from one member to another while it is looked at."""
    store = TornStore()
    record = GroupRecord(keep=True, mode="shared")
    await store.put(group_key("billing"), msgspec.json.encode(record))
    progress = ProgressRecord(lanes=[LaneProgress(3, 7, 40, 0, 107, 90)])
    await store.put(progress_key("billing", Part(ORDERS, 0)), msgspec.json.encode(progress))
    share = ShareRecord(
        topic=ORDERS,
        partition=0,
        lane=3,
        number=5,
        ledger_id=105,
        entry=2,
        version=60,
        counts=[1],
        done=b"\0",
    )
    await store.put(share_key("billing", "a", "1"), msgspec.json.encode(share))
    store.misses = misses
    needed = await first_needed(store, "billing", ORDERS, [0])
    assert (needed[0][3].number, needed[0][3].entry) == (5, 2)

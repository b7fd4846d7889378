"""A coordinator that leads, and members of its group "billing"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from memory_store import MemoryStore

from metadata.groups.calls import (
    Beat,
    DescribeGroups,
    GroupJoined,
    GroupPage,
    GroupState,
    JoinGroup,
    ReportIn,
    ReportNoted,
)
from metadata.groups.coordinator import Coordinator
from metadata.groups.rows import (
    MemberRecord,
    Mode,
    Wanted,
    decode_member,
    member_key,
    members_prefix,
    parts_of,
)
from metadata.leadership import Leadership
from metadata.records import COORDINATOR, Leader, encode_record
from metadata.topics import TopicRecord, encode_row, topic_key

SESSION_S = 12.0


class Rig:
    """A store with a topic of four partitions, and a coordinator that leads."""

    def __init__(self, store: MemoryStore, coordinator: Coordinator) -> None:
        self.store = store
        self.coordinator = coordinator

    async def topic(self, name: str, uid: int, partitions: int) -> None:
        record = TopicRecord(name=name, uid=uid, partitions=partitions)
        await self.store.put(topic_key(name), encode_row(record))

    async def join(
        self, member: str, run: str = "run", *topics: str, mode: Mode = "exclusive"
    ) -> int:
        wanted = Wanted(topics=list(topics) or ["shop/orders"])
        record = MemberRecord(epoch=0, run=run, wanted=wanted)
        reply = await self.coordinator.answer(JoinGroup("billing", member, record, mode))
        assert isinstance(reply, GroupJoined)
        return reply.epoch

    async def beat(self, member: str, run: str = "run", *, applied: int = 0) -> bool:
        request = ReportIn([Beat("billing", member, run, applied)])
        reply = await self.coordinator.answer(request)
        assert isinstance(reply, ReportNoted)
        return reply.answers[0].is_member

    async def live(self, seconds: float, *members: str) -> None:
        """Let time pass in which members apply their rows and report in."""
        for _ in range(round(seconds)):
            await trio.sleep(1)
            for member in members:
                row = await self.row(member)
                await self.beat(member, applied=row.epoch)

    async def row(self, member: str) -> MemberRecord:
        key = member_key("billing", member)
        found = await self.store.get(key)
        assert found is not None
        return decode_member(key, found.value)

    async def parts(self, member: str) -> set[int]:
        return {part.partition for part in parts_of((await self.row(member)).parts)}

    async def members(self) -> set[str]:
        prefix = members_prefix("billing")
        return {key.removeprefix(prefix) for key, _ in await self.store.list(prefix)}

    async def rows(self) -> list[str]:
        """The keys of the group and of what belongs to it."""
        prefixes = ("groups/", "group-members/", "progress/")
        return [key for prefix in prefixes for key, _ in await self.store.list(prefix)]

    async def state(self) -> GroupState:
        page = await self.coordinator.answer(DescribeGroups(group="billing"))
        assert isinstance(page, GroupPage)
        return page.groups[0]


def candidate(store: MemoryStore, name: str) -> Leadership:
    value = encode_record(Leader(name, f"{name}:3181", 0))
    return Leadership(store, COORDINATOR, name, value=lambda: value)


@asynccontextmanager
async def led() -> AsyncIterator[Rig]:
    store = MemoryStore()
    rig = Rig(store, Coordinator(store))
    await rig.topic("shop/orders", 1, 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate(store, "b1").run, rig.coordinator.lead)
        await trio.sleep(1)
        yield rig
        nursery.cancel_scope.cancel()

"""What a thousand groups cost the bookie that leads: memory, beats, rests and joins.

    python tests/support/group_load.py                        1 000 groups of 10 members
    python tests/support/group_load.py --groups 100 --members 100

The real coordinator, on a store in memory and on trio's virtual clock: no socket and no disk.
Times are CPU times. Its memory is what a new leader allocates when it reads all groups.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial

import click
import msgspec
import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from metadata.groups.calls import (
    BEATS_MAX,
    Beat,
    DescribeGroups,
    GroupPage,
    JoinGroup,
    LeaveGroup,
    ReportIn,
    ReportNoted,
)
from metadata.groups.coordinator import GROUPS_OF_TOPIC_MAX, Coordinator
from metadata.groups.rows import GROUPS, MemberRecord, Wanted
from metadata.leadership import Leadership
from metadata.records import COORDINATOR, Leader, encode_record
from metadata.topics import TopicRecord, encode_row, topic_key

BEAT_S = 3.0
REST_S = 60.0
SETTLE_S = 15.0
SILENT_S = 9.0
"""Less than a session."""
MOVED_MAX = 20
"""Groups in which a member joins and leaves."""


class GroupLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of groups that are ready; CPU times.

    *memory_of_member*: bytes in the leader, its part of the group included.
    *beat_us*: a member's report. *changes_of_beats*: of the store, in a minute of reports.
    *rest_ms*: the coordinator's own work in a second in which nothing changes.
    *share*: of a core, with a report of each member every three seconds.
    *lead_ms*: until a new leader has read everything, most of it in the store.
    *move_ms*: one member joins and leaves, with all that follows, most of it in the store.
    """

    groups: int
    members: int
    partitions: int
    memory: int
    memory_of_member: float
    beat_us: float
    changes_of_beats: int
    rest_ms: float
    share: float
    lead_ms: float
    move_ms: float


def measure(groups: int, members: int, partitions: int) -> GroupLoad:
    """Measure *groups* of *members* each, whose topics have *partitions* each."""
    work = partial(_measure, groups, members, partitions)
    return trio.run(work, clock=MockClock(autojump_threshold=0))


class _Load:
    """A store with topics and groups, and who leads."""

    def __init__(self, groups: int, members: int, partitions: int) -> None:
        self.store = MemoryStore()
        self.groups = groups
        self.members = members
        self.partitions = partitions
        self.epochs: dict[tuple[str, str], int] = {}
        """of the row of each member, by group and name, as the leader answered last"""
        self.changes_of_groups = 0
        self.store.on_change = self._count

    def _count(self, key: str, _value: object) -> None:
        self.changes_of_groups += key.startswith(GROUPS)

    async def make_topics(self) -> None:
        """Make the topics that the groups want."""
        for number in range(-(-self.groups // GROUPS_OF_TOPIC_MAX)):
            name = self.topic(number * GROUPS_OF_TOPIC_MAX)
            record = TopicRecord(name=name, uid=number + 1, partitions=self.partitions)
            await self.store.put(topic_key(name), encode_row(record))

    def topic(self, group: int) -> str:
        """Return the name of the topic that a group wants."""
        return f"load/topic-{group // GROUPS_OF_TOPIC_MAX}"

    async def join(self, coordinator: Coordinator, group: int, member: int) -> None:
        """Let a member join a group."""
        name = f"group-{group}", f"member-{member}"
        wanted = Wanted(topics=[self.topic(group)])
        record = MemberRecord(epoch=0, run="run", wanted=wanted, host="host", client_id="load")
        await coordinator.answer(JoinGroup(*name, record))
        self.epochs[name] = 0

    async def leave(self, coordinator: Coordinator, group: int, member: int) -> None:
        """Let it leave."""
        name = f"group-{group}", f"member-{member}"
        await coordinator.answer(LeaveGroup(*name, "run"))
        del self.epochs[name]

    async def report(self, coordinator: Coordinator) -> float:
        """Report all members once; return the CPU time of the answers."""
        cpu_s = 0.0
        names = sorted(self.epochs)
        for first in range(0, len(names), BEATS_MAX):
            some = names[first : first + BEATS_MAX]
            request = ReportIn([Beat(*name, "run", self.epochs[name]) for name in some])
            begun = time.process_time()
            reply = await coordinator.answer(request)
            cpu_s += time.process_time() - begun
            assert isinstance(reply, ReportNoted)
            for name, noted in zip(some, reply.answers, strict=True):
                assert noted.is_member, name
                self.epochs[name] = noted.epoch
        return cpu_s

    async def live(self, coordinator: Coordinator, seconds: float) -> float:
        """Let time pass in which all members report; return the CPU time of the answers."""
        cpu_s = 0.0
        for _ in range(round(seconds / BEAT_S)):
            cpu_s += await self.report(coordinator)
            await trio.sleep(BEAT_S)
        return cpu_s

    async def check_ready(self, coordinator: Coordinator) -> None:
        """Fail unless every group has all its members and is balanced."""
        after, found = "", 0
        while True:
            page = await coordinator.answer(DescribeGroups(after=after))
            assert isinstance(page, GroupPage)
            if not page.groups:
                break
            assert {state.state for state in page.groups} == {"ready"}
            found += sum(len(state.members) for state in page.groups)
            after = page.groups[-1].group
        assert found == self.groups * self.members

    async def beats(self, coordinator: Coordinator) -> tuple[float, int]:
        """Return the CPU time of a member's report, and the changes of the store in a minute."""
        changes = self.changes_of_groups
        cpu_s = await self.live(coordinator, REST_S)
        reports = round(REST_S / BEAT_S) * len(self.epochs)
        return cpu_s / reports, self.changes_of_groups - changes

    async def rest(self, coordinator: Coordinator) -> float:
        """Return the CPU time of a second in which nothing changes and nobody reports."""
        await self.report(coordinator)
        begun = time.process_time()
        await trio.sleep(SILENT_S)
        return (time.process_time() - begun) / SILENT_S

    async def move(self, coordinator: Coordinator) -> float:
        """Return the CPU time of a member that joins and leaves, with the store's."""
        moved = min(self.groups, MOVED_MAX)
        usual_s = await self._cpu_of(partial(self.live, coordinator, 2 * SETTLE_S))

        async def change() -> None:
            for group in range(moved):
                await self.join(coordinator, group, self.members)
            await self.live(coordinator, SETTLE_S)
            for group in range(moved):
                await self.leave(coordinator, group, self.members)
            await self.live(coordinator, SETTLE_S)

        moved_s = await self._cpu_of(change)
        await self.check_ready(coordinator)
        return max(moved_s - usual_s, 0) / moved

    async def memory(self, nursery: trio.Nursery) -> int:
        """Return the bytes that a new leader has allocated once all members reported to it."""
        tracemalloc.start()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        leader = _Leader(self.store, "b3")
        await leader.start(nursery)
        await self.live(leader.coordinator, SETTLE_S)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await self.check_ready(leader.coordinator)
        leader.stop()
        return after - before

    async def _cpu_of(self, work: Callable[[], Awaitable[object]]) -> float:
        begun = time.process_time()
        await work()
        return time.process_time() - begun


class _Leader:
    """A coordinator while it leads."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.coordinator = Coordinator(store)
        value = encode_record(Leader(name, f"{name}:3181", 0))
        self._leadership = Leadership(store, COORDINATOR, name, value=lambda: value)
        self._scope = trio.CancelScope()

    async def start(self, nursery: trio.Nursery) -> float:
        """Lead; return the CPU time until the coordinator knows all groups."""
        begun = time.process_time()
        nursery.start_soon(self._run)
        while True:
            if self.coordinator._office is not None:
                return time.process_time() - begun
            await trio.sleep(0.1)

    def stop(self) -> None:
        """Lead no longer."""
        self._scope.cancel()

    async def _run(self) -> None:
        with self._scope:
            await self._leadership.run(self.coordinator.lead)


async def _measure(groups: int, members: int, partitions: int) -> GroupLoad:
    load = _Load(groups, members, partitions)
    await load.make_topics()
    async with trio.open_nursery() as nursery:
        first = _Leader(load.store, "b1")
        await first.start(nursery)
        for group in range(groups):
            for member in range(members):
                await load.join(first.coordinator, group, member)
        await load.live(first.coordinator, SETTLE_S)
        await load.check_ready(first.coordinator)
        beat_s, changes = await load.beats(first.coordinator)
        rest_s = await load.rest(first.coordinator)
        move_s = await load.move(first.coordinator)
        first.stop()

        second = _Leader(load.store, "b2")
        lead_s = await second.start(nursery)
        second.stop()
        memory = await load.memory(nursery)
        nursery.cancel_scope.cancel()
    return GroupLoad(
        groups=groups,
        members=members,
        partitions=partitions,
        memory=memory,
        memory_of_member=round(memory / groups / members, 1),
        beat_us=round(beat_s * 1e6, 2),
        changes_of_beats=changes,
        rest_ms=round(rest_s * 1e3, 3),
        share=round(groups * members / BEAT_S * beat_s + rest_s, 4),
        lead_ms=round(lead_s * 1e3, 1),
        move_ms=round(move_s * 1e3, 2),
    )


@click.command()
@click.option("--groups", default=1000, show_default=True)
@click.option("--members", default=10, show_default=True, help="Of each group.")
@click.option("--partitions", default=20, show_default=True, help="Of the topic of each group.")
def main(*, groups: int, members: int, partitions: int) -> None:
    """Print what groups cost the bookie that leads."""
    load = measure(groups, members, partitions)
    click.echo(
        f"{load.groups:,} groups of {load.members} members, {load.partitions} partitions each\n"
        f"  memory of the leader: {load.memory / 2**20:.1f} MiB, {load.memory_of_member:,.0f} "
        f"bytes a member\n"
        f"  a report: {load.beat_us:.1f} us a member, {load.changes_of_beats} changes of the "
        f"store in a minute of them\n"
        f"  at rest: {load.rest_ms:.2f} ms a second; with reports every {BEAT_S:g} s "
        f"{100 * load.share:.2f} % of a core\n"
        f"  a new leader reads all groups in {load.lead_ms:,.0f} ms\n"
        f"  a member that joins and leaves: {load.move_ms:.2f} ms"
    )


if __name__ == "__main__":
    main()

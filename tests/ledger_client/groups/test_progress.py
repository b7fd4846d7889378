"""Commits whose answers are lost, that come late, or that meet other changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import pytest
import trio
from memory_store import MemoryStore
from trio.testing import MockClock

from ledger_client import CommitRefused, MetadataUnavailable
from ledger_client.groups.progress import Progress, encode_progress, read_progress
from ledger_client.topics.positions import EARLIEST, Place, Places
from ledger_client.wire.joint_changes import JointChanges
from metadata.groups.assignment import Part
from metadata.groups.rows import MemberRecord, PartRun, Wanted, member_key, progress_key
from metadata.store import Op, Page, Put, Versioned, Versions

PART = Part(1, 0)
OTHER = Part(1, 1)


class LossyStore(MemoryStore):
    """A store whose next answer is lost; the change is made, now or when late() is called."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = False
        self.is_made = True
        self.sent: list[Sequence[Op]] = []

    async def transact(self, ops: Sequence[Op]) -> Versions:
        if not self.loses:
            return await super().transact(ops)
        self.loses = False
        self.sent.append(ops)
        if self.is_made:
            await super().transact(ops)
        raise MetadataUnavailable("no answer", outcome_unknown=True)

    async def late(self) -> None:
        """Make the change whose answer was lost."""
        await super().transact(self.sent.pop())


def place(entry: int) -> Place:
    return Place(0, entry, 0, 7, entry)


def own(
    store: MemoryStore, *partitions: int, epoch: int = 1, run: str = "run", member: str = "a"
) -> None:
    """Let the member have these partitions."""
    row = MemberRecord(
        epoch=epoch,
        run=run,
        wanted=Wanted(topics=["shop/orders"]),
        parts=[PartRun(1, partition, partition) for partition in partitions],
    )
    store.change(member_key("billing", member), msgspec.json.encode(row))


async def opened(store: MemoryStore) -> Progress:
    progress = Progress(store, JointChanges(store), "billing", "a", "run", timeout_s=5)
    await progress.read_row()
    await progress.read([PART, OTHER])
    return progress


async def stored(store: MemoryStore, part: Part = PART) -> int:
    places, _ = await read_progress(store, "billing", part, 5)
    return -1 if places is None else places[0].entry


async def test_a_commit_that_comes_late_does_not_undo_a_later_one(
    autojump_clock: MockClock,
) -> None:
    """Invariant 13: its answer was lost, and the member has committed more since."""
    store = LossyStore()
    own(store, 0)
    progress = await opened(store)
    store.loses, store.is_made = True, False
    with pytest.raises(MetadataUnavailable):
        await progress.commit({PART: {0: place(3)}})
    await progress.commit({PART: {0: place(5)}})
    with pytest.raises(Exception, match="expected"):
        await store.late()
    assert await stored(store) == 5


async def test_after_a_lost_answer_the_next_commit_succeeds(autojump_clock: MockClock) -> None:
    store = LossyStore()
    own(store, 0)
    progress = await opened(store)
    store.loses = True
    with pytest.raises(MetadataUnavailable):
        await progress.commit({PART: {0: place(3)}})
    await progress.commit({PART: {0: place(5)}})
    assert await stored(store) == 5


async def test_a_commit_goes_back_only_if_that_is_meant(autojump_clock: MockClock) -> None:
    """TD-61: committing the same place is a success."""
    store = MemoryStore()
    own(store, 0)
    progress = await opened(store)
    for entry in (5, 3, 5):
        await progress.commit({PART: {0: place(entry)}})
        assert await stored(store) == 5
    await progress.commit({PART: {0: place(3)}}, goes_back=True)
    assert await stored(store) == 3


async def test_what_another_member_committed_while_this_one_was_paused_stays(
    autojump_clock: MockClock,
) -> None:
    """Invariant 13: the partition went to another one and came back, and this one saw neither."""
    store = MemoryStore()
    own(store, 0)
    paused = await opened(store)
    await paused.commit({PART: {0: place(3)}})
    own(store, 0, epoch=2, run="other", member="b")
    other = Progress(store, JointChanges(store), "billing", "b", "other", timeout_s=5)
    await other.read_row()
    await other.read([PART])
    await other.commit({PART: {0: place(9), 1: place(2)}})
    own(store, 0, epoch=3)
    await paused.commit({PART: {0: place(5)}})
    assert await stored(store) == 9
    assert paused.committed(PART) == {0: place(9), 1: place(2)}
    await paused.commit({PART: {0: place(10)}})
    assert await stored(store) == 10
    await paused.commit({PART: {0: place(4)}}, goes_back=True)
    assert await stored(store) == 4
    await paused.commit({PART: {0: place(2)}})
    assert await stored(store) == 4


async def test_a_beginning_that_another_member_stored_is_refused(
    autojump_clock: MockClock,
) -> None:
    """This one was removed as it began, and its group went on without it."""
    store = MemoryStore()
    own(store, 0)
    removed = await opened(store)
    own(store, 0, epoch=2, run="other", member="b")
    await store.delete(member_key("billing", "a"))
    other = Progress(store, JointChanges(store), "billing", "b", "other", timeout_s=5)
    await other.read_row()
    await other.read([PART])
    await other.begin({PART: {}})
    assert other.committed(PART) == {}
    with pytest.raises(CommitRefused):
        await removed.begin({PART: {}})


async def test_a_beginning_that_failed_is_not_stored_later(autojump_clock: MockClock) -> None:
    """Others may have begun elsewhere by then, and gone on from there."""
    store = MemoryStore()
    own(store, 0, 1)
    progress = await opened(store)
    transact = store.transact

    async def fail(_ops: Sequence[Op]) -> Versions:
        raise MetadataUnavailable("the store is away")

    store.transact = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(MetadataUnavailable):
        await progress.begin({PART: {0: place(9)}})
    store.transact = transact  # type: ignore[method-assign]
    await progress.read([PART, OTHER])
    await progress.commit({OTHER: {0: place(3)}})
    assert (await progress.read([PART]))[PART] is None


async def test_a_row_that_changed_without_a_loss_does_not_stop_commits(
    autojump_clock: MockClock,
) -> None:
    """Another partition moved, so the row has another version."""
    store = MemoryStore()
    own(store, 0, 1)
    progress = await opened(store)
    own(store, 0, epoch=2)
    await progress.commit({PART: {0: place(5)}})
    assert await stored(store) == 5


@pytest.mark.parametrize("way", ["moved", "removed", "another run"])
async def test_a_member_that_lost_a_partition_cannot_commit_it(
    autojump_clock: MockClock, way: str
) -> None:
    """Invariant 11. What it still has is committed."""
    store = MemoryStore()
    own(store, 0, 1)
    progress = await opened(store)
    if way == "moved":
        own(store, 1, epoch=2)
    elif way == "removed":
        await store.delete(member_key("billing", "a"))
    else:
        own(store, 0, 1, run="another")
    with pytest.raises(CommitRefused, match="not this member's"):
        await progress.commit({PART: {0: place(5)}, OTHER: {0: place(6)}})
    assert await stored(store) == -1
    assert await stored(store, OTHER) == (6 if way == "moved" else -1)


class SlowStore(MemoryStore):
    """A store that takes a second for each change, and counts them."""

    made = 0

    async def transact(self, ops: Sequence[Op]) -> Versions:
        self.made += 1
        await trio.sleep(1)
        return await super().transact(ops)


async def test_a_commit_that_is_made_while_another_one_is_stored_is_stored_too(
    autojump_clock: MockClock,
) -> None:
    store = SlowStore()
    own(store, 0)
    progress = await opened(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.commit, {PART: {0: place(3)}})
        await trio.sleep(0.5)
        nursery.start_soon(progress.commit, {PART: {0: place(5)}})
    assert await stored(store) == 5


async def slow() -> tuple[SlowStore, Progress]:
    """Return the progress of a member of two partitions, which has committed in one of them."""
    store = SlowStore()
    own(store, 0, 1)
    progress = await opened(store)
    await progress.commit({PART: {0: place(5)}})
    return store, progress


async def refused(progress: Progress, entry: int, *, goes_back: bool = False) -> None:
    with pytest.raises(CommitRefused) as failure:
        await progress.commit({PART: {0: place(entry)}, OTHER: {0: place(9)}}, goes_back=goes_back)
    assert failure.value.parts == (PART,)


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("goes_back", [False, True])
async def test_a_commit_that_waits_while_its_partition_is_given_up_is_refused(
    autojump_clock: MockClock, comes_back: bool, goes_back: bool
) -> None:
    """It waits behind a slow one; the row may have the partition still, or have it again."""
    store, progress = await slow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.commit, {OTHER: {0: place(3)}})
        await trio.sleep(0.5)
        entry = 2 if goes_back else 7
        nursery.start_soon(partial(refused, progress, entry, goes_back=goes_back))
        await trio.sleep(0.2)
        progress.forget([PART])
        if comes_back:
            await progress.read_row()
            await progress.read([PART])
    assert await stored(store) == 5
    assert await stored(store, OTHER) == 9


async def test_a_commit_is_no_failure_if_its_partition_goes_once_it_is_stored(
    autojump_clock: MockClock,
) -> None:
    """Each names all partitions. What is under way counts, but not what waits behind it."""
    store, progress = await slow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.commit, {PART: {0: place(7)}, OTHER: {0: place(3)}})
        await trio.sleep(0.5)
        nursery.start_soon(progress.commit, {PART: {0: place(6)}, OTHER: {0: place(4)}})
        nursery.start_soon(refused, progress, 8)
        await trio.sleep(0.2)
        progress.forget([PART])
    assert await stored(store) == 7
    assert await stored(store, OTHER) == 9


class LateStore(SlowStore):
    """A store that takes another second to answer."""

    async def transact(self, ops: Sequence[Op]) -> Versions:
        versions = await super().transact(ops)
        await trio.sleep(1)
        return versions


async def test_a_commit_is_no_failure_if_an_earlier_one_whose_caller_left_had_stored_it(
    autojump_clock: MockClock,
) -> None:
    """Its own change then meets a conflict, and the partition is gone."""
    store = LateStore()
    own(store, 0)
    progress = await opened(store)
    with trio.move_on_after(1.5):
        await progress.commit({PART: {0: place(5)}})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.commit, {PART: {0: place(5)}})
        await trio.sleep(0.5)
        progress.forget([PART])
    assert await stored(store) == 5


@pytest.mark.parametrize("places", [{}, {0: EARLIEST}])
@pytest.mark.parametrize("goes_back", [False, True])
async def test_not_even_the_beginning_of_another_members_partition_is_committed(
    autojump_clock: MockClock, places: Places, goes_back: bool
) -> None:
    store = MemoryStore()
    own(store, 1, member="b")
    other = Progress(store, JointChanges(store), "billing", "b", "run", timeout_s=5)
    await other.read_row()
    await other.commit({OTHER: {0: place(1)}})
    own(store, 0)
    progress = await opened(store)
    with pytest.raises(CommitRefused) as refused:
        await progress.commit({PART: {0: place(3)}, OTHER: places}, goes_back=goes_back)
    assert refused.value.parts == (OTHER,)
    assert (await stored(store), await stored(store, OTHER)) == (3, 1)


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_partition_where_nothing_was_consumed_may_go_back_to_its_beginning(
    autojump_clock: MockClock, is_stored: bool
) -> None:
    """Whoever has it: that is where its group goes on in any case."""
    store = MemoryStore()
    own(store, 0)
    if is_stored:
        store.change(progress_key("billing", OTHER), encode_progress({1: EARLIEST}))
    progress = await opened(store)
    await progress.commit({PART: {0: place(3)}, OTHER: {0: EARLIEST}}, goes_back=True)
    assert await stored(store) == 3


async def test_a_partition_that_goes_without_a_message_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    """Nothing of it comes again."""
    store, progress = await slow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.commit, {PART: {0: place(7)}, OTHER: {}})
        await trio.sleep(0.5)
        progress.forget([OTHER])
    assert await stored(store) == 7


async def test_a_commit_that_goes_back_does_so_in_lanes_that_come_to_light_when_it_is_stored(
    autojump_clock: MockClock,
) -> None:
    """TD-61: the partition went elsewhere and came back, and this member saw neither."""
    store = MemoryStore()
    own(store, 0)
    progress = await opened(store)
    await progress.commit({PART: {0: place(3)}})
    row = encode_progress({0: place(9), 1: place(2)}, member="b", epoch=2)
    store.change(progress_key("billing", PART), row)
    own(store, 0, epoch=3)
    await progress.commit({PART: {0: place(1)}}, goes_back=True)
    assert progress.committed(PART) == {0: place(1), 1: EARLIEST}
    assert (await read_progress(store, "billing", PART, 5))[0] == {0: place(1), 1: EARLIEST}


@pytest.mark.parametrize("known", [{}, {1: place(5)}])
async def test_a_commit_of_the_beginning_counts_only_if_it_is_stored(
    autojump_clock: MockClock, known: Places
) -> None:
    """It waits while its partition goes to another member, which has consumed of it."""
    store, progress = await slow()
    if known:
        await progress.commit({OTHER: known})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.commit, {PART: {0: place(6)}})
        await trio.sleep(0.5)
        nursery.start_soon(refused_beginning, progress)
        await trio.sleep(0.2)
        progress.forget([OTHER])
        store.change(progress_key("billing", OTHER), encode_progress({1: place(7)}, member="b"))
        own(store, 0, epoch=2)
    assert (await read_progress(store, "billing", OTHER, 5))[0] == {1: place(7)}


async def refused_beginning(progress: Progress) -> None:
    with pytest.raises(CommitRefused) as failure:
        await progress.commit({OTHER: {0: EARLIEST}}, goes_back=True)
    assert failure.value.parts == (OTHER,)


async def test_commits_that_wait_together_travel_together(autojump_clock: MockClock) -> None:
    """And none is lost that comes while another one is stored."""
    store = MemoryStore()
    own(store, 0)
    progress = await opened(store)
    puts = 0

    def count(_key: str, _value: object) -> None:
        nonlocal puts
        puts += 1

    store.on_change = count
    async with trio.open_nursery() as nursery:
        for entry in range(1, 101):
            nursery.start_soon(progress.commit, {PART: {0: place(entry)}})
    assert await stored(store) == 100
    assert puts < 10


async def test_tasks_that_commit_all_the_time_share_each_change(autojump_clock: MockClock) -> None:
    """A commit waits for at most two changes: the one under way, and its own."""
    store = SlowStore()
    own(store, 0)
    progress = await opened(store)
    entries = iter(range(1, 641))

    async def work() -> None:
        for entry in entries:
            begun = trio.current_time()
            await progress.commit({PART: {0: place(entry)}})
            assert trio.current_time() - begun <= 2.1

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(work)
    assert await stored(store) == 640
    assert store.made <= 22


async def test_commits_of_two_members_of_a_process_travel_together(
    autojump_clock: MockClock,
) -> None:
    """One of them has lost its partition: its commit fails, and the other one's does not."""
    store = SlowStore()
    joint = JointChanges(store)
    rows = {"a": 0, "b": 1, "c": 2}
    members: dict[str, Progress] = {}
    for name, partition in rows.items():
        own(store, partition, member=name)
        members[name] = Progress(store, joint, "billing", name, "run", timeout_s=5)
        await members[name].read_row()
    own(store, 2, member="a", epoch=2)
    refused: list[str] = []

    async def commit(name: str) -> None:
        try:
            await members[name].commit({Part(1, rows[name]): {0: place(5)}})
        except CommitRefused:
            refused.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(joint.transact, [Put("first", b"")])
        await trio.sleep(0.5)
        for name in members:
            nursery.start_soon(commit, name)
    assert refused == ["a"]
    assert [await stored(store, Part(1, n)) for n in range(3)] == [-1, 5, 5]


class CountingStore(MemoryStore):
    """A store that counts what is read."""

    reads = 0

    async def get(self, key: str) -> Versioned | None:
        self.reads += 1
        return await super().get(key)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        self.reads += 1
        return await super().list(prefix, after=after, limit=limit)


@pytest.mark.parametrize("count", [3, 20])
async def test_the_progress_of_many_partitions_takes_few_reads(
    autojump_clock: MockClock, count: int
) -> None:
    """It has the versions that later commits expect, and nothing of other topics."""
    store = CountingStore()
    parts = [Part(1, partition) for partition in range(count)]
    own(store, *range(count))
    progress = await opened(store)
    await progress.commit({part: {0: place(part.partition + 1)} for part in parts[1:]})
    store.change(progress_key("billing", Part(11, 0)), b"{}")
    again = await opened(store)
    store.reads = 0
    found = await again.read(parts)
    assert store.reads <= 3
    assert found.pop(Part(1, 0)) is None
    assert found == {part: {0: place(part.partition + 1)} for part in parts[1:]}
    await again.commit({part: {0: place(50)} for part in parts})
    assert [await stored(store, part) for part in parts] == [50] * count

"""The coordinator: requests in, rows in the store, one leader at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest
import trio
from coordinator_rig import SESSION_S, Rig, candidate, led
from leases import grant
from memory_store import MemoryStore
from trio.testing import MockClock

from metadata.errors import BadGroup, LeaseLost, MetadataUnavailable, NotLeader
from metadata.groups.assignment import Part
from metadata.groups.calls import (
    DeleteGroup,
    DescribeGroups,
    FoundGroup,
    GroupPage,
    JoinGroup,
    KeepGroup,
    LeaveGroup,
    ReportIn,
    ReportNoted,
)
from metadata.groups.coordinator import GROUPS_OF_TOPIC_MAX, REBALANCE_S, Coordinator
from metadata.groups.rows import (
    MemberRecord,
    Mode,
    ProgressRecord,
    Wanted,
    decode_group,
    group_key,
    member_key,
    parts_of,
    progress_key,
)
from metadata.leadership import Term
from metadata.records import COORDINATOR
from metadata.store import Check, Op, Put, Versions


async def test_a_member_is_stored_when_its_join_returns_and_has_everything_soon(
    autojump_clock: MockClock,
) -> None:
    """TD-26, TD-32."""
    async with led() as rig:
        await rig.join("a")
        assert await rig.parts("a") == set()
        assert (await rig.state()).state == "rebalancing"
        await rig.live(1, "a")
        assert await rig.parts("a") == {0, 1, 2, 3}
        assert (await rig.state()).state == "ready"


async def test_a_group_is_whole_within_three_seconds_of_a_join_or_a_leave(
    autojump_clock: MockClock,
) -> None:
    """TD-15, TD-37."""
    async with led() as rig:
        await rig.join("a")
        await rig.live(3, "a")
        await rig.join("b")
        await rig.live(3, "a", "b")
        assert (len(await rig.parts("a")), len(await rig.parts("b"))) == (2, 2)
        await rig.coordinator.answer(LeaveGroup("billing", "a", "run"))
        await rig.live(3, "b")
        assert await rig.parts("b") == {0, 1, 2, 3}
        assert (await rig.state()).rebalances >= 3


async def test_a_member_that_falls_silent_is_removed_and_its_commit_fails(
    autojump_clock: MockClock,
) -> None:
    """TD-40: within its session and one timer; invariant 11."""
    async with led() as rig:
        await rig.join("a")
        await rig.live(3, "a")
        key = member_key("billing", "a")
        found = await rig.store.get(key)
        assert found is not None
        await rig.join("b")
        await rig.live(round(SESSION_S + REBALANCE_S + 1), "b")
        assert await rig.members() == {"b"}
        assert await rig.parts("b") == {0, 1, 2, 3}
        assert not await rig.beat("a")
        with pytest.raises(Exception, match="no such key"):
            await rig.store.transact([Check(key, found.version)])


async def test_a_silent_leader_s_answers_do_not_count(autojump_clock: MockClock) -> None:
    """A former leader that does not know it yet answers no report."""
    store = MemoryStore()
    coordinator = Coordinator(store)
    lease = await grant(store, COORDINATOR, "b1", ttl_s=3)
    term = Term(lease, until=trio.current_time() + 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.lead, term)
        await trio.sleep(1)
        assert await coordinator.answer(ReportIn([])) == ReportNoted([])
        await trio.sleep(1)
        with pytest.raises(NotLeader):
            await coordinator.answer(ReportIn([]))
        nursery.cancel_scope.cancel()


async def test_a_join_that_is_stored_after_the_term_is_answered_by_another_leader(
    autojump_clock: MockClock,
) -> None:
    """Nothing goes on in an office that was closed."""
    store = MemoryStore()
    rig = Rig(store, Coordinator(store))
    await rig.topic("shop/orders", 1, 4)
    term = Term(await grant(store, COORDINATOR, "b1", ttl_s=300))
    transact = store.transact

    async def slowly(ops: Sequence[Op]) -> Versions:
        done = await transact(ops)
        await trio.sleep(5)
        return done

    async def join() -> None:
        with pytest.raises(NotLeader):
            await rig.join("a")

    async with trio.open_nursery() as members, trio.open_nursery() as nursery:
        nursery.start_soon(rig.coordinator.lead, term)
        await trio.sleep(1)
        store.transact = slowly  # type: ignore[method-assign]
        members.start_soon(join)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert await rig.members() == {"a"}


async def test_a_former_leader_changes_no_row(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    rig = Rig(store, Coordinator(store))
    await rig.topic("shop/orders", 1, 4)
    lease = await grant(store, COORDINATOR, "b1", ttl_s=3)
    with pytest.raises(BaseExceptionGroup) as raised:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.coordinator.lead, Term(lease))
            await trio.sleep(0.5)
            await rig.join("a")
            await grant(store, COORDINATOR, "b1", ttl_s=60)
            before = await store.list("group")
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
    assert raised.group_contains(LeaseLost)
    assert await store.list("group") == before


async def test_a_bookie_that_does_not_lead_names_the_leader(autojump_clock: MockClock) -> None:
    async with led() as rig:
        other = Coordinator(rig.store)
        with pytest.raises(NotLeader) as raised:
            await other.answer(DescribeGroups())
        assert (raised.value.bookie_id, raised.value.address) == ("b1", "b1:3181")


async def test_a_new_leader_goes_on_from_what_is_stored(autojump_clock: MockClock) -> None:
    """TD-25: members come back within their session, and no partition moves."""
    async with led() as rig:
        await rig.join("a")
        await rig.join("b")
        await rig.live(6, "a", "b")
        before = {member: await rig.row(member) for member in ("a", "b")}
    second = Coordinator(rig.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate(rig.store, "b2").run, second.lead)
        await trio.sleep(9)
        rig.coordinator = second
        assert await rig.beat("a")
        assert await rig.beat("b")
        await rig.live(10, "a", "b")
        assert {member: await rig.row(member) for member in ("a", "b")} == before
        nursery.cancel_scope.cancel()


async def test_an_outage_of_the_store_changes_nothing_and_ends_by_itself(
    autojump_clock: MockClock,
) -> None:
    async with led() as rig:
        await rig.join("a")
        await rig.live(3, "a")
        before = await rig.row("a")
        await rig.coordinator.answer(LeaveGroup("billing", "a", "other run"))
        rig.store.available = False
        await trio.sleep(2)
        rig.store.available = True
        await trio.sleep(4)
        assert await rig.row("a") == before
        assert await rig.beat("a")


async def test_a_rebalance_that_meets_an_outage_is_made_after_it(
    autojump_clock: MockClock,
) -> None:
    """Nothing else happens that would bring another one about."""
    async with led() as rig:
        await rig.join("a")
        await rig.live(2, "a")
        await rig.join("b")
        await trio.sleep(REBALANCE_S / 4)
        rig.store.available = False
        await trio.sleep(REBALANCE_S / 2)
        rig.store.available = True
        assert await rig.parts("b") == set(), "the rebalance was in the outage"
        await rig.live(6, "a", "b")
        assert [len(await rig.parts(member)) for member in ("a", "b")] == [2, 2]
        assert (await rig.state()).state == "ready"


async def test_topics_that_are_created_later_are_assigned(autojump_clock: MockClock) -> None:
    async with led() as rig:
        await rig.join("a", "run", "shop/orders", "shop/refunds")
        await rig.live(3, "a")
        await rig.topic("shop/refunds", 2, 2)
        await rig.live(4, "a")
        parts = parts_of((await rig.row("a")).parts)
        assert parts == {*(Part(1, n) for n in range(4)), Part(2, 0), Part(2, 1)}


async def test_a_group_keeps_its_mode(autojump_clock: MockClock) -> None:
    async with led() as rig:
        await rig.join("a")
        before = await rig.store.list("group")
        with pytest.raises(BadGroup, match="mode exclusive, not shared"):
            await rig.join("b", mode="shared")
        assert await rig.store.list("group") == before
        await rig.coordinator.answer(LeaveGroup("billing", "a", "run"))
        with pytest.raises(BadGroup, match="mode exclusive, not shared"):
            await rig.join("b", mode="shared")  # what is not acknowledged would be lost
        await rig.coordinator.answer(DeleteGroup("billing"))
        await rig.join("b", mode="shared")
        assert (await rig.state()).mode == "shared"


@pytest.mark.parametrize("store_s", [0.0, 0.5])
async def test_a_new_group_has_one_mode_whoever_asks_at_the_same_time(
    autojump_clock: MockClock, store_s: float
) -> None:
    """Two members with different modes would take the same partitions, and messages be lost."""
    async with led() as rig:
        transact = rig.store.transact

        async def late(ops: Sequence[Op]) -> Versions:
            await trio.sleep(store_s)
            return await transact(ops)

        rig.store.transact = late  # type: ignore[method-assign]
        joined: list[Mode] = []

        async def join(member: str, mode: Mode) -> None:
            with suppress(BadGroup):
                await rig.join(member, mode=mode)
                joined.append(mode)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join, "a", "exclusive")
            nursery.start_soon(join, "b", "key-shared")
        assert len(joined) == 1
        assert (await rig.state()).mode == joined[0]
        found = await rig.store.get(group_key("billing"))
        assert found is not None
        assert decode_group(group_key("billing"), found.value).mode == joined[0]


async def test_a_group_that_is_being_founded_has_its_mode(autojump_clock: MockClock) -> None:
    async with led() as rig:
        transact = rig.store.transact

        async def late(ops: Sequence[Op]) -> Versions:
            await trio.sleep(1)
            return await transact(ops)

        rig.store.transact = late  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.coordinator.answer, FoundGroup("billing"))
            await trio.sleep(0.5)
            with pytest.raises(BadGroup, match="mode exclusive, not shared"):
                await rig.join("b", mode="shared")
        assert (await rig.state()).mode == "exclusive"


async def test_who_could_begin_nothing_takes_the_group_along_that_it_founded(
    autojump_clock: MockClock,
) -> None:
    async with led() as rig:
        await rig.join("a")
        await rig.live(3, "a")
        await rig.coordinator.answer(LeaveGroup("billing", "a", "other run", in_vain=True))
        assert await rig.members() == {"a"}
        for _ in range(2):  # as the answer may be lost
            await rig.coordinator.answer(LeaveGroup("billing", "a", "run", in_vain=True))
            assert await rig.rows() == []
        await trio.sleep(20)
        assert await rig.rows() == []
        await rig.join("b", mode="shared")
        await rig.live(3, "b")
        assert await rig.parts("b") == {0, 1, 2, 3}


@pytest.mark.parametrize("other", ["member", "former member", "founder", "keeper", "progress"])
async def test_a_group_that_somebody_else_wanted_stays(
    autojump_clock: MockClock, other: str
) -> None:
    async with led() as rig:
        if other == "founder":
            await rig.coordinator.answer(FoundGroup("billing"))
        await rig.join("a")
        if "member" in other:
            await rig.join("b")
        if other == "former member":
            await rig.coordinator.answer(LeaveGroup("billing", "b", "run"))
        if other == "keeper":
            await rig.coordinator.answer(KeepGroup("billing", keep=True))
        if other == "progress":
            await rig.store.put(progress_key("billing", Part(1, 0)), b"{}")
        await rig.coordinator.answer(LeaveGroup("billing", "a", "run", in_vain=True))
        assert await rig.store.get(group_key("billing")) is not None
        assert await rig.members() == ({"b"} if other == "member" else set())


async def test_a_group_that_was_there_before_this_leader_stays(autojump_clock: MockClock) -> None:
    """Nobody knows any more who founded it."""
    async with led() as rig:
        await rig.join("a")
    second = Coordinator(rig.store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate(rig.store, "b2").run, second.lead)
        await trio.sleep(9)
        await second.answer(LeaveGroup("billing", "a", "run", in_vain=True))
        assert await rig.members() == set()
        assert await rig.store.get(group_key("billing")) is not None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("moment", range(12))
async def test_who_joins_while_a_group_goes_has_a_group(
    autojump_clock: MockClock, moment: int
) -> None:
    """However far the one that takes it along has come."""
    async with led() as rig:
        await rig.join("a")
        await rig.live(3, "a")
        for name in ("list", "transact", "now_ms"):
            slow(rig.store, name)
        async with trio.open_nursery() as nursery:
            leaving = LeaveGroup("billing", "a", "run", in_vain=True)
            nursery.start_soon(rig.coordinator.answer, leaving)
            await trio.sleep(moment / 2)
            await rig.join("b")
        await rig.live(12, "b")
        assert await rig.members() == {"b"}
        assert await rig.store.get(group_key("billing")) is not None
        assert await rig.parts("b") == {0, 1, 2, 3}
        assert [member.member for member in (await rig.state()).members] == ["b"]


async def test_a_group_goes_once_though_the_store_does_not_answer(
    autojump_clock: MockClock,
) -> None:
    """The transaction may have been made."""
    async with led() as rig:
        await rig.join("a")
        transact = rig.store.transact

        async def made_in_silence(ops: Sequence[Op]) -> Versions:
            await transact(ops)
            raise MetadataUnavailable("no answer")

        rig.store.transact = made_in_silence  # type: ignore[method-assign]
        await rig.coordinator.answer(LeaveGroup("billing", "a", "run", in_vain=True))
        rig.store.transact = transact  # type: ignore[method-assign]
        await trio.sleep(20)
        assert await rig.rows() == []


async def test_progress_that_its_only_member_stores_as_it_goes_goes_with_the_group(
    autojump_clock: MockClock,
) -> None:
    """Else the next group of this name would begin there, and pass over what is before."""
    async with led() as rig:
        await rig.join("a")
        transact = rig.store.transact

        async def store_progress_before(ops: Sequence[Op]) -> Versions:
            rig.store.transact = transact  # type: ignore[method-assign]
            await rig.store.put(progress_key("billing", Part(1, 0)), b"{}")
            return await transact(ops)

        rig.store.transact = store_progress_before  # type: ignore[method-assign]
        await rig.coordinator.answer(LeaveGroup("billing", "a", "run", in_vain=True))
        assert await rig.rows() == []


@pytest.mark.parametrize("founded", [True, False])
async def test_a_member_with_a_name_leaves_in_vain_only_with_the_group_that_it_founded(
    autojump_clock: MockClock, founded: bool
) -> None:
    """Started again within its session, it has its partitions at once."""
    async with led() as rig:
        if not founded:
            await rig.coordinator.answer(FoundGroup("billing"))
        await rig.join("a")
        await rig.live(3, "a")
        leaving = LeaveGroup("billing", "a", "run", in_vain=True, stays=True)
        await rig.coordinator.answer(leaving)
        if not founded:
            await rig.live(3, "a")
        assert await rig.members() == (set() if founded else {"a"})


async def test_a_group_that_two_delete_at_once_is_gone_for_the_second(
    autojump_clock: MockClock,
) -> None:
    async with led() as rig:
        await rig.coordinator.answer(FoundGroup("billing"))
        slow(rig.store, "transact")
        refused: list[BadGroup] = []

        async def delete() -> None:
            try:
                await rig.coordinator.answer(DeleteGroup("billing"))
            except BadGroup as refusal:
                refused.append(refusal)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            nursery.start_soon(delete)
        assert len(refused) == 1
        assert "no group billing" in str(refused[0])


async def test_who_joins_a_group_that_is_just_deleted_may_ask_again(
    autojump_clock: MockClock,
) -> None:
    async with led() as rig:
        await rig.coordinator.answer(FoundGroup("billing"))
        slow(rig.store, "transact")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.coordinator.answer, DeleteGroup("billing"))
            await trio.sleep(0.1)
            with pytest.raises(MetadataUnavailable, match="ask again"):
                await rig.join("a")
        await rig.join("a")
        assert await rig.members() == {"a"}


def slow(store: MemoryStore, name: str) -> None:
    """Have a call of the store take a second, half of it before it counts."""
    call = getattr(store, name)

    async def slowly(*args: object, **settings: object) -> object:
        await trio.sleep(0.5)
        result = await call(*args, **settings)
        await trio.sleep(0.5)
        return result

    setattr(store, name, slowly)


async def test_two_processes_cannot_have_one_name_unless_it_is_meant(
    autojump_clock: MockClock,
) -> None:
    async with led() as rig:
        await rig.join("a", "run1")
        with pytest.raises(BadGroup, match="has a member a already"):
            await rig.join("a", "run2")
        assert await rig.beat("a", "run1")


async def test_a_group_with_members_is_deleted_by_force_only(autojump_clock: MockClock) -> None:
    """TD-70: afterwards its members are none, and nothing of it is left."""
    async with led() as rig:
        await rig.join("a")
        await rig.live(3, "a")
        progress = msgspec.json.encode(ProgressRecord(lanes=[]))
        await rig.store.transact([Put(progress_key("billing", Part(1, 0)), progress)])
        with pytest.raises(BadGroup, match="has 1 member; stop it, or force"):
            await rig.coordinator.answer(DeleteGroup("billing"))
        await rig.coordinator.answer(DeleteGroup("billing", force=True))
        assert not await rig.store.list("group")
        assert not await rig.store.list("progress")
        assert not await rig.beat("a")
        with pytest.raises(BadGroup, match="no group"):
            await rig.coordinator.answer(DeleteGroup("billing"))


async def test_a_group_is_founded_without_members_and_founding_it_again_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with led() as rig:
        await rig.coordinator.answer(FoundGroup("billing"))
        founded = dict(rig.store.values)
        assert group_key("billing") in founded
        await rig.coordinator.answer(FoundGroup("billing"))
        assert rig.store.values == founded
        state = await rig.state()
        assert (state.state, state.members, state.mode) == ("empty", [], "exclusive")
        await rig.join("a")
        await rig.live(3, "a")
        assert await rig.parts("a") == {0, 1, 2, 3}
        before = dict(rig.store.values)
        await rig.coordinator.answer(FoundGroup("billing"))
        assert rig.store.values == before


async def test_a_topic_has_a_hundred_groups_at_most(autojump_clock: MockClock) -> None:
    """TD-57: also if a group that exists names the topic later."""
    async with led() as rig:
        wanted = Wanted(topics=["shop/orders"])
        record = MemberRecord(epoch=0, run="run", wanted=wanted)
        for number in range(GROUPS_OF_TOPIC_MAX):
            await rig.coordinator.answer(JoinGroup(f"g{number}", "m", record))
        elsewhere = Wanted(topics=["shop/refunds"])
        other = msgspec.structs.replace(record, wanted=elsewhere)
        await rig.coordinator.answer(JoinGroup("billing", "m", other))
        before = dict(rig.store.values)
        for group in ("billing", "new"):
            with pytest.raises(BadGroup, match="shop/orders has 100 groups, as many"):
                await rig.coordinator.answer(JoinGroup(group, "m", record))
        assert rig.store.values == before
        page = await rig.coordinator.answer(DescribeGroups(group="new"))
        assert page == GroupPage([])
        await rig.coordinator.answer(JoinGroup("g7", "another", record))


@pytest.mark.parametrize("name", ["", "a:b", "a/b", "x" * 193])
async def test_a_name_that_is_not_valid_is_refused(autojump_clock: MockClock, name: str) -> None:
    """TD-48: at most 192 characters, without ':'."""
    async with led() as rig:
        record = MemberRecord(epoch=0, run="run", wanted=Wanted(topics=["shop/orders"]))
        with pytest.raises(BadGroup, match="is not a name"):
            await rig.coordinator.answer(JoinGroup(name, "a", record))
        with pytest.raises(BadGroup, match="is not a name"):
            await rig.coordinator.answer(JoinGroup("billing", name, record))


async def test_groups_are_described_in_order_page_by_page(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.groups.coordinator.GROUPS_PAGE", 2)
    async with led() as rig:
        record = MemberRecord(epoch=0, run="run", wanted=Wanted(topics=["shop/orders"]))
        for name in ("c", "a", "b"):
            await rig.coordinator.answer(JoinGroup(name, "m", record))
        first = await rig.coordinator.answer(DescribeGroups())
        assert isinstance(first, GroupPage)
        assert [group.group for group in first.groups] == ["a", "b"]
        rest = await rig.coordinator.answer(DescribeGroups(after="b"))
        assert isinstance(rest, GroupPage)
        assert [group.group for group in rest.groups] == ["c"]

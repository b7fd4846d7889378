"""Rows of cuts: their forms, their limits, and changes that meet. D-02."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from memory_store import MemoryStore

from metadata.cuts import (
    CUT_KEEPS,
    CUTS,
    KEEPS_SIZE_MAX,
    TOPICS_MAX,
    CutKeeps,
    CutLane,
    CutRecord,
    CutTopic,
    Stake,
    cut_keeps_key,
    cut_key,
    decode_cut,
    decode_cut_keeps,
    delete_cut,
    put_stake,
    read_cut,
    read_cuts,
    read_kept,
    remove_stake,
    remove_stale_stakes,
    show_cut,
)
from metadata.errors import BadRecord, MetadataBroken, VersionConflict
from metadata.paged import PAGES
from metadata.store import ABSENT, Check, CheckLease, Op, Versions

STAKE = Stake("s1", 1000)
NOON = cut_key("noon")


def cut(name: str = "noon", uids: tuple[int, ...] = (7,), lanes: int = 1) -> CutRecord:
    places = [CutLane(0, lane, 2, 5, 1, 99, 17) for lane in range(lanes)]
    topics = [CutTopic(name=f"shop/t{uid}", uid=uid, timed=True, lanes=places) for uid in uids]
    return CutRecord(name=name, timestamp=1 << 60, created_ms=5, topics=topics)


def left(store: MemoryStore) -> list[str]:
    return sorted(store.values)


async def shown(store: MemoryStore, record: CutRecord, stake: Stake = STAKE) -> None:
    uids = [topic.uid for topic in record.topics]
    await put_stake(store, stake, uids, [])
    assert await show_cut(store, record, stake.id)


async def test_rows_are_stored_in_this_form() -> None:
    store = MemoryStore()
    await put_stake(store, STAKE, [7], [])
    assert left(store) == ["cut-keeps/00000000000000000007"]
    value = store.values["cut-keeps/00000000000000000007"].value
    assert value == b'{"cuts":[],"stakes":[{"id":"s1","until_ms":1000}]}'
    assert await show_cut(store, cut(), "s1")
    assert store.values["cuts/noon"].value == (
        b'{"name":"noon","timestamp":1152921504606846976,"created_ms":5,"topics":[{"name":"shop/t7",'
        b'"uid":7,"timed":true,"lanes":[[0,0,2,5,1,99,17]]}]}'
    )
    value = store.values["cut-keeps/00000000000000000007"].value
    assert value == b'{"cuts":["noon"],"stakes":[]}'
    assert await read_cuts(store) == [cut()]


@pytest.mark.parametrize(
    "wrong",
    [
        *(b"", b"[]", b"{", b'{"name":"noon"}'),
        msgspec.json.encode(cut()).replace(b'"noon"', b'"a/b"'),
        msgspec.json.encode(cut()).replace(b"[[0,0,", b"[[-2,0,"),
        msgspec.json.encode(cut()).replace(b'"timestamp":', b'"timestamp":-'),
        msgspec.json.encode(msgspec.structs.replace(cut(), topics=[])),
        msgspec.json.encode(cut(uids=tuple(range(TOPICS_MAX + 1)))),
    ],
    ids=itertools.count(),
)
def test_a_damaged_cut_is_refused(wrong: bytes) -> None:
    with pytest.raises(BadRecord, match="cuts/noon"):
        decode_cut("cuts/noon", wrong)
    assert decode_cut("cuts/noon", msgspec.json.encode(cut())) == cut()


def test_damaged_keeps_are_refused() -> None:
    key = cut_keeps_key(7)
    for wrong in (b"", b"[]", b'{"cuts":[1]}', b'{"cuts":["a b"]}', b'{"stakes":[{"id":"s1"}]}'):
        with pytest.raises(BadRecord, match=key):
            decode_cut_keeps(key, wrong)
    assert decode_cut_keeps(key, b"{}") == CutKeeps()


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a/b", "a b", "ä", "x" * 65])
def test_a_name_that_no_cut_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        cut_key(name)


async def test_a_cut_of_many_lanes_has_pages_and_leaves_none() -> None:
    store = MemoryStore()
    large = cut(lanes=20_000)
    await shown(store, large)
    assert any(key.startswith(PAGES) for key in left(store))
    found = await read_cut(store, "noon")
    assert found is not None
    assert found.record == large
    assert await read_cuts(store) == [large]
    assert (await read_kept(store, 7)).cuts == [large]
    assert await delete_cut(store, "noon")
    assert left(store) == []
    assert not await delete_cut(store, "noon")


class PausingStore(MemoryStore):
    """A store of two processes: once the first has changed the cut, the other one goes on."""

    def __init__(self, meanwhile: Callable[[MemoryStore], Awaitable[None]]) -> None:
        super().__init__()
        self.is_first = False
        self._meanwhile = meanwhile

    async def transact(self, ops: Sequence[Op]) -> Versions:
        versions = await super().transact(ops)
        if self.is_first and any(not isinstance(op, CheckLease) and op.key == NOON for op in ops):
            self.is_first = False
            await self._meanwhile(self)
        return versions


async def test_what_goes_on_late_takes_no_pages_of_a_later_cut_of_the_name() -> None:
    """D-02: a process may be paused between any two steps."""
    again = cut(lanes=20_001)

    async def replace(store: MemoryStore) -> None:
        await delete_cut(store, "noon")
        await shown(store, again, Stake("s2", 1000))

    store = PausingStore(replace)
    store.is_first = True
    await shown(store, cut(lanes=20_000))
    assert await read_cuts(store) == [again]
    store.is_first = True
    assert await delete_cut(store, "noon")
    assert await read_cuts(store) == [again]


async def test_a_cut_of_as_many_topics_as_possible_fits_a_transaction() -> None:
    store = MemoryStore()
    uids = tuple(range(1, TOPICS_MAX + 1))
    for number in range(60):
        await shown(store, cut("x" * 60 + str(number), uids))
    await shown(store, cut("large", uids, lanes=150))
    assert sum(len(store.values[cut_keeps_key(uid)].value) for uid in uids) > 190_000
    assert await delete_cut(store, "large")
    with pytest.raises(MetadataBroken, match="60 cuts keep this topic"):
        for number in range(9):
            await put_stake(store, Stake("y" * 64, number), uids, [])


async def test_a_row_of_keeps_is_bounded() -> None:
    store = MemoryStore()
    with pytest.raises(MetadataBroken, match="no other fits"):
        for number in range(200):
            await shown(store, cut(f"a-cut-with-a-long-name-{number}"))
    kept = await read_kept(store, 7)
    assert len(kept.cuts) > 100
    assert len(store.values[cut_keeps_key(7)].value) <= KEEPS_SIZE_MAX


async def test_a_stake_that_was_removed_shows_no_cut() -> None:
    """D-02: it holds until it is removed, whatever the time is."""
    store = MemoryStore()
    await put_stake(store, STAKE, [7, 8], [])
    assert await remove_stale_stakes(store, 999) == 0
    assert (await read_kept(store, 8)).is_staked
    assert await remove_stale_stakes(store, 1000) == 2
    assert not await show_cut(store, cut(uids=(7, 8)), "s1")
    assert left(store) == []
    await put_stake(store, STAKE, [7, 8], [])
    await remove_stake(store, "s1", [7, 8])
    await remove_stake(store, "s1", [7, 8])
    assert left(store) == []


async def test_cuts_of_one_topic_do_not_disturb_each_other() -> None:
    store = MemoryStore()
    await put_stake(store, STAKE, [7, 8], [])
    await put_stake(store, Stake("s2", 5), [8, 9], [])
    assert await remove_stale_stakes(store, 5) == 2
    await put_stake(store, Stake("s3", 5), [8, 9], [])
    assert await show_cut(store, cut("a", (7, 8)), "s1")
    assert await show_cut(store, cut("b", (8, 9)), "s3")
    assert [each.name for each in (await read_kept(store, 8)).cuts] == ["a", "b"]
    assert await delete_cut(store, "a")
    assert left(store) == [cut_keeps_key(8), cut_keeps_key(9), "cuts/b"]


async def test_of_two_cuts_of_one_name_one_is_made() -> None:
    store = MemoryStore()
    for stake in (STAKE, Stake("s2", 1000)):
        await put_stake(store, stake, [7], [])
    assert await show_cut(store, cut(), "s1")
    with pytest.raises(VersionConflict, match="cuts/noon"):
        await show_cut(store, cut(lanes=2), "s2")
    assert await read_cuts(store) == [cut()]
    assert (await read_kept(store, 7)).is_staked


async def test_a_topic_that_changes_gets_no_stake() -> None:
    store = MemoryStore()
    with pytest.raises(VersionConflict):
        await put_stake(store, STAKE, [7], [Check("topics/shop/t7", 3)])
    assert left(store) == []


async def test_whoever_read_what_is_kept_notices_every_change() -> None:
    store = MemoryStore()
    checks = [(await read_kept(store, 7)).check]
    assert checks[0] == Check(cut_keeps_key(7), ABSENT)
    await put_stake(store, STAKE, [7], [])
    checks.append((await read_kept(store, 7)).check)
    await show_cut(store, cut(), "s1")
    for check in checks:
        with pytest.raises(VersionConflict):
            await store.transact([check])
    assert all(key.startswith((CUTS, CUT_KEEPS)) for key in left(store))

"""The leader's retention beside cuts. D-02."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from leases import grant
from metadata_costs import CountingStore, small_cluster, store_of
from topic_rig import HOUR_MS, begun, lay_lane, ledger_ids, row

from ledger_client import Client
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from metadata.cuts import (
    CutLane,
    CutRecord,
    CutTopic,
    Stake,
    delete_cut,
    put_stake,
    read_kept,
    show_cut,
)
from metadata.leadership import Term
from metadata.store import Delete, Op, Versions
from metadata.topics import Retention, TopicRecord

ORDERS = "shop/orders"
LANE = 0


class Rig:
    """A leader's housekeeping, and a topic of which three ledgers are too old."""

    def __init__(self, client: Client, store: CountingStore, term: Term) -> None:
        self.client = client
        self.store = store
        self.hour = 100.0
        self.uid = 0
        self._term = term
        self._keeper = Housekeeper(client._context, HousekeepingOptions(interval_s=10))
        store.wall_ms = lambda: round(self.hour * HOUR_MS)

    async def lay(self, retention: Retention) -> None:
        wanted = TopicRecord(name=ORDERS, uid=0, retention=retention)
        topic = await self.client._context.catalogue.create(wanted)
        self.uid = topic.uid
        rows = [*(row(number) for number in range(3)), begun(3)]
        await lay_lane(self.store, topic, rows, lane=LANE, written=True)

    async def stake(self, hours: float = 1) -> Stake:
        stake = Stake("mine", round((self.hour + hours) * HOUR_MS))
        await put_stake(self.store, stake, [self.uid], [])
        return stake

    async def cut(self, number: int, entry: int) -> None:
        """Make a cut before an entry of the lane."""
        stake = await self.stake()
        at = CutLane(-1, LANE, number, entry, 0, 100 + number, 2 * number + entry)
        topic = CutTopic(name=ORDERS, uid=self.uid, timed=True, lanes=[at])
        cut = CutRecord(name="noon", timestamp=1, created_ms=1, topics=[topic])
        assert await show_cut(self.store, cut, stake.id)

    async def round(self, *, hours: float = 0) -> list[int]:
        """Let the leader look once, some hours later; return the ledgers that are left."""
        self.hour += hours
        await self._keeper.look_after_all(self._term)
        return ledger_ids(self.store)

    async def reasons(self) -> list[str]:
        lanes = (await self.client.topics.explain(ORDERS)).lanes
        return [fate.reason for lane in lanes for fate in lane.ledgers]


OLD = Retention(age_s=3600)
LARGE = Retention(age_s=-1, size=500)


@pytest.fixture(params=[OLD, LARGE], ids=["age", "size"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with small_cluster(1) as cluster, cluster.client() as client:
        term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=86_400))
        made = Rig(client, store_of(cluster), term)
        await made.lay(request.param)
        yield made


async def test_retention_leaves_what_a_cut_needs_and_goes_on_once_it_is_deleted(rig: Rig) -> None:
    await rig.cut(1, 1)
    assert await rig.round() == [100, 101, 102, 103]
    assert await rig.reasons() == ["pinned", "pinned", "behind", "open"]
    assert await rig.round(hours=1) == [100, 101, 102, 103]
    await delete_cut(rig.store, "noon")
    assert await rig.round() == [103]


@pytest.mark.parametrize(("entry", "needed"), [(0, False), (1, True)])
async def test_a_ledger_at_whose_beginning_a_cut_lies_is_not_needed(
    rig: Rig, entry: int, needed: bool
) -> None:
    await rig.cut(0, entry)
    assert (100 in await rig.round()) is needed


async def test_retention_waits_while_a_cut_is_made_but_not_for_ever(rig: Rig) -> None:
    await rig.stake(hours=1)
    assert len(await rig.round()) == 4
    assert await rig.reasons() == ["pinned", "pinned", "pinned", "open"]
    assert len(await rig.round(hours=0.9)) == 4
    await rig.round(hours=0.2)  # gives it up
    assert not (await read_kept(rig.store, rig.uid)).is_staked
    assert await rig.round() == [103]


@pytest.mark.parametrize("is_purge", [False, True], ids=["retention", "purge"])
async def test_no_removal_misses_a_cut_that_came_just_before(
    rig: Rig, is_purge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = rig.store.transact
    made: list[str] = []

    async def late(ops: Sequence[Op]) -> Versions:
        if not made and any(isinstance(op, Delete) for op in ops):
            made.append("noon")
            await rig.cut(2, 2)
        return await transact(ops)

    monkeypatch.setattr(rig.store, "transact", late)
    if is_purge:
        await rig.client.topics.purge(ORDERS)
    else:
        await rig.round()
    assert made
    assert len(ledger_ids(rig.store)) == 4

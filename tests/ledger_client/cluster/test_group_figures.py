"""Metrics of groups: members, rebalances, and lag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from group_rig import ORDERS, send, shop
from memory_cluster import MemoryCluster
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from ledger_client import Client, Message
from ledger_client.cluster import group_figures
from ledger_client.cluster.group_figures import LOOK_S, GroupObserver
from ledger_client.cluster.metrics import LeaderMetrics
from ledger_client.cluster.observer import GROUPS_MAX, Observer
from ledger_client.errors import EntryLost
from ledger_client.groups import backlog as module_of_backlog
from ledger_client.groups.backlog import Backlog, Held, backlog
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.topics.lanes.ledger_rows import LedgerRows
from ledger_client.topics.positions import Place
from ledger_client.topics.reading.lane_ranges import KnownLane


class Watch:
    """A leader's metrics, and how to read them."""

    def __init__(self, cluster: MemoryCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.observer = Observer(cluster.store, lost_after_s=5)
        self.registry = CollectorRegistry()
        self.registry.register(LeaderMetrics(self.observer))
        coordinator = cluster.bookies["b1"].coordinator
        assert coordinator is not None
        self.groups = GroupObserver(client._context, self.observer.groups, coordinator.counts)

    def value(self, name: str, group: str = "billing", **labels: str) -> float | None:
        return self.registry.get_sample_value(f"quire_group_{name}", {"group": group, **labels})


@asynccontextmanager
async def watched() -> AsyncIterator[Watch]:
    async with shop(2) as (cluster, client), trio.open_nursery() as nursery:
        await trio.sleep(1)
        watch = Watch(cluster, client)
        await watch.observer.cluster.look()
        nursery.start_soon(watch.groups.lead)
        yield watch
        nursery.cancel_scope.cancel()


async def test_the_leader_publishes_members_rebalances_and_lag(autojump_clock: MockClock) -> None:
    async with watched() as watch:
        await send(watch.client, 0, 30)
        options = {"group": "billing", "start": "earliest", "auto_commit_s": None}
        async with watch.client.consumer(ORDERS, **options) as consumer:  # type: ignore[arg-type]
            await consumer.poll(wait_s=5)
            await trio.sleep(2 * LOOK_S)
            assert watch.value("members") == 1
            assert watch.value("partitions") == 2
            assert watch.value("rebalances_total") == 1
            assert 0 < (watch.value("rebalance_seconds_total") or 0) < 3
            assert watch.value("rebalancing_seconds") == 0
            assert watch.value("lag_messages", topic=ORDERS) == 30
            while await consumer.poll(wait_s=3):
                pass
            await consumer.commit()
            await trio.sleep(2 * LOOK_S)
            assert watch.value("lag_messages", topic=ORDERS) == 0
            assert watch.value("lag_seconds", topic=ORDERS) == 0
        await trio.sleep(2 * LOOK_S)
        assert watch.value("members") == 0
        await watch.client.groups.delete("billing")
        await trio.sleep(2 * LOOK_S)
        assert watch.value("members") is None
        assert watch.value("lag_messages", topic=ORDERS) is None


async def test_a_rebalance_that_does_not_end_shows(autojump_clock: MockClock) -> None:
    async with watched() as watch:
        options = {"group": "billing", "revoke_s": 120}

        async def busy(_parts: object) -> None:
            await trio.sleep(90)

        async with (
            watch.client.consumer(ORDERS, on_revoked=busy, **options) as first,  # type: ignore[arg-type]
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_consume, first)
            await trio.sleep(20)
            async with watch.client.consumer(ORDERS, **options) as second:  # type: ignore[arg-type]
                nursery.start_soon(_consume, second)
                await trio.sleep(60)
                assert 50 < (watch.value("rebalancing_seconds") or 0) < 65
                await trio.sleep(60)
                assert watch.value("rebalancing_seconds") == 0
                assert 80 < (watch.value("rebalance_seconds_total") or 0) < 110
                nursery.cancel_scope.cancel()


async def _consume(consumer: object) -> None:
    while True:
        await consumer.poll(wait_s=1)  # type: ignore[attr-defined]  # a consumer


async def test_lag_is_not_looked_up_again_where_nothing_moved(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []

    async def counted(
        lane: KnownLane, opener: LedgerOpener, place: Place, end: Place, held: Held
    ) -> Backlog:
        looks.append(lane)
        return await backlog(lane, opener, place, end, held)

    monkeypatch.setattr("ledger_client.cluster.group_figures.backlog", counted)
    async with watched() as watch:
        await send(watch.client, 0, 10)
        await watch.client.groups.commit("billing", ())
        await watch.client.groups.reset("billing", "earliest", [ORDERS])
        await trio.sleep(6 * LOOK_S)
        lanes = len(looks)
        assert watch.value("lag_messages", topic=ORDERS) == 10
        await trio.sleep(6 * LOOK_S)
        assert len(looks) == lanes
        await send(watch.client, 10, 20)
        await trio.sleep(2 * LOOK_S)
        assert watch.value("lag_messages", topic=ORDERS) == 20


async def test_no_group_costs_nothing(autojump_clock: MockClock) -> None:
    async with watched() as watch:
        before = dict(watch.cluster.store.values)
        calls = watch.cluster.store.list
        watch.cluster.store.list = None  # type: ignore[assignment,method-assign]  # would fail
        await trio.sleep(10 * LOOK_S)
        watch.cluster.store.list = calls  # type: ignore[method-assign]
        assert before


async def test_some_hundred_groups_are_published_and_keep_their_place(
    autojump_clock: MockClock,
) -> None:
    async with watched() as watch:
        for number in range(GROUPS_MAX):
            await watch.client.groups.commit(f"g{number:03d}", ())
        await trio.sleep(2 * LOOK_S)
        await watch.client.groups.commit("a", ())
        await trio.sleep(2 * LOOK_S)
        assert watch.value("members", "g199") == 0
        assert watch.value("members", "a") is None
        await watch.client.groups.delete("g000")
        await trio.sleep(2 * LOOK_S)
        assert watch.value("members", "a") == 0


async def test_a_bookie_that_leads_no_more_publishes_no_groups(autojump_clock: MockClock) -> None:
    async with watched() as watch:
        await watch.client.groups.commit("billing", ())
        await trio.sleep(2 * LOOK_S)
        assert watch.value("members") == 0
    assert watch.value("members") is None


@pytest.mark.parametrize("mode", ["shared", "key-shared"])
async def test_what_members_have_and_did_not_acknowledge_counts_as_lag(
    mode: str, autojump_clock: MockClock
) -> None:
    async with watched() as watch:
        await send(watch.client, 0, 30)
        options = {"group": "billing", "mode": mode, "start": "earliest"}
        async with watch.client.consumer(ORDERS, **options) as consumer:  # type: ignore[arg-type]
            messages: list[Message] = []
            while len(messages) < 30:
                messages += await consumer.poll(wait_s=5)
            for message in messages[:20]:
                await consumer.ack(message)
            await trio.sleep(2 * LOOK_S)
            assert watch.value("lag_messages", topic=ORDERS) == 10
            assert watch.value("partitions") == 2
            (mine,) = {each.member for each in await watch.client.groups.consumers("billing")}
            found = await watch.client.groups.subscriptions("billing")
            assert {each.member for each in found} == {mine}
            assert sum(each.unacked for each in found) == 10
            assert sum(each.lag for each in found) == 10
            oldest_s = max(each.lag_s for each in await watch.client.groups.lag("billing"))
            assert LOOK_S < (watch.value("lag_seconds", topic=ORDERS) or 0) <= oldest_s
            for message in messages[20:]:
                await consumer.ack(message)
            await trio.sleep(2 * LOOK_S)
            assert watch.value("lag_messages", topic=ORDERS) == 0
            assert watch.value("lag_seconds", topic=ORDERS) == 0


async def test_a_group_whose_lag_cannot_be_read_keeps_its_figures_and_others_get_new_ones(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry may be lost, before the group's lag was read for the first time, too."""
    lost = False

    async def look(
        lane: KnownLane, opener: LedgerOpener, place: Place, end: Place, held: Held
    ) -> Backlog:
        if lost and lane.lane.topic == "shop/other":
            raise EntryLost(ledger_id=1, entry_id=2, reasons={})
        return await backlog(lane, opener, place, end, held)

    monkeypatch.setattr(group_figures, "backlog", look)
    async with watched() as watch:
        groups = watch.client.groups
        await watch.client.topics.create("shop/other")
        for group, topic in (("billing", ORDERS), ("audit", "shop/other")):
            await send(watch.client, 0, 1, topic)
            await groups.commit(group, await watch.client.topics.ends(topic))
            await send(watch.client, 1, 4, topic)
        await trio.sleep(2 * LOOK_S)
        assert watch.value("lag_messages", topic=ORDERS) == 3
        assert watch.value("lag_messages", "audit", topic="shop/other") == 3
        lost = True
        await groups.commit("late", await watch.client.topics.ends("shop/other"))
        for topic in (ORDERS, "shop/other"):
            await send(watch.client, 4, 6, topic)
        await trio.sleep(2 * LOOK_S)
        assert watch.value("lag_messages", topic=ORDERS) == 5
        assert watch.value("lag_messages", "audit", topic="shop/other") == 3
        assert watch.value("lag_messages", "late", topic="shop/other") is None


async def test_a_lane_whose_lag_cannot_be_read_does_not_hide_that_of_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry may be lost for good, and the alert on groups that are behind is still needed."""
    lost = True

    async def look(
        lane: KnownLane, opener: LedgerOpener, place: Place, end: Place, held: Held
    ) -> Backlog:
        if lost and lane.lane.partition == 0:
            raise EntryLost(ledger_id=1, entry_id=2, reasons={})
        return await backlog(lane, opener, place, end, held)

    async def put(count: int) -> None:
        for partition in range(2):
            async with watch.client.producer(ORDERS) as producer:
                for number in range(count):
                    await producer.send(b"%d" % number, partition=partition)

    monkeypatch.setattr(group_figures, "backlog", look)
    async with watched() as watch:
        await put(1)
        await watch.client.groups.commit("billing", await watch.client.topics.ends(ORDERS))
        await put(3)
        await trio.sleep(2 * LOOK_S)
        assert watch.value("lag_messages", topic=ORDERS) == 3
        lost = False
        await trio.sleep(2 * LOOK_S)
        assert watch.value("lag_messages", topic=ORDERS) == 6
        lost = True
        await put(1)
        await trio.sleep(60 * LOOK_S)
        assert watch.value("lag_messages", topic=ORDERS) == 7
        assert (watch.value("lag_seconds", topic=ORDERS) or 0) > 60 * LOOK_S


async def test_an_age_that_cannot_be_read_leaves_the_lag_as_it_is(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(_rows: LedgerRows, _opener: LedgerOpener, _place: Place) -> int:
        raise EntryLost(ledger_id=1, entry_id=2, reasons={})

    monkeypatch.setattr(module_of_backlog, "sent_at", lose)
    async with shop(1) as (_, client):
        await send(client, 0, 3)
        async with client.consumer(
            ORDERS, group="billing", mode="shared", start="earliest"
        ) as consumer:
            assert len(await consumer.poll(wait_s=5)) == 3
            (lane,) = await client.groups.lag("billing")
            assert (lane.lag, lane.unacked) == (3, 3)

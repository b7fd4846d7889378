"""Rounds of housekeeping after the first: they cost what changed, and miss nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster
from metadata_costs import CountingStore, small_cluster, store_of
from topic_rig import HOUR_MS, begun, lay_lane, ledger_ids, row
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.expiry import HEAD_COUNT
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.cluster.lane_survey import SWEEP_S
from ledger_client.cluster.observer import TopicFigures
from ledger_client.ledgers.ledgers import Ledgers
from metadata.errors import MetadataUnavailable
from metadata.leadership import Term
from metadata.store import Lease
from metadata.topics import (
    LaneLedger,
    Retention,
    TopicRecord,
    encode_row,
    lane_key,
    lane_ledger_key,
    topic_key,
    writer_lease,
)

DAY = Retention(age_s=86_400)
FOREVER = Retention(age_s=-1)


class Rig:
    """A housekeeper, its store, and the store's time."""

    def __init__(self, cluster: MemoryCluster, client: Client, term: Term) -> None:
        self.store: CountingStore = store_of(cluster)
        self.client = client
        self.term = term
        self.hour = 100.0
        self.store.wall_ms = lambda: round(self.hour * HOUR_MS)
        self.figures = TopicFigures()
        self.closed: list[tuple[int, int]] = []
        self.keeper = self.new_keeper()

    def new_keeper(self) -> Housekeeper:
        context, options = self.client._context, HousekeepingOptions(interval_s=10)
        return Housekeeper(context, options, figures=self.figures, close_lane=self.close_lane)

    async def close_lane(
        self, _ledgers: Ledgers, _topic: TopicRecord, partition: int, lane: int
    ) -> None:
        await trio.lowlevel.checkpoint()
        self.closed.append((partition, lane))

    async def made(self, name: str = "s/t", **fields: object) -> TopicRecord:
        wanted = TopicRecord(name=name, uid=0, **fields)  # type: ignore[arg-type]  # by the tests
        return await self.client._context.catalogue.create(wanted)

    async def alter(self, topic: TopicRecord, retention: Retention) -> None:
        await self.client.topics.alter(topic.name, retention=retention)

    async def round(self) -> None:
        await self.keeper.look_after_all(self.term)

    async def reads_of_a_round(self) -> int:
        before = self.store.cost.reads
        await self.round()
        return round(self.store.cost.reads - before)

    async def roll(self, topic: TopicRecord, number: int) -> None:
        """Close the ledger *number* of lane 0, and begin the next one."""
        await self.add(topic, number, row(number))
        await self.add(topic, number + 1, begun(number + 1))

    async def add(self, topic: TopicRecord, number: int, ledger: LaneLedger) -> None:
        await self.store.put(lane_ledger_key(topic.uid, -1, 0, number), encode_row(ledger))

    @property
    def left(self) -> list[int]:
        return ledger_ids(self.store)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with small_cluster(1) as cluster, cluster.client() as client:
        term = Term(await grant(cluster.store, "coordinator", "me", ttl_s=86_400))
        yield Rig(cluster, client, term)


# --- what it costs ----------------------------------------------------------------------


@pytest.mark.parametrize("topics", [3, 60])
async def test_a_round_without_news_costs_the_same_for_any_number_of_topics(
    rig: Rig, topics: int
) -> None:
    for number in range(topics):
        topic = await rig.made(f"s/{number}", partitions=2, retention=DAY)
        for partition in range(2):
            rows = [row(98), row(99, ledger_id=5000 + 2 * number + partition)]
            await lay_lane(rig.store, topic, rows, partition=partition)
    first = await rig.reads_of_a_round()
    assert first > topics
    assert await rig.reads_of_a_round() <= 25


async def test_a_roll_costs_the_same_for_any_number_of_ledgers(rig: Rig) -> None:
    async def size_of_a_roll(ledgers: int) -> float:
        topic = await rig.made(f"s/{ledgers}", retention=FOREVER)
        rows = [row(number) for number in range(ledgers)]
        await lay_lane(rig.store, topic, [*rows, begun(ledgers)], written=True)
        await rig.round()
        await rig.roll(topic, ledgers)
        before = rig.store.cost
        await rig.round()
        assert rig.figures.seen[topic.name].ledgers["closed"] == ledgers + 1
        return rig.store.cost.minus(before).size

    few, many = await size_of_a_roll(3), await size_of_a_roll(300)
    assert many < few + 200


async def test_a_lane_that_is_due_is_read_at_its_beginning_only(rig: Rig) -> None:
    topic = await rig.made(retention=DAY)
    rows = [row(74 if number else 0, ledger_id=100 + number) for number in range(300)]
    await lay_lane(rig.store, topic, rows)
    rig.hour = 24.5
    await rig.round()
    assert len(rig.left) == 300
    rig.hour = 25
    before = rig.store.cost
    await rig.round()
    assert rig.left == list(range(101, 400))
    assert rig.store.cost.minus(before).size < (HEAD_COUNT + 10) * 400


async def test_one_round_removes_all_that_is_due_in_small_transactions(rig: Rig) -> None:
    topic = await rig.made(retention=DAY)
    rows = [row(0, ledger_id=100 + number) for number in range(3 * HEAD_COUNT + 5)]
    await lay_lane(rig.store, topic, [*rows, row(99, ledger_id=999)])
    await rig.round()
    assert rig.left == [999]
    await rig.round()
    assert rig.figures.seen["s/t"].ledgers == {"prepared": 0, "open": 0, "closed": 1}


# --- what it must notice ----------------------------------------------------------------


async def test_a_ledger_goes_in_the_first_round_after_its_time(rig: Rig) -> None:
    topic = await rig.made(retention=DAY)
    await lay_lane(rig.store, topic, [row(97), begun(98)], written=True)
    await rig.round()
    for number in (98, 99):
        await rig.add(topic, number - 97, row(number))
        await rig.add(topic, number - 96, begun(number + 1))
    await rig.round()
    for rig.hour, left in ((121.9, 4), (122.0, 3), (122.9, 3), (123.0, 2), (200.0, 1)):
        await rig.round()
        assert len(ledger_rows(rig, topic)) == left


async def test_limits_that_are_lowered_or_raised_count_at_once(rig: Rig) -> None:
    topic = await rig.made(retention=FOREVER)
    await lay_lane(rig.store, topic, [row(number) for number in range(90, 96)])
    await rig.round()
    assert len(rig.left) == 6
    await rig.alter(topic, Retention(age_s=-1, size=4500))
    await rig.round()
    assert rig.left == [192, 193, 194, 195]
    await rig.alter(topic, Retention(age_s=7.5 * 3600))
    await rig.round()
    assert rig.left == [192, 193, 194, 195]
    rig.hour = 101
    await rig.alter(topic, FOREVER)
    await rig.round()
    assert rig.left == [192, 193, 194, 195]
    await rig.alter(topic, Retention(age_s=7.5 * 3600))
    await rig.round()
    assert rig.left == [193, 194, 195]


async def test_limits_that_were_raised_count_before_anybody_hears_of_it(rig: Rig) -> None:
    """The limits are read with the rows, whatever the leader remembers."""
    topic = await rig.made(retention=DAY)
    await lay_lane(rig.store, topic, [row(97), row(98)])
    await rig.round()
    rig.hour = 200
    await rig.keeper._survey.step()
    key = topic_key(topic.name)
    await rig.store.put(key, encode_row(TopicRecord(name="s/t", uid=topic.uid, retention=FOREVER)))
    await rig.keeper._expiry.step(rig.term)
    assert rig.left == [197, 198]


async def test_a_quota_counts_what_is_written_later(rig: Rig) -> None:
    topic = await rig.made(retention=Retention(age_s=-1, size=2000))
    await lay_lane(rig.store, topic, [row(0), begun(1)], written=True)
    await lay_lane(rig.store, topic, [row(50)], lane=1)
    await rig.round()
    assert rig.left == [100, 101, 150]
    await rig.roll(topic, 1)
    await rig.round()
    assert ledger_rows(rig, topic) == [1, 2]
    assert rig.figures.seen["s/t"].size == 2000


async def test_a_topic_made_anew_under_its_name_has_its_own_lanes_and_limits(rig: Rig) -> None:
    former = await rig.made(retention=DAY)
    await lay_lane(rig.store, former, [row(99)])
    await rig.round()
    await rig.client.topics.delete("s/t")
    topic = await rig.made(retention=FOREVER)
    await lay_lane(rig.store, topic, [row(1), row(2)])
    rig.hour = 300
    await rig.round()
    assert rig.left == [101, 102]
    assert rig.figures.seen["s/t"].size == 2000
    await rig.client.topics.delete("s/t")
    await rig.round()
    assert "s/t" not in rig.figures.seen


async def test_what_somebody_else_removed_is_counted_anew(rig: Rig) -> None:
    topic = await rig.made(retention=FOREVER)
    await lay_lane(rig.store, topic, [row(number) for number in range(5)])
    await rig.round()
    await rig.store.delete(lane_ledger_key(topic.uid, -1, 0, 0))
    await rig.add(topic, 3, row(3, size=500, messages=5))  # some of it was cut out
    await rig.round()
    seen = rig.figures.seen["s/t"]
    assert (seen.ledgers["closed"], seen.size, seen.messages) == (4, 3500, 35)


async def test_a_damaged_topic_that_is_mended_is_looked_after_again(rig: Rig) -> None:
    topic = await rig.made(retention=DAY)
    await lay_lane(rig.store, topic, [row(97), row(98)])
    await rig.round()
    key = topic_key("s/t")
    good = rig.store.values[key].value
    await rig.store.put(key, b"{")
    rig.hour = 122
    await rig.round()
    assert len(rig.left) == 2
    await rig.store.put(key, good)
    await rig.round()
    assert rig.left == [198]


# --- hints that are lost, clocks, leaders -----------------------------------------------


async def test_a_log_that_forgot_has_all_lanes_read_again(rig: Rig) -> None:
    topic = await rig.made(retention=Retention(age_s=-1, size=2000))
    await lay_lane(rig.store, topic, [row(0), begun(1)], written=True)
    await rig.round()
    for number in range(1, 5):
        await rig.roll(topic, number)
    for _ in range(10_001):
        rig.store.change("elsewhere/x", b"")
    await rig.round()
    assert ledger_rows(rig, topic) == [3, 4, 5]


async def test_a_change_that_no_log_has_is_found_within_an_hour(
    autojump_clock: MockClock, rig: Rig
) -> None:
    topic = await rig.made(retention=Retention(age_s=-1, size=2000))
    await lay_lane(rig.store, topic, [row(0)])
    await rig.round()
    for number in (1, 2):
        await rig.add(topic, number, row(number))
    late = await rig.made("s/late", retention=DAY)
    await lay_lane(rig.store, late, [row(50)])
    for feed in rig.keeper._survey._feeds.values():
        await feed.take()
    await rig.round()
    assert len(rig.left) == 2 and ledger_rows(rig, topic) == [0, 1, 2]
    await trio.sleep(SWEEP_S + 1)
    await rig.round()
    assert ledger_rows(rig, topic) == [1, 2] and ledger_rows(rig, late) == []


async def test_a_clock_that_jumps_back_and_forth_removes_by_what_it_says_now(rig: Rig) -> None:
    topic = await rig.made(retention=DAY)
    await lay_lane(rig.store, topic, [row(97), row(98)])
    await rig.round()
    for rig.hour, left in ((50.0, 2), (121.0, 2), (50.0, 2), (122.0, 1), (50.0, 1), (123.0, 0)):
        await rig.round()
        assert len(rig.left) == left


async def test_the_next_leader_knows_nothing_and_removes_in_time(
    autojump_clock: MockClock, rig: Rig
) -> None:
    topic = await rig.made(retention=DAY)
    await lay_lane(rig.store, topic, [row(97), row(98)])
    with trio.move_on_after(5):
        await rig.keeper.lead(rig.term)
    rig.hour = 122
    await rig.add(topic, 2, row(120))
    for keeper in (rig.keeper, rig.new_keeper()):
        with trio.move_on_after(5):
            await keeper.lead(rig.term)
        assert ledger_rows(rig, topic)[0] == (1 if rig.hour == 122 else 2)
        rig.hour = 123


async def failed_rounds(rig: Rig) -> int:
    """Cut a round at each of its calls; return the number of rounds before one that is whole."""
    reach, failures = rig.store._reach, 0
    while True:
        calls = 0

        async def reach_until(last: int = failures) -> None:
            nonlocal calls
            calls += 1
            if calls > last:
                raise MetadataUnavailable("the store is away")
            await reach()

        rig.store._reach = reach_until  # type: ignore[method-assign]  # one call further each time
        try:
            await rig.round()
        except MetadataUnavailable:
            failures += 1
        else:
            rig.store._reach = reach  # type: ignore[method-assign]  # it answers again
            return failures


async def test_a_round_that_was_interrupted_forgets_nothing(rig: Rig) -> None:
    topic = await rig.made(retention=DAY)
    await lay_lane(rig.store, topic, [row(97), row(98)])
    await rig.round()
    rig.hour = 122
    assert await failed_rounds(rig) > 10
    assert rig.left == [198]


async def test_writers_that_went_before_a_round_was_interrupted_are_noticed(rig: Rig) -> None:
    topic = await rig.made(partitions=3, retention=FOREVER)
    leases: list[Lease] = []
    for partition in range(3):
        await lay_lane(rig.store, topic, [begun(1)], partition=partition)
        name = writer_lease(topic.uid, partition, 0)
        leases.append(await grant(rig.store, name, "p", ttl_s=3600, value=b"{}"))
    await rig.round()
    for lease in leases:
        await rig.store.release(lease)
    assert await failed_rounds(rig) > 3
    await rig.round()
    assert set(rig.closed) == {(partition, 0) for partition in range(3)}


# --- idle lanes -------------------------------------------------------------------------


async def test_a_lane_is_closed_only_if_nobody_has_its_lease_now(rig: Rig) -> None:
    """Whatever the leader remembers: a writer that lives is not fenced."""
    topic = await rig.made(retention=FOREVER)
    await lay_lane(rig.store, topic, [begun(1)])
    await rig.round()
    name, survey = writer_lease(topic.uid, -1, 0), rig.keeper._survey
    leases: list[Lease] = []
    check = survey.check_owners

    async def check_just_before_the_lease() -> None:
        await check()
        if not leases:
            leases.append(await grant(rig.store, name, "p", ttl_s=3600, value=b"{}"))
            await survey._feeds["writers/"].take()  # the hint is lost

    survey.check_owners = check_just_before_the_lease  # type: ignore[method-assign]
    for _ in range(3):
        await rig.round()
    assert rig.closed == []
    assert rig.figures.seen["s/t"].writers == 1
    await rig.store.release(leases[0])
    for _ in range(2):
        await rig.round()
    assert rig.closed == [(-1, 0)]


async def test_a_lane_is_closed_after_its_writer_s_session_ran_out(
    autojump_clock: MockClock, rig: Rig
) -> None:
    topic = await rig.made(retention=FOREVER)
    await lay_lane(rig.store, topic, [begun(1)])
    await grant(rig.store, writer_lease(topic.uid, -1, 0), "p", ttl_s=30, value=b"{}")
    await rig.round()
    await trio.sleep(31)
    for _ in range(2):
        await rig.round()
    assert rig.closed == [(-1, 0)]


def ledger_rows(rig: Rig, topic: TopicRecord) -> list[int]:
    """Return the numbers of the ledgers of lane 0."""
    prefix = lane_key(topic.uid, -1, 0).replace("lanes/", "lane-ledgers/") + "/"
    return sorted(int(key[-20:]) for key in rig.store.values if key.startswith(prefix))

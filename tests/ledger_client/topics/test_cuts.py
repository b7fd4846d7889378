"""Named cuts: what is in them, what they keep, and how they are read. D-02."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import pytest
import trio
from leases import grant
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Timestamp
from ledger_client.background import Background
from ledger_client.errors import BadCut, BadTopic, MetadataUnavailable, NoSuchTopic, TopicBusy
from ledger_client.topics.context import TopicContext
from ledger_client.topics.cuts import Cuts
from ledger_client.topics.messages import Message
from ledger_client.topics.reading.range_plan import plan_read
from ledger_client.topics.reading.range_reader import RangeReader
from ledger_client.topics.retention.job_rows import DeadJobs
from ledger_client.topics.retention.removal import planned_purge, remove_ledgers
from ledger_client.topics.times import PublishTime
from metadata.cuts import CUT_KEEPS, CUTS, Stake, put_stake, read_kept, show_cut
from metadata.leadership import Term
from metadata.store import Delete, MetadataStore, Op, Put, Versions
from metadata.topics import LANE_LEDGERS, RollPolicy

ORDERS, RETURNS, PLAIN = "shop/orders", "shop/returns", "shop/plain"
EVER = PublishTime(1 << 60)
SMALL = RollPolicy(entries=3)


class Shop:
    """Two topics with timesync, one without, and a client."""

    def __init__(self, cluster: MemoryCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.leader = cluster.lead("b1", has_ticks=True)
        self.sent = 0
        self.is_over = False

    @property
    def store(self) -> MetadataStore:
        return self.cluster.store

    def rows(self) -> list[str]:
        """The keys of cuts, and of what they keep."""
        keys = self.cluster.store.values
        return sorted(key for key in keys if key.startswith((CUTS, CUT_KEEPS)))

    async def send(self, count: int, topic: str = ORDERS, *, lanes: int = 1) -> None:
        """Send messages by *lanes* producers, and leave."""
        async with trio.open_nursery() as nursery:
            for lane in range(lanes):
                nursery.start_soon(self._send, count, topic, lane)

    async def _send(self, count: int, topic: str, lane: int) -> None:
        async with self.client.producer(topic, access="shared") as producer:
            for number in range(count):
                if self.is_over:
                    break
                await producer.send(b"%d/%d" % (lane, number), key=b"%d" % number)
                self.sent += 1
                await trio.sleep(0.01)

    async def more(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        wanted = self.sent + count
        with trio.fail_after(60):
            while self.sent < wanted:  # noqa: ASYNC110 - of several producers
                await trio.sleep(0.01)

    async def read(self, *topics: str, **settings: object) -> list[Message]:
        async with self.client.reader(topics or ORDERS, **settings) as reader:  # type: ignore[arg-type]  # as given
            return [message async for message in reader]


@asynccontextmanager
async def shop(partitions: int = 2) -> AsyncIterator[Shop]:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        made = Shop(cluster, client)
        for topic in (ORDERS, RETURNS):
            await client.topics.create(topic, partitions, timesync=True, roll=SMALL)
        await client.topics.create(PLAIN, partitions)
        yield made


def ids(messages: Sequence[Message]) -> list[str]:
    return sorted(f"{message.topic} {message.id}" for message in messages)


async def test_a_cut_has_the_messages_up_to_its_moment_and_no_others(
    autojump_clock: MockClock,
) -> None:
    """D-02: while producers go on, and the same ever after, in every order."""
    async with shop() as place:
        async with trio.open_nursery() as nursery:
            for topic in (ORDERS, RETURNS):
                nursery.start_soon(partial(place.send, 1000, topic, lanes=3))
            await place.more(60)
            cut = await place.client.cuts.create("noon", [ORDERS, RETURNS])
            before = await place.read(ORDERS, RETURNS, ending_cut="noon")
            assert len(before) >= 60
            async with place.client.reader(ORDERS, follow=True, ending_cut="noon") as reader:
                with trio.fail_after(30):
                    followed = [message async for message in reader]
            await place.more(60)
            place.is_over = True
        everything = await place.read(ORDERS, RETURNS)
        wanted = [each for each in everything if each.timestamp <= cut.timestamp]
        rest = [each for each in everything if each.timestamp > cut.timestamp]
        assert ids(before) == ids(wanted)
        assert ids(followed) == ids([each for each in wanted if each.topic == ORDERS])
        assert 0 < len(wanted) < len(everything)
        both = (ORDERS, RETURNS)
        assert ids(await place.read(*both, ending_cut="noon")) == ids(wanted)
        assert ids(await place.read(*both, starting_cut="noon")) == ids(rest)
        timed = await place.read(*both, ending_cut="noon", order="timestamp")
        assert timed == sorted(wanted, key=lambda each: each.timestamp)
        later = await place.read(*both, starting_cut="noon", order="timestamp")
        assert later == sorted(rest, key=lambda each: each.timestamp)
        assert ids(await place.read(*both, ending_cut="noon", reverse=True)) == ids(rest)


async def test_a_plan_up_to_a_cut_has_the_same_ranges_for_ever(autojump_clock: MockClock) -> None:
    """D-02: Spark and replays read by plans."""
    async with shop() as place:
        await place.send(20, lanes=2)
        cut = await place.client.cuts.create("noon", ORDERS)
        context = place.client._context
        first = await plan_read(context, ORDERS, ending_cut="noon")
        await place.send(20, lanes=3)
        second = await plan_read(context, ORDERS, ending_cut="noon")
        rows = []
        for plan in (first, second):
            reader = RangeReader(context)
            rows.append([
                batch.batch.rising_timestamps[index]
                async for batch in reader.batches(plan.ranges)
                for index in range(batch.start, batch.stop)
            ])  # fmt: skip
        assert rows[0] == rows[1]
        assert len(rows[0]) == 40
        assert max(rows[0]) <= cut.timestamp
        between = await plan_read(context, ORDERS, starting_cut="noon", ending_cut="noon")
        assert not between.ranges
        rest = await plan_read(context, ORDERS, starting_cut="noon")
        assert sum(each.messages for each in rest.ranges) == 60


async def test_a_message_is_never_there_without_those_acknowledged_before_it(
    autojump_clock: MockClock,
) -> None:
    """D-02, MV-10: each return is sent after its order was acknowledged, by other producers."""
    async with shop() as place, trio.open_nursery() as nursery:

        async def sell(shopper: int) -> None:
            client = place.client
            async with client.producer(ORDERS) as orders, client.producer(RETURNS) as returns:
                while not place.is_over:
                    place.sent += 1
                    value = b"%d/%d" % (shopper, place.sent)
                    await orders.send(value, key=value)
                    await returns.send(value, key=value)
                    await trio.sleep(0.003 * (shopper + 1))

        for shopper in range(4):
            nursery.start_soon(sell, shopper)
        names = [f"cut-{number}" for number in range(6)]
        for name in names:
            await place.more(20)
            await place.client.cuts.create(name, [RETURNS, ORDERS])
        place.is_over = True
        sizes = []
        for name in names:
            orders = {message.value for message in await place.read(ORDERS, ending_cut=name)}
            returns = {message.value for message in await place.read(RETURNS, ending_cut=name)}
            assert returns <= orders
            sizes.append(len(returns))
        assert sizes == sorted(set(sizes))


async def test_everything_acknowledged_before_is_in_the_cut(autojump_clock: MockClock) -> None:
    async with shop() as place:
        empty = await place.client.cuts.create("empty", [ORDERS, RETURNS])
        assert [topic.lanes for topic in empty.topics] == [[], []]
        async with place.client.producer(ORDERS) as producer:
            for number in range(5):
                await producer.send(b"x")
                await place.client.cuts.create(f"cut-{number}", ORDERS)
        assert await place.read(ending_cut="empty") == []
        for number in range(5):
            assert len(await place.read(ending_cut=f"cut-{number}")) == number + 1
            assert len(await place.read(starting_cut=f"cut-{number}")) == 4 - number
        assert len(await place.read(starting_cut="cut-0", ending_cut="cut-3")) == 3


async def test_a_cut_of_the_past_is_exact(autojump_clock: MockClock) -> None:
    """D-02: at each message's timestamp, and at a time."""
    async with shop() as place:
        await place.send(10, lanes=2)
        truth = sorted(await place.read(), key=lambda each: each.timestamp)
        for count, message in enumerate(truth[:-1:4]):
            name = f"at-{count}"
            await place.client.cuts.create(name, ORDERS, at=Timestamp(message.timestamp))
            assert ids(await place.read(ending_cut=name)) == ids(truth[: count * 4 + 1])
        began = datetime.fromtimestamp((truth[0].timestamp >> 18) / 1000 - 1, UTC)
        await place.client.cuts.create("before", ORDERS, at=began)
        assert await place.read(ending_cut="before") == []
        ahead = Timestamp(truth[-1].timestamp + (3600_000 << 18))
        for wrong, reason in (
            (ahead, "future"),
            (Timestamp(0), "future"),
            (datetime(2026, 1, 1), "zone"),  # noqa: DTZ001 - it is refused
        ):
            with pytest.raises(BadCut, match=reason):
                await place.client.cuts.create("wrong", ORDERS, at=wrong)


async def test_a_moment_whose_messages_were_removed_is_refused(autojump_clock: MockClock) -> None:
    async with shop(0) as place:
        await place.send(9)
        truth = sorted(await place.read(), key=lambda each: each.timestamp)
        await place.client.topics.purge(ORDERS, before=Timestamp(truth[-1].timestamp))
        left = sorted(await place.read(), key=lambda each: each.timestamp)
        assert 0 < len(left) < len(truth)
        gone = Timestamp(truth[0].timestamp)
        with pytest.raises(BadCut, match=r"lane 0 .*had at that moment was removed"):
            await place.client.cuts.create("past", ORDERS, at=gone)
        await place.client.cuts.create("past", ORDERS, at=Timestamp(left[0].timestamp))
        assert await place.read(ending_cut="past") == left[:1]
        assert place.rows() == [f"{CUT_KEEPS}{1:020d}", f"{CUTS}past"]


async def test_what_a_cut_needs_stays_until_it_is_deleted(autojump_clock: MockClock) -> None:
    """D-02: purge, truncation, deletion of messages, of lanes and of the topic."""
    async with shop(0) as place:
        client = place.client
        await place.send(9)
        await client.cuts.create("noon", ORDERS)
        kept = await place.read()
        await place.send(9)
        later = [each for each in await place.read() if each not in kept]
        assert (await client.topics.purge(ORDERS, before=EVER)).removed == []
        fates = [
            fate for lane in (await client.topics.explain(ORDERS)).lanes for fate in lane.ledgers
        ]
        assert (await client.topics.explain(ORDERS)).cuts == ["noon"]
        needed = "needed by cut noon (quire cut delete noon ends it)"
        assert [fate.why for fate in fates if fate.reason == "pinned"] == [needed] * 4
        for busy in (
            client.topics.truncate(ORDERS, "earliest"),
            client.topics.truncate(ORDERS, kept[4].id),
            client.topics.delete_messages(ORDERS, kept[2].id, kept[3].id),
            client.topics.delete_messages(ORDERS, kept[8].id, later[3].id),
            client.topics.delete_lane(ORDERS, -1, 0),
        ):
            with pytest.raises(TopicBusy, match="needed by cut noon"):
                await busy
        with pytest.raises(TopicBusy, match="cut noon keeps it"):
            await client.topics.delete(ORDERS)
        assert await place.read() == [*kept, *later]
        await client.topics.delete_messages(ORDERS, later[1].id, later[3].id)
        await client.topics.truncate(ORDERS, later[0].id)
        assert await place.read() == kept
        await place.send(3)
        assert await place.read(ending_cut="noon") == kept
        await client.cuts.delete("noon")
        assert place.rows() == []
        assert (await client.topics.purge(ORDERS, before=EVER)).messages == len(kept) + 3
        await client.topics.delete(ORDERS)


async def test_a_removal_planned_before_a_cut_does_not_happen_after_it(
    autojump_clock: MockClock,
) -> None:
    """D-02: the rows that it read for its plan have changed."""
    async with shop(0) as place:
        await place.send(9)
        catalogue = place.client._context.catalogue
        uid, planned, checks = await planned_purge(catalogue, ORDERS, EVER)
        assert planned.removed
        await place.client.cuts.create("noon", ORDERS)
        assert await remove_ledgers(catalogue, uid, planned.removed, checks=checks) == []
        assert len(await place.read(ending_cut="noon")) == 9


@pytest.mark.parametrize("what", ["end", "middle", "topic"])
async def test_no_deletion_misses_a_cut_that_came_just_before(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """D-02: of the end of a lane, of messages in it, and of the whole topic."""
    async with shop(0) as place:
        client, store = place.client, place.cluster.store
        await place.send(9)
        sent = await place.read()
        cut = await client.cuts.create("noon", ORDERS)
        await client.cuts.delete("noon")
        transact = store.transact
        key = f"topics/{ORDERS}" if what == "topic" else f"{LANE_LEDGERS}{cut.topics[0].uid:020d}"
        made: list[str] = []

        async def late(ops: Sequence[Op]) -> Versions:
            if not made and any(
                isinstance(op, Delete | Put) and op.key.startswith(key) for op in ops
            ):
                made.append("noon")
                await put_stake(store, Stake("s1", 1 << 60), [cut.topics[0].uid], [])
                assert await show_cut(store, cut, "s1")
            return await transact(ops)

        monkeypatch.setattr(store, "transact", late)
        topics = client.topics
        deletions: dict[str, Callable[[], Awaitable[object]]] = {
            "end": lambda: topics.truncate(ORDERS, sent[4].id),
            "middle": lambda: topics.delete_messages(ORDERS, sent[1].id, sent[4].id),
            "topic": lambda: topics.delete(ORDERS),
        }
        with pytest.raises(TopicBusy, match="cut noon"):
            await deletions[what]()
        assert made
        assert await place.read(ending_cut="noon") == sent


async def test_nothing_is_removed_while_a_cut_is_made(autojump_clock: MockClock) -> None:
    """D-02: without ticks it is not finished; then it gives up, and nothing is left of it."""
    async with shop(0) as place:
        client = place.client
        await place.send(9)
        place.leader.cancel()
        await trio.sleep(20)
        place.cluster.lead("b2")  # it has no ticks
        async with trio.open_nursery() as nursery:
            failed = trio.Event()

            async def create() -> None:
                with pytest.raises(MetadataUnavailable, match="tick"):
                    await client.cuts.create("noon", ORDERS, timeout_s=20)
                failed.set()

            nursery.start_soon(create)
            await trio.sleep(10)
            assert not failed.is_set()
            assert (await client.topics.purge(ORDERS, before=EVER)).removed == []
            with pytest.raises(TopicBusy, match="a cut that is being created"):
                await client.topics.truncate(ORDERS, "earliest")
            with pytest.raises(TopicBusy, match="being created"):
                await client.topics.delete(ORDERS)
        assert place.rows() == []
        assert (await client.topics.purge(ORDERS, before=EVER)).messages == 9


async def test_a_cut_that_nobody_finished_is_given_up_by_the_leader(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-02: its process was killed, or hung: then it cannot show the cut any more."""
    async with shop(0) as place:
        await place.send(9)
        client, store = place.client, place.store
        hung, on = trio.Event(), trio.Event()
        show = type(client.cuts)._show

        async def hang(self: object, *args: object) -> None:
            hung.set()
            await on.wait()
            await show(self, *args)  # type: ignore[arg-type]  # as given

        monkeypatch.setattr(type(client.cuts), "_show", hang)
        async with trio.open_nursery() as nursery:

            async def create() -> None:
                with pytest.raises(BadCut, match="took too long"):
                    await client.cuts.create("noon", ORDERS, timeout_s=5)

            nursery.start_soon(create)
            await hung.wait()
            uid = (await client.topics.info(ORDERS)).uid
            lease = await grant(place.cluster.store, "term", "me", ttl_s=3600)
            jobs, term = DeadJobs(store), Term(lease)
            await jobs.give_up(term)
            assert (await read_kept(store, uid)).is_staked
            await trio.sleep(70)
            await jobs.give_up(term)
            assert place.rows() == []
            on.set()
        assert await client.cuts.list() == []


class DyingStore:
    """A store of a process that is killed before its next change, after *changes* of them."""

    def __init__(self, store: MetadataStore, changes: int) -> None:
        self._store = store
        self._left = changes
        self.died = trio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def transact(self, ops: Sequence[Op]) -> Versions:
        if any(isinstance(op, Put | Delete) for op in ops):
            await self._live()
        return await self._store.transact(ops)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        await self._live()
        return await self._store.put(key, value, expected=expected)

    async def _live(self) -> None:
        if not self._left:
            self.died.set()
            await trio.sleep_forever()
        self._left -= 1


async def make_and_die(context: TopicContext, store: DyingStore) -> None:
    """Make a cut in a process that is killed meanwhile, or after it."""
    await Cuts(context).create("noon", [ORDERS, RETURNS])
    store.died.set()


async def test_a_process_that_is_killed_at_any_step_leaves_a_whole_cut_or_none(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-02: the next one is made all the same, and retention goes on."""
    monkeypatch.setattr("metadata.paged.PAGE_SIZE", 50)
    async with shop() as place:
        for topic in (ORDERS, RETURNS):
            await place.send(4, topic, lanes=2)
        lease = await grant(place.cluster.store, "term", "me", ttl_s=36000)
        jobs, is_made, steps = DeadJobs(place.store), False, 0
        while not is_made:
            store = DyingStore(place.store, steps)
            async with Background() as nursery:
                context = TopicContext(
                    store,  # type: ignore[arg-type]  # as its changes are
                    nursery,
                    open_stream=place.cluster.open_stream,
                    chance=place.cluster.chance,
                )
                nursery.start_soon(make_and_die, context, store)
                await store.died.wait()
            steps += 1
            is_made = bool(await place.client.cuts.list())
            for topic in (ORDERS, RETURNS):
                uid = (await place.client.topics.info(topic)).uid
                assert [cut.name for cut in (await read_kept(place.store, uid)).cuts] == (
                    ["noon"] if is_made else []
                )
            await trio.sleep(100)
            await jobs.give_up(Term(lease))
            assert is_made or place.rows() == []
        assert steps > 5
        assert len(await place.read(ORDERS, RETURNS, ending_cut="noon")) == 16
        await place.client.cuts.delete("noon")
        assert place.rows() == []


async def test_cuts_are_listed_described_and_deleted(autojump_clock: MockClock) -> None:
    async with shop() as place:
        cuts = place.client.cuts
        first = await cuts.create("a", ORDERS)
        second = await cuts.create("b", [RETURNS, ORDERS])
        assert await cuts.list() == [first, second]
        assert await cuts.get("b") == second
        with pytest.raises(BadCut, match="already"):
            await cuts.create("a", RETURNS)
        await cuts.delete("a")
        with pytest.raises(BadCut, match="cut a: there is none"):
            await cuts.delete("a")
        with pytest.raises(BadCut, match="none"):
            await cuts.get("a")
        with pytest.raises(BadCut, match="cut a: there is none"):
            await place.read(ending_cut="a")
        assert await cuts.list() == [second]


async def test_what_cannot_be_cut_is_refused(autojump_clock: MockClock) -> None:
    async with shop() as place:
        create = place.client.cuts.create
        for topics, reason in (
            ([], "no topic"),
            ([ORDERS, ORDERS], "twice"),
            ([f"shop/t{number}" for number in range(51)], "50"),
            ([ORDERS, PLAIN], "without timesync"),
        ):
            with pytest.raises(BadCut, match=reason):
                await create("x", topics)
        with pytest.raises(BadCut, match="is not a name"):
            await create("a/b", ORDERS)
        with pytest.raises(NoSuchTopic):
            await create("x", [ORDERS, "shop/none"])
        with pytest.raises(BadCut, match="in the past"):
            await create("x", PLAIN, loose=True, at=Timestamp(1))
        assert place.rows() == []


async def test_a_loose_cut_has_what_was_confirmed_in_topics_without_timestamps(
    autojump_clock: MockClock,
) -> None:
    async with shop() as place:
        await place.send(9, PLAIN, lanes=2)
        await place.send(9, ORDERS)
        cut = await place.client.cuts.create("noon", [PLAIN, ORDERS], loose=True)
        assert [topic.timed for topic in cut.topics] == [False, True]
        await place.send(5, PLAIN, lanes=2)
        assert len(await place.read(PLAIN, ending_cut="noon")) == 18
        assert len(await place.read(PLAIN, starting_cut="noon")) == 10
        assert len(await place.read(PLAIN, ORDERS, ending_cut="noon")) == 27
        alone = await place.client.cuts.create("plain", PLAIN, loose=True)
        assert alone.timestamp == 0


async def test_a_cut_is_no_bound_of_other_topics_and_options(autojump_clock: MockClock) -> None:
    """A topic that was created anew is another one."""
    async with shop() as place:
        await place.client.cuts.create("noon", ORDERS)
        with pytest.raises(BadCut, match="does not have topic shop/returns"):
            await place.read(ORDERS, RETURNS, ending_cut="noon")
        for settings, reason in (
            ({"ending_cut": "noon", "end": "latest"}, "exclude"),
            ({"starting_cut": "noon", "start": "latest"}, "exclude"),
            ({"ending_cut": "noon", "compacted": True}, "compaction"),
        ):
            with pytest.raises(BadTopic, match=reason):
                await place.read(**settings)
        key = next(key for key in place.rows() if key.startswith(CUT_KEEPS))
        await place.store.delete(key)  # as a restored store may lack it
        await place.client.topics.delete(ORDERS)
        await place.client.topics.create(ORDERS, 2, timesync=True)
        with pytest.raises(BadCut, match="former topic"):
            await place.read(ending_cut="noon")

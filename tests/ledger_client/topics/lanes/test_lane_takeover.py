"""What the next writer makes of a lane's last ledger, whatever became of it."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio
from lane_history import LaneHistory
from lane_process import HASTY, Process
from lane_rig import batch, lane_record, make_topic, rows
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import (
    LedgerError,
    MessagesLost,
    NoSuchLedger,
    NoSuchTopic,
    SendUnknown,
)
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_end import LOST_VERSIONS
from ledger_client.topics.lanes.lane_writer import LaneWriter
from metadata.records import ledger_key
from metadata.topics import TopicRecord, lane_ledger_key, topic_key
from native.batch import BatchKind, encode_control
from native.frame import Opcode


async def leave(cluster: MemoryCluster, topic: TopicRecord, *payloads: bytes) -> int:
    """Let a lane's writer append *payloads* behind the lane's back, and die; return the ledger."""
    process = Process(cluster)
    with suppress(LedgerError):
        async with (
            process.client(HASTY) as client,
            open_lane(client._context.ledgers, topic, -1) as lane,
        ):
            await lane.append([batch("a", producer="p", sequence=3)])
            if payloads:
                await lane._writers[lane._machine.ledger.id].append_many(payloads)
            process.kill()
    return rows(cluster)[-1].ledger_id


@pytest.mark.parametrize("kind", ["missing", "damaged"])
async def test_a_lost_tail_is_told_with_what_a_person_can_do(
    autojump_clock: MockClock, kind: str
) -> None:
    """And the lane goes on once they did either: the entry is back, or the ledger given up."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            ((ledger_id, _),) = await lane.append([batch("a")])
        last = max(cluster.bookies["b1"].entries(ledger_id))
        held = [bookie.ledgers[ledger_id].entries for bookie in cluster.bookies.values()]
        before = [entries[last] for entries in held]
        for bookie in cluster.bookies.values():
            bookie.damage(ledger_id, last)
            if kind == "missing":
                del bookie.ledgers[ledger_id].entries[last]
        for _ in range(2):
            with pytest.raises(
                MessagesLost, match=f"quire ledger delete {ledger_id} --force$"
            ) as lost:
                async with open_lane(client._context.ledgers, topic, -1):
                    pass
            assert str(lost.value).startswith("topic shop/orders: lane 0: ")
            assert (lost.value.ledger_id, lost.value.entry_id) == (ledger_id, last)
        if kind == "missing":
            held[0][last] = before[0]
        else:
            await client.ledgers.delete(ledger_id)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch("b")])


async def test_a_last_ledger_that_retention_removes_meanwhile_costs_no_versions(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch("a")])
        following = lane_record(cluster).next_version
        recover = client._context.ledgers.recover

        async def remove_then_recover(wanted: int) -> object:
            await cluster.store.delete(lane_ledger_key(topic.uid, -1, 0, 0))
            await client.ledgers.delete(wanted)
            return await recover(wanted)

        monkeypatch.setattr(client._context.ledgers, "recover", remove_then_recover)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch("b")])
        assert rows(cluster)[0].base_version == following


async def test_one_entry_is_read_of_a_lane_that_was_closed(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch(str(n)) for n in range(50)])
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        async with open_lane(client._context.ledgers, topic, -1):
            pass
        found = [r for b in cluster.bookies.values() for r in b.requests]
        reads = [r for r in found if r.opcode in (Opcode.READ, Opcode.BATCH_READ)]
        assert [r.entry_id for r in reads] == [51]


async def test_what_is_no_batch_says_nothing_of_the_lane(autojump_clock: MockClock) -> None:
    """Readers tell of it; the lane goes on behind it."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        await leave(cluster, topic, b"foreign", encode_control(BatchKind.TICK, b""))
        async with open_lane(client._context.ledgers, topic, -1, access="take-over") as lane:
            assert lane.last_sequence("p") == 3
        first, second = rows(cluster)
        assert (first.entries, first.messages, second.base_version) == (4, 1, 4)


async def test_a_state_that_cannot_be_read_is_named(autojump_clock: MockClock) -> None:
    """Nobody guesses sequence numbers: a person must look."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        ledger_id = await leave(cluster, topic, encode_control(BatchKind.LANE_STATE, b"\xc1"))
        with pytest.raises(MessagesLost, match=f"entry 2 of ledger {ledger_id}"):
            async with open_lane(client._context.ledgers, topic, -1, access="take-over"):
                pass


async def test_a_ledger_that_a_person_deleted_leaves_a_gap_in_the_versions(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster)
        ledger_id = await leave(cluster, topic)
        del cluster.store.values[ledger_key(ledger_id)]
        async with open_lane(client._context.ledgers, topic, -1, access="take-over") as lane:
            await lane.append([batch("b")])
        first, second = rows(cluster)
        assert (first.state, first.entries) == ("closed", 0)
        assert second.base_version == LOST_VERSIONS


async def test_a_writer_whose_ledger_a_person_deleted_fails(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client, cluster.client() as other:
        topic = make_topic(cluster)
        with pytest.raises(NoSuchLedger):
            async with open_lane(client._context.ledgers, topic, -1) as lane:
                ((ledger_id, _),) = await lane.append([batch("a")])
                await other.ledgers.recover(ledger_id)
                await other.ledgers.delete(ledger_id)
                with pytest.raises(SendUnknown):
                    await lane.append([batch("b")])


async def test_a_lane_whose_rows_were_purged_goes_on_with_its_numbers(
    autojump_clock: MockClock,
) -> None:
    """PS-35: the last ledger of a closed lane may be old enough to go."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, order="event-time")
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            await lane.append([batch("a", times=[7])])
        (row,) = rows(cluster)
        for key in (lane_ledger_key(topic.uid, -1, 0, 0), ledger_key(row.ledger_id)):
            del cluster.store.values[key]
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            assert lane.last_event_time == 7
            await lane.append([batch("b", times=[7])])
        (row,) = rows(cluster)
        assert (row.base_version, row.shares_first) == (3, True)
        assert lane_record(cluster).current == 1


async def test_settings_that_were_changed_hold_from_the_next_ledger_on(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=2)
        async with open_lane(client._context.ledgers, topic, -1) as lane:
            make_topic(cluster, entries=3, replication=2, ack_quorum=2)
            for number in range(6):
                await lane.append([batch(str(number))])
        found = rows(cluster)
        assert [row.messages for row in found] == [2, 3, 1]
        sizes = [cluster.record(row.ledger_id).ensemble_size for row in found]
        assert sizes == [3, 2, 2]


@pytest.mark.parametrize("bookies", [3, 2])
async def test_settings_that_were_changed_since_the_topic_was_read_hold_from_the_first_ledger_on(
    autojump_clock: MockClock, bookies: int
) -> None:
    """Two bookies are too few for what it was, and enough for what it is."""
    async with memory_cluster(bookies) as cluster, cluster.client() as client:
        topic = make_topic(cluster, replication=3)
        version = cluster.store.values[topic_key(topic.name)].version
        make_topic(cluster, replication=2, ack_quorum=2)
        ledgers = client._context.ledgers
        async with open_lane(ledgers, topic, -1, topic_version=version) as lane:
            await lane.append([batch("a")])
        (row,) = rows(cluster)
        assert cluster.record(row.ledger_id).ensemble_size == 2


@pytest.mark.parametrize("bookies", [1, 3])
@pytest.mark.parametrize("is_back", [False, True])
async def test_a_topic_that_was_deleted_since_it_was_read_is_named(
    autojump_clock: MockClock, is_back: bool, bookies: int
) -> None:
    """Whatever else cannot be: that there are too few bookies, or that the lane was closed."""
    async with memory_cluster(bookies) as cluster, cluster.client() as client:
        topic = make_topic(cluster, replication=3)
        version = cluster.store.values[topic_key(topic.name)].version
        del cluster.store.values[topic_key(topic.name)]
        ledgers, settings = client._context.ledgers, {"topic_version": version, "owner": "me"}
        with pytest.raises(NoSuchTopic):
            async with open_lane(ledgers, topic, -1, is_back=is_back, **settings):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("seed", range(4))
async def test_writers_that_share_a_partition_keep_out_of_each_others_way(
    autojump_clock: MockClock, seed: int
) -> None:
    """TB-02, TB-18, TB-36: each lane keeps its own promises."""
    chance = random.Random(seed)
    async with memory_cluster(4, seed=seed) as cluster, cluster.client() as client:
        topic = make_topic(cluster, entries=4)
        histories: dict[int, LaneHistory] = {}

        async def write(lane: LaneWriter) -> None:
            history = histories.setdefault(lane.lane, LaneHistory())
            history.open(lane)
            for number in range(chance.randint(1, 9)):
                value = b"%d-%d-%d" % (lane.lane, lane.epoch, number)
                history.called[lane.epoch].append(value)
                try:
                    (place,) = await lane.append([batch(value)])
                except LedgerError as failure:
                    history.fail(value, failure)
                    return
                history.acknowledge(lane.epoch, value, place)
                await trio.sleep(chance.uniform(0, 0.5))

        async def run(number: int) -> None:
            for _ in range(5):
                process = Process(cluster)
                name = f"p{number}" if number % 2 else ""
                async with process.client(HASTY) as own:
                    with suppress(LedgerError):
                        async with open_lane(
                            own._context.ledgers, topic, -1, access="shared", producer=name
                        ) as lane:
                            await write(lane)
                            if chance.random() < 0.3:
                                process.kill()
                await trio.sleep(chance.uniform(0, 12))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(run, number)
        await check_lanes(client, cluster, histories)


async def check_lanes(
    client: Client, cluster: MemoryCluster, histories: dict[int, LaneHistory]
) -> None:
    assert len(histories) >= 3
    for lane, history in histories.items():
        await history.check(client, cluster, lane)
    names = {lane_record(cluster, lane).producer for lane in histories}
    assert {"p1", "p3"} <= names

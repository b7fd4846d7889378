"""The metadata of a large cluster, on paper: what it does to the store, and what breaks first.

    python tests/support/metadata_load.py            1 000 bookies, 100 000 lanes, 10 M ledgers
    python tests/support/metadata_load.py --bookies 3 --lanes 300 --ledgers 10000
    python tests/support/metadata_load.py --check    the model beside small clusters, counted

Costs of lanes, rolls, followers, bookies and moves are counted with the real client and roles
(metadata_costs.py), and so fall when these get cheaper. Costs of a ledger in the leader's rounds
are measured here, on a SQLite store with 100 000 ledgers. The model multiplies, and draws an hour
second by second from a seed: rolls and removals come at random, renewals are spread by chance.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import trio
from leases import grant
from metadata_costs import (
    Cost,
    bookies_idle,
    lanes_idle,
    moves,
    registration,
    rolls,
    small_cluster,
)

from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.cluster.repair.audit import TOGETHER
from ledger_client.cluster.repair.ledger_index import LedgerIndex
from ledger_client.cluster.repair.rack_check import RackCheck
from ledger_client.cluster.repair.survey import Census
from ledger_client.cluster.repair.worker import CENSUS_RATE, IDLE_CENSUS_S, POLL_RATE
from ledger_client.ledgers.records import new_mark
from metadata.leadership import Term
from metadata.listings import Listing, ledger_records, ledger_values
from metadata.records import (
    COORDINATOR,
    Fragment,
    LedgerRecord,
    LedgerState,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.sqlite import SqliteStore
from metadata.store import ABSENT, MetadataStore, Op, Put
from metadata.topics import (
    LANE_LEDGERS,
    LaneLedger,
    LaneRecord,
    Retention,
    TopicRecord,
    decode_lane_ledger,
    encode_row,
    lane_key,
    lane_ledger_key,
    topic_key,
)

HOUR_S = 3600
SAMPLE = 100_000
"""Ledgers in the store that the rounds are measured on."""
LANES = 1000
"""Lanes of these ledgers."""
TOPIC = "load/topic"
OLD_MS = 2 * 86_400_000
"""Age of the first ledger of each lane."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster. Each lane rolls once in *roll_s*, and as many ledgers expire."""

    bookies: int = 1000
    lanes: int = 100_000
    writers: int = 1000
    """processes that hold the lanes, each with one session"""
    ledgers: int = 10_000_000
    followers: float = 1.0
    """readers that follow each lane"""
    copies: int = 2
    roll_s: float = 4 * 3600.0
    moves_s: float = 1.0
    """copies that a rebalance moves a second"""
    seed: int = 1


# --- unit costs -------------------------------------------------------------------------


class Units(NamedTuple):
    """Costs a second, or each."""

    lane: Cost
    writer: Cost
    """a process with lanes, on top of these"""
    follower: Cost
    roll: Cost
    bookie: Cost
    """a second: its part in repair, and its campaign to lead"""
    record_size: float
    """of one registration, as each bookie reads all of them"""
    leader: Cost
    """a second, on top"""
    move: Cost
    """of a copy, by a rebalance"""


LOOK_READS = 4
"""Calls that read all registrations, and which bookies there are and drain, once."""


def roles(units: Units, bookies: int) -> Cost:
    """Return what the roles of so many bookies cost a second.

    In a small cluster each bookie looks at marks every second, and at registrations every
    IDLE_CENSUS_S while there is no mark.
    """
    looks_s = max(IDLE_CENSUS_S, bookies**2 / CENSUS_RATE)
    marks_s = max(1.0, bookies / POLL_RATE)
    others = units.bookie.reads - LOOK_READS / IDLE_CENSUS_S - 1
    reads = others + LOOK_READS / looks_s + 1 / marks_s
    size = units.bookie.size + units.record_size * bookies / looks_s
    each = units.bookie._replace(reads=reads, size=size)
    return units.leader.plus(each.times(bookies))


def count_units() -> Units:
    """Count on clusters of a few lanes and bookies."""
    ten, hundred = lanes_idle(10), lanes_idle(100)
    lane = hundred.minus(ten).per(90)
    followed = lanes_idle(100, followed=True).minus(lanes_idle(10, followed=True)).per(90)
    rolling = rolls(30, every_s=30.0).minus(rolls(10, every_s=30.0)).per(20)
    few, more = bookies_idle(3), bookies_idle(9)
    read_size = (more.size - 3 * few.size) / (9 * 9 - 3 * 3 * 3)
    size = (few.size - read_size * 3 * 3) / 3
    role = more.minus(few).per(6)._replace(size=size)
    return Units(
        lane=lane,
        writer=ten.minus(lane.times(10)),
        follower=followed.minus(lane),
        roll=rolling.minus(lane).times(30.0),
        bookie=role,
        record_size=read_size * IDLE_CENSUS_S,
        leader=few.minus(role.times(3))._replace(size=0.0),
        move=moves(20),
    )


def predict(units: Units, plan: Plan) -> dict[str, Cost]:
    """Return the cost a second of each part of *plan*."""
    rolls_per_s = plan.lanes / plan.roll_s
    return {
        "lanes held": units.lane.times(plan.lanes),
        "sessions of writers": units.writer.times(plan.writers),
        "followers": units.follower.times(plan.lanes * plan.followers),
        "rolls": units.roll.times(rolls_per_s),
        "expired ledgers": Cost(2, 0.02, 0.02, 0).times(rolls_per_s),
        "registrations": registration().times(plan.bookies),
        "roles of bookies": roles(units, plan.bookies),
        "rebalance": units.move.times(plan.moves_s),
        "garbage collection": Cost(0, 0, 2 / 30, 0)
        .plus(Cost(reads=plan.ledgers * plan.copies / plan.bookies / 86_400))
        .times(plan.bookies),
    }


def draw_hour(units: Units, plan: Plan) -> list[int]:
    """Return the changes in each second of an hour."""
    chance = random.Random(plan.seed)
    held = units.lane.times(plan.lanes).plus(registration().times(plan.bookies))
    rate = plan.lanes / plan.roll_s
    each = units.roll.changes + 2
    return [
        _poisson(chance, held.changes)
        + round(each * _poisson(chance, rate))
        + round(units.move.changes * _poisson(chance, plan.moves_s))
        for _ in range(HOUR_S)
    ]


def _poisson(chance: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    count, product, floor = 0, chance.random(), math.exp(-mean)
    while product > floor:
        count, product = count + 1, product * chance.random()
    return count


# --- rounds over all ledgers ------------------------------------------------------------


class Rounds(NamedTuple):
    """Measured on *SAMPLE* ledgers in SQLite. Microseconds for one ledger."""

    list_us: float
    """read its record"""
    pass_us: float
    """the leader's pass: read, index, check the racks"""
    survey_us: float
    """housekeeping: read the row of a lane's ledger, and sum up"""
    idle_s: float
    """one round of housekeeping in which nothing changed"""
    roll_us: float
    """housekeeping: a lane that rolled, read and summed up"""
    expiry_us: float
    """housekeeping: a lane with a ledger that is due; read, planned, removed"""
    lane_size: float
    """bytes of a lane in the leader's memory"""
    own_us: float
    """garbage collection: read the record of a ledger that one bookie holds, one of 500"""
    mark_us: float
    """mark it for repair, as a bookie was lost"""
    index_size: float
    """bytes in the leader's index"""
    record_size: float
    """bytes in the store"""


def measure_rounds(folder: Path, *, sample: int = SAMPLE) -> Rounds:
    """Fill a store and time the rounds."""
    return trio.run(partial(_measure_rounds, folder, sample))


async def _measure_rounds(folder: Path, sample: int) -> Rounds:
    async with _store(folder / "metadata.db") as store:
        chance = random.Random(1)
        size = await fill(store, sample, chance)
        racks, index = RackCheck(Census(store, lost_after_s=60)), LedgerIndex()

        async def listing() -> None:
            async for _ in ledger_records(store):
                pass

        async def leading() -> None:
            async for record in ledger_records(store):
                index.note(record)
                racks.count(record)

        async def collecting() -> None:
            async for _ in ledger_values(store, range(1, sample, 500)):
                pass

        term = Term(await grant(store, COORDINATOR, "me", ttl_s=80_000))
        return Rounds(
            await _timed(listing, sample),
            await _timed(leading, sample),
            *await _keep_house(store, term, sample),
            await _timed(collecting, sample // 500),
            await _timed(partial(_mark, store, term, range(1, sample, sample // 1000)), 1000),
            index.size * 8 / sample,
            size / sample,
        )


async def _mark(store: SqliteStore, term: Term, ledger_ids: range) -> None:
    """Mark ledgers as the leader does for a lost bookie."""
    marks: list[Op] = []
    async for values in ledger_values(store, ledger_ids):
        for ledger_id in values:
            mark = encode_record(new_mark(ledger_id, "bookie lost", ["b1"], []))
            marks.append(Put(underreplicated_key(ledger_id), mark, ABSENT))
    for first in range(0, len(marks), TOGETHER):
        await store.transact([term.check, *marks[first : first + TOGETHER]])


async def _timed(work: Callable[[], Awaitable[None]], count: int) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) / count * 1e6


class House(NamedTuple):
    """Housekeeping of *SAMPLE* ledgers in LANES lanes."""

    survey_us: float
    idle_s: float
    roll_us: float
    expiry_us: float
    lane_size: float


async def _keep_house(store: SqliteStore, term: Term, sample: int) -> House:
    async with small_cluster(1) as cluster, cluster.client() as client:
        context = client._context
        context.store = context.catalogue.store = store
        keeper = Housekeeper(context, HousekeepingOptions(interval_s=HOUR_S))

        async def round_s() -> float:
            began = time.perf_counter()
            while await keeper._survey.step() | await keeper._expiry.step(term):
                pass
            return time.perf_counter() - began

        tracemalloc.start()
        await round_s()
        await keeper._publish_figures()
        lane_size = tracemalloc.get_traced_memory()[0] / LANES
        tracemalloc.stop()
        keeper._forget()
        survey_s, idle_s = await round_s(), await round_s()
        await _roll_all(store, sample)
        roll_s = await round_s()
        topic = TopicRecord(name=TOPIC, uid=1, partitions=LANES, retention=Retention(age_s=86_400))
        await store.put(topic_key(TOPIC), encode_row(topic))
        expiry_s = await round_s()
    left = [row async for row in Listing(store, LANE_LEDGERS, decode_lane_ledger)]
    assert len(left) == sample, f"{len(left)} ledgers are left of {sample}, and {LANES} rolled"
    return House(
        survey_s / sample * 1e6, idle_s, roll_s / LANES * 1e6, expiry_s / LANES * 1e6, lane_size
    )


async def _roll_all(store: SqliteStore, sample: int) -> None:
    """Add a ledger to each lane."""
    now_ms = await store.now_ms()
    for ledger_id in range(sample + 1, sample + LANES + 1):
        await store.transact([*_ledger(ledger_id, ["b1", "b2"], now_ms)])


@asynccontextmanager
async def _store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    try:
        yield store
    finally:
        await store.aclose()


async def fill(store: MetadataStore, sample: int, chance: random.Random) -> int:
    """Fill the store with *sample* ledgers of one topic; return bytes of records."""
    names = [f"bookie-{number:08d}" for number in range(1000)]
    topic = TopicRecord(name=TOPIC, uid=1, partitions=LANES, retention=Retention())
    size, ops = 0, list[Op]()
    ops.append(Put(topic_key(topic.name), encode_row(topic)))
    now_ms = await store.now_ms()
    for ledger_id in range(1, sample + 1):
        closed_ms = now_ms - OLD_MS if ledger_id <= LANES else now_ms
        for op in _ledger(ledger_id, chance.sample(names, 2), closed_ms):
            size += len(op.value)
            ops.append(op)
        if len(ops) > 200:
            await store.transact(ops)
            ops = []
    await store.transact(ops)
    for partition in range(LANES):
        await store.put(lane_key(1, partition, 0), encode_row(LaneRecord(epoch=1)))
    return size


def _ledger(ledger_id: int, bookies: list[str], now_ms: int) -> Iterator[Put]:
    record = LedgerRecord(
        ledger_id,
        2,
        2,
        2,
        LedgerState.CLOSED,
        [Fragment(0, bookies)],
        last_entry=9999,
        length=100_000_000,
        created_ms=now_ms,
        incarnation=ledger_id * 7919,
    )
    yield Put(ledger_key(ledger_id), encode_record(record))
    row = LaneLedger(
        ledger_id=ledger_id,
        state="closed",
        base_version=0,
        entries=10_000,
        size=100_000_000,
        messages=1_000_000,
        created_ms=now_ms,
        closed_ms=now_ms,
    )
    number, partition = divmod(ledger_id - 1, LANES)
    yield Put(lane_ledger_key(1, partition, 0, number), encode_row(row))


# --- the report -------------------------------------------------------------------------


def report(units: Units, rounds: Rounds, plan: Plan) -> Iterator[str]:
    """Yield the lines of two tables."""
    parts = predict(units, plan)
    hour = sorted(draw_hour(units, plan))
    yield (
        f"{plan.bookies:,} bookies, {plan.lanes:,} lanes with {plan.followers:g} followers each, "
        f"{plan.ledgers:,} ledgers of {plan.copies} copies"
    )
    yield "\n| a second | changes | commits | reads | bytes |\n|---|---|---|---|---|"
    for name, cost in {**parts, "all": _sum(parts.values())}.items():
        shown = " | ".join(_short(part) for part in cost)
        yield f"| {name} | {shown} |"
    median, late = hour[HOUR_S // 2], hour[HOUR_S * 99 // 100]
    yield f"\nSeconds of an hour: median {median:,} changes, p99 {late:,}, most {hour[-1]:,}.\n"
    yield "| round | of | each | in all |\n|---|---|---|---|"
    own = plan.ledgers * plan.copies / plan.bookies
    rate = plan.lanes / plan.roll_s
    for name, count, each_us in (
        ("a new leader's pass, which rests as long again", plan.ledgers, rounds.pass_us),
        ("the same of topics, for retention", plan.ledgers, rounds.survey_us),
        ("retention, a second: lanes that rolled", rate, rounds.roll_us),
        ("retention, a second: lanes with a ledger that is due", rate, rounds.expiry_us),
        ("garbage collection of one bookie, once a day", own, rounds.own_us),
        ("marking the ledgers of a lost bookie", own, rounds.mark_us),
    ):
        yield f"| {name} | {count:,.0f} | {each_us:.0f} µs | {_time(count * each_us / 1e6)} |"
    index_mib = rounds.index_size * plan.ledgers / 2**20
    yield f"| a round of retention without news | 0 | | {_time(rounds.idle_s)} |"
    lanes_mib = rounds.lane_size * plan.lanes / 2**20
    yield f"\nThe leader's index of lanes: {rounds.lane_size:.0f} bytes each, {lanes_mib:,.0f} MiB."
    yield f"\nThe leader's index: {rounds.index_size:.0f} bytes a ledger, {index_mib:,.0f} MiB."
    store_gib = rounds.record_size * plan.ledgers / 2**30
    yield f"Records: {rounds.record_size:.0f} bytes a ledger, {store_gib:,.1f} GiB."


def _sum(costs: Iterable[Cost]) -> Cost:
    total = Cost()
    for cost in costs:
        total = total.plus(cost)
    return total


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.2g}"


def _time(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s"


def check(units: Units) -> Iterator[tuple[str, Cost, Cost]]:
    """Yield what small clusters cost a second: counted, and as the model has it."""
    for lanes in (10, 100, 200):
        yield f"{lanes} lanes", lanes_idle(lanes), units.writer.plus(units.lane.times(lanes))
    followed = lanes_idle(10, followed=True).minus(units.lane.plus(units.follower).times(10))
    each = units.lane.plus(units.follower)
    for lanes in (30, 150):
        modelled = followed.plus(each.times(lanes))
        yield f"{lanes} lanes, followed", lanes_idle(lanes, followed=True), modelled
    for lanes in (10, 60):
        modelled = units.lane.times(lanes).plus(units.roll.times(lanes / 20.0)).plus(units.writer)
        yield f"{lanes} lanes that roll every 20 s", rolls(lanes, every_s=20.0), modelled
    yield "a move of 40 ledgers", moves(40), units.move
    for bookies in (3, 20):
        yield f"roles of {bookies} bookies", bookies_idle(bookies), roles(units, bookies)


@click.command()
@click.option("--bookies", default=1000, show_default=True)
@click.option("--lanes", default=100_000, show_default=True)
@click.option("--writers", default=1000, show_default=True, help="Processes that hold the lanes.")
@click.option("--ledgers", default=10_000_000, show_default=True)
@click.option("--followers", default=1.0, show_default=True, help="Readers that follow each lane.")
@click.option("--moves-s", default=1.0, show_default=True, help="Copies moved by a rebalance.")
@click.option("--seed", default=1, show_default=True)
@click.option("--check", "checks", is_flag=True, help="Compare with small clusters, counted.")
def main(
    bookies: int,
    lanes: int,
    writers: int,
    ledgers: int,
    followers: float,
    moves_s: float,
    seed: int,
    checks: bool,
) -> None:
    """Print what a cluster of this size does to its metadata store."""
    units = count_units()
    if checks:
        for name, counted, modelled in check(units):
            pairs = zip(Cost._fields, counted, modelled, strict=True)
            told = ", ".join(f"{field} {_short(a)} ({_short(b)})" for field, a, b in pairs)
            sys.stdout.write(f"{name}: counted (modelled) a second: {told}\n")
        return
    plan = Plan(
        bookies=bookies,
        lanes=lanes,
        writers=writers,
        ledgers=ledgers,
        followers=followers,
        moves_s=moves_s,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        rounds = measure_rounds(Path(folder))
    for line in report(units, rounds, plan):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()

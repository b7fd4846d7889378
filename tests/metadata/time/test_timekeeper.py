"""The host of the oracle: windows in the store, one leader at a time, clocks that are wrong."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from leases import end_leases, grant
from memory_store import MemoryStore
from trio.testing import MockClock

from metadata.errors import LeaseLost, MetadataUnavailable, NotLeader, TimeRefused
from metadata.leadership import TTL_S, Leadership, Term
from metadata.records import COORDINATOR, Leader, encode_record
from metadata.store import Lease, Leases, Op, StoreSession, Versioned, Versions
from metadata.time.calls import AllotTimestamps, ResetTime, TimeReset, TimestampsAllotted
from metadata.time.oracle import JUMP_MS, RESET_MS_MAX, WINDOW_MS
from metadata.time.rows import TIME, WINDOW, decode_window
from metadata.time.timekeeper import Office, Timekeeper
from metadata.time.timestamps import PER_MS, TimestampRange, split

NOW = 1_700_000_000_000
HOUR = 3_600_000


class WallClock:
    """A host's clock, which goes on with trio's, unless it is frozen."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self.frozen_ms: int | None = None
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        if self.frozen_ms is not None:
            return self.frozen_ms
        return NOW + self.ahead_ms + round(trio.current_time() * 1000)


class HostStore(MemoryStore):
    """The store that hosts share, as one of them reaches it."""

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__()
        self.shared = shared
        self.is_cut = False
        self.loses_answers = False

    async def reach(self) -> None:
        await trio.sleep(0.001)
        if self.is_cut:
            raise MetadataUnavailable("cut off", outcome_unknown=True)

    async def get(self, key: str) -> Versioned | None:
        await self.reach()
        return await self.shared.get(key)

    async def transact(self, ops: Sequence[Op]) -> Versions:
        await self.reach()
        versions = await self.shared.transact(ops)
        if self.loses_answers:
            raise MetadataUnavailable("no answer", outcome_unknown=True)
        await self.reach()
        return versions

    async def leases(self, prefix: str, *, after: str = "") -> Leases:
        await self.reach()
        return await self.shared.leases(prefix, after=after)

    async def open_session(self, owner: str, *, ttl_s: float) -> StoreSession:
        await self.reach()
        return await self.shared.open_session(owner, ttl_s=ttl_s)

    async def keep_session(self, session: StoreSession) -> None:
        await self.reach()
        await self.shared.keep_session(session)

    async def end_session(self, session: StoreSession) -> None:
        await self.reach()
        await self.shared.end_session(session)

    async def grant(
        self, name: str, session: StoreSession, *, owner: str = "", value: bytes = b""
    ) -> Lease:
        await self.reach()
        return await self.shared.grant(name, session, owner=owner, value=value)


class Rig:
    """A bookie that may lead."""

    def __init__(self, shared: MemoryStore, name: str = "b1") -> None:
        self.shared = shared
        self.store = HostStore(shared)
        self.clock = WallClock()
        self.keeper = Timekeeper(self.store, wall_ms=self.clock)
        self.name = name
        self.leader = encode_record(Leader(name, f"{name}:3181", 0))

    async def campaign(self) -> None:
        candidate = Leadership(self.store, COORDINATOR, self.name, value=lambda: self.leader)
        await candidate.run(self.keeper.lead)

    async def take(self, count: int = 1) -> TimestampRange:
        reply = await self.keeper.answer(AllotTimestamps(count))
        assert isinstance(reply, TimestampsAllotted)
        assert reply.count == count
        assert 0 < reply.valid_s < TTL_S
        found = TimestampRange(reply.first, reply.count)
        assert split(found.last).physical_ms < await self.saved_ms(), "above the stored window"
        return found

    async def saved_ms(self) -> int:
        found = await self.shared.get(WINDOW)
        return 0 if found is None else decode_window(found.value).saved_ms


@asynccontextmanager
async def led() -> AsyncIterator[Rig]:
    """A bookie that leads and has the lease."""
    rig = Rig(MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.campaign)
        await trio.sleep(1)
        yield rig
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def in_office(rig: Rig) -> AsyncIterator[None]:
    """A bookie that leads for one term, which ends with the block."""
    async with trio.open_nursery() as nursery:
        lease = await grant(rig.shared, COORDINATOR, rig.name, ttl_s=3600, value=rig.leader)
        nursery.start_soon(rig.keeper.lead, Term(lease))
        await trio.sleep(0.5)
        yield
        nursery.cancel_scope.cancel()
    await end_leases(rig.shared, COORDINATOR)


async def test_the_answer_is_the_first_of_as_many_as_were_asked_for(
    autojump_clock: MockClock,
) -> None:
    """MV-08, MV-10, MV-34: the caller owns them all; the next caller gets those behind."""
    async with led() as rig:
        ranges = [await rig.take(count) for count in (1, 5, 1, 100_000, 3)]
        for one, other in pairwise(ranges):
            assert one.last < other.first
        owned = [stamp for found in ranges for stamp in found.timestamps()]
        assert len(set(owned)) == len(owned) == 100_010
        assert rig.keeper.figures.allotted == 100_010
        assert rig.keeper.figures.requests == 5


async def test_a_window_is_stored_ahead_of_what_is_handed_out(autojump_clock: MockClock) -> None:
    """MV-26: one transaction in about three seconds."""
    async with led() as rig:
        for _ in range(600):
            await trio.sleep(0.05)
            found = await rig.take()
            assert abs(split(found.first).physical_ms - rig.clock()) <= 100
        assert 10 <= rig.keeper.figures.saves <= 12
        assert WINDOW_MS >= TTL_S * 1000


async def test_an_oracle_that_nobody_asks_stores_nothing_and_is_there_at_once(
    autojump_clock: MockClock,
) -> None:
    async with led() as rig:
        await rig.take()
        await trio.sleep(300)
        assert rig.keeper.figures.saves <= 2
        assert abs(split((await rig.take()).first).physical_ms - rig.clock()) <= 100
        assert rig.keeper.figures.jumps == 0


async def test_a_new_leader_begins_above_the_stored_window(autojump_clock: MockClock) -> None:
    """MV-27, MV-29: with a clock an hour behind that of the one before."""
    shared = MemoryStore()
    first, second = Rig(shared, "b1"), Rig(shared, "b2")
    second.clock.ahead_ms = -HOUR
    async with in_office(first):
        before = await first.take(1000)
        saved_ms = await first.saved_ms()
    async with in_office(second):
        after = await second.take()
    assert split(after.first).physical_ms > saved_ms > split(before.last).physical_ms


@pytest.mark.parametrize(("ahead_ms", "is_told"), [(0, False), (30_000, False), (HOUR, True)])
async def test_a_clock_of_a_former_leader_that_was_far_ahead_is_told_by_the_next(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, ahead_ms: int, is_told: bool
) -> None:
    """Timestamps stay as far ahead, and nobody else would notice."""
    shared = MemoryStore()
    first, second = Rig(shared, "b1"), Rig(shared, "b2")
    first.clock.ahead_ms = ahead_ms
    async with in_office(first):
        await first.take()
    caplog.clear()
    async with in_office(second):
        await second.take()
    assert ("s behind timestamps, which never go back" in caplog.text) == is_told


@pytest.mark.parametrize("apart_ms", [-HOUR, -1, 0, 1, 24 * HOUR])
async def test_leaders_in_turn_never_repeat_a_timestamp(
    autojump_clock: MockClock, apart_ms: int
) -> None:
    """MV-29: however their clocks differ, and however short a term is."""
    shared, last = MemoryStore(), -1
    for turn in range(20):
        rig = Rig(shared, f"b{turn}")
        rig.clock.ahead_ms = turn * apart_ms
        async with in_office(rig):
            for count in (1, PER_MS, 17):
                found = await rig.take(count)
                assert found.first > last
                last = found.last


async def test_a_clock_that_stands_still_does_not_hold_timestamps_up(
    autojump_clock: MockClock,
) -> None:
    """MV-25, MV-28: milliseconds that are used up are followed by the next."""
    async with led() as rig:
        rig.clock.frozen_ms = rig.clock()
        last = -1
        for _ in range(500):
            found = await rig.take(PER_MS)
            assert found.first > last
            last = found.last
        assert split(last).physical_ms <= rig.clock.frozen_ms + 500


async def test_a_clock_that_was_set_back_is_waited_for(autojump_clock: MockClock) -> None:
    """MV-29, MV-30: and one that jumps ahead is followed, with a warning."""
    async with led() as rig:
        before = await rig.take()
        rig.clock.ahead_ms = -HOUR
        await trio.sleep(1)
        back = await rig.take()
        assert back.first > before.last
        assert rig.keeper.figures.lag_ms < -HOUR + 2000
        assert rig.keeper.figures.jumps == 0
        rig.clock.ahead_ms = 24 * HOUR
        await trio.sleep(1)
        ahead = await rig.take()
        assert split(ahead.first).physical_ms >= NOW + 24 * HOUR
        assert rig.keeper.figures.jumps == 1


async def test_a_jump_of_the_clock_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """MV-30."""
    async with led() as rig:
        await rig.take()
        rig.clock.ahead_ms = JUMP_MS + 60
        await trio.sleep(0.2)
        assert "ms ahead of timestamps" in caplog.text
        assert rig.keeper.figures.jumps == 1


async def test_a_leader_that_was_held_up_after_it_made_a_timestamp_hands_out_nothing(
    autojump_clock: MockClock,
) -> None:
    """MV-31: it looks at its lease again before it answers."""
    async with led() as rig:
        await rig.take()
        office, now_ms = rig.keeper._office, rig.clock()
        assert office is not None

        def held_up() -> int:
            autojump_clock.jump(TTL_S)  # the process stops where it reads the clock
            return now_ms

        office._wall_ms = held_up
        with pytest.raises(NotLeader):
            await rig.keeper.answer(AllotTimestamps())


async def test_a_former_leader_stores_no_window(autojump_clock: MockClock) -> None:
    """The check of the lease is in the transaction itself."""
    rig = Rig(MemoryStore())
    async with in_office(rig):
        await rig.take()
        saved_ms = await rig.saved_ms()
        await end_leases(rig.shared, TIME)
        await rig.shared.grant(TIME, await rig.shared.open_session("other", ttl_s=3600))
        rig.clock.ahead_ms = HOUR
        with pytest.raises(NotLeader):
            await rig.keeper.answer(AllotTimestamps())
        await trio.sleep(10)
        assert await rig.saved_ms() == saved_ms
        assert not rig.keeper.figures.serves


async def test_a_window_whose_answer_was_lost_does_not_go_back(autojump_clock: MockClock) -> None:
    """MV-29: it is read again before the next one."""
    async with led() as rig:
        before = await rig.take()
        saved_ms = await rig.saved_ms()
        rig.store.loses_answers = True
        rig.clock.ahead_ms = HOUR
        with pytest.raises(MetadataUnavailable):
            await rig.keeper.answer(AllotTimestamps())
        assert await rig.saved_ms() > saved_ms + HOUR - WINDOW_MS
        rig.store.loses_answers = False
        rig.clock.ahead_ms = HOUR // 2
        stored_ms = await rig.saved_ms()
        found = await rig.take()
        assert found.first > before.last
        assert await rig.saved_ms() >= stored_ms


async def test_without_the_store_what_is_left_of_the_window_is_handed_out(
    autojump_clock: MockClock,
) -> None:
    """MV-25: then the request fails, after ten looks."""
    rig = Rig(MemoryStore())
    rig.clock.frozen_ms = NOW
    lease = await grant(rig.shared, TIME, "b1", ttl_s=3600)
    office = Office(rig.store, Term(lease), rig.keeper.figures, rig.clock)
    await office.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.work)
        rig.store.is_cut = True
        physical_ms = 0
        with pytest.raises(MetadataUnavailable, match="more than are left"):
            for _ in range(2 * WINDOW_MS):
                reply = await office.answer(AllotTimestamps(PER_MS))
                assert isinstance(reply, TimestampsAllotted)
                physical_ms = split(reply.first).physical_ms
        assert physical_ms == await rig.saved_ms() - 2
        nursery.cancel_scope.cancel()


async def test_time_is_reset_forward_by_a_day_at_most(autojump_clock: MockClock) -> None:
    """MV-32."""
    shared = MemoryStore()
    first, second = Rig(shared, "b1"), Rig(shared, "b2")
    async with in_office(first):
        before = split((await first.take()).last).physical_ms
        for to_ms in (before - 1, before + RESET_MS_MAX + HOUR):
            with pytest.raises(TimeRefused):
                await first.keeper.answer(ResetTime(to_ms))
        to_ms = before + RESET_MS_MAX - HOUR
        assert await first.keeper.answer(ResetTime(to_ms)) == TimeReset(to_ms)
        assert split((await first.take()).first).physical_ms == to_ms
    async with in_office(second):
        assert split((await second.take()).first).physical_ms > to_ms


async def test_a_bookie_that_does_not_lead_names_the_leader(autojump_clock: MockClock) -> None:
    """MV-31."""
    async with led() as rig:
        other = Timekeeper(rig.shared)
        for request in (AllotTimestamps(), ResetTime(NOW)):
            with pytest.raises(NotLeader) as raised:
                await other.answer(request)
            assert (raised.value.bookie_id, raised.value.address) == ("b1", "b1:3181")


async def test_a_window_that_cannot_be_read_keeps_the_oracle_from_serving(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    shared = MemoryStore()
    await shared.put(WINDOW, b"{}")
    rig = Rig(shared)
    async with in_office(rig):
        with pytest.raises(NotLeader):
            await rig.keeper.answer(AllotTimestamps())
        assert "time/window is not a WindowRecord" in caplog.text


class Client:
    """Asks all bookies, and holds every answer against those that came before its request."""

    def __init__(self, rigs: Sequence[Rig]) -> None:
        self.rigs = rigs
        self.greatest = -1
        self.owned: set[int] = set()

    async def ask(self, chance: random.Random) -> None:
        for rig in self.rigs:
            count, greatest = chance.choice([1, 1, 3, 1000]), self.greatest
            try:
                found = await rig.take(count)
            except (NotLeader, MetadataUnavailable, LeaseLost):
                continue
            assert found.first > greatest, "smaller than one that was known before"
            assert self.owned.isdisjoint(found.timestamps()), "issued twice"
            self.owned.update(found.timestamps())
            self.greatest = max(self.greatest, found.last)


@pytest.mark.parametrize("seed", range(4))
async def test_leaders_that_are_cut_off_at_random_keep_one_order(
    autojump_clock: MockClock, seed: int
) -> None:
    """MV-29, MV-31: clocks are set, answers are lost, leaders lose the store and come back."""
    chance = random.Random(seed)
    shared = MemoryStore()
    rigs = [Rig(shared, f"b{number}") for number in range(3)]
    client = Client(rigs)
    async with trio.open_nursery() as nursery:
        for rig in rigs:
            nursery.start_soon(rig.campaign)
        for _ in range(400):
            await trio.sleep(chance.uniform(0, 0.5))
            rig = chance.choice(rigs)
            match chance.randrange(6):
                case 0:
                    rig.clock.ahead_ms = chance.choice([0, HOUR, -HOUR, 24 * HOUR, 200])
                case 1:
                    rig.clock.frozen_ms = chance.choice([None, rig.clock()])
                case 2:
                    rig.store.is_cut = not rig.store.is_cut
                case 3:
                    rig.store.loses_answers = not rig.store.loses_answers
                case _:
                    rig.store.is_cut = rig.store.loses_answers = False
            nursery.start_soon(client.ask, chance)
        for rig in rigs:
            rig.store.is_cut = rig.store.loses_answers = False
        await trio.sleep(20)
        count = len(client.owned)
        await client.ask(chance)
        assert len(client.owned) > count > 100, "they serve again"
        nursery.cancel_scope.cancel()


async def test_while_nobody_asks_the_clock_is_not_even_looked_at(autojump_clock: MockClock) -> None:
    """An idle leader sleeps. Who asks then gets a timestamp of that moment."""
    async with led() as rig:
        await rig.take()
        await trio.sleep(60)
        reads = rig.clock.reads
        await trio.sleep(60)
        assert rig.clock.reads == reads
        for _ in range(3):
            behind_ms = rig.clock() - split((await rig.take()).first).physical_ms
            assert abs(behind_ms) <= JUMP_MS
            await trio.sleep(5)

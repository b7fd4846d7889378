"""Keeps the leader's index of lanes as the store has them, by reading what changed.

    topics/, lane-ledgers/, writers/ ... ──► what changed ──► rows that are read again ──► index
    once, and then once an hour or, if there are very many, a day: every lane is read anew
    writers' leases, a page in each round: sessions that ended without a hint

A hint about a row below the lane's first one is known already; one about a row behind its closed
ones has those behind read, and any other one has the lane counted anew. So a roll costs one call,
however many ledgers the lane has.

A change that escapes the log is found by the next sweep: until then retention may be late, and
nothing else. If the log has forgotten some changes, a sweep begins at once.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NoReturn

import trio

from ledger_client.cluster.lane_index import LaneIndex, LaneKey, tallied
from ledger_client.topics.retention.holdings import held_ledger
from metadata.compaction import COMPACTED
from metadata.cuts import CUT_KEEPS
from metadata.errors import BadRecord, MetadataError
from metadata.groups.keeps import KEEPS
from metadata.jobs import JOBS, PINS, POINTERS
from metadata.leadership import holder
from metadata.ledger_changes import KeyChanges
from metadata.listings import Listing
from metadata.pointers import all_lane_rows
from metadata.store import PAGE_COUNT_MAX, MetadataStore, leases_under, pages, together
from metadata.topics import (
    LANE_LEDGERS,
    LANES,
    TOPICS,
    WRITERS,
    TopicRecord,
    decode_topic,
    lane_ledger_key,
    lane_ledgers_prefix,
    topic_key,
    topic_prefix,
    writer_lease,
)

FEEDS = (TOPICS, LANE_LEDGERS, WRITERS, PINS, JOBS, POINTERS, COMPACTED, KEEPS, CUT_KEEPS)
FOLLOWED = (LANE_LEDGERS, WRITERS)
"""Feeds that may have more changes between two rounds than a log remembers."""
WAIT_S = 20.0
PAUSE_S = 1.0
"""Least time between two looks at a feed that is followed."""
SWEEP_S = 3600.0
"""Least time between two sweeps over all lanes."""
SWEEP_REST_RATIO = 50
"""And it lasts at least this many times as long as the sweep."""
STEP_COUNT = 100
"""Lanes that one step reads."""
OWNERS_MAX = 64
"""Lanes whose writers are read at once."""
PENDING_MAX = 100_000
"""Lanes that wait to be read; beyond, all are swept."""
_log = logging.getLogger(__name__)


class LaneSurvey:
    """Follows topics and lanes.

    Attributes:
        index: what is known of them.
        deleting: topics that are marked so, uid by name.
        sets: compacted sets to be looked at: the store's time when one is due, by the topic's uid.
        is_complete: every lane was read once.
    """

    def __init__(self, store: MetadataStore, unreadable: set[str]) -> None:
        self.index = LaneIndex()
        self.deleting: dict[str, int] = {}
        self.sets: dict[int, int] = {}
        self.is_complete = False
        self._store = store
        self._unreadable = unreadable
        self._feeds = {prefix: KeyChanges(store, prefix) for prefix in FEEDS}
        self._taking = trio.Lock()
        self._topics: set[str] = set()
        """keys of topics to be read"""
        self._owners: set[LaneKey] = set()
        """lanes whose writers are to be read"""
        self._leased: set[LaneKey] = set()
        """lanes with leases, as far as check_owners() has come"""
        self._leases_after = ""
        self._pending: dict[LaneKey, bool] = {}
        """lanes to be read; True: anew"""
        self._all: set[str] = set(FEEDS)
        """feeds of which anything may have changed"""
        self._sweep_at = self._sweep_began_at = 0.0
        self._swept: str | None = None
        """key of the last lane that the sweep under way came to"""

    async def follow(self, prefix: str) -> NoReturn:
        """Take the changes of a feed as they come, until cancelled. Outages are waited out."""
        while True:
            with suppress(MetadataError):  # the next round meets it, too
                await self._feeds[prefix].wait(WAIT_S)
                await self._take(prefix)
            await trio.sleep(PAUSE_S)

    async def step(self) -> bool:
        """Take what changed, and read some of it; return False once nothing is left.

        Raises:
            MetadataError: the rest is left to the next call.
        """
        lanes = list(islice(self._pending.items(), STEP_COUNT))  # whose topics are known below
        for prefix in FEEDS:
            await self._take(prefix)
        await self._read_topics()
        await self._read_owners()
        for lane, anew in lanes:
            if self._pending.get(lane) == anew:
                del self._pending[lane]
            await self._read(lane, anew=anew)
        await self._sweep()
        is_over = self._swept is None and not self._pending
        self.is_complete = self.is_complete or is_over
        return not is_over

    async def check_owners(self) -> None:
        """Read a page of writers' leases; after the last one, have what differs looked at.

        A session that ends without anybody noticing leaves no trace in the change log.
        """
        if not self.is_complete:
            return
        leases = await self._store.leases(WRITERS, after=self._leases_after)
        for lease in leases:
            with suppress(BadRecord, ValueError):
                uid, partition, number = _numbers(lease.name)
                self._leased.add((uid, partition - 1, number))
        if len(leases) == PAGE_COUNT_MAX:
            self._leases_after = leases[-1].name
            return  # the next round goes on
        self._leases_after = ""
        leased, self._leased = self._leased, set()
        owned = {
            (topic.uid, *place) for topic in self.index.topics.values() for place in topic.owned
        }
        self._owners |= leased ^ owned

    async def record(self, uid: int) -> TopicRecord | None:
        """Return the record of a topic as it is now; `None` if it is gone or cannot be read.

        Raises MetadataError.
        """
        topic = self.index.topics.get(uid)
        found = None if topic is None else await self._read_topic(topic_key(topic.name))
        if found is None or found.uid != uid or found.state != "active":
            return None
        return found

    async def deleting_record(self, name: str) -> TopicRecord | None:
        """Return the record of a topic if it is being deleted now. Raises MetadataError."""
        found = await self._read_topic(topic_key(name))
        return found if found is not None and found.state == "deleting" else None

    async def is_idle(self, lane: LaneKey) -> bool:
        """Return True if a lane has an open ledger and no writer now. Raises MetadataError."""
        is_read = await self._read(lane, anew=False)
        await self._read_owner(lane)
        return is_read and lane in self.index.idle

    def count_anew(self, lane: LaneKey) -> None:
        """Have a lane read anew."""
        self._pending[lane] = True

    # --- changes ----------------------------------------------------------------------------

    async def _take(self, prefix: str) -> None:
        async with self._taking:
            keys = await self._feeds[prefix].take()
        if keys is None or len(self._pending) > PENDING_MAX:
            self._all.add(prefix)
            return
        for key in keys:
            with suppress(BadRecord, ValueError, IndexError):  # foreign keys
                self._note(prefix, key)

    def _note(self, prefix: str, key: str) -> None:
        if prefix == TOPICS:
            self._topics.add(key)
        elif prefix == LANE_LEDGERS:
            uid, partition, lane, number = _numbers(key)
            self._note_row((uid, partition - 1, lane), number)
        elif prefix == WRITERS:
            uid, partition, lane = _numbers(key)
            self._owners.add((uid, partition - 1, lane))
        else:
            self._note_job(prefix, int(key.split("/")[1]))

    def _note_row(self, lane: LaneKey, number: int) -> None:
        topic, place = self.index.topics.get(lane[0]), lane[1:]
        tally = None if topic is None else topic.lanes.get(place)
        if topic is None or tally is None:
            self._pending[lane] = True
        elif number >= tally.first:
            anew = number <= tally.end
            self._pending[lane] = anew or self._pending.get(lane, False)
            self.index.release(topic, place, blocked=anew)

    def _note_job(self, prefix: str, uid: int) -> None:
        """Look again at what a job, a set, a group or a cut may have kept."""
        if prefix == COMPACTED:
            self.sets[uid] = 0
        topic = self.index.topics.get(uid)
        if topic is None:
            return
        self.index.unblock(topic)
        if prefix == POINTERS:
            for place in topic.hidden:
                self._pending.setdefault((uid, *place), False)

    # --- reading ----------------------------------------------------------------------------

    async def _read_topics(self) -> None:
        if TOPICS in self._all:
            names: set[str] = set()
            async for record in Listing(
                self._store, TOPICS, decode_topic, unreadable=self._unreadable
            ):
                names.add(record.name)
                await self._set_topic(record, sweeps=not self.is_complete)
            for topic in list(self.index.topics.values()):
                if topic.name not in names:
                    self.index.drop_topic(topic.uid)
            self.deleting = {name: self.deleting[name] for name in self.deleting.keys() & names}
            self._all.discard(TOPICS)
        for key in list(self._topics):
            if await self._read_topic(key) is None:
                self._drop(key.removeprefix(TOPICS))
            self._topics.discard(key)
        await self._look_at_jobs()

    async def _read_topic(self, key: str) -> TopicRecord | None:
        """Return a topic's record as it is now, and note it."""
        found = await self._store.get(key)
        if found is None:
            return None
        try:
            record = decode_topic(key, found.value)
        except BadRecord as wrong:
            self.pass_over(key, wrong)
            return None
        await self._set_topic(record)
        return record

    async def _set_topic(self, record: TopicRecord, *, sweeps: bool = False) -> None:
        """Note a topic, and have the lanes of a new one read, unless a sweep comes to it."""
        if record.state == "deleting":
            self._drop(record.name)
            self.deleting[record.name] = record.uid
            return
        self.deleting.pop(record.name, None)
        is_new = record.uid not in self.index.topics
        self.index.set_topic(record)
        if is_new and not sweeps:
            async for page in pages(self._store, topic_prefix(LANES, record.uid)):
                for key, _ in page:
                    self._note_lane(key)

    def _note_lane(self, key: str) -> None:
        """Have a lane of a known topic read anew."""
        with suppress(BadRecord, ValueError):
            uid, partition, lane = _numbers(key)
            if uid in self.index.topics:
                self._pending[uid, partition - 1, lane] = True

    def _drop(self, name: str) -> None:
        self.deleting.pop(name, None)
        uid = self.index.uid_of(name)
        if uid is not None:
            self.index.drop_topic(uid)

    async def _look_at_jobs(self) -> None:
        """Look again at everything that jobs may keep, if what they did is not known."""
        if COMPACTED in self._all:
            async for key in Listing(self._store, COMPACTED, _key):
                with suppress(ValueError):
                    self.sets[int(key.removeprefix(COMPACTED))] = 0
        for prefix in self._all & {PINS, JOBS, POINTERS, COMPACTED, KEEPS, CUT_KEEPS}:
            for uid in self.index.topics:
                self._note_job(PINS if prefix == COMPACTED else prefix, uid)
            self._all.discard(prefix)

    async def _read_owners(self) -> None:
        if WRITERS in self._all:
            owned: dict[int, set[tuple[int, int]]] = {}
            for lease in await leases_under(self._store, WRITERS):
                with suppress(BadRecord, ValueError):
                    uid, partition, lane = _numbers(lease.name)
                    owned.setdefault(uid, set()).add((partition - 1, lane))
            for topic in self.index.topics.values():
                now = owned.get(topic.uid, set())
                for place in now ^ topic.owned:
                    self.index.set_owned(topic, place, owned=place in now)
            self._all.discard(WRITERS)
        lanes = iter(list(self._owners))
        while some := list(islice(lanes, OWNERS_MAX)):
            self._owners.difference_update(some)
            try:
                await together([partial(self._read_owner, each) for each in some])
            except MetadataError:
                self._owners.update(some)
                raise

    async def _read_owner(self, lane: LaneKey) -> None:
        found = await holder(self._store, writer_lease(*lane))
        topic = self.index.topics.get(lane[0])
        if topic is not None:
            self.index.set_owned(topic, lane[1:], owned=found is not None)

    async def _read(self, lane: LaneKey, *, anew: bool) -> bool:
        """Read a lane's rows, anew or behind its closed ones; return False if they are damaged."""
        topic, place = self.index.topics.get(lane[0]), lane[1:]
        if topic is None:
            return False
        base = None if anew else topic.lanes.get(place)
        if base is not None and base.end < 0:
            base = None
        after = "" if base is None else lane_ledger_key(*lane, base.end)
        try:
            rows = await all_lane_rows(self._store, lane_ledgers_prefix(*lane), after=after)
        except BadRecord as wrong:
            self.pass_over(topic.name, wrong)
            return False
        except MetadataError:
            self._pending[lane] = anew or self._pending.get(lane, False)
            raise
        if any(row.is_hidden for row in rows):
            topic.hidden.add(place)
        else:
            topic.hidden.discard(place)
        held = [held_ledger(row) for row in rows if not row.is_hidden]
        self.index.put(topic, place, tallied(base, held))
        return True

    def pass_over(self, name: str, wrong: BadRecord) -> None:
        """Log once that metadata of the topic *name*, or at a key, is damaged."""
        if name not in self._unreadable:
            self._unreadable.add(name)
            _log.warning("%s is passed over, its metadata is damaged: %s", name, wrong)

    # --- the sweep --------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Have the next lanes read anew, if a sweep is due or under way."""
        if self._swept is None:
            if LANE_LEDGERS not in self._all and trio.current_time() < self._sweep_at:
                return
            self._swept, self._sweep_began_at = "", trio.current_time()
            self._all.discard(LANE_LEDGERS)  # what is lost from now on wants another sweep
            if self._sweep_at:  # the first one has them behind it
                self._all |= {each for each in FEEDS if each != LANE_LEDGERS}
                return
        if len(self._pending) > STEP_COUNT:
            return
        page = await self._store.list(LANES, after=self._swept)
        for key, _ in page:
            self._swept = key
            self._note_lane(key)
        if not page:
            now = trio.current_time()
            rest_s = max(SWEEP_S, (now - self._sweep_began_at) * SWEEP_REST_RATIO)
            self._swept, self._sweep_at = None, now + rest_s


def _numbers(key: str) -> tuple[int, ...]:
    """Return the numbers of a key of a lane: uid, partition + 1, lane and others."""
    return tuple(map(int, key.split("/")[1:]))


def _key(key: str, _value: bytes) -> str:
    return key

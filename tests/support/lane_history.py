"""The answers that writers of a lane got, checked against the lane."""

from __future__ import annotations

import itertools
from collections import Counter

import trio
from lane_rig import Stored, lane_record, rows, stored
from memory_cluster import MemoryCluster

from ledger_client import Client
from ledger_client.errors import SendUnknown
from ledger_client.topics.lanes.lane_writer import LaneWriter
from metadata.records import LEDGERS, LedgerState, ledger_key
from metadata.topics import LaneLedger

Place = tuple[int, int]


class LaneHistory:
    """Messages are unique; the writer of an epoch numbers its own in the order of its calls."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, Place] = {}
        self.unknown: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.called: dict[int, list[bytes]] = {}
        self.opened: dict[int, float] = {}
        self.late: list[str] = []

    def open(self, lane: LaneWriter) -> None:
        assert lane.epoch not in self.opened
        self.opened[lane.epoch] = trio.current_time()
        self.called[lane.epoch] = []

    def acknowledge(self, epoch: int, value: bytes, place: Place) -> None:
        self.acknowledged[value] = place
        if any(other > epoch for other in self.opened):
            self.late.append(f"{value!r} of epoch {epoch}, when {sorted(self.opened)} were open")

    def fail(self, value: bytes, failure: BaseException) -> None:
        (self.unknown if isinstance(failure, SendUnknown) else self.refused).add(value)

    async def check(self, client: Client, cluster: MemoryCluster, lane: int = 0) -> list[Stored]:
        """Check what is stored; return it."""
        found = await stored(client, cluster, lane)
        places = {v: (i.ledger_id, i.entry_id) for i in found for v in i.values}
        assert not self.late
        counts = Counter(value for item in found for value in item.values)
        assert not {value: count for value, count in counts.items() if count > 1}
        assert not {v: p for v, p in self.acknowledged.items() if places.get(v) != p}
        assert not {value for value in self.refused if value in places}
        order = [value for item in found for value in item.values]
        for called in self.called.values():
            mine = set(called)
            assert [v for v in order if v in mine] == [v for v in called if v in places]
        return found


def check_rows(cluster: MemoryCluster, found: list[Stored], lane: int = 0) -> None:
    """Versions have no gap, figures are right, and every ledger is some row's."""
    known = rows(cluster, lane)
    versions = [item.version for item in found]
    assert versions == list(range(len(versions)))
    for row in known:
        if row.state == "closed":
            _check_row(cluster, row, [i for i in found if i.ledger_id == row.ledger_id])
    assert all(row.state == "closed" for row in known[: lane_record(cluster, lane).current])
    ledgers = {key for key in cluster.store.values if key.startswith(LEDGERS)}
    assert ledgers == {ledger_key(row.ledger_id) for row in known}


def _check_row(cluster: MemoryCluster, row: LaneLedger, entries: list[Stored]) -> None:
    record = cluster.record(row.ledger_id)
    assert record.state is LedgerState.CLOSED
    assert (row.entries, row.size) == (record.last_entry + 1, record.length)
    assert row.messages == sum(len(item.values) for item in entries)
    times = [time for item in entries for time in item.times]
    assert row.first_event_time == min(times, default=None)
    assert row.last_event_time == max(times, default=None)
    assert entries[0].state is not None
    assert entries[0].state.base_version == row.base_version


def check_times(cluster: MemoryCluster, lane: int = 0) -> None:
    """Times rise from ledger to ledger; where one is in two, the second says so."""
    timed = [row for row in rows(cluster, lane) if row.last_event_time is not None]
    for before, after in itertools.pairwise(timed):
        assert before.last_event_time is not None and after.first_event_time is not None
        assert before.last_event_time <= after.first_event_time
        assert after.shares_first == (before.last_event_time == after.first_event_time)

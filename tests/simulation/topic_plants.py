"""Mistakes with topics, each of which the simulation must find. As plants.py, of lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from sqlite3 import Connection
from typing import Any

import msgspec
from plants import Plant
from replaced import replaced

from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.lanes import lane_end, lane_rows
from ledger_client.topics.lanes.lane_lease import Away
from ledger_client.topics.lanes.lane_machine import LaneMachine
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneEnd, LaneState
from ledger_client.topics.lanes.written_ledger import Append
from ledger_client.topics.reading import source
from ledger_client.topics.reading.lane_ranges import LaneStart
from ledger_client.topics.retention import truncation
from metadata import rows
from metadata.store import ABSENT, Check, Delete, Put
from metadata.topics import LANES
from metadata.zookeeper.plan import THIS_CHANGE, Plan, Reading, Transaction
from metadata.zookeeper.znodes import ANY


@contextmanager
def take_over_without_fencing() -> Iterator[None]:
    """Believe the last confirmed entry where the last ledger ends, and fence nobody."""
    find = lane_end.find_end

    async def find_end(ledgers: Ledgers, rows: LaneRows, away: Away = nullcontext) -> LaneEnd:
        trusting = Trusting.__new__(Trusting)
        trusting.__dict__ = ledgers.__dict__
        return await find(trusting, rows, away)

    with replaced(lane_end, "find_end", find_end):
        yield


class Trusting(Ledgers):
    """Asks how far a ledger is confirmed, where others recover it."""

    async def recover(self, ledger_id: int, password: bytes = b"") -> LedgerInfo:
        async with self.open(ledger_id, password, recover=False) as reader:
            info, last = await self.info(ledger_id), reader.last_confirmed
            entries = await reader.read(0, last) if last >= 0 else []
            length = sum(len(entry.payload) for entry in entries)
            return dataclasses.replace(info, last_entry=last, length=length)


@contextmanager
def send_again_without_looking() -> Iterator[None]:
    """Take nothing that was not acknowledged for kept, whatever the recovered ledger holds."""
    settle = LaneMachine._settle_recovered

    def settle_none(
        machine: LaneMachine, _last_entry: int, now_ms: int, finished: list[Append]
    ) -> None:
        settle(machine, -1, now_ms, finished)

    with replaced(LaneMachine, "_settle_recovered", settle_none):
        yield


@contextmanager
def roll_with_what_is_settled() -> Iterator[None]:
    """Begin a ledger with a lane state that lacks the batches under way to the previous one."""

    def known_at(machine: LaneMachine, _stop_entry: int, _now_ms: int) -> LaneState:
        return machine.known.copy()

    with replaced(LaneMachine, "_known_at", known_at):
        yield


@contextmanager
def forget_sequence_numbers() -> Iterator[None]:
    """Read of the lane's last state everything but what its producers sent."""
    with _decoded({"producers": {}}):
        yield


@contextmanager
def forget_event_time() -> Iterator[None]:
    """Find out of a lane everything but how far its event time is."""
    find = lane_end.find_end

    async def find_end(ledgers: Ledgers, rows: LaneRows, away: Away = nullcontext) -> LaneEnd:
        end = await find(ledgers, rows, away)
        end.state.last_event_time = None
        return end

    with replaced(lane_end, "find_end", find_end):
        yield


@contextmanager
def _decoded(changes: dict[str, object]) -> Iterator[None]:
    decode = LaneState.decode.__func__  # type: ignore[attr-defined]

    def forget(cls: type[LaneState], payload: bytes) -> LaneState:
        state: LaneState = decode(cls, payload)
        return msgspec.structs.replace(state, **changes)

    with replaced(LaneState, "decode", classmethod(forget)):
        yield


@contextmanager
def ignore_the_epoch() -> Iterator[None]:
    """Change a lane's rows whoever has it now."""

    def put(key: str, value: bytes, version: int | None = None) -> Put:
        return Put(key, value, None if key.startswith(LANES) and version else version)

    with replaced(lane_rows, "Put", put):
        yield


@contextmanager
def pass_over_gaps() -> Iterator[None]:
    """Go on with the first ledger that is there, and say nothing."""

    async def say_nothing(*_: object) -> None:
        return None

    with replaced(source, "gap_after", say_nothing):
        yield


@contextmanager
def delete_too_much() -> Iterator[None]:
    """Delete the message before the place that was asked for, too."""
    find = truncation.Truncation._begin

    async def begin(*args: Any, **options: Any) -> LaneStart:  # noqa: ANN401 - as _begin's
        found = await find(*args, **options)
        entry = max(found.place.entry - 1, 0)
        return found._replace(place=found.place._replace(entry=entry, skip=0))

    with replaced(truncation.Truncation, "_begin", begin):
        yield


@contextmanager
def compare_no_versions() -> Iterator[None]:
    """Put and delete in SQLite whatever version the key has by now."""

    def check(connection: Connection, op: Check | Put | Delete) -> int:
        found = rows.get(connection, op.key)
        return ABSENT if found is None else found.version

    with replaced(rows, "check", check):
        yield


@contextmanager
def compare_no_versions_of_nodes() -> Iterator[None]:
    """Put and delete in ZooKeeper whatever version the key has by now."""
    put, remove = Plan.set, Plan.remove

    def expect(self: Transaction, op: Check | Put | Delete, path: str, found: Reading) -> int:
        stat = found.stats[path]
        if path in self._exists:
            return THIS_CHANGE if self._exists[path] else ABSENT
        return ABSENT if stat is None else stat.modified

    def put_any(plan: Plan, path: str, data: bytes, _version: int = ANY) -> None:
        put(plan, path, data)

    def remove_any(plan: Plan, path: str, _version: int = ANY) -> None:
        remove(plan, path)

    with (
        replaced(Transaction, "_expect", expect),
        replaced(Plan, "set", put_any),
        replaced(Plan, "remove", remove_any),
        replaced(Plan, "guard_life", lambda *_: None),
        replaced(Plan, "guard", lambda *_: None),
    ):
        yield


TOPIC_PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        take_over_without_fencing,
        send_again_without_looking,
        roll_with_what_is_settled,
        forget_sequence_numbers,
        forget_event_time,
        ignore_the_epoch,
        pass_over_gaps,
        delete_too_much,
        compare_no_versions,
        compare_no_versions_of_nodes,
    )
}

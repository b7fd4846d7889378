"""Mistakes with topics, each of which the simulation must find. As plants.py, of lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any

import msgspec
from plants import Plant
from replaced import replaced

from ledger_client.client import Client
from ledger_client.listing import LedgerInfo
from ledger_client.topics.keeping import truncating
from ledger_client.topics.lanes import lane, lane_ledgers, lane_rows
from ledger_client.topics.lanes.lane_ledgers import LaneEnd
from ledger_client.topics.lanes.lane_rows import LaneRows
from ledger_client.topics.lanes.lane_state import LaneState
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.lanes.written_ledger import WrittenLedger
from ledger_client.topics.reading import lane_reader
from ledger_client.topics.reading.starting import Begin
from metadata import rows
from metadata.store import ABSENT, Check, Delete, Put
from metadata.topics import LANES


@contextmanager
def take_over_without_fencing() -> Iterator[None]:
    """Believe the last confirmed entry where the last ledger ends, and fence nobody."""
    find = lane_ledgers.find_end

    async def find_end(client: Client, rows: LaneRows) -> LaneEnd:
        trusting = Trusting.__new__(Trusting)
        trusting.__dict__ = client.__dict__
        return await find(trusting, rows)

    with replaced(lane, "find_end", find_end):
        yield


class Trusting(Client):
    """Asks how far a ledger is confirmed, where others recover it."""

    async def recover_ledger(self, ledger_id: int, password: bytes = b"") -> LedgerInfo:
        async with self.open_ledger(ledger_id, password, recover=False) as reader:
            info, last = await self.ledger_info(ledger_id), reader.last_confirmed
            entries = await reader.read(0, last) if last >= 0 else []
            length = sum(len(entry.payload) for entry in entries)
            return dataclasses.replace(info, last_entry=last, length=length)


@contextmanager
def send_again_without_looking() -> Iterator[None]:
    """Take nothing that was not acknowledged for kept, whatever the recovered ledger holds."""
    turned = LaneWriter.turned

    def forget_and_turn(writer: LaneWriter, old: WrittenLedger) -> None:
        old.slices.clear()
        turned(writer, old)

    with replaced(LaneWriter, "turned", forget_and_turn):
        yield


@contextmanager
def roll_with_what_is_settled() -> Iterator[None]:
    """Let a ledger begin with the lane's state without what is under way to the one before."""

    def state_after(
        _ledger: WrittenLedger, settled: LaneState, _last_entry: int, _now_ms: int
    ) -> LaneState:
        return settled.copy()

    with replaced(WrittenLedger, "state_after", state_after):
        yield


@contextmanager
def forget_sequence_numbers() -> Iterator[None]:
    """Read of the lane's last state everything but what its producers sent."""
    with _decoded({"producers": {}}):
        yield


@contextmanager
def forget_event_time() -> Iterator[None]:
    """Find out of a lane everything but how far its event time is."""
    find = lane_ledgers.find_end

    async def find_end(client: Client, rows: LaneRows) -> LaneEnd:
        end = await find(client, rows)
        end.state.last_event_time = None
        return end

    with replaced(lane, "find_end", find_end):
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

    with replaced(lane_reader, "gap_behind", say_nothing):
        yield


@contextmanager
def delete_too_much() -> Iterator[None]:
    """Delete the message before the place that was asked for, too."""
    find = truncating.Truncation._begin

    async def begin(*args: Any, **options: Any) -> Begin:  # noqa: ANN401 - as _begin's
        found = await find(*args, **options)
        entry = max(found.place.entry - 1, 0)
        return found._replace(place=found.place._replace(entry=entry, skip=0))

    with replaced(truncating.Truncation, "_begin", begin):
        yield


@contextmanager
def compare_no_versions() -> Iterator[None]:
    """Put and delete in SQLite whatever version the key has by now."""

    def check(connection: Connection, op: Check | Put | Delete) -> int:
        found = rows.get(connection, op.key)
        return ABSENT if found is None else found.version

    with replaced(rows, "check", check):
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
    )
}

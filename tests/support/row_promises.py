"""Promises of a lane's rows: they match the ledgers, and versions have no gap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from message_events import HeldEntry, MessagesRead, RowListed
from message_facts import Broken, Promises, TopicFacts, is_in

from metadata.topics import LaneLedger

STATES = ["prepared", "open", "closed"]


def _moved_back(facts: TopicFacts) -> Broken:
    """A row moves forward, and what is closed stays as it is."""
    for place, rows in facts.rows.items():
        for number, listed in rows.items():
            versions = sorted(listed, key=lambda each: each.version)
            for before, after in itertools.pairwise(versions):
                if _is_back(before, after):
                    yield None, f"{place}, ledger {number}: {before.row}, then {after.row}"


def _is_back(before: RowListed, after: RowListed) -> bool:
    if before.row.state == "closed" and before.row.removed != after.row.removed:
        return after.row.state != "closed"  # messages were deleted out of it
    if before.row.state == "closed" or before.version == after.version:
        return before.row != after.row
    if before.row.ledger_id != after.row.ledger_id:
        return before.row.state != "prepared"  # nothing was ever written there
    return STATES.index(before.row.state) > STATES.index(after.row.state)


def _not_in_line(facts: TopicFacts) -> Broken:
    """Closed ledgers, then the open one, then one that is prepared; none left out."""
    for place in facts.rows:
        ledgers = list(facts.ledgers(place))
        numbers = [number for number, _ in ledgers]
        has_hole = numbers and numbers != list(range(numbers[0], numbers[-1] + 1))
        if has_hole and place not in facts.cut_lanes:
            yield None, f"{place} has the ledgers {numbers}"
        states = [row.state for _, row in ledgers]
        if states.count("open") > 1 or states.count("prepared") > 1:
            yield None, f"{place}: {states}"
        if states != sorted(states):  # closed, open, prepared
            yield None, f"{place}: {states}"


def _versions(facts: TopicFacts) -> Broken:
    """Each ledger begins with the version after the last one's, and its epoch is not lower."""
    for place in facts.rows:
        rows = [row for _, row in facts.ledgers(place) if row.state != "prepared"]
        for before, after in itertools.pairwise(rows):
            next_version = before.base_version + before.entries
            is_next = after.base_version == next_version
            if place in facts.cut_lanes:  # versions of what was deleted are not used again
                is_next = after.base_version >= next_version
            if not is_next:
                told = f"{before.base_version} + {before.entries}, then {after.base_version}"
                yield None, f"{place}, ledger {after.ledger_id}: versions from {told}"
            if after.epoch < before.epoch:
                yield None, f"{place}, ledger {after.ledger_id} is of an earlier epoch"


def _in_two_lanes(facts: TopicFacts) -> Broken:
    """A ledger is one lane's, and the partition of an id is that of its ledger."""
    seen: dict[int, object] = {}
    for place, rows in facts.rows.items():
        for number, listed in rows.items():
            for each in listed:
                other = seen.setdefault(each.row.ledger_id, (place, number))
                if other != (place, number):
                    yield None, f"ledger {each.row.ledger_id}: {other} and {place, number}"
    for message_id in [*facts.content, *facts.kept]:
        found = facts.place(message_id.ledger_id)
        if found is None:
            yield message_id, f"{message_id} is in no ledger of the topic"
        elif found[0].partition != message_id.partition:
            yield message_id, f"{message_id} is in partition {found[0].partition}"


def _times_overlap(facts: TopicFacts) -> Broken:
    """A time of an ordered topic is in one ledger of a lane, but where a row says otherwise."""
    for place in facts.rows if facts.ordered else ():
        rows = [row for _, row in facts.ledgers(place) if row.first_event_time is not None]
        for before, after in itertools.pairwise(rows):
            last, first = before.last_event_time, after.first_event_time
            assert last is not None
            assert first is not None
            if first < last or (first == last) is not after.shares_first:
                told = f"{after.ledger_id} begins at {first}, shared: {after.shares_first}"
                yield None, f"{place}: {before.ledger_id} ends at event time {last}, {told}"


# --- against what the ledgers hold ------------------------------------------------------


def _figures(facts: TopicFacts) -> Broken:
    """A closed row counts what is in its ledger."""
    for place in facts.rows:
        for _, row in facts.ledgers(place):
            held = facts.held.get(row.ledger_id)
            if held is not None and row.state == "closed":
                for what, said, found in _compared(row, held.entries):
                    if said != found:
                        told = f"{what} {said} by its row, and {found}"
                        yield None, f"{place}, ledger {row.ledger_id}: {told}"


def _compared(row: LaneLedger, held: list[HeldEntry]) -> Iterator[tuple[str, object, object]]:
    messages = [
        message
        for entry in held
        for slot, message in enumerate(entry.messages)
        if not is_in(row.removed, entry.entry, slot)
    ]
    times = [message.event_time for message in messages if message.event_time is not None]
    yield "ids", list(range(row.entries)), [entry.entry for entry in held]
    yield "messages", row.messages, len(messages)
    yield "bytes", row.size, sum(entry.size for entry in held)
    yield "first event time", row.first_event_time, min(times, default=None)
    yield "last event time", row.last_event_time, max(times, default=None)


def _not_audited(facts: TopicFacts) -> Broken:
    """Each ledger that is closed and not removed could be read."""
    for place in facts.rows if facts.held else ():
        for number, row in facts.ledgers(place):
            if row.state == "closed" and row.ledger_id not in facts.held:
                yield None, f"{place}, ledger {number}: the ledger {row.ledger_id} is not there"


def _control(facts: TopicFacts) -> Broken:
    """A ledger begins with the state of its lane: each producer's last sequence number.

    It is checked while the beginning of the lane is there.
    """
    for place in facts.rows:
        last: dict[str, int] = {}
        complete = 0 in {number for number, _ in facts.ledgers(place)}
        complete = complete and place not in facts.cut_lanes
        for _, row in facts.ledgers(place):
            for held in facts.held[row.ledger_id].entries if row.ledger_id in facts.held else ():
                if held.entry == 0 and held.state is None:
                    yield None, f"{place}, ledger {row.ledger_id} does not begin with a state"
                if complete and held.state is not None and held.state != last:
                    yield None, f"{place}, ledger {row.ledger_id}: {held.state} for {last}"
                if held.epoch != row.epoch:
                    told = f"epoch {held.epoch} in a ledger of {row.epoch}"
                    yield None, f"{place}, ledger {row.ledger_id}, entry {held.entry}: {told}"
                for message in held.messages if held.producer else ():
                    last[held.producer] = message.sequence


def _read_out_of_rows(facts: TopicFacts) -> Broken:
    """Nothing is read above the end of a closed ledger, as its row says it."""
    for name, run in facts.runs.items():
        for _, event in run.events:
            for message_id in event.ids if isinstance(event, MessagesRead) else ():
                row = facts.row(message_id.ledger_id)
                if row and row.state == "closed" and message_id.entry_id >= row.entries:
                    yield message_id, f"{name} read {message_id}; its ledger has {row.entries}"


ROW_PROMISES: Promises = [
    (20, _moved_back),
    (20, _not_in_line),
    (20, _versions),
    (20, _in_two_lanes),
    (18, _times_overlap),
    (20, _figures),
    (20, _not_audited),
    (20, _control),
    (20, _read_out_of_rows),
]

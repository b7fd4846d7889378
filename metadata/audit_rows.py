"""What each kind of record says about others, for metadata/audit.py."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from metadata import compaction, cuts, jobs, paged, records, replays, topics
from metadata.errors import BadRecord
from metadata.groups import keeps, rows, shares
from metadata.records import LedgerState
from metadata.time import rows as time_rows, tick_rows


class Tables:
    """The tables of audit_rules.py, and the bookies that records name.

    Attributes:
        bookies: ids of those with a cookie; these keys come before all that name one.
        unknown: of each other bookie, how many records name it, and the first of them.
        instance: id of the cluster, "" while none was read.
        instances: of each id that cookies name, the first of them.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.bookies: set[str] = set()
        self.unknown: dict[str, tuple[int, str]] = {}
        self.instance = ""
        self.instances: dict[str, str] = {}
        self._connection = connection

    def add(self, table: str, *values: str | int) -> None:
        """Insert a row."""
        marks = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def use(self, bookie: str, key: str) -> None:
        """Note that the record at *key* names a bookie."""
        if bookie not in self.bookies:
            count, first = self.unknown.get(bookie, (0, key))
            self.unknown[bookie] = (count + 1, first)


def _cookie(tables: Tables, key: str, value: bytes) -> None:
    record = records.decode_cookie(key, value)
    if key != records.cookie_key(record.bookie_id):
        raise BadRecord(f"{key} is the cookie of {record.bookie_id!r}")
    tables.bookies.add(record.bookie_id)
    tables.instances.setdefault(record.instance_id, key)


def _draining(tables: Tables, key: str, value: bytes) -> None:
    tables.use(records.decode_draining(key, value).bookie_id, key)


def _ledger(tables: Tables, key: str, value: bytes) -> None:
    record = records.decode_ledger(key, value)
    if records.parse_ledger_key(key) != record.ledger_id:
        raise BadRecord(f"{key} is the record of ledger {record.ledger_id}")
    is_closed = record.state is LedgerState.CLOSED
    entries = record.last_entry + 1 if is_closed else -1
    is_own = int(record.incarnation != 0)
    topic = record.custom.get("topic", "") if is_own else ""
    tables.add("ledgers", record.ledger_id, key, record.state.value, entries, is_own, topic)
    for bookie in {name for fragment in record.fragments for name in fragment.bookies}:
        tables.use(bookie, key)


def _underreplicated(tables: Tables, key: str, value: bytes) -> None:
    mark = records.decode_underreplicated(key, value)
    tables.add("of_ledgers", mark.ledger_id, key, "a mark for repair")


def _racks(_tables: Tables, key: str, value: bytes) -> None:
    records.decode_racks(key, value)


def _topic(tables: Tables, key: str, value: bytes) -> None:
    record = topics.decode_topic(key, value)
    if key != topics.topic_key(record.name):
        raise BadRecord(f"{key} is the record of the topic {record.name}")
    tables.add("topics", record.uid, key)


def _event(tables: Tables, key: str, value: bytes) -> None:
    topics.decode_event(key, value)
    namespace = key.removeprefix(topics.TOPIC_EVENTS).rpartition("/")[0]
    tables.add("events", namespace, topics.last_number(key), key)


def _last_event(tables: Tables, key: str, value: bytes) -> None:
    last = topics.decode_last_event(key, value)
    tables.add("last_events", key.removeprefix(topics.LAST_EVENTS), last.number)


def _lane(tables: Tables, key: str, value: bytes) -> None:
    lane = topics.decode_lane(key, value)
    place = key.removeprefix(topics.LANES)
    tables.add("lanes", place, _uid(key), key, lane.current, lane.next_version)


def _lane_ledger(tables: Tables, key: str, value: bytes) -> None:
    row = topics.decode_lane_ledger(key, value)
    tables.add("places", row.ledger_id, key, int(bool(row.pointer)), 0)
    if row.pointer:  # no ledger of the lane before its pointer is shown, and complete if it is
        return
    place = key.removeprefix(topics.LANE_LEDGERS).rpartition("/")[0]
    entries = row.entries if row.state == "closed" else -1
    tables.add(
        "rows",
        *(place, topics.last_number(key), row.ledger_id, key),
        *(row.state, row.base_version, entries),
    )


def _removals(tables: Tables, key: str, value: bytes) -> None:
    place = key.removeprefix(topics.LANE_REMOVALS)
    for run in topics.decode_lane_removals(key, value).ranges:
        tables.add("removals", place, run.number, run.stop_number)
    tables.add("names", place, key)


def _lane_name(tables: Tables, key: str, value: bytes) -> None:
    lane = topics.decode_lane_name(key, value).lane
    partition, _ = topics.partition_of_name(key)
    place = topics.lane_key(_uid(key), partition, lane).removeprefix(topics.LANES)
    tables.add("names", place, key)


def _lane_roll(tables: Tables, key: str, value: bytes) -> None:
    topics.decode_lane_roll(key, value)
    topics.last_number(key)
    tables.add("of_topics", _uid(key), key)


def _staged(tables: Tables, key: str, value: bytes) -> None:
    row = jobs.decode_staged(key, value)
    _of_job(tables, key, "a staged ledger")
    tables.add("places", row.ledger_id, key, int(bool(row.pointer)), 0)


def _pointer(tables: Tables, key: str, value: bytes) -> None:
    jobs.decode_pointer(key, value)
    _of_job(tables, key, "a pointer")


def _pins(tables: Tables, key: str, value: bytes) -> None:
    jobs.decode_pins(key, value)
    _of_job(tables, key, "pins")


def _ids(tables: Tables, key: str, value: bytes) -> None:
    jobs.decode_ids(key, value)
    _of_job(tables, key, "reserved ids")


def _sink(tables: Tables, key: str, value: bytes) -> None:
    jobs.decode_sink(key, value)  # or a ReplayMark, which has these fields too
    tables.add("of_topics", _uid(key), key)


def _compacted(tables: Tables, key: str, value: bytes) -> None:
    found = compaction.decode_set(key, value)
    tables.add("of_topics", _uid(key), key)
    for one in found.ledgers:
        tables.add("places", one.ledger_id, key, 0, 0)
    for gone in found.retired:
        tables.add("places", gone.ledger_id, key, 0, 1)


def _page(tables: Tables, key: str, _value: bytes) -> None:
    tables.add("pages", *paged.page_of(key), key)


def _replay(_tables: Tables, key: str, value: bytes) -> None:
    replays.decode_replay(key, value)


def _group(tables: Tables, key: str, value: bytes) -> None:
    rows.decode_group(key, value)
    tables.add("groups", key.removeprefix(rows.GROUPS))


def _member(tables: Tables, key: str, value: bytes) -> None:
    member = rows.decode_member(key, value)
    group = key.removeprefix(rows.GROUP_MEMBERS).partition("/")[0]
    tables.add("of_groups", group, key, "a member")
    for part in rows.parts_of(member.parts):
        tables.add("shares", group, part.topic, part.partition, key)


def _progress(tables: Tables, key: str, value: bytes) -> None:
    rows.decode_progress(key, value)
    group = key.removeprefix(rows.PROGRESS).partition("/")[0]
    tables.add("of_groups", group, key, "progress")


def _share(tables: Tables, key: str, value: bytes) -> None:
    shares.decode_share(key, value)
    group = key.removeprefix(shares.SHARES).partition("/")[0]
    tables.add("of_groups", group, key, "messages that a member has")


def _want(tables: Tables, key: str, value: bytes) -> None:
    shares.decode_want(key, value)
    group = key.removeprefix(shares.SHARE_WANTS).partition("/")[0]
    tables.add("of_groups", group, key, "a member without work")


def _keeps(_tables: Tables, key: str, value: bytes) -> None:
    keeps.decode_keeps(key, value)


def _cut(tables: Tables, key: str, value: bytes) -> None:
    for topic in cuts.decode_cut(key, value).topics:
        tables.add("of_topics", topic.uid, key)


def _cut_keeps(tables: Tables, key: str, value: bytes) -> None:
    cuts.decode_cut_keeps(key, value)
    tables.add("of_topics", _uid(key), key)


def _ticks(tables: Tables, key: str, value: bytes) -> None:
    row = tick_rows.decode_tick_ledger(key, value)
    tables.add("places", row.ledger_id, key, 0, 0)
    tables.add("of_topics", _uid(key), key)


def _timed_topic(tables: Tables, key: str, value: bytes) -> None:
    tick_rows.decode_timed_topic(key, value)
    tables.add("of_topics", _uid(key), key)


def _time(_tables: Tables, key: str, value: bytes) -> None:
    if key == time_rows.WINDOW:
        time_rows.decode_window(value)
    elif key == tick_rows.TIME_LANES:
        tick_rows.decode_timed_topic(key, value)
    else:
        raise BadRecord("quire keeps nothing under such a key")


def _of_job(tables: Tables, key: str, what: str) -> None:
    tables.add("of_jobs", jobs.job_lease(*jobs.job_of(key)), key, what)


def _uid(key: str) -> int:
    """Return the uid in the key of anything of a topic. Raises BadRecord."""
    return topics.last_number("/".join(key.split("/")[:2]))


KINDS: dict[str, Callable[[Tables, str, bytes], None]] = {
    records.COOKIES: _cookie,
    records.DRAINING: _draining,
    records.LEDGERS: _ledger,
    records.UNDERREPLICATED: _underreplicated,
    records.RACKS.partition("/")[0] + "/": _racks,
    topics.TOPICS: _topic,
    topics.TOPIC_EVENTS: _event,
    topics.LAST_EVENTS: _last_event,
    topics.LANES: _lane,
    topics.LANE_LEDGERS: _lane_ledger,
    topics.LANE_REMOVALS: _removals,
    topics.LANE_NAMES: _lane_name,
    topics.LANE_ROLLS: _lane_roll,
    jobs.STAGED: _staged,
    jobs.PINS: _pins,
    jobs.POINTERS: _pointer,
    jobs.IDS: _ids,
    jobs.SINKS: _sink,
    compaction.COMPACTED: _compacted,
    replays.REPLAYS: _replay,
    rows.GROUPS: _group,
    rows.GROUP_MEMBERS: _member,
    rows.PROGRESS: _progress,
    shares.SHARES: _share,
    shares.SHARE_WANTS: _want,
    keeps.KEEPS: _keeps,
    cuts.CUTS: _cut,
    cuts.CUT_KEEPS: _cut_keeps,
    paged.PAGES: _page,
    tick_rows.TICKS: _ticks,
    tick_rows.LANES_OF_TOPIC: _timed_topic,
    f"{time_rows.TIME}/": _time,
}
"""Takes the records under a prefix. Raises BadRecord for one that breaks a rule by itself."""

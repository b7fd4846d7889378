"""A store without fault, and each way to break it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec
import pytest
from leases import grant
from memory_store import MemoryStore

from metadata import compaction, cuts, jobs, paged, records, replays, topics
from metadata.audit import Finding, audit
from metadata.audit_rows import KINDS
from metadata.audit_rules import RULES
from metadata.groups import keeps, rows as group_rows, shares
from metadata.groups.assignment import Part
from metadata.groups.rows import (
    GroupRecord,
    MemberRecord,
    PartRun,
    ProgressRecord,
    Wanted,
    group_key,
    member_key,
    progress_key,
)
from metadata.moving import MARK
from metadata.records import CookieRecord, Fragment, LedgerRecord, LedgerState, ledger_key
from metadata.time import rows as time_rows, tick_rows
from metadata.time.rows import WINDOW, WindowRecord
from metadata.time.tick_rows import TIME_LANES, TimedTopic
from metadata.topics import LaneLedger, LaneRecord

UID = 1
Rows = dict[str, bytes]


def ledger(ledger_id: int, *, entries: int = -1, **changed: object) -> LedgerRecord:
    record = LedgerRecord(
        ledger_id=ledger_id,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        state=LedgerState.OPEN if entries < 0 else LedgerState.CLOSED,
        fragments=[Fragment(0, ["b1", "b2"])],
        last_entry=entries - 1 if entries >= 0 else -1,
        custom={"topic": "shop/a", "partition": "0"},
        incarnation=5,
    )
    return msgspec.structs.replace(record, **changed)


def lane_row(number: int) -> str:
    return topics.lane_ledger_key(UID, 0, 0, number)


def closed(ledger_id: int, base: int, entries: int) -> bytes:
    row = LaneLedger(ledger_id=ledger_id, state="closed", base_version=base, entries=entries)
    return topics.encode_row(row)


def sound() -> Rows:
    """Two lanes of a topic, one with four ledgers, of which the second was deleted."""
    rows = {
        "instance": b"5f5f",
        WINDOW: msgspec.json.encode(WindowRecord(7)),
        TIME_LANES: msgspec.json.encode(TimedTopic("shop/a")),
        topics.topic_key("shop/a"): topics.encode_row(
            topics.TopicRecord(name="shop/a", uid=UID, partitions=1)
        ),
        topics.last_event_key("shop"): topics.encode_row(topics.LastEvent(1)),
        topics.event_key("shop", 1): topics.encode_row(
            topics.TopicEvent(
                kind="created",
                topic="shop/a",
                at_ms=1,
                record=topics.TopicRecord(name="s/a", uid=1),
            )
        ),
        topics.lane_key(UID, 0, 0): topics.encode_row(
            LaneRecord(epoch=3, current=3, next_version=30)
        ),
        topics.lane_key(UID, 0, 1): topics.encode_row(LaneRecord(epoch=1)),
        topics.lane_name_key(UID, 0, "red"): topics.encode_row(topics.LaneName(1)),
        topics.lane_roll_key(UID, 0, 0, 1): topics.encode_row(topics.LaneRoll(asked_ms=1)),
        topics.lane_removals_key(UID, 0, 0): topics.encode_row(
            topics.LaneRemovals([topics.RemovedLedgers(1, 2, 10, 20, 2, 2)])
        ),
        lane_row(0): closed(1, 0, 10),
        lane_row(2): closed(3, 20, 10),
        lane_row(3): topics.encode_row(LaneLedger(ledger_id=4, state="open", base_version=30)),
        lane_row(4): topics.encode_row(LaneLedger(ledger_id=5, state="prepared")),
        jobs.staged_key(UID, "j1", 6): jobs.encode_job_row(
            jobs.StagedLedger(ledger_id=6, partition=0)
        ),
        ledger_key(9): records.encode_record(ledger(9, custom={})),
        group_key("g"): msgspec.json.encode(GroupRecord(epoch=3)),
        member_key("g", "a"): msgspec.json.encode(member([PartRun(UID, 0, 0)])),
        progress_key("g", Part(UID, 0)): msgspec.json.encode(ProgressRecord(lanes=[])),
    }
    for bookie in ("b1", "b2"):
        rows[records.cookie_key(bookie)] = records.encode_record(
            CookieRecord(bookie, "5f5f", "/j", "/l", "c")
        )
    for ledger_id, entries in ((1, 10), (3, 10), (4, -1), (5, -1), (6, -1)):
        rows[ledger_key(ledger_id)] = records.encode_record(ledger(ledger_id, entries=entries))
    return rows


def member(parts: list[PartRun]) -> MemberRecord:
    return MemberRecord(epoch=3, run="r", wanted=Wanted(topics=["shop/a"]), parts=parts)


ISSUED = {"ledgers": 20, "topics": 5}


async def findings(rows: Rows, issued: Mapping[str, int] = ISSUED) -> list[Finding]:
    store = MemoryStore()
    for key, value in rows.items():
        store.change(key, value)
    for counter, count in issued.items():
        await store.next_id(counter, count)
    await grant(store, jobs.job_lease(UID, "j1"), "me", ttl_s=10)
    found: list[Finding] = []
    async with store.snapshot() as snapshot:
        done = await audit(snapshot, on_finding=found.append, on_progress=lambda _records: None)
    assert done.records == len(rows)
    assert done.consistent
    return found


async def test_nothing_is_wrong_with_what_quire_writes() -> None:
    assert await findings(sound()) == []


async def test_rows_behind_a_pointer_count_for_nothing_but_their_ledgers() -> None:
    rows = sound()
    pointed = LaneLedger(ledger_id=6, state="prepared", base_version=99, pointer="j1/x")
    rows[lane_row(9)] = topics.encode_row(pointed)
    rows[jobs.pointer_key(UID, "j1")] = jobs.encode_job_row(
        jobs.JobPointer(attempt="x", state="open")
    )
    assert await findings(rows) == []
    del rows[ledger_key(6)]
    assert {each.key for each in await findings(rows)} == {
        lane_row(9),
        jobs.staged_key(UID, "j1", 6),
    }


async def test_a_value_in_pages_is_checked_as_a_whole() -> None:
    rows = sound()
    pins = b'{"kind":"replay","lanes":[[0,0,0]]}'
    key = jobs.pins_key(UID, "j1")
    rows[key] = b'{"paged":"1-a","size":%d}' % len(pins)
    for number, part in enumerate((b"", pins[:9], pins[9:])):
        rows[f"pages/{key}/1-a/{number:06d}"] = part
    assert await findings(rows) == []
    rows[f"pages/{key}/1-a/000002"] = pins[9:].replace(b"[0,", b"[x,")
    assert [each.key for each in await findings(rows)] == [key]
    del rows[f"pages/{key}/1-a/000002"]
    (found,) = await findings(rows)
    assert (found.severity, found.key) == ("broken", key)
    assert "9 of" in found.problem


def put(key: str, value: bytes) -> Callable[[Rows], None]:
    return lambda rows: rows.update({key: value})


def drop(key: str) -> Callable[[Rows], None]:
    return lambda rows: rows.__delitem__(key)


def put_ledger(record: LedgerRecord) -> Callable[[Rows], None]:
    return put(ledger_key(record.ledger_id), records.encode_record(record))


def put_row(number: int, row: LaneLedger) -> Callable[[Rows], None]:
    return put(lane_row(number), topics.encode_row(row))


BROKEN: list[tuple[Callable[[Rows], None], str, str]] = [
    (put(WINDOW, b'{"saved_ms": -1}'), WINDOW, "saved_ms"),
    (put(TIME_LANES, b"{}"), TIME_LANES, "name"),
    (put("time/other", b"{}"), "time/other", "keeps nothing under such a key"),
    (drop(ledger_key(3)), lane_row(2), "the ledger 3 has no record"),
    (drop(ledger_key(6)), jobs.staged_key(UID, "j1", 6), "the ledger 6 has no record"),
    (drop(lane_row(4)), ledger_key(5), "written for the topic shop/a, but no lane"),
    (put_row(4, LaneLedger(ledger_id=1, state="prepared")), lane_row(4), "ledger 1 belongs to"),
    (put_ledger(ledger(40, custom={})), ledger_key(40), "continues at 21"),
    (
        put(
            topics.topic_key("shop/b"),
            topics.encode_row(topics.TopicRecord(name="shop/b", uid=UID)),
        ),
        topics.topic_key("shop/b"),
        "has the uid 1 of topics/shop/a",
    ),
    (
        put(
            topics.topic_key("shop/b"),
            topics.encode_row(topics.TopicRecord(name="shop/b", uid=6)),
        ),
        topics.topic_key("shop/b"),
        "continues at 6",
    ),
    (drop(topics.topic_key("shop/a")), topics.lane_key(UID, 0, 0), "uid 1, which does not exist"),
    (drop(topics.lane_key(UID, 0, 0)), lane_row(0), "a lane that does not exist"),
    (drop(topics.lane_key(UID, 0, 1)), topics.lane_name_key(UID, 0, "red"), "names a lane that"),
    (put_ledger(ledger(3, entries=9)), lane_row(2), "10 entries, but the record of its ledger 3"),
    (put_ledger(ledger(3)), lane_row(2), "ledger 3 says: open"),
    (
        put_row(2, LaneLedger(ledger_id=3, state="open", base_version=20)),
        lane_row(2),
        "is open, but its lane is at ledger number 3",
    ),
    (put_row(3, LaneLedger(ledger_id=4, state="prepared")), lane_row(3), "is prepared, but"),
    (
        put_row(4, LaneLedger(ledger_id=5, state="open", base_version=30)),
        lane_row(4),
        "is open, but its lane is at ledger number 3",
    ),
    (
        put_row(3, LaneLedger(ledger_id=4, state="open", base_version=31)),
        lane_row(3),
        "ends at version 31, but its lane continues at version 30",
    ),
    (
        put_row(3, LaneLedger(ledger_id=4, state="open", base_version=29)),
        lane_row(3),
        "begins at version 29, but the ledger before it ends at version 30",
    ),
    (
        drop(topics.lane_removals_key(UID, 0, 0)),
        lane_row(2),
        "the ledgers from number 1 to 1 of the lane are missing",
    ),
    (
        put(topics.last_event_key("shop"), topics.encode_row(topics.LastEvent(0))),
        topics.event_key("shop", 1),
        "the last event of the namespace has number 0",
    ),
    (drop(records.cookie_key("b2")), ledger_key(1), "the bookie b2, which has no cookie; so do 5"),
    (drop("instance"), "instance", "it is missing: cookies/b1 is of cluster 5f5f"),
    (put("instance", b""), "instance", "it is missing: cookies/b1"),
    (put("instance", b"6060"), "cookies/b1", "is of cluster 5f5f, not of 6060"),
    (put(MARK, b""), MARK, "half of an import"),
    (put(ledger_key(3), b"{"), ledger_key(3), "is not a LedgerRecord"),
    (
        put(ledger_key(8), records.encode_record(ledger(7, custom={}))),
        ledger_key(8),
        "is the record of ledger 7",
    ),
    (put("topics/shop/b", b'{"name":"shop/c","uid":2}'), "topics/shop/b", "of the topic shop/c"),
    (
        put("cookies/b3", records.encode_record(CookieRecord("b4", "5f5f", "/j", "/l", "c"))),
        "cookies/b3",
        "is the cookie of 'b4'",
    ),
    (
        put(member_key("g", "b"), msgspec.json.encode(member([PartRun(UID, 0, 3)]))),
        member_key("g", "b"),
        f"has partition 0 of the topic with uid 1, and so has {member_key('g', 'a')}",
    ),
    (
        put(member_key("h", "a"), msgspec.json.encode(member([]))),
        member_key("h", "a"),
        "a member of the group h, which does not exist",
    ),
    (
        drop(group_key("g")),
        progress_key("g", Part(UID, 0)),
        "progress of the group g, which does not exist",
    ),
    (put("staged/x", b'{"ledger_id":9,"partition":0}'), "staged/x", "names no job"),
]
LEFT: list[tuple[Callable[[Rows], None], str, str]] = [
    (
        put("pages/replays/n/1-a/000000", b""),
        "pages/replays/n/1-a/000000",
        "a page of replays/n, which does not name it",
    ),
    (
        put(jobs.pins_key(UID, "j2"), b'{"kind":"replay","lanes":[]}'),
        jobs.pins_key(UID, "j2"),
        "pins of a job that does not run",
    ),
    (
        put(records.underreplicated_key(7), b'{"ledger_id":7,"reason":"check","since_ms":0}'),
        records.underreplicated_key(7),
        "a mark for repair of a ledger that is gone",
    ),
    (
        put(jobs.sink_key(3, "q"), b'{"batch_id":1}'),
        jobs.sink_key(3, "q"),
        "the topic with uid 3, which is gone",
    ),
]


@pytest.mark.parametrize(("change", "key", "problem"), BROKEN)
async def test_what_breaks_a_rule_is_found(
    change: Callable[[Rows], None], key: str, problem: str
) -> None:
    rows = sound()
    change(rows)
    found = await findings(rows)
    broken = [each for each in found if each.key == key and problem in each.problem]
    assert [each.severity for each in broken] == ["broken"], found
    assert not broken[0].problem.startswith(f"{key}: "), "which names it already"


@pytest.mark.parametrize(
    ("counter", "keys"),
    [
        ("ledgers", {ledger_key(number) for number in (1, 3, 4, 5, 6, 9)}),
        ("topics", {topics.topic_key("shop/a")}),
    ],
)
async def test_a_counter_that_is_gone_is_found(counter: str, keys: set[str]) -> None:
    """It begins at 1 again, so all of its ids will be issued again."""
    found = await findings(sound(), {name: ISSUED[name] for name in ISSUED if name != counter})
    assert {each.key for each in found} == keys
    assert all(f"the counter of {counter} continues at 1," in each.problem for each in found)


@pytest.mark.parametrize(("change", "key", "problem"), LEFT)
async def test_what_the_cluster_cleans_up_is_a_leftover(
    change: Callable[[Rows], None], key: str, problem: str
) -> None:
    rows = sound()
    change(rows)
    assert [(each.severity, each.key) for each in await findings(rows)] == [("leftover", key)]
    assert problem in (await findings(rows))[0].problem


async def test_a_key_that_quire_does_not_know_is_foreign() -> None:
    rows = sound() | {"x/y": b"", "other": b""}
    assert {(each.severity, each.key) for each in await findings(rows)} == {
        ("foreign", "x/y"),
        ("foreign", "other"),
    }


async def test_no_value_stops_the_check() -> None:
    rows = sound()
    for prefix in KINDS:
        rows[f"{prefix}{'9' * 30}/x"] = b"{}"
        rows[f"{prefix}00000000000000000001/0000000001/{'9' * 30}/{'9' * 30}"] = b"\xff"
    assert len(await findings(rows)) >= len(KINDS)


async def test_every_rule_has_a_case() -> None:
    problems = []
    for change, _, _ in (*BROKEN, *LEFT):
        rows = sound()
        change(rows)
        problems += [each.problem for each in await findings(rows)]
    for rule in RULES:
        pattern = re.escape(rule.problem).replace(r"\{\}", ".*")
        assert any(re.fullmatch(pattern, problem) for problem in problems), rule


def test_every_kind_of_row_is_known() -> None:
    of_groups, of_time = (group_rows, keeps, shares), (time_rows, tick_rows)
    others = (records, topics, jobs, compaction, cuts, paged, replays)
    leases = {records.BOOKIES, records.REPAIRS, topics.WRITERS, jobs.JOBS, jobs.TRUNCATIONS}
    leases |= {tick_rows.TIME_DDL}
    prefixes = {
        value.partition("/")[0] + "/"
        for module in (*others, *of_groups, *of_time)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and "/" in value
    }
    assert prefixes - leases == set(KINDS)

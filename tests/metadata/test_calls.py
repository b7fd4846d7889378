from __future__ import annotations

from contextlib import suppress
from typing import get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from metadata import calls
from metadata.calls import (
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from metadata.errors import BadRecord
from metadata.groups.calls import (
    Beat,
    BeatNoted,
    DeleteGroup,
    DescribeGroups,
    FoundGroup,
    GroupJoined,
    GroupLeft,
    GroupPage,
    GroupState,
    JoinGroup,
    KeepGroup,
    LeaveGroup,
    MemberState,
    ReportIn,
    ReportNoted,
)
from metadata.groups.rows import MemberRecord, PartRun, Revoked, Wanted
from metadata.inspections import (
    ExtentOnBookie,
    ExtentPage,
    Indexes,
    IndexExtents,
    IndexOnBookie,
    IndexPage,
    JournalFileOnBookie,
    JournalFilePage,
    JournalFiles,
    JournalRecordPage,
    JournalRecords,
    RecordOnBookie,
)
from metadata.store import OPS_MAX, Changes, Check, CheckLease, Delete, Lease, Put, StoreSession
from metadata.time.calls import (
    AllotTimestamps,
    LaneReport,
    LanesNoted,
    NewestTick,
    ReportLanes,
    ResetTime,
    TickNow,
    TimeReset,
    TimestampsAllotted,
)
from native.mark import Mark

SESSION = StoreSession("me", 3, 1.5)
LEASE = Lease("bookies/1", "me", 4, b"\0", 1.5, 3)
MEMBER = MemberRecord(
    epoch=3,
    run="run",
    wanted=Wanted(topics=["shop/orders"], patterns=["shop/*"]),
    parts=[PartRun(1, 0, 3)],
    revoked=[Revoked(2, [PartRun(1, 2, 3)])],
)
GROUP = GroupState(
    group="g",
    mode="exclusive",
    epoch=3,
    state="ready",
    rebalances=1,
    members=[MemberState(member="m", record=MEMBER, state="ready", silent_s=0.5, polled_s=1.0)],
)
REQUESTS: list[Request] = [
    calls.Get("a"),
    Put("a", b"\xff", 3),
    Delete("a"),
    calls.Transact([Put("a", b""), Delete("b", 1), Check("c", 0), CheckLease("l", "o", 1)]),
    calls.ListKeys("a/", "a/b", 10),
    calls.NextId("ids", 5),
    calls.OpenSession("o", 1.5),
    calls.KeepSession(SESSION),
    calls.EndSession(SESSION),
    calls.Grant("l", SESSION, "o", b"v"),
    calls.Update(LEASE, b"v"),
    calls.Release(LEASE),
    calls.ListLeases("bookies/"),
    calls.ReadClock(),
    calls.WatchSince("a/", 3, 60_000),
    calls.WatchPrefixes(["a/"], ["b/"], 3),
    calls.AwaitHints(60_000),
    calls.AwaitLedgers([calls.FollowedLedger(3, -1)], [4], 60_000),
    calls.BookieInfo(),
    calls.LedgerStates(7, 10),
    calls.EntryLocation(1, 2),
    calls.JournalMark(),
    calls.Logs(),
    calls.CollectGarbage(major=True),
    calls.FlushNow(),
    calls.LedgerRuns(1, 2, 3),
    calls.ForgetUnknown(1, 2),
    calls.ScrubNow(),
    calls.DiskUse(),
    JournalFiles(),
    JournalRecords(3, 4096, 7, ledger_id=5, groups=True, count=2),
    Indexes(4),
    IndexExtents(4, 128, ledger_id=5, count=2),
    JoinGroup("g", "m", MEMBER, "shared"),
    ReportIn([Beat("g", "m", "run", 3, 1.5)]),
    LeaveGroup("g", "m", "run"),
    FoundGroup("g"),
    DeleteGroup("g", force=True),
    KeepGroup("g", keep=True),
    DescribeGroups(after="g"),
    AllotTimestamps(1 << 18),
    ResetTime(1_700_000_000_000),
    ReportLanes([LaneReport(1, -1, 0, 2, 3, 4)]),
    NewestTick(1),
]
REPLIES: list[Reply] = [
    calls.Failure("VersionConflict", "m", {"key": "a", "expected": 1, "x": 1.5, "y": None}),
    calls.Missing(),
    calls.Found(b"\0", 1),
    calls.Done([1, 2]),
    calls.KeyPage([calls.KeyItem("a", b"v", 1)]),
    calls.SessionOpened(SESSION),
    calls.Granted(LEASE),
    calls.LeasePage([LEASE]),
    calls.StoreTime(1_700_000_000_000),
    Changes(3, ["a"]),
    calls.BookieStatus("b", "h:1", "ready"),
    calls.LedgersMoved([3]),
    calls.LedgerStatePage([calls.LedgerOnBookie(1, 2, 3)]),
    calls.EntryPlace("log", 1, 2, 3),
    calls.JournalState(1, 2, Mark(1, 2, 3, 4, 5, 6, 7, 8)),
    calls.LogPage([calls.LogOnBookie(1, 2, 3)]),
    JournalFilePage([JournalFileOnBookie(3, 1 << 20, 0, needed=True)], [2]),
    JournalRecordPage([RecordOnBookie(4096, 5, -0x1000, 20)], [8192], 4096, 1, 9000),
    IndexPage([IndexOnBookie(4, 8192, 1, 10, 420, [64])]),
    ExtentPage(
        [ExtentOnBookie(64, 5, 0, 9, 4096, 0, 420, 10, sparse=False)],
        [],
        64,
        is_last=False,
    ),
    calls.DiskUsed([calls.FilesOnDisk("log", 1, 2, 4096)], live=1, dead=0, unflushed=5),
    calls.GarbageReport(1, 2, 3, 4, 5),
    calls.RunPage([(0, 4), (6, 6)]),
    calls.Forgotten(True),
    calls.ScrubReport(9, [calls.DamagedPlace("1.log", 2, 3, 4)], 1),
    GroupJoined(3),
    ReportNoted([BeatNoted(is_member=True, epoch=3)]),
    GroupLeft(),
    GroupPage([GROUP]),
    TimestampsAllotted((1 << 64) - 1, 1, 2.5),
    TimeReset(1_700_000_000_000),
    LanesNoted(),
    TickNow(9, 8, [(-1, 0, 7)], "lane 0"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_come_back_as_they_were(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_replies_come_back_as_they_were(reply: Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_every_message_is_tried_here() -> None:
    assert {type(request) for request in REQUESTS} == set(get_args(Request))
    assert {type(reply) for reply in REPLIES} == set(get_args(Reply))


def test_a_request_is_a_map_that_names_its_type() -> None:
    body = encode_request(calls.Get("a"))
    assert body == b"\x82\xa4type\xa3Get\xa3key\xa1a"
    assert msgspec.msgpack.decode(body) == {"type": "Get", "key": "a"}


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_bad_record(body: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with pytest.raises(BadRecord):
            decode(body)


@given(st.data())
def test_a_message_with_a_byte_changed_is_a_message_or_refused(data: st.DataObject) -> None:
    body = bytearray(encode_request(data.draw(st.sampled_from(REQUESTS))))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadRecord):
        decode_request(bytes(body))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_message_cut_short_is_refused(request_: Request) -> None:
    body = encode_request(request_)
    for size in range(len(body)):
        with pytest.raises(BadRecord):
            decode_request(body[:size])


@pytest.mark.parametrize(
    "message",
    [
        {"type": "Get"},
        {"type": "Get", "key": 7},
        {"type": "Get", "key": b"bytes"},
        {"type": "Found", "value": b"", "version": 1},
        {"type": 7},
        {"type": "ListKeys", "prefix": "", "limit": 1 << 64 - 1},
        {"type": "ListKeys", "prefix": "", "limit": -1},
        {"type": "WatchSince", "prefix": "", "wait_ms": 60_001},
        {"type": "LedgerStates", "count": 1001},
        {"type": "EntryLocation", "ledger_id": -1, "entry_id": 0},
        {"type": "Transact", "ops": [{"type": "Check", "key": "a", "expected": 0}] * (OPS_MAX + 1)},
        {"type": "Transact", "ops": [{"type": "Get", "key": "a"}]},
        ["Get", "a"],
        None,
    ],
)
def test_a_message_that_breaks_a_rule_is_refused(message: object) -> None:
    with pytest.raises(BadRecord):
        decode_request(msgspec.msgpack.encode(message))


@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xa4type\xa2\xff\xff",  # text that is not UTF-8
        b"\x82\xa4type\xa3Get\xa3key\xdb\xff\xff\xff\xff",  # longer than the bytes there are
        b"\xdf\xff\xff\xff\xff",
        b"\x82\xa1x" + b"\x91" * 200_000 + b"\xc0",  # nested without end
    ],
)
def test_bytes_made_to_hurt_are_refused(body: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with pytest.raises(BadRecord):
            decode(body)

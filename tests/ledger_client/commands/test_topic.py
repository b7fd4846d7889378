from __future__ import annotations

import io
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import trio
from google.protobuf import descriptor_pb2, timestamp_pb2
from leases import grant
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.__main__ import quire
from ledger_client.commands.options import Ago, DurationParam, MomentParam, moment_text
from ledger_client.commands.outcome import conclude
from ledger_client.commands.places import Point
from ledger_client.commands.topic import removal
from metadata.groups.rows import MemberRecord, Wanted, member_key
from metadata.outcome import Exit
from metadata.records import (
    BookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    bookie_lease,
    encode_record,
    ledger_key,
)
from metadata.topics import (
    LaneLedger,
    LaneOwner,
    LaneRecord,
    decode_topic,
    encode_row,
    lane_key,
    lane_ledger_key,
    topic_key,
    writer_lease,
)
from metadata.urls import open_store

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
NOON_MS = 1_714_564_800_000  # 2024-05-01T12:00Z


class CommandOutput(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., CommandOutput]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Metadata with three bookies that are said to serve."""
    url = f"sqlite://{tmp_path}/metadata.db"

    async def fill() -> None:
        async with open_store(url) as store:
            for name in ("b1", "b2", "b3"):
                record = encode_record(BookieRecord(name, "127.0.0.1:9", 10, 10))
                await grant(store, bookie_lease(name), name, ttl_s=600, value=record)

    trio.run(fill)
    return url


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def conclude_words(*words: str) -> CommandOutput:
        code = conclude(quire, ["topic", *words, "--cluster", url])
        return CommandOutput(code, *capsys.readouterr())

    return conclude_words


def lay_out(url: str, name: str) -> None:
    """Two closed ledgers of a day each, the second till noon, and one that is written."""

    async def fill() -> None:
        async with open_store(url) as store:
            found = await store.get(topic_key(name))
            assert found is not None
            uid = decode_topic(name, found.value).uid
            await store.put(lane_key(uid, -1, 0), encode_row(LaneRecord(epoch=3, current=2)))
            for number in range(3):
                end_ms = NOON_MS + (number - 1) * DAY_MS
                row = LaneLedger(
                    ledger_id=40 + number,
                    state="closed",
                    created_ms=end_ms - DAY_MS,
                    closed_ms=end_ms,
                    entries=5,
                    messages=1500,
                    size=2048,
                    first_event_time=(end_ms - DAY_MS) * 1_000_000,
                    last_event_time=(end_ms - 1) * 1_000_000,
                )
                if number == 2:
                    row = LaneLedger(ledger_id=42, state="open", created_ms=NOON_MS)
                await store.put(lane_ledger_key(uid, -1, 0, number), encode_row(row))
                ledger = LedgerRecord(
                    40 + number, 1, 1, 1, LedgerState.CLOSED, [Fragment(0, ["b1"])]
                )
                await store.put(ledger_key(40 + number), encode_record(ledger))
            owner = encode_row(LaneOwner(producer="till", host="h1", process_id=7))
            await grant(store, writer_lease(uid, -1, 0), "till/1", ttl_s=600, value=owner)

    trio.run(fill)


def test_a_topic_is_made_described_altered_and_deleted(run: Run) -> None:
    """TB-24, TD-07: copies and limits are set when it is made, and limits later too."""
    assert run("create", "shop/orders", "--partitions", "4").out == "shop/orders\n"
    described = run("describe", "shop/orders").out
    assert "partitions      4" in described
    assert "copies          2, acknowledged with 2 of them" in described
    assert "ledgers roll at 95.4 MiB or 4 h" in described
    assert "kept            7 d" in described
    assert "ticks" not in described
    altered = run("alter", "shop/orders", "--retention-age", "-1", "--partitions", "6", "--json")
    assert altered.json[0]["retention"] == {"age_s": -1.0, "size": -1}
    assert altered.json[0]["partitions"] == 6
    assert run("delete", "shop/orders", "--yes", "--json").json == [
        {"topic": "shop/orders", "ledgers": 0, "complete": True}
    ]
    told = run("describe", "shop/orders")
    assert (told.code, told.err) == (
        Exit.FAILED,
        "quire: topic shop/orders: no such topic; `quire topic list` shows all, "
        "`quire topic create shop/orders` makes it\n",
    )


def test_a_lane_whose_bookies_do_not_answer_is_named_and_the_rest_is_counted(
    run: Run, url: str
) -> None:
    run("create", "shop/orders")
    lay_out(url, "shop/orders")

    async def leave_open() -> None:
        async with open_store(url) as store:
            ledger = LedgerRecord(42, 1, 1, 1, LedgerState.OPEN, [Fragment(0, ["b1"])])
            await store.put(ledger_key(42), encode_record(ledger))

    trio.run(leave_open)
    described = run("describe", "shop/orders")
    assert described.code == Exit.DONE
    assert "holds           3 ledgers, at least 3,000 messages, 4.0 KiB\n" in described.out
    assert "not counted     the open ledger of lane 0: its bookies do not answer\n" in described.out
    (found,) = run("describe", "shop/orders", "--json").json
    assert isinstance(found["extent"], dict)
    assert (found["extent"]["messages"], found["extent"]["uncounted"]) == (3000, 1)


def test_a_topic_without_open_ledgers_has_none_to_roll(run: Run) -> None:
    run("create", "shop/orders")
    assert run("roll", "shop/orders").out == "0 ledgers closed\n"
    assert run("roll", "shop/orders", "--json").json == [{"topic": "shop/orders", "lanes": []}]


def test_every_setting_can_be_given(run: Run, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    words = {
        "--partitions": "2",
        "--replication": "3",
        "--ack-quorum": "3",
        "--order": "event-time",
        "--compression": "zstd",
        "--roll-size": "64KiB",
        "--roll-entries": "50000",
        "--roll-age": "15min",
        "--roll-age-min": "10s",
        "--retention-age": "36h",
        "--retention-size": "10GB",
        "--schema": "json",
        "--schema-file": str(tmp_path / "schema.json"),
        "--property": "team=till",
    }
    given = [word for pair in words.items() for word in pair]
    (made,) = run("create", "s/t", *given, "--json").json
    assert made["roll"] == {"size": 65536, "entries": 50000, "age_s": 900.0, "age_min_s": 10.0}
    assert made["retention"] == {"age_s": 129600.0, "size": 10**10}
    assert made["schema"] == {"kind": "json", "definition": '{"type": "object"}'}
    assert (made["order"], made["compression"]) == ("event-time", "zstd")
    assert (made["replication"], made["ack_quorum"]) == (3, 3)
    (altered,) = run("alter", "s/t", "--property", "team=", "--property", "a=b=c", "--json").json
    assert altered["properties"] == {"a": "b=c"}
    assert altered["roll"] == made["roll"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["create", "orders"], Exit.USAGE, "'orders' is not namespace/name"),
        (["create", "s/__events"], Exit.USAGE, "names that begin with '__' are quire's own"),
        (
            ["create", "s/u", "--replication", "4"],
            Exit.FAILED,
            "writable bookies, 4 needed",
        ),
        (["create", "s/u", "--ack-quorum", "3"], Exit.USAGE, "ack quorum <= replication"),
        (["create", "s/u", "--roll-size", "0"], Exit.USAGE, "roll.size: expected int >= 1"),
        (["create", "s/u", "--roll-age", "soon"], Exit.USAGE, "write 90s, 15min, 4h or 7d"),
        (["create", "s/u", "--property", "x"], Exit.USAGE, "written KEY=VALUE"),
        (["create", "s/t"], Exit.FAILED, "exists already; `quire topic describe` shows it"),
        (["alter", "s/t"], Exit.USAGE, "nothing to alter"),
        (["alter", "s/t", "--partitions", "2"], Exit.USAGE, "it is not partitioned"),
        (["alter", "s/none", "--compression", "lz4"], Exit.FAILED, "no such topic"),
        (["delete", "s/none"], Exit.FAILED, "no such topic"),
        (["explain", "s/none"], Exit.FAILED, "no such topic"),
        (["roll", "s/none"], Exit.FAILED, "no such topic"),
        (["roll", "s/t", "--partition", "4"], Exit.USAGE, "there is no partition 4"),
        (["roll", "s/t", "--wait", "long"], Exit.USAGE, "write 90s, 15min, 4h or 7d"),
        (["purge", "s/t"], Exit.USAGE, "choose what to remove"),
        (["purge", "s/t", "--all", "--before", "7d"], Exit.USAGE, "choose what to remove"),
        (["purge", "s/t", "--before", "never"], Exit.USAGE, "'never' is not a point in time"),
        (["purge", "s/t", "--before", "1714557600"], Exit.USAGE, "before any publish time"),
        (["purge", "s/t", "--before", "1714557600000"], Exit.USAGE, "before any publish time"),
        (["why", "s/t", "--since", "1714557600000"], Exit.USAGE, "before any publish time"),
        (["truncate", "s/t"], Exit.USAGE, "Missing option '--from'"),
        (["truncate", "s/t", "--from", "never"], Exit.USAGE, "'never' is not a place"),
        (["truncate", "s/none", "--from", "7d"], Exit.FAILED, "no such topic"),
    ],
)
def test_what_cannot_be_is_one_line_that_helps(
    run: Run, words: list[str], code: int, told: str
) -> None:
    run("create", "s/t")
    done = run(*words)
    assert done.code == code
    assert told in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("delete-lane", "s/t", "0"), "Delete lane 0 with all its messages?"),
        (("delete", "s/t"), "Delete topic s/t with all its messages, in 3 ledgers?"),
    ],
)
def test_a_question_that_is_not_answered_yes_ends_it_and_deletes_nothing(
    run: Run,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    words: tuple[str, ...],
    question: str,
) -> None:
    """An end of the input is no yes."""
    run("create", "s/t")
    lay_out(url, "s/t")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    done = run(*words)
    assert (done.code, done.out) == (Exit.INTERRUPTED, "")
    assert done.err.startswith(question)
    asked, said = done.err.splitlines()
    assert asked.rstrip().endswith("? [y/N]:")
    assert said == "nothing was deleted"
    assert "3 ledgers, 3,000 messages" in run("describe", "s/t").out


def test_a_topic_is_deleted_when_that_is_answered_yes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("create", "s/t")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    done = run("delete", "s/t")
    assert (done.code, done.out) == (Exit.DONE, "")
    assert done.err.startswith("Delete topic s/t with all its messages, in 0 ledgers? [y/N]")
    gone = run("delete", "s/t")
    assert (gone.code, len(gone.err.splitlines())) == (Exit.FAILED, 1)
    assert "no such topic" in gone.err


def test_topics_are_listed_by_namespace(run: Run) -> None:
    assert run("list") == (Exit.DONE, "", "")
    for name in ("b/two", "a/one", "a/two"):
        run("create", name)
    lines = run("list").out.splitlines()
    assert lines[0].split()[:3] == ["topic", "partitions", "copies"]
    assert [line.split()[0] for line in lines[1:]] == [
        "a/one",
        "a/two",
        "b/two",
    ]
    listed = [topic["name"] for topic in run("list", "a", "--json").json]
    assert listed == ["a/one", "a/two"]


def test_each_ledger_is_explained(run: Run, url: str) -> None:
    """PS-35: why it still exists and when it will go."""
    run("create", "s/t", "--retention-age", "-1")
    lay_out(url, "s/t")
    head, first, second, third, _, last = run("explain", "s/t").out.splitlines()
    assert head.split()[:5] == ["partition", "lane", "number", "ledger", "state"]
    assert first.split()[:8] == ["-", "0", "0", "40", "closed", "5", "1,500", "2.0"]
    assert "everything is kept" in first
    assert "never" in second
    assert "written by till on h1" in third
    assert "after its close" in third
    assert last == "s/t: 3 ledgers, 4.0 KiB; kept: forever"
    run("alter", "s/t", "--retention-age", "1d")
    assert run("explain", "s/t").out.count("older than 1 d") == 2
    (told,) = run("explain", "s/t", "--json").json
    assert [fate["goes"] for fate in told["lanes"][0]["ledgers"]] == [True, True, False]  # type: ignore[index]


def test_describe_tells_what_each_lane_holds(run: Run, url: str) -> None:
    """TB-13, TB-53, TB-55."""
    run("create", "s/t")
    lay_out(url, "s/t")
    described = run("describe", "s/t").out
    assert "holds           3 ledgers, 3,000 messages, 4.0 KiB" in described
    assert "till on h1, process 7" in described
    assert "2024-04-29 12:00:00Z to 2024-05-01 11:59:59.999Z" in described


def test_a_purge_of_what_is_so_old_reckons_by_the_stores_time(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose clock is hours ahead removes no more than another."""

    async def read_clock() -> int:
        async with open_store(url) as store:
            return await store.now_ms()

    run("create", "s/t")
    lay_out(url, "s/t")
    with sqlite3.connect(url.removeprefix("sqlite://")) as connection:
        connection.execute("DELETE FROM clock")
    connection.close()
    monkeypatch.setattr(time, "time_ns", lambda: (NOON_MS + 4 * HOUR_MS) * 1_000_000)
    assert trio.run(read_clock) == NOON_MS + 4 * HOUR_MS
    monkeypatch.setattr(time, "time_ns", lambda: (NOON_MS + 12 * HOUR_MS) * 1_000_000)
    (purged,) = run("purge", "s/t", "--before", "6h", "--dry-run", "--json").json
    assert purged["ledgers"] == 1
    (purged,) = run("purge", "s/t", "--before", "3h", "--dry-run", "--json").json
    assert purged["ledgers"] == 2


async def test_a_deletion_of_what_is_so_old_reckons_by_the_stores_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """What is deleted is the same in the dry run, and on a host whose clock is a day ahead."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await cluster.store.now_ms()  # from now on its clock is its own
        begin, end = Point("earliest"), Point(number=Ago.of(3600), is_moment=True)
        monkeypatch.setattr(time, "time_ns", lambda: (NOON_MS + 24 * HOUR_MS) * 1_000_000)
        ahead = Point(number=Ago.of(3600), is_moment=True)
        expected = (await cluster.store.now_ms() - HOUR_MS) * 1_000_000
        for point in (end, ahead):
            assert abs((await removal._dated(client, point)).number - expected) < 10**9
        assert await removal._dated(client, begin) == begin


def test_in_a_cluster_of_one_bookie_a_topic_with_one_copy_is_warned_of(
    run: Run, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave_one() -> None:
        async with open_store(url) as store:
            for lease in await store.leases("bookies/"):
                if lease.owner != "b1":
                    await store.release(lease)

    assert "warning" not in run("create", "s/two", "--json").json[0]
    trio.run(leave_one)
    (made,) = run("create", "s/one", "--json").json
    assert made["replication"] == 1
    assert "messages have one copy" in str(made["warning"])
    assert "s/one: messages have one copy" in caplog.text
    assert "warning" not in run("create", "s/asked", "--replication", "1", "--json").json[0]


def test_a_purge_says_what_went_and_what_stays(run: Run, url: str) -> None:
    """TB-75, BK-22."""
    run("create", "s/t")
    lay_out(url, "s/t")
    dry = run("purge", "s/t", "--all", "--dry-run")
    assert "2 ledgers, 3,000 messages, 4.0 KiB would be removed" in dry.out
    done = run("purge", "s/t", "--before", "2024-05-01T11:00")
    assert done.out.splitlines() == [
        "1 ledger, 1,500 messages, 2.0 KiB removed",
        "lane 0: ledger 41 is the first one left: not wholly before 1714561200000 ms",
    ]
    (none,) = run("purge", "s/t", "--before-event-time", "2024-05-01T11:59", "--json").json
    assert (none["ledgers"], none["dry_run"]) == (0, False)
    (last,) = run("purge", "s/t", "--before-event-time", "2024-05-01T12:00Z", "--json").json
    assert (last["ledgers"], last["messages"]) == (1, 1500)


def test_delete_counts_the_ledgers(run: Run, url: str) -> None:
    run("create", "s/t")
    lay_out(url, "s/t")
    assert run("delete", "s/t", "--yes", "--json").json[0]["ledgers"] == 3


def test_a_topic_that_a_consumer_names_is_deleted_by_force_only(run: Run, url: str) -> None:
    """TD-70: one line names the groups and the option."""
    run("create", "s/t")
    member = MemberRecord(epoch=1, run="r", wanted=Wanted(topics=["s/t"]))

    async def fill() -> None:
        async with open_store(url) as store:
            await store.put(member_key("billing", "m"), msgspec.json.encode(member))

    trio.run(fill)
    refused = run("delete", "s/t", "--yes")
    assert (refused.code, refused.out, refused.err) == (
        Exit.FAILED,
        "",
        "quire: topic s/t: group billing consumes it; stop its members, "
        "or force the deletion (--force)\n",
    )
    assert "s/t" in run("list").out
    assert run("delete", "s/t", "--yes", "--force").code == Exit.DONE
    assert "s/t" not in run("list").out


# --- times --------------------------------------------------------------------


def test_lengths_have_units() -> None:
    lengths = [
        DurationParam().convert(text, None, None) for text in ("7", "1.5h", "2d", "1w", "2 min")
    ]
    assert lengths == [7.0, 5400.0, 172800.0, 604800.0, 120.0]
    for unlimited in ("-1", "unlimited"):
        assert DurationParam(unlimited=True).convert(unlimited, None, None) == -1.0


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("2024-05-01T12:00Z", NOON_MS * 1_000_000),
        ("2024-05-01 12:00:00.000001", NOON_MS * 1_000_000 + 1000),
        ("2024-05-01T14:00+02:00", NOON_MS * 1_000_000),
        ("2024-05-01", (NOON_MS - DAY_MS // 2) * 1_000_000),
        ("1969-12-31T23:59:59", -1_000_000_000),
        ("-5", -5),
        ("1714564800000000000", NOON_MS * 1_000_000),
        ("7d", (NOON_MS - 7 * DAY_MS) * 1_000_000),
        ("36h ago", (NOON_MS - 3 * DAY_MS // 2) * 1_000_000),
    ],
)
def test_points_of_time(text: str, at_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: NOON_MS * 1_000_000)
    assert MomentParam().convert(text, None, None) == at_ns


def test_times_are_written_to_the_nanosecond() -> None:
    assert moment_text(NOON_MS * 1_000_000) == "2024-05-01 12:00:00Z"
    assert moment_text(1) == "1970-01-01 00:00:00.000000001Z"
    assert moment_text(-1) == "1969-12-31 23:59:59.999999999Z"
    assert moment_text(1 << 63) == "2262-04-11 23:47:16.854775808Z"


def test_lanes_have_names(run: Run, url: str) -> None:
    """TB-53: listed, and renamed."""
    run("create", "s/t", "--replication", "1")
    lay_out(url, "s/t")
    assert "name" not in run("lanes", "s/t").out.splitlines()[0]
    assert run("rename-lane", "s/t", "0", "left").code == Exit.DONE
    assert "left" in run("lanes", "s/t").out
    (lane,) = run("lanes", "s/t", "--json").json
    assert (lane["name"], lane["lane"]) == ("left", 0)
    refused = run("rename-lane", "s/t", "5", "right")
    assert (refused.code, "is no lane 5" in refused.err) == (Exit.USAGE, True)
    assert run("delete-lane", "s/t", "5", "--yes").code == Exit.USAGE


@pytest.mark.parametrize(
    "words", [("rename-lane", "s/t", "0", "left"), ("delete-lane", "s/t", "0")]
)
def test_lanes_of_a_topic_with_partitions_are_named_with_theirs(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Before anything is asked or done."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    run("create", "s/t", "--replication", "1", "--partitions", "2")
    refused = run(*words)
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (Exit.USAGE, "", 1)
    assert "has 2 partitions" in refused.err
    assert "choose one with --partition, 0 to 1" in refused.err
    for index in ("2", "-1"):
        refused = run(*words, "--partition", index)
        assert refused.code == Exit.USAGE
        assert f"topic s/t has no partition {index}" in refused.err
    asked = run(*words, "--partition", "1")
    told = (
        "Delete lane 0 of partition 1 with"
        if words[0] == "delete-lane"
        else "is no lane 0 of partition 1"
    )
    assert told in asked.err


def test_a_ledger_of_a_topic_is_deleted_only_by_force(
    run: Run, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("create", "s/t", "--replication", "1")

    async def fill() -> None:
        async with open_store(url) as store:
            for ledger_id, topic in ((50, "s/t"), (51, "s/gone"), (52, "my words")):
                ledger = LedgerRecord(
                    *(ledger_id, 1, 1, 1),
                    LedgerState.CLOSED,
                    [Fragment(0, ["b1"])],
                    custom={"topic": topic},
                )
                await store.put(ledger_key(ledger_id), encode_record(ledger))

    trio.run(fill)

    def delete(*words: str) -> int:
        return conclude(quire, ["ledger", "delete", *words, "--cluster", url])

    assert delete("50") == Exit.FAILED
    assert "belongs to topic s/t" in capsys.readouterr().err
    assert [delete("50", "--force"), delete("51"), delete("52")] == [Exit.DONE] * 3


def test_a_schema_of_values_is_checked_before_the_topic_is_made(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    made = run("create", "s/t", "--schema", "avro", "--schema-file", str(file), "--json")
    assert made.json[0]["schema"] == {"kind": "avro", "definition": file.read_text()}
    file.write_text('{"type": "record"}')
    refused = run("create", "s/u", "--schema", "avro", "--schema-file", str(file))
    assert (refused.code, "its schema cannot be read" in refused.err) == (Exit.USAGE, True)
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file.write_bytes(files.SerializeToString())
    told = ("--schema", "protobuf", "--schema-file", str(file))
    refused = run("create", "s/u", *told)
    assert (refused.code, "--schema-message" in refused.err) == (Exit.USAGE, True)
    refused = run("create", "s/u", *told, "--schema-message", "shop.Nothing")
    assert (refused.code, "no message 'shop.Nothing'" in refused.err) == (Exit.USAGE, True)
    made = run("create", "s/u", *told, "--schema-message", "google.protobuf.Timestamp", "--json")
    assert made.json[0]["schema"]["kind"] == "protobuf"  # type: ignore[index]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json", "{", "it is no JSON"),
        ("json", '{"type": "array"}', "which no column can have"),
        ("json", " ", "it is empty"),
        ("avro", "", "it is empty"),
        ("avro", "garbage", "its schema cannot be read"),
    ],
)
def test_a_file_that_is_no_schema_makes_no_topic(
    kind: str, text: str, words: str, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "order.txt"
    file.write_text(text)
    refused = run("create", "s/t", "--schema", kind, "--schema-file", str(file))
    assert (refused.code, words in refused.err) == (Exit.USAGE, True)
    assert "topic" not in refused.err.splitlines()[-1]  # the file is at fault
    assert run("describe", "s/t").code == Exit.FAILED
    run("create", "s/t")
    refused = run("alter", "s/t", "--schema", kind, "--schema-file", str(file))
    assert (refused.code, words in refused.err) == (Exit.USAGE, True)


def test_a_kind_that_needs_a_definition_does_not_go_without(run: Run) -> None:
    refused = run("create", "s/t", "--schema", "avro")
    assert (refused.code, "needs its definition: --schema-file" in refused.err) == (
        Exit.USAGE,
        True,
    )

"""The commands about groups, against real bookies."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from never_twice import check_end, never_twice
from processes import cluster, last_word, quire

from ledger_client import Position, blocking
from ledger_client.blocking import BlockingClient
from ledger_client.groups.exports import GroupExport

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0
HIDE_CURSOR, SHOW_CURSOR, CURSOR_UP = b"\x1b[?25l", b"\x1b[?25h", b"\x1b[1A"
POSITION = Position().to_json()


class Shop:
    """A cluster, and topics of its own for each test."""

    def __init__(self, url: str, client: BlockingClient, topic: str) -> None:
        self.url = url
        self.client = client
        self.topic = topic
        self.group = topic.replace("/", "-")
        client.topics.create(topic, partitions=2)

    def send(self, count: int) -> None:
        with self.client.producer(self.topic, router="round-robin") as producer:
            for number in range(count):
                producer.send(b"%d" % number)

    def run(self, *words: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return quire(*words, "--cluster", self.url, stdin=stdin)

    def done(self, *words: str | Path) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def refused(self, *words: str | Path, code: int = 1) -> str:
        """Run a command that fails; return the one line that says why."""
        before = self.stored()
        done = self.run(*words)
        assert (done.returncode, done.stdout) == (code, b""), done
        line = last_word(done.stderr)
        assert self.stored() == before
        return line

    def consume(self, *words: str) -> list[str]:
        """Consume what is there now for the group."""
        asked = ("--group", self.group, "--idle", "4s", *words)
        return sorted(self.done("consume", self.topic, *asked).split())

    @contextmanager
    def member(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a consumer; it is a member, and ready, within the block."""
        command = [sys.executable, "-m", "ledger_client", "consume", self.topic]
        command += ["--group", self.group, "--cluster", self.url, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
            try:
                self.until_ready()
                yield process
            finally:
                code = process.poll()
                process.kill()
                check_end(code, "")

    def until_ready(self, members: int = 1) -> None:
        """Wait until the group has so many members, or more, and all are ready."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if [g for g in self.client.groups.list() if g.group == self.group and g.members]:
                state = self.client.groups.describe(self.group)
                ready = [m for m in state.members if m.state == "ready"]
                if state.state == "ready" and len(state.members) == len(ready) >= members:
                    return
            time.sleep(0.1)
        raise AssertionError("the group is not ready")

    def stored(self) -> object:
        groups = [each.group for each in self.client.groups.list()]
        return {group: self.client.groups.committed(group) for group in groups}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, BlockingClient]]:
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as url, blocking.connect(url) as client:
        yield url, client


@pytest.fixture
def shop(running: tuple[str, BlockingClient], request: pytest.FixtureRequest) -> Shop:
    url, client = running
    again = getattr(request.node, "execution_count", 1)  # a second time, in topics of its own
    return Shop(url, client, f"t{zlib.crc32(request.node.name.encode())}-{again}/orders")


def lines(stream: IO[bytes] | None, count: int) -> list[str]:
    assert stream is not None
    return [stream.readline().decode().strip() for _ in range(count)]


def test_a_group_is_reset_after_its_new_places_were_shown(shop: Shop) -> None:
    """A dry run, or a question that is not answered, changes nothing."""
    shop.send(10)
    assert len(shop.consume("--start", "earliest")) == 10
    before = shop.stored()
    reset = ("group", "reset", shop.group, "--to", "earliest")
    rows = [line.split() for line in shop.done(*reset, "--dry-run").splitlines()[1:]]
    assert rows == [[shop.topic, str(index), "0", "first", "message"] for index in (0, 1)]
    shown = json.loads(shop.done(*reset, "--topic", shop.topic, "--dry-run", "--json"))
    assert [(each[2], each[4][0]) for each in shown["places"]] == [(0, -1), (1, -1)]
    asked = shop.run(*reset)
    assert asked.returncode == 130
    assert b"first message" in asked.stdout
    assert shop.stored() == before
    shop.done(*reset, "--yes")
    assert shop.stored() != before
    assert len(shop.consume()) == 10
    shop.done("group", "reset", shop.group, "--to", "1d", "--yes")
    assert len(shop.consume()) == 10
    shop.done("group", "reset", shop.group, "--to", "earliest", "--yes")
    shop.done("group", "reset", shop.group, "--to", "latest", "--yes")
    assert shop.consume() == []


def test_a_group_is_not_reset_to_a_place_that_does_not_exist(shop: Shop) -> None:
    """Neither behind an end, nor in a ledger of another partition."""
    shop.send(10)
    assert len(shop.consume("--start", "earliest")) == 10
    with shop.client.reader(shop.topic) as reader:
        last = {message.id.partition: message.id for message in reader}
    elsewhere = last[0]._replace(partition=1), last[1]._replace(partition=0)
    for strange, reason in (
        (last[0]._replace(entry_id=9999), "is behind the end of ledger"),
        (last[0]._replace(batch_index=9999), "is behind the end of entry"),
        *((each, f"no ledger {each.ledger_id} there") for each in elsewhere),
    ):
        words = ("group", "reset", shop.group, "--to", str(strange), "--yes")
        assert reason in shop.refused(*words, code=2)


def test_a_group_with_members_is_neither_reset_nor_imported_nor_deleted(
    shop: Shop, tmp_path: Path
) -> None:
    shop.send(3)
    assert len(shop.consume("--start", "earliest")) == 3
    kept = tmp_path / "kept"
    shop.done("group", "export", shop.group, kept)
    with shop.member("--commit", "none"):
        for words in (
            ("reset", shop.group, "--to", "earliest", "--yes"),
            ("reset", shop.group, "--to", "earliest"),
            ("import", kept, "--yes"),
            ("delete", shop.group, "--yes"),
        ):
            assert re.search("members?; stop (it|them)", shop.refused("group", *words))


def test_what_was_exported_is_imported_exactly(shop: Shop, tmp_path: Path) -> None:
    shop.send(10)
    shop.consume("--start", "earliest")
    kept = tmp_path / "kept.json"
    shop.done("group", "export", shop.group, kept)
    assert GroupExport.parse(shop.done("group", "export", shop.group).encode()) == (
        GroupExport.parse(kept.read_bytes())
    )
    before = shop.stored()
    shop.done("group", "reset", shop.group, "--to", "earliest", "--yes")
    reset = shop.stored()
    assert shop.topic in shop.done("group", "import", kept, "--dry-run")
    assert shop.run("group", "import", kept).returncode == 130
    assert shop.stored() == reset
    shop.done("group", "import", kept, "--yes")
    assert shop.stored() == before
    shop.done("group", "delete", shop.group, "--yes")
    copied = ("group", "import", "-", "--group", f"{shop.group}-copy", "--yes", "--json")
    done = shop.run(*copied, stdin=kept.read_bytes())
    assert json.loads(done.stdout)["places"]
    assert shop.run("group", "import", "-", stdin=kept.read_bytes()).returncode == 2
    shop.group += "-copy"
    assert shop.consume() == []


def test_what_is_no_export_of_this_cluster_is_refused(shop: Shop, tmp_path: Path) -> None:
    shop.send(3)
    shop.consume("--start", "earliest")
    kept = tmp_path / "kept"
    kept.write_text('{"format": 7}')
    assert "this is no export of a group" in shop.refused("group", "import", kept, "--yes")
    text = shop.done("group", "export", shop.group)
    kept.write_text(text.replace('"cluster": "', '"cluster": "x'))
    assert "is of another cluster" in shop.refused("group", "import", kept, "--yes")
    kept.write_text(text)
    shop.client.topics.delete(shop.topic)
    assert f"{shop.topic}: no such topic" in shop.refused("group", "import", kept, "--yes")
    shop.client.topics.create(shop.topic, partitions=2)
    line = shop.refused("group", "import", kept, "--yes", code=2)
    assert "was deleted and created again" in line


@pytest.mark.real_processes
def test_a_group_goes_on_in_the_order_of_timestamps(shop: Shop) -> None:
    """Also after a member was killed that had printed more than it had committed."""
    topic = f"{shop.topic}-timed"
    shop.client.topics.create(topic, partitions=3, timesync=True)
    with shop.client.producer(topic, router="round-robin") as producer:
        for number in range(40):
            producer.send(b"%d" % number)
    words = ["consume", topic, "--group", shop.group, "--order", "timestamp", "--start", "earliest"]
    words += ["--member", "till"]  # it keeps its partitions
    assert [int(line) for line in shop.done(*words, "--limit", "15").split()] == [*range(15)]
    killed = subprocess.Popen(
        [sys.executable, "-m", "ledger_client", *words, "--commit", "none", "--cluster", shop.url],
        stdout=subprocess.PIPE,
    )
    try:
        assert killed.stdout is not None
        with never_twice():
            assert [int(killed.stdout.readline()) for _ in range(10)] == [*range(15, 25)]
    finally:
        killed.kill()
        killed.communicate()
    rest = shop.done(*words, "--limit", "25").split()
    with never_twice():
        assert [int(line) for line in rest] == [*range(15, 40)]
    assert "needs mode exclusive" in shop.refused(*words, "--shared", code=2)


def test_a_group_begins_where_the_command_says(shop: Shop) -> None:
    """Until it has committed something: then --start does not count."""
    shop.send(6)
    group, shop.group = shop.group, f"{shop.group}-none"
    words = ("--group", shop.group, "--start", "none", "--idle", "4s")
    refused = shop.run("consume", shop.topic, *words)
    assert refused.returncode == 1
    assert b"has committed nothing in partition" in refused.stderr
    shop.group = f"{group}-new"
    assert shop.consume() == []
    shop.group = f"{group}-time"
    assert len(shop.consume("--start", "1h")) == 6
    assert shop.consume("--start", "earliest") == []
    shop.group = f"{group}-future"
    assert shop.consume("--start", "2999-01-01", "--by", "publish-time") == []


@pytest.mark.real_processes
def test_a_topic_that_does_not_exist_yet_is_waited_for(shop: Shop) -> None:
    later = f"{shop.topic}-later"
    words = ["consume", later, "--group", shop.group, "--start", "earliest", "--missing", "wait"]
    words.append("--json")
    assert shop.done(*words, "--idle", "1s") == ""
    shop.client.topics.create(later)
    with shop.client.producer(later) as producer:
        producer.send(b"1")
    (line,) = shop.done(*words, "--limit", "1", "--idle", "60s").splitlines()
    assert json.loads(line)["topic"] == later


def test_what_was_printed_is_committed_as_the_command_says(shop: Shop) -> None:
    """With each also before a SIGKILL; with none it comes again."""
    shop.send(6)
    everything = sorted("012345")
    assert shop.consume("--start", "earliest", "--commit", "none") == everything
    assert shop.consume("--start", "earliest", "--commit", "none") == everything
    with shop.member("--start", "earliest", "--commit", "each") as process:
        assert sorted(lines(process.stdout, 6)) == everything
        end = time.monotonic() + DEADLINE_S
        while sum(lane.lag for lane in shop.client.groups.lag(shop.group)):
            assert time.monotonic() < end
            time.sleep(0.1)
        process.kill()
    shop.client.groups.delete(shop.group, force=True)
    with shop.member("--start", "earliest", "--commit", "1h") as process:
        assert sorted(lines(process.stdout, 6)) == everything
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    assert shop.client.groups.describe(shop.group).members == []
    assert shop.consume() == []


def test_a_shared_group_acknowledges_what_was_printed(shop: Shop) -> None:
    """It is used in one mode alone, and has no places to export."""
    shop.send(6)
    everything = sorted("012345")
    shared = ("--shared", "--start", "earliest")
    assert shop.consume(*shared, "--commit", "none") == everything
    assert shop.consume(*shared) == everything
    assert shop.consume(*shared) == []
    words = ("consume", shop.topic, "--group", shop.group)
    for flag, asked in (((), "exclusive"), (("--key-shared",), "key-shared")):
        assert f"is used in mode shared, not {asked}" in shop.refused(*words, *flag)
    assert "is used in mode shared" in shop.refused("group", "export", shop.group)
    shop.group += "-by-key"
    assert shop.consume("--key-shared", "--start", "earliest", "--commit", "each") == everything
    assert shop.consume("--key-shared") == []
    assert f"{shop.topic}" in shop.done("group", "lag", shop.group)


def test_lag_counts_what_members_of_a_shared_group_have_not_acknowledged(shop: Shop) -> None:
    """And once they have, it is 0, in the text as with --json."""
    shop.send(6)
    shared = ("--shared", "--start", "earliest")

    def shown() -> tuple[int, int, bool]:
        """Return the messages of both columns, and whether the oldest has an age."""
        head, *rows = shop.done("group", "lag", shop.group).splitlines()
        columns = head.split()
        cells = [dict(zip(columns, row.replace(" s ", "s ").split(), strict=True)) for row in rows]
        lanes = json.loads(shop.done("group", "lag", shop.group, "--json"))
        subscriptions = json.loads(shop.done("group", "describe", shop.group, "--json"))
        for kind in ("lag", "unacked"):
            assert [int(each[kind]) for each in cells] == [each[kind] for each in lanes]
            of_it = subscriptions["subscriptions"]
            assert [each[kind] for each in lanes] == [each[kind] for each in of_it]
        lag, unacked = (sum(each[kind] for each in lanes) for kind in ("lag", "unacked"))
        return lag, unacked, any(each["oldest"] != "-" for each in cells)

    assert len(shop.consume(*shared, "--commit", "none")) == 6
    assert shown() == (6, 6, True)
    assert len(shop.consume(*shared)) == 6
    assert shown() == (0, 0, False)
    shop.group += "-alone"
    assert len(shop.consume("--start", "earliest")) == 6
    assert "unacked" not in shop.done("group", "lag", shop.group)


def test_members_of_a_shared_group_read_one_partition_together(shop: Shop) -> None:
    shop.send(1)
    shop.group += "-all"
    with shop.member("--shared") as one, shop.member("--shared") as two:
        shop.until_ready(members=2)
        shop.send(200)
        end = time.monotonic() + DEADLINE_S
        while sum(lane.lag for lane in shop.client.groups.lag(shop.group)):
            assert time.monotonic() < end
            time.sleep(0.1)
        for each in (one, two):
            each.send_signal(signal.SIGINT)
            assert each.wait(DEADLINE_S) == 130
        printed = [each.stdout.read().split() for each in (one, two) if each.stdout]
    assert sorted(map(int, printed[0] + printed[1])) == list(range(200))


def test_slots_are_shown_beside_their_partitions(shop: Shop) -> None:
    shop.send(1)
    with shop.member("--key-shared"):
        (shown,) = json.loads(shop.done("group", "members", shop.group, "--json"))
        assert (shown["partitions"], shown["slots"]) == (2, 32)
        head, row = shop.done("group", "members", shop.group).splitlines()
        assert re.search(r" partitions +slots ", head)
        assert re.search(r" 2 +32 ", row)
        assert f" {shop.topic}:0-1 " in shop.done("group", "describe", shop.group)


def test_a_group_is_deleted_once_the_question_is_answered_with_yes(shop: Shop) -> None:
    """And there is no question about a group that does not exist."""
    shop.client.groups.commit(shop.group, ())
    before = shop.stored()
    for answer in (b"", b"n\n"):
        refused = shop.run("group", "delete", shop.group, stdin=answer)
        assert refused.returncode == 130
        assert refused.stderr.decode().splitlines()[1:] == ["nothing was deleted"]
    assert shop.stored() == before
    for words in (("delete", "nobody"), ("keep", "nobody", "on")):
        line = shop.refused("group", *words)
        assert line.endswith("there is no group nobody; `quire group list` shows all")
    kept = json.loads(shop.done("group", "keep", shop.group, "on", "--json"))
    assert kept == {"group": shop.group, "keep": True}
    deleted = shop.run("group", "delete", shop.group, "--json", stdin=b"y\n")
    assert json.loads(deleted.stdout) == {"group": shop.group}
    assert shop.group not in json.dumps(json.loads(shop.done("group", "list", "--json")))


def test_lag_is_shown_again_and_again(shop: Shop) -> None:
    """With --json a line for each look."""
    shop.send(4)
    shop.consume("--start", "earliest")
    command = [sys.executable, "-m", "ledger_client", "group", "lag", shop.group, "--watch"]
    command += ["--json", "--cluster", shop.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            first, second = map(json.loads, lines(process.stdout, 2))
            assert {(lane["partition"], lane["lag"]) for lane in first} == {(0, 0), (1, 0)}
            assert [lane["lane"] for lane in second] == [lane["lane"] for lane in first]
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130
        finally:
            process.kill()


def seen(terminal: int, wanted: bytes) -> bytes:
    """Return what is shown on a terminal, until *wanted* is."""
    found = b""
    while wanted not in found:
        found += os.read(terminal, 4096)
    return found


def test_lag_is_refreshed_in_place_on_a_terminal(shop: Shop) -> None:
    """Until Ctrl-C, which leaves the terminal as it was."""
    shop.send(4)
    shop.consume("--start", "earliest")
    command = [sys.executable, "-m", "ledger_client", "group", "lag", shop.group, "--watch"]
    command += ["--cluster", shop.url]
    terminal, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        try:
            os.close(theirs)
            shown = seen(terminal, HIDE_CURSOR) + seen(terminal, shop.topic.encode())
            assert CURSOR_UP not in shown
            shown = seen(terminal, CURSOR_UP) + seen(terminal, shop.topic.encode())
            assert b"oldest" in shown
            process.send_signal(signal.SIGINT)
            seen(terminal, SHOW_CURSOR)
            assert process.wait(DEADLINE_S) == 130
        finally:
            process.kill()
            os.close(terminal)


def test_members_and_what_each_of_them_reads_are_shown(shop: Shop) -> None:
    """TD-77: consumers with their state, times and settings; who has which partition, and where."""
    shop.send(4)
    with shop.member("--member", "till-3", "--start", "earliest") as process:
        lines(process.stdout, 4)
        (shown,) = json.loads(shop.done("group", "members", shop.group, "--json"))
        assert (shown["group"], shown["member"], shown["state"]) == (shop.group, "till-3", "ready")
        assert (shown["topics"], shown["partitions"]) == ([shop.topic], 2)
        assert shown["process_id"] == process.pid
        assert 0 < shown["joined_ms"] <= shown["rebalanced_ms"]
        assert (shown["session_s"], shown["poll_s_max"], shown["revoke_s"]) == (12, 300, 10)
        assert "session 12 s, poll 300 s" in shop.done("group", "members")
        assert f"{shop.topic}:0-1" in shop.done("group", "describe", shop.group)
        lanes = json.loads(shop.done("group", "lag", shop.group, "--topic", shop.topic, "--json"))
        assert {(lane["partition"], lane["member"]) for lane in lanes} == {
            (0, "till-3"),
            (1, "till-3"),
        }
    shop.client.groups.delete(shop.group, force=True)
    left = shop.done("group", "members").splitlines()[1:]  # of the groups of other tests, too
    assert [line for line in left if line.split()[0] == shop.group] == []


def test_wrong_input_is_refused_in_one_line_and_changes_nothing(shop: Shop) -> None:
    to_earliest = ("--to", "earliest", "--yes")
    here = ("--group", shop.group)
    for words, reason, code in (
        (("consume", shop.topic, "no/topic", *here), "no/topic: no such topic", 1),
        (("consume", "none/*", *here), "none/*: the pattern matches no topic", 1),
        (("consume", "no-namespace", *here), "namespace", 2),
        (("consume", shop.topic, "--group", "a:b"), "is not a name", 2),
        (("consume", shop.topic, *here, "--start", "3:4:-1"), "cannot begin at a message", 2),
        (("consume", shop.topic, *here, "--start", POSITION), "cannot begin at a position", 2),
        (("consume", shop.topic, *here, "--start", "soon"), "is not", 2),
        (("consume", shop.topic, *here, "--commit", "often"), "is not auto, each, none", 2),
        (("group", "members", "nobody"), "there is no group nobody", 1),
        (("group", "describe", "nobody"), "there is no group nobody", 1),
        (("group", "lag", "nobody"), "there is no group nobody", 1),
        (("group", "export", "nobody"), "there is no group nobody", 1),
        (("group", "delete", "nobody", "--yes"), "there is no group nobody", 1),
        (("group", "reset", "nobody", *to_earliest), "there is no group nobody", 1),
        (("group", "import", "/nowhere", "--yes"), "does not exist", 2),
    ):
        assert reason in shop.refused(*words, code=code)


def test_consumers_and_subscriptions_are_shown(shop: Shop) -> None:
    """TD-77."""
    shop.send(10)
    with shop.member("--start", "earliest"):
        (member,) = json.loads(shop.done("group", "members", shop.group, "--json"))
        assert 0 < member["up_ms"] <= member["joined_ms"] <= member["rebalanced_ms"]
        assert "start=earliest" in member["parameters"]
        listed = json.loads(shop.done("group", "list", "--json"))
        (found,) = [each for each in listed if each["group"] == shop.group]
        assert [each["member"] for each in found["consumers"]] == [member["member"]]
        described = json.loads(shop.done("group", "describe", shop.group, "--json"))
        assert [
            (each["topic"], each["group"], each["partition"], each["member"])
            for each in described["subscriptions"]
        ] == [(shop.topic, shop.group, partition, member["member"]) for partition in (0, 1)]


def test_a_group_holds_back_retention_while_it_is_told_to(shop: Shop) -> None:
    """TD-74: and explain names it."""
    shop.send(10)
    assert len(shop.consume("--start", "earliest")) == 10
    shop.done("group", "reset", shop.group, "--to", "earliest", "--yes")
    shop.done("group", "keep", shop.group, "on")
    assert "yes" in shop.done("group", "list")
    assert "holds back retention" in shop.done("group", "describe", shop.group)
    assert shop.group in shop.done("topic", "explain", shop.topic)
    purge = ("topic", "purge", shop.topic, "--all")
    assert f"needed by group {shop.group}" in shop.done(*purge)
    assert len(shop.consume()) == 10
    shop.done("group", "keep", shop.group, "off")
    shop.done("group", "reset", shop.group, "--to", "earliest", "--yes")
    assert shop.group not in shop.done("topic", "explain", shop.topic)
    shop.done(*purge)
    assert shop.consume("--skip-gaps") == []

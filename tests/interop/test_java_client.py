"""BookKeeper's Java client 4.18 and ours on the ledgers of one cluster, with a real ZooKeeper."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from bookkeeper import BookKeeper, Client, Failed
from fleet import Fleet
from kazoo.client import KazooClient
from never_twice import never_twice

from ledger_client.blocking import BlockingClient
from ledger_client.errors import NoSuchLedger, OutcomeUnknown
from metadata.records import LedgerState

# BookKeeper is built, and its bookies are started, in one process.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("interop")]
DIGESTS = {"crc32c": "CRC32C", "crc32": "CRC32", "hmac": "MAC", "dummy": "DUMMY"}
SIZE = 200


def payloads(first: int, count: int) -> list[bytes]:
    """What the Java program writes."""
    return [f"{number}:".encode().ljust(SIZE, b"x") for number in range(first, first + count)]


def told(entries: Sequence[bytes]) -> list[str]:
    """What the Java program answers when it has read these."""
    digest = hashlib.sha256(b"".join(entry + b"\n" for entry in entries))
    return [str(len(entries) - 1), digest.hexdigest()]


def read(ours: BlockingClient, ledger_id: int, password: bytes = b"") -> list[bytes]:
    with ours.ledgers.open(ledger_id, password, recover=False) as reader:
        return [bytes(entry.payload) for entry in reader.read(0, reader.last_confirmed)]


@contextmanager
def without(fleet: Fleet, name: str) -> Iterator[None]:
    """Kill a bookie; start it again afterwards."""
    fleet.kill(fleet.number(name))
    try:
        yield
    finally:
        fleet.start(fleet.number(name))
        fleet.wait_until_served(fleet.number(name))


def collected(fleet: Fleet) -> int:
    """Collect garbage on all bookies; return how many copies of deleted ledgers went."""
    command = [sys.executable, "-m", "bookie", "gc", "--json", "--cluster", fleet.cluster]
    said = subprocess.run(command, capture_output=True, check=True).stdout
    reports = [json.loads(line) for line in said.splitlines()]
    assert [each["error"] for each in reports] == [""] * len(fleet.numbers), reports
    return sum(each["report"]["ledgers_deleted"] for each in reports)


@pytest.mark.real_processes
@pytest.mark.parametrize("digest", DIGESTS)
@never_twice()
def test_ours_reads_what_java_wrote(java: Client, ours: BlockingClient, digest: str) -> None:
    ledger_id = java.number("create", 3, 3, 2, DIGESTS[digest], "secret")
    java.ask("add", ledger_id, 0, 300, SIZE)
    java.ask("close", ledger_id)
    assert read(ours, ledger_id, b"secret") == payloads(0, 300)
    info = ours.ledgers.info(ledger_id)
    assert (info.digest, info.last_entry, info.custom) == (digest, 299, {"program": "java"})
    assert info.length == 300 * SIZE
    assert info.created_ms > 0


@pytest.mark.real_processes
@pytest.mark.parametrize("digest", DIGESTS)
@never_twice()
def test_java_reads_what_ours_wrote(java: Client, ours: BlockingClient, digest: str) -> None:
    with ours.ledgers.create(3, 3, 2, password=b"secret", digest=digest) as writer:
        writer.append_many(payloads(0, 300))
    for way in ("read", "recover", "batch"):
        assert java.ask(way, writer.id, DIGESTS[digest], "secret") == told(payloads(0, 300))
    state, last, *segments = java.ask("describe", writer.id)
    assert (state, last, len(segments)) == ("CLOSED", "299", 1)


@pytest.mark.real_processes
@never_twice()
def test_a_striped_ledger_of_either_is_read_by_the_other(
    java: Client, ours: BlockingClient
) -> None:
    theirs = java.number("create", 4, 2, 2, "CRC32C")
    java.ask("add", theirs, 0, 100, SIZE)
    java.ask("close", theirs)
    assert read(ours, theirs) == payloads(0, 100)
    with ours.ledgers.create(4, 2, 2) as writer:
        writer.append_many(payloads(0, 100))
    assert java.ask("read", writer.id, "CRC32C") == told(payloads(0, 100))


@pytest.mark.real_processes
@never_twice()
def test_ours_recovers_a_ledger_that_java_writes_and_fences_it(
    java: Client, ours: BlockingClient
) -> None:
    ledger_id = java.number("create", 3, 3, 2, "CRC32C", "secret")
    java.ask("add", ledger_id, 0, 50, SIZE)
    assert ours.ledgers.info(ledger_id).state is LedgerState.OPEN
    info = ours.ledgers.recover(ledger_id, b"secret")
    assert (info.state, info.last_entry, info.length) == (LedgerState.CLOSED, 49, 50 * SIZE)
    assert read(ours, ledger_id, b"secret") == payloads(0, 50)
    with pytest.raises(Failed, match="BKLedgerFencedException"):
        java.ask("add", ledger_id, 50, 1, SIZE)
    assert java.ask("custom", ledger_id, "program") == [b"java".hex()]
    assert java.ask("custom", ledger_id, "bytes") == ["00ff"]  # not text, so not in info.custom
    assert java.ask("read", ledger_id, "CRC32C", "secret") == told(payloads(0, 50))


@pytest.mark.real_processes
@never_twice()
def test_java_recovers_a_ledger_that_ours_writes_and_fences_it(
    java: Client, ours: BlockingClient
) -> None:
    with (
        pytest.raises(OutcomeUnknown, match="fenced by another client"),
        ours.ledgers.create(3, 3, 2, password=b"secret") as writer,
    ):
        writer.append_many(payloads(0, 50))
        assert java.ask("recover", writer.id, "CRC32C", "secret") == told(payloads(0, 50))
        writer.append(b"too late")
    assert read(ours, writer.id, b"secret") == payloads(0, 50)
    assert ours.ledgers.info(writer.id).last_entry == 49


@pytest.mark.real_processes
def test_java_replaces_a_killed_bookie(java: Client, ours: BlockingClient, fleet: Fleet) -> None:
    ledger_id = java.number("create", 3, 3, 2, "CRC32C")
    java.ask("add", ledger_id, 0, 20, SIZE)
    lost = java.ask("describe", ledger_id)[2].partition("=")[2].split(",")[0]
    with without(fleet, lost):
        count, deadline = 20, time.monotonic() + 60
        while len(ours.ledgers.info(ledger_id).bookies) == 1:  # two bookies are enough to go on
            assert time.monotonic() < deadline
            java.ask("add", ledger_id, count, 20, SIZE)
            count += 20
            time.sleep(0.05)
        java.ask("add", ledger_id, count, 20, SIZE)
        count += 20
        java.ask("close", ledger_id)
        _, (_, bookies) = ours.ledgers.info(ledger_id).bookies
        assert lost not in bookies
        with never_twice():
            assert read(ours, ledger_id) == payloads(0, count)
    with never_twice():
        assert java.ask("read", ledger_id, "CRC32C") == told(payloads(0, count))


@pytest.mark.real_processes
def test_ours_replaces_a_killed_bookie(java: Client, ours: BlockingClient, fleet: Fleet) -> None:
    with ours.ledgers.create(3, 3, 2) as writer:
        writer.append_many(payloads(0, 20))
        lost = writer.metadata.fragments[0].bookies[0]
        with without(fleet, lost):
            count, deadline = 20, time.monotonic() + 60
            while len(writer.metadata.fragments) == 1:  # two bookies are enough to go on
                assert time.monotonic() < deadline
                writer.append_many(payloads(count, 20))
                count += 20
                time.sleep(0.05)
            writer.append_many(payloads(count, 20))
            writer.close()
            _, _, *segments = java.ask("describe", writer.id)
            assert len(segments) == 2
            assert lost not in segments[1]
            with never_twice():
                assert java.ask("read", writer.id, "CRC32C") == told(payloads(0, count + 20))


@pytest.mark.real_processes
def test_bookies_collect_what_java_deleted_and_keep_what_it_did_not(
    java: Client, ours: BlockingClient, fleet: Fleet
) -> None:
    kept, deleted = (java.number("create", 3, 3, 3, "CRC32C") for _ in range(2))
    for ledger_id in (kept, deleted):
        java.ask("add", ledger_id, 0, 10, SIZE)
    java.ask("close", deleted)
    with ours.ledgers.create(3, 3, 3) as writer:
        writer.append_many(payloads(0, 10))
    collected(fleet)
    for ledger_id in (deleted, writer.id):
        java.ask("delete", ledger_id)
        with pytest.raises(NoSuchLedger):
            ours.ledgers.info(ledger_id)
    assert collected(fleet) == 6
    assert collected(fleet) == 0
    java.ask("add", kept, 10, 10, SIZE)
    java.ask("close", kept)
    with never_twice():
        assert read(ours, kept) == payloads(0, 20)
    ours.ledgers.delete(kept)
    assert str(kept) not in java.ask("list")
    assert collected(fleet) == 3


@pytest.mark.real_processes
@never_twice()
def test_ids_never_collide_and_both_list_the_same_ledgers(
    java: Client, ours: BlockingClient
) -> None:
    ids = []
    for _ in range(10):
        ids.append(java.number("create", 1, 1, 1, "DUMMY"))
        with ours.ledgers.create(1, 1, 1) as writer:
            ids.append(writer.id)
    assert len(set(ids)) == 20
    listed = [info.ledger_id for info in ours.ledgers.list()]
    assert set(ids) <= set(listed)
    assert sorted(map(int, java.ask("list"))) == listed


# --- bookkeeper shell --------------------------------------------------------------------


@pytest.mark.real_processes
def test_the_shell_lists_the_bookies_and_reads_their_cookies(
    nodes: KazooClient, bookkeeper: BookKeeper, fleet: Fleet
) -> None:
    said = bookkeeper.shell(fleet.metadata, "listbookies", "-rw", "-h")
    for number in fleet.numbers:
        assert f"BookieID:{fleet.name(number)}, IP:127.0.0.1, Port:{fleet.port(number)}," in said
    said = bookkeeper.shell(fleet.metadata, "listbookies", "-a")
    assert all(fleet.name(number) in said for number in fleet.numbers)
    instance = nodes.get("/ledgers/INSTANCEID")[0].decode()
    assert instance in bookkeeper.shell(fleet.metadata, "whatisinstanceid")
    cookie = nodes.get(f"/ledgers/cookies/{fleet.name(0)}")[0]
    nodes.create("/ledgers/cookies/127.0.0.1:1", cookie)  # the shell takes no other ids
    try:
        said = bookkeeper.shell(fleet.metadata, "cookie_get", "127.0.0.1:1")
    finally:
        nodes.delete("/ledgers/cookies/127.0.0.1:1")
    assert f'instanceId: "{instance}"' in said
    assert f'bookieHost: "{fleet.name(0)}"' in said


@pytest.mark.real_processes
def test_the_shell_shows_and_reads_our_ledgers(
    bookkeeper: BookKeeper, fleet: Fleet, ours: BlockingClient
) -> None:
    with ours.ledgers.create(3, 3, 2, custom={"of": "ours"}) as writer:
        writer.append_many(payloads(0, 3))
    assert f"{{ledgerId={writer.id}}}" in bookkeeper.shell(fleet.metadata, "listledgers")
    said = bookkeeper.shell(fleet.metadata, "ledgermetadata", "-ledgerid", str(writer.id))
    for part in (
        "formatVersion=3",
        "ackQuorumSize=2",
        "state=CLOSED",
        "lastEntryId=2",
        "of=base64",
    ):
        assert part in said
    said = bookkeeper.shell(fleet.metadata, "readledger", "-l", str(writer.id), "-m")
    with never_twice():
        assert all(entry.decode() in said for entry in payloads(0, 3))


@pytest.mark.real_processes
def test_the_shell_writes_and_deletes_a_ledger_of_its_own(
    bookkeeper: BookKeeper, fleet: Fleet, ours: BlockingClient
) -> None:
    before = [info.ledger_id for info in ours.ledgers.list()]
    collected(fleet)
    words = ["-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "3", "-numEntries", "100"]
    assert "100 entries written" in bookkeeper.shell(fleet.metadata, "simpletest", *words)
    assert [info.ledger_id for info in ours.ledgers.list()] == before
    assert collected(fleet) == 3


@pytest.mark.real_processes
def test_ours_follows_a_ledger_that_java_writes_to_its_end(
    java: Client, ours: BlockingClient
) -> None:
    ledger_id = java.number("create", 3, 3, 2, "CRC32C")
    java.ask("add", ledger_id, 0, 10, SIZE)
    with ours.ledgers.open(ledger_id, recover=False) as reader:
        following = iter(reader.follow())
        # Only a later entry, or the close, says that an entry is acknowledged.
        java.ask("add", ledger_id, 10, 1, SIZE)
        found = [bytes(next(following).payload) for _ in range(10)]
        java.ask("add", ledger_id, 11, 1, SIZE)
        found.append(bytes(next(following).payload))
        java.ask("close", ledger_id)
        closed_at = time.monotonic()
        found += [bytes(entry.payload) for entry in following]
    took_s = time.monotonic() - closed_at
    with never_twice():
        assert found == payloads(0, 12)
    assert took_s < 20


@pytest.mark.parametrize("tool", ["java", "mvn"])
def test_what_is_missing_to_run_bookkeeper_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else name)
    with pytest.raises(AssertionError, match=f"^{tool} is missing: apt-get install "):
        BookKeeper(tmp_path)

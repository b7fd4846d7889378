"""Metadata that other programs wrote, or that is newer than known, in a real ZooKeeper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bookkeeper import BookKeeper
from ensemble import Ensemble
from fleet import Fleet
from kazoo.client import KazooClient
from never_twice import never_twice

from ledger_client import blocking
from ledger_client.blocking import BlockingClient
from ledger_client.errors import MetadataBroken
from metadata.outcome import Exit
from metadata.records import LedgerState, ledger_key
from metadata.zookeeper.layout import Layout
from metadata.zookeeper.ledger_metadata import decode_metadata
from metadata.zookeeper.protobuf import bytes_field, number_field, read_varint, varint

# BookKeeper is built, and its bookies are started, in one process.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("interop")]
HEADER = b"BookieMetadataFormatVersion\t3\n"
FLAT = b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"


def tree(nodes: KazooClient, path: str) -> dict[str, bytes]:
    """Everything below *path*."""
    found = {path: nodes.get(path)[0]}
    for name in nodes.get_children(path):
        found |= tree(nodes, f"{path}/{name}")
    return found


def run(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "bookie", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def refusal(*words: str | Path, command: str = "run", code: int = Exit.FAILED) -> str:
    """Start a bookie that must not start; return the one line that it says."""
    done = run(command, "--port", "0", "--log-level", "error", *words)
    assert done.returncode == code
    (line,) = done.stderr.decode().splitlines()
    return line


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"LAYOUT": FLAT}, "only the hierarchical layouts"),
        ({"LAYOUT": b"3\nsomething:1"}, "only the hierarchical layouts"),
        ({"somebody": b"else's"}, "holds something else"),
    ],
)
def test_a_path_that_is_not_understood_is_left_alone(
    nodes: KazooClient, ensemble: Ensemble, tmp_path: Path, made: dict[str, bytes], why: str
) -> None:
    root = f"/{tmp_path.name}"
    for name, data in made.items():
        nodes.create(f"{root}/{name}", data, makepath=True)
    before = tree(nodes, root)
    assert why in refusal("--data", tmp_path, "--metadata", ensemble.url(root))
    assert tree(nodes, root) == before


@pytest.mark.parametrize("command", ["run", "standalone"])
def test_bookies_with_data_make_no_cluster_at_a_mistyped_path(
    nodes: KazooClient, ensemble: Ensemble, tmp_path: Path, command: str
) -> None:
    folder = tmp_path / "bookie-1" if command == "standalone" else tmp_path
    right = f"/{tmp_path.name}-right"
    assert run("format", "--data", folder, "--metadata", ensemble.url(right)).returncode == 0
    wrong = f"/{tmp_path.name}-wrong"
    told = refusal("--data", tmp_path, "--metadata", ensemble.url(wrong), command=command)
    assert "holds no cluster: check the path" in told
    assert nodes.exists(wrong) is None


def test_a_zookeeper_that_is_down_is_told_in_one_line(tmp_path: Path) -> None:
    away = "zk://127.0.0.1:1/ledgers"
    told = refusal("--data", tmp_path, "--metadata", away, code=Exit.UNREACHABLE)
    assert "zk://127.0.0.1:1/ledgers: no ZooKeeper answers in 10 s" in told


@pytest.mark.real_processes
@pytest.mark.parametrize("made", ["initnewcluster", "metaformat -n -f"])
def test_a_cluster_that_bookkeepers_tools_made_is_joined(
    nodes: KazooClient, ensemble: Ensemble, bookkeeper: BookKeeper, tmp_path: Path, made: str
) -> None:
    metadata = ensemble.url(f"/{tmp_path.name}")
    bookkeeper.shell(metadata, *made.split())
    before = tree(nodes, f"/{tmp_path.name}")
    with Fleet(tmp_path, 1, metadata=metadata) as fleet, bookkeeper.client(metadata) as java:
        ledger_id = java.number("create", 1, 1, 1, "CRC32C")
        java.ask("add", ledger_id, 0, 10, 100)
        with blocking.connect(fleet.cluster) as ours, never_twice():
            assert ours.ledgers.recover(ledger_id).last_entry == 9
    with never_twice():
        assert tree(nodes, f"/{tmp_path.name}").items() >= before.items()


@pytest.mark.real_processes
def test_a_bookie_of_another_cluster_does_not_start(nodes: KazooClient, fleet: Fleet) -> None:
    known = nodes.get("/ledgers/INSTANCEID")[0]
    fleet.kill(0)
    try:
        nodes.set("/ledgers/INSTANCEID", b"00000000-0000-0000-0000-000000000000")
        before = tree(nodes, "/ledgers/cookies"), nodes.get("/ledgers/INSTANCEID")[0]
        assert "this is another" in refusal(*fleet.identity(0))
        with never_twice():
            assert tree(nodes, "/ledgers/cookies") == before[0]
            assert nodes.get("/ledgers/INSTANCEID")[0] == before[1]
    finally:
        nodes.set("/ledgers/INSTANCEID", known)
        fleet.start(0)
        fleet.wait_until_served(0)


def node_of(ledger_id: int) -> str:
    return f"/ledgers/{Layout().path(ledger_key(ledger_id))}"


def test_a_ledger_in_a_newer_format_is_reported_and_never_touched(
    nodes: KazooClient, ours: BlockingClient
) -> None:
    with ours.ledgers.create(1, 1, 1) as writer:
        writer.append(b"payload")
    newer = b"BookieMetadataFormatVersion\t4\nunknown"
    nodes.set(node_of(writer.id), newer)
    for call in (ours.ledgers.info, ours.ledgers.recover, ours.ledgers.delete):
        with pytest.raises(MetadataBroken, match="format version 4, newer than 3") as wrong:
            call(writer.id)
        assert "\n" not in str(wrong.value)
    assert nodes.get(node_of(writer.id))[0] == newer
    nodes.delete(node_of(writer.id))


def with_field(data: bytes, field: bytes) -> bytes:
    """Return a ledger's metadata with one more field."""
    _, begin = read_varint(data, len(HEADER))
    message = data[begin:] + field
    return HEADER + varint(len(message)) + message


def test_a_record_that_is_too_large_to_be_rewritten_is_read_and_left_alone(
    nodes: KazooClient, ours: BlockingClient
) -> None:
    """ZooKeeper takes up to 1 MiB for a node, and we 480 KiB for a value."""
    with ours.ledgers.create(1, 1, 1) as writer:
        writer.append(b"payload")
        small, _ = nodes.get(node_of(writer.id))
        large = with_field(small, bytes_field(99, bytes(700 << 10)))
        nodes.set(node_of(writer.id), large)
        assert ours.ledgers.info(writer.id).state is LedgerState.OPEN
        with pytest.raises(MetadataBroken, match="at most 491520 are allowed") as wrong:
            ours.ledgers.recover(writer.id)
        assert "\n" not in str(wrong.value)
        assert nodes.get(node_of(writer.id))[0] == large
        nodes.set(node_of(writer.id), small)


def test_fields_of_a_newer_bookkeeper_stay_when_ours_changes_the_record(
    nodes: KazooClient, ours: BlockingClient
) -> None:
    with ours.ledgers.create(1, 1, 1) as writer:
        writer.append(b"payload")
        data, _ = nodes.get(node_of(writer.id))
        later = number_field(99, 12345)
        nodes.set(node_of(writer.id), with_field(data, later))
    data, _ = nodes.get(node_of(writer.id))
    assert later in data
    assert decode_metadata(writer.id, data).last_entry == 0

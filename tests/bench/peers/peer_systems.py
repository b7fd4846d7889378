"""BookKeeper, Kafka and quire as processes on this host, one at a time, each with a disk folder."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

HERE = Path(__file__).resolve().parent
START_S = 120.0
BUILD_S = 1200.0
"""The first build of a host downloads jars from Maven Central."""
BOOKKEEPER_JVM = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g")
KAFKA_JVM = ("-Xms1g", "-Xmx1g")
READ_ENTRY = bytes.fromhex("000000140202000000000000000000010000000000000000")
"""READ of ledger 1, entry 0, in v2 frames. A bookie listens before it answers."""


class CannotCompare(Exception):
    """Something that the comparison needs is missing, or a system does not start."""


class Running(msgspec.Struct, frozen=True):
    """A system that serves at *address*, HOST:PORT; its server is *process_ids*."""

    system: str
    version: str
    settings: str
    address: str
    process_ids: list[int]


class Usage(msgspec.Struct, frozen=True):
    """What processes used so far: CPU seconds, bytes written to the disk, peak of their memory."""

    cpu_s: float
    written: int
    rss_max: int


def usage(process_ids: Sequence[int]) -> Usage:
    """Return what the processes and their children that live used. Blocks for some files."""
    cpu_s, written, rss_max = 0.0, 0, 0
    for process_id in process_ids:
        folder = Path(f"/proc/{process_id}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        cpu_s += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        written += _number(folder / "io", "write_bytes")
        rss_max += 1024 * _number(folder / "status", "VmHWM")
    return Usage(cpu_s, written, rss_max)


def _number(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", path.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


# --- jars ----------------------------------------------------------------------------------


def classpath(pom: Path, built: Path) -> str:
    """Let Maven fetch what *pom* names, into *built*. Raises CannotCompare."""
    for tool, package in (("java", "default-jdk-headless"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            raise CannotCompare(f"{tool} is missing: apt-get install {package}")
    command = ["mvn", "-q", "-B", "-f", str(pom), f"-Dbuilt={built}", "compile"]
    said = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_S, check=False
    )
    if said.returncode:
        raise CannotCompare(f"Maven failed:\n{(said.stdout + said.stderr).decode()[-2000:]}")
    return f"{built / 'classes'}:{(built / 'classpath').read_text().strip()}"


def _version(jars: str, artifact: str) -> str:
    found = re.search(rf"/{re.escape(artifact)}-([0-9][^/]*)\.jar", jars)
    return found[1] if found else "?"


# --- the systems ---------------------------------------------------------------------------


@contextmanager
def quire(folder: Path) -> Iterator[Running]:
    """Start one bookie with a SQLite store. Raises CannotCompare."""
    port = free_port()
    words = ["--data", str(folder / "quire"), "--port", str(port), "--log-level", "error"]
    command = [sys.executable, "-P", "-m", "bookie", "run", *words]
    with _process(command, folder / "quire.log") as bookie:
        _wait_for(port, bookie, folder / "quire.log")
        yield Running("quire", _quire_version(), "as installed", f"127.0.0.1:{port}", [bookie.pid])


def _quire_version() -> str:
    command = [sys.executable, "-P", "-m", "bookie", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return said.stdout.split()[-1]


@contextmanager
def bookkeeper(folder: Path, jars: str) -> Iterator[Running]:
    """Start one bookie with DbLedgerStorage, and a ZooKeeper. Raises CannotCompare."""
    keeper_port, port = free_port(), free_port()
    data = folder / "bookkeeper"
    for name in ("journal", "ledgers", "zookeeper"):
        (data / name).mkdir(parents=True)
    settings = {
        "metadataServiceUri": f"zk+hierarchical://127.0.0.1:{keeper_port}/ledgers",
        "bookiePort": port,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "journalDirectories": data / "journal",
        "ledgerDirectories": data / "ledgers",
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "diskUsageThreshold": 0.99,
        "httpServerEnabled": "false",
    }
    conf = data / "bookie.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    keeper = data / "zoo.cfg"
    keeper.write_text(
        f"dataDir={data / 'zookeeper'}\nclientPort={keeper_port}\nclientPortAddress=127.0.0.1\n"
        "tickTime=2000\nadmin.enableServer=false\n"
    )
    java = ["java", "-cp", jars]
    log = folder / "bookkeeper.log"
    zookeeper = "org.apache.zookeeper.server.ZooKeeperServerMain"
    with _process([*java, "-Xmx256m", zookeeper, str(keeper)], log) as watched:
        _wait_for(keeper_port, watched, log)
        shell = [*java, "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(conf)]
        said = subprocess.run([*shell, "initnewcluster"], capture_output=True, check=False)
        if said.returncode:
            raise CannotCompare(f"initnewcluster: {(said.stdout + said.stderr).decode()[-2000:]}")
        server = [*BOOKKEEPER_JVM, "org.apache.bookkeeper.server.Main", "--conf", str(conf)]
        with _process([*java, *server], log) as bookie:
            _wait_for(port, bookie, log, question=READ_ENTRY)
            shown = f"DbLedgerStorage, {' '.join(BOOKKEEPER_JVM)}, else as installed"
            version = _version(jars, "bookkeeper-server")
            address = f"127.0.0.1:{port}"
            yield Running("BookKeeper", version, shown, address, [bookie.pid])


@contextmanager
def kafka(folder: Path, jars: str) -> Iterator[Running]:
    """Start a broker that is its own controller and syncs every batch. Raises CannotCompare."""
    port, controller = free_port(), free_port()
    data = folder / "kafka"
    data.mkdir()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": data / "log",
        "log.flush.interval.messages": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    conf = data / "server.properties"
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", *KAFKA_JVM, "-cp", jars]
    log = folder / "kafka.log"
    words = ["format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(conf)]
    said = subprocess.run(
        [*java, "kafka.tools.StorageTool", *words], capture_output=True, check=False
    )
    if said.returncode:
        raise CannotCompare(f"StorageTool: {(said.stdout + said.stderr).decode()[-2000:]}")
    with _process([*java, "kafka.Kafka", str(conf)], log) as broker:
        _wait_for(port, broker, log)
        shown = f"KRaft, log.flush.interval.messages=1, {' '.join(KAFKA_JVM)}, else as installed"
        address = f"127.0.0.1:{port}"
        yield Running("Kafka", _version(jars, "kafka_2.13"), shown, address, [broker.pid])


# --- processes -----------------------------------------------------------------------------


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* until the block ends; it is killed then, since its data is thrown away."""
    with log.open("ab") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for(
    port: int, process: subprocess.Popen[bytes], log: Path, *, question: bytes = b""
) -> None:
    """Return once *process* serves at *port*, and answers *question*."""
    until = time.monotonic() + START_S
    while not _serves(port, question):
        if process.poll() is not None or time.monotonic() > until:
            said = log.read_text(errors="replace")[-2000:]
            raise CannotCompare(f"nobody serves at port {port}:\n{said}") from None
        time.sleep(0.05)


def _serves(port: int, question: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as peer:
            peer.sendall(question)
            return not question or bool(peer.recv(1))
    except OSError:
        return False


def free_port() -> int:
    """Return a port of this host that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port

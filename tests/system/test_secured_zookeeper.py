"""A cluster whose ZooKeeper wants TLS and a login, by the commands of its users."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from daemons import Daemon
from kazoo.client import KazooClient
from processes import quire
from secured_zookeeper import PASSWORD, USER, SecuredZooKeeper, secured_zookeeper

import ledger_client
from bookie.commands.standalone import ClusterStarted
from metadata.zookeeper.url import PASSWORD_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper")]
PROMPT_S = 30.0
"""A command's start and its one line, on a busy machine."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    with secured_zookeeper(tmp_path_factory.mktemp("secured"), login=True) as found:
        yield found


async def test_a_cluster_and_its_clients_log_in_over_tls_and_show_no_password(
    zookeeper: SecuredZooKeeper, tmp_path: Path
) -> None:
    url = f"zk+tls://{USER}@{zookeeper.secure}/secured?ca={zookeeper.ca}"
    from_file = f"{url}&password-file={zookeeper.password_file}"
    words = ("standalone", "--data", tmp_path / "cluster", "--metadata", url, "--bookies", 2)
    environment = {**os.environ, PASSWORD_VARIABLE: PASSWORD}
    with Daemon(
        *words, "--port", 0, "--json", log=tmp_path / "log", environment=environment
    ) as daemon:
        started = daemon.ready(ClusterStarted)
        async with ledger_client.connect(from_file) as client:
            await client.topics.create("shop/orders", replication=2)
            async with client.producer("shop/orders") as producer:
                await producer.send(b"direct")
        read = await trio.to_thread.run_sync(
            lambda: quire("read", "shop/orders", "--cluster", started.ready)
        )
        assert read.stdout == b"direct\n", read.stderr
        status = await trio.to_thread.run_sync(
            lambda: quire("cluster", "status", "--json", "--cluster", from_file)
        )
        assert status.returncode == 0, status.stderr
        seen = [*_command_lines(tmp_path), read.stderr, status.stdout, status.stderr]
        assert daemon.stop() == 0
    assert len(seen) >= 3 + 3  # the cluster and two bookies
    for text in (*seen, daemon.log.encode(), str(started).encode()):
        assert PASSWORD.encode() not in text


def _command_lines(folder: Path) -> list[bytes]:
    """Return the command lines of all processes that name *folder*."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in line:
            found.append(line)
    return found


def test_each_refusal_is_one_line_and_changes_nothing(
    zookeeper: SecuredZooKeeper, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("s3cret-and-wrong")
    login = f"password-file={zookeeper.password_file}"
    before = _nodes(zookeeper)
    refused = (
        (f"zk://{USER}@{zookeeper.plain}/x?password-file={wrong}", 1, "refuses user 'quire'"),
        (f"zk://{zookeeper.plain}/x", 1, "wants a login"),
        (f"zk+tls://{USER}@{zookeeper.secure}/x?{login}", 1, "is not trusted"),
        (
            f"zk+tls://{USER}@localhost:{zookeeper.secure_port}/x?{login}&ca={zookeeper.ca}",
            1,
            "Hostname mismatch",
        ),
        (f"zk://{USER}@{zookeeper.secure}/x?{login}", 1, "speaks TLS"),
        (f"zk+tls://{zookeeper.plain}/x?ca={zookeeper.ca}", 3, "does not speak TLS"),
        (f"zk://{USER}:{PASSWORD}@{zookeeper.plain}/x", 2, "not in the URL"),
    )
    for number, (url, code, why) in enumerate(refused):
        if number % 2:
            done = quire("topic", "list", "--json", "--cluster", url)
        else:
            done = _bookie("run", "--data", tmp_path / "bookie", "--metadata", url, "--port", 0)
        said = done.stderr.decode()
        assert done.returncode == code, url
        assert why in said, url
        assert said.count("\n") == 1, said
        assert "s3cret" not in said
        assert done.stdout == b""
    assert _nodes(zookeeper) == before


def _bookie(*words: str | float | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "bookie", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=PROMPT_S, check=False)


def _nodes(zookeeper: SecuredZooKeeper) -> list[str]:
    client = KazooClient(
        hosts=zookeeper.plain,
        sasl_options={"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD},
    )
    client.start()
    try:
        return sorted(client.get_children("/"))
    finally:
        client.stop()
        client.close()

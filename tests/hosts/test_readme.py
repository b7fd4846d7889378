"""README's "On many hosts", command by command, on three hosts."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Host, Network
from never_twice import never_twice

README = Path(__file__).resolve().parents[2] / "README.md"
HOSTS = ("host-1", "host-2", "host-3")
READY_S = 90.0
KEEPERS_START_S = 180.0
"""For two of them to agree on a leader: other tests run beside this one."""
_BLOCK = re.compile(r"^<!-- (each|one) host -->\n^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.real_processes, pytest.mark.xdist_group("hosts")]


@pytest.fixture
def network() -> Iterator[Network]:
    """Hosts that find their own names at 127.0.1.1, as Debian's installer has it."""
    with Network(*HOSTS) as made:
        for name in HOSTS:
            made[name].find_itself_at("127.0.1.1")
        yield made


def run(host: Host, text: str) -> str:
    """Run a block in the folder of a host."""
    path = f"PATH={Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inside = f"cd {host.folder}\n{text}"
    return host.run("env", path, "bash", "-euo", "pipefail", "-c", inside, limit_s=READY_S)


def wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + READY_S
    while words not in (text := log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, text[-3000:]
        time.sleep(0.2)


def wait_for_keepers(network: Network) -> None:
    """Wait until two ZooKeepers run: a bookie gives up after 10 s without."""
    logs = [network[name].folder / "zookeeper.log" for name in HOSTS]
    deadline = time.monotonic() + KEEPERS_START_S
    while sum("- broadcast" in log.read_text() for log in logs) < 2:
        assert time.monotonic() < deadline, [log.read_text()[-1000:] for log in logs]
        time.sleep(0.2)


def test_three_hosts_become_a_cluster_and_one_of_them_may_be_lost(network: Network) -> None:
    blocks = _BLOCK.findall(README.read_text())
    assert [where for where, _ in blocks] == ["each", "each", "one"]
    (_, keeper), (_, bookie), (_, use) = blocks
    for name in HOSTS:
        run(network[name], keeper)
    wait_for_keepers(network)
    for name in HOSTS:
        assert "server with our own ID" not in (network[name].folder / "zookeeper.log").read_text()
        run(network[name], bookie)
    for name in HOSTS:
        wait_for(network[name].folder / "bookie.log", f"ready bookie://{name}:3181")
    told = run(network["host-2"], use)
    with never_twice():
        assert "\n1000\n" in f"\n{told}"
    assert all(f"{name}:3181" in told for name in HOSTS)
    network.cut_off("host-1")
    cluster = use.splitlines()[0]
    left = run(network["host-3"], f"{cluster}\nquire read shop/orders | wc -l")
    with never_twice():
        assert left == "1000\n"

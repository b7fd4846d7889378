"""The hosts themselves: their names, their ways and their clocks."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
from hosts import Network, paused, remove_leftovers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hosts")]
PORT = 4000
_ECHO = f"""
import socket
with socket.create_server(("", {PORT})) as server:
    print(flush=True)
    while True:
        with server.accept()[0] as peer:
            while got := peer.recv(100000):
                peer.sendall(got)
"""
_ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 4000), timeout=3) as peer:
    began = time.monotonic()
    peer.sendall(b"x" * int(sys.argv[2]))
    left = int(sys.argv[2])
    while left:
        left -= len(peer.recv(100000))
    print(time.monotonic() - began)
"""
_COUNT = """
import math, socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
    mine.bind(("", 4000))
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
    print(flush=True)
    count, last, until = 0, 0, math.inf
    while time.monotonic() < until:
        if mine.recv(9) != b"end":
            count += 1
        elif until == math.inf or count > last:  # some may still be on their way
            last, until = count, time.monotonic() + 1
    print(count)
"""
_SPRAY = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
    for number in range(int(sys.argv[2])):
        mine.sendto(b"x", (sys.argv[1], 4000))
        time.sleep(0.0005)
"""
_CLOCK = """
import sys, time
for line in sys.stdin:
    print(time.time(), flush=True)
"""
_JAVA_CLOCK = """
class Clock {
    public static void main(String[] none) throws Exception {
        while (System.in.read() == 10) System.out.println(System.currentTimeMillis() / 1e3);
    }
}
"""


@contextmanager
def echo(network: Network, name: str) -> Iterator[None]:
    process = network[name].popen("python3", "-c", _ECHO, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()
            process.wait()


def ask(network: Network, sender: str, receiver: str, size: int = 1) -> float | None:
    """Return the seconds that an answer takes, None without one."""
    try:
        return float(network[sender].run("python3", "-c", _ASK, receiver, str(size)))
    except subprocess.CalledProcessError:
        return None


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("a", "b", "c") as made:
        yield made


def arrivals(network: Network, sender: str, receiver: str, count: int) -> int:
    """Return how many of *count* datagrams arrive. The end is told from here, again and again."""
    counting = network[receiver].popen("python3", "-c", _COUNT, stdout=subprocess.PIPE)
    assert counting.stdout is not None
    with counting.stdout, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        counting.stdout.readline()
        network[sender].run("python3", "-c", _SPRAY, receiver, str(count))
        while counting.poll() is None:
            ours.sendto(b"end", (network.address(receiver), PORT))
            time.sleep(0.1)
        return int(counting.stdout.readline())


def test_hosts_have_names_and_addresses(network: Network) -> None:
    assert network["a"].run("hostname") == "a\n"
    assert network["b"].run("hostname") == "b\n"
    assert network["b"].run("getent", "hosts", "a").split() == [network.address("a"), "a"]


@pytest.mark.parametrize("language", ["python", "java"])
def test_a_clock_is_set_under_processes_that_run(network: Network, language: str) -> None:
    """ZooKeeper is written in Java, which has ways of its own to read the clock."""
    words: list[str | Path] = ["python3", "-c", _CLOCK]
    if language == "java":
        words = ["java", "-XX:TieredStopAtLevel=1", network["a"].folder / "Clock.java"]
        Path(words[-1]).write_text(_JAVA_CLOCK)
    clocks = {name: network[name].popen(*words, stdin=PIPE, stdout=PIPE) for name in "ab"}
    try:
        assert ahead(clocks["a"]) == pytest.approx(0, abs=5)
        network["a"].set_clock(-1)
        assert ahead(clocks["a"]) == pytest.approx(-3600, abs=5)
        assert float(network["a"].run("date", "+%s")) - time.time() == pytest.approx(-3600, abs=5)
        assert ahead(clocks["b"]) == pytest.approx(0, abs=5)
        network.heal()
        assert ahead(clocks["a"]) == pytest.approx(0, abs=5)
    finally:
        for clock in clocks.values():
            clock.kill()
            clock.communicate()


def ahead(clock: subprocess.Popen[bytes]) -> float:
    """Return by how many seconds a process is ahead of this one."""
    assert clock.stdin is not None
    assert clock.stdout is not None
    clock.stdin.write(b"\n")
    clock.stdin.flush()
    return float(clock.stdout.readline()) - time.time()


@pytest.mark.real_processes
def test_a_way_is_cut_and_healed(network: Network) -> None:
    with echo(network, "b"):
        assert ask(network, "a", "b", size=1_000_000) is not None
        network.cut("a", "b")
        assert ask(network, "a", "b") is None
        assert ask(network, "c", "b") is not None
        network.heal()
        assert ask(network, "a", "b", size=300_000) is not None


@pytest.mark.real_processes
def test_a_host_is_cut_from_some_others_only(network: Network) -> None:
    """So is a leader from ZooKeeper, and a client from some bookies."""
    with echo(network, "a"), echo(network, "b"), echo(network, "c"):
        network.cut_off("a", ["b"])
        assert ask(network, "a", "b") is None
        for sender, receiver in ("ac", "ca", "bc", "cb"):
            assert ask(network, sender, receiver) is not None


@pytest.mark.real_processes
def test_a_way_is_cut_in_one_direction(network: Network) -> None:
    with echo(network, "b"):
        network.cut_way("b", "a")
        assert ask(network, "a", "b") is None  # no answer comes back
    assert arrivals(network, "b", "a", 200) == 0
    assert arrivals(network, "a", "b", 200) > 180


@pytest.mark.real_processes
def test_every_packet_is_delayed(network: Network) -> None:
    with echo(network, "b"):
        network.hurt_all(delay_ms=200)
        delayed = ask(network, "a", "b")
        assert delayed is not None
        assert 0.4 <= delayed < 1.5
        network.heal()
        healed = ask(network, "a", "b")
        assert healed is not None
        assert healed < 0.4


def test_a_wide_network_passes_large_packets(network: Network) -> None:
    network.widen()
    with echo(network, "b"):
        assert ask(network, "a", "b", size=1_000_000) is not None


@pytest.mark.real_processes
@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_a_part_of_the_packets_is_lost(network: Network, loss: float) -> None:
    network.hurt_all(loss=loss)
    assert arrivals(network, "a", "b", 2000) == pytest.approx(2000 * (1 - loss), abs=80)


@pytest.mark.real_processes
def test_a_paused_process_answers_once_it_goes_on(network: Network) -> None:
    process = network["b"].popen("python3", "-c", _ECHO, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        with paused(process):
            assert ask(network, "a", "b") is None
        assert ask(network, "a", "b") is not None
        process.kill()
        process.wait()


def test_nothing_is_left_behind() -> None:
    with Network("a") as network:
        namespace = network["a"].namespace
        process = network["a"].popen("sleep", "1000")
        assert namespace in listed()
        remove_leftovers()
        assert namespace in listed()  # ours is not over
    assert process.wait(10) == -9
    assert namespace not in listed()


def listed() -> str:
    return subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True).stdout

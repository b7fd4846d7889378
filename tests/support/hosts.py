"""Hosts of their own on this machine: network namespaces, and a network that can be hurt.

    with Network("a", "b") as network:
        network["a"].popen("bookie", "run", ...)     # as hostname a, with a's address and clock
        network.cut("a", "b")                        # both ways; network.heal() ends it

Each host has an address, a hostname that the others can resolve, a /etc/hosts and a wall clock.
This process is on the network too, as the host "us". Needs root. Whatever a run that was killed
has left is removed by the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

US = "us"
MTU = 1500
MTU_WIDE = 60_000
QUEUE = ("txqueuelen", "20000")
"""No packet is lost because this machine is busy."""
DEVICE = "quire0"
SWITCH = Path(__file__).with_name("switch.py")
CLOCK = Path(__file__).with_name("wall_clock.c")
_ETC = Path("/etc/netns")
_NAMES = re.compile(r"quire(\d+)-\S+")
_HOUR_NS = 3600 * 10**9


class Host:
    """One host.

    Attributes:
        name: its hostname.
        number: the last byte of its address.
        address: its IPv4 address.
        folder: for its files.
    """

    def __init__(self, name: str, number: int, address: str, folder: Path, clock: str) -> None:
        self.name = name
        self.number = number
        self.address = address
        self.folder = folder
        self.namespace = f"quire{os.getpid()}-{name}"
        folder.mkdir()
        self._clock = folder / "wall_clock"
        self._preload = clock
        self.set_clock(0)

    @property
    def prefix(self) -> list[str]:
        """Words in front of a command that let it run on this host, in the same process."""
        variables = [f"LD_PRELOAD={self._preload}", f"QUIRE_WALL_CLOCK={self._clock}"]
        inside = f'hostname {self.name} && exec env {" ".join(variables)} "$@"'
        namespaces = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        return [*namespaces, "sh", "-c", inside, "sh"]

    def popen(
        self,
        *words: str | Path,
        stdin: int | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command on this host."""
        command = [*self.prefix, *map(str, words)]
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )

    def run(self, *words: str | Path, stdin: bytes = b"", limit_s: float = 60.0) -> str:
        """Run a command to its end, and return its output. Raises CalledProcessError."""
        command = [*self.prefix, *map(str, words)]
        done = subprocess.run(
            command, input=stdin, stdout=subprocess.PIPE, timeout=limit_s, check=True
        )
        return done.stdout.decode()

    def find_itself_at(self, address: str) -> None:
        """Let processes that start from now on resolve this host's name to *address*."""
        path = _ETC / self.namespace / "hosts"
        lines = [line for line in path.read_text().splitlines() if line.split()[1] != self.name]
        path.write_text("\n".join([*lines, f"{address} {self.name}", ""]))

    def set_clock(self, hours: float) -> None:
        """Let the wall clock of all its processes be wrong by this from now on."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(int(hours * _HOUR_NS).to_bytes(8, sys.byteorder, signed=True))


class Network:
    """Hosts with these names, in a subnet of this process."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._hosts: dict[str, Host] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="quire-hosts-"))
        self._switch: subprocess.Popen[str] | None = None
        self._hurt: set[tuple[str, str]] = set()
        self._subnet = f"10.{64 + os.getpid() // 256 % 128}.{os.getpid() % 256}"

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __enter__(self) -> Network:
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts.values():
            _remove(host.namespace)
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
            for stream in (self._switch.stdin, self._switch.stdout):
                assert stream is not None
                stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- ways --------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """Lose every packet between the two, both ways."""
        self.cut_way(one, other)
        self.cut_way(other, one)

    def cut_way(self, sender: str, receiver: str) -> None:
        """Lose every packet from *sender* to *receiver*; those back still arrive."""
        self._set(sender, receiver, loss=1.0)

    def cut_off(self, name: str, others: Sequence[str] = ()) -> None:
        """Cut a host off from *others*, by default from all."""
        for other in others or self.names:
            if other != name:
                self.cut(name, other)

    def hurt_all(self, *, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        """Delay the packets of all ways, or lose a part of them. A round trip has two delays."""
        for sender in self.names:
            for receiver in self.names:
                if sender != receiver:
                    self._set(sender, receiver, delay_ms=delay_ms, loss=loss)

    def heal(self) -> None:
        """Let all packets pass at once, and set all clocks right."""
        for sender, receiver in sorted(self._hurt):
            self._set(sender, receiver)
        self._hurt.clear()
        for name in self._names:
            self[name].set_clock(0)

    def widen(self) -> None:
        """Let connections that are opened from now on send packets of MTU_WIDE.

        The network is a program, so that few packets carry much sooner than many.
        """
        for host in self._hosts.values():
            _ip("-n", host.namespace, "link", "set", DEVICE, "mtu", str(MTU_WIDE))
        _ip("link", "set", f"quire{os.getpid()}", "mtu", str(MTU_WIDE))

    @property
    def names(self) -> list[str]:
        """All hosts, with the one of this process."""
        return [*self._names, US]

    def _set(self, sender: str, receiver: str, *, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        assert self._switch is not None
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        ends = f"{self._number(sender)} {self._number(receiver)}"
        self._switch.stdin.write(f"{ends} {delay_ms} {loss}\n")
        self._switch.stdin.flush()
        assert self._switch.stdout.readline() == "done\n"
        self._hurt.add((sender, receiver))

    # --- making --------------------------------------------------------------------------

    def _number(self, name: str) -> int:
        return self.names.index(name) + 1

    def address(self, name: str) -> str:
        """Return the address of a host, by its name."""
        return f"{self._subnet}.{self._number(name)}"

    def _make(self) -> None:
        library = self._folder / "wall_clock.so"
        words = ["cc", "-shared", "-fPIC", "-O1", "-o", library, CLOCK, "-ldl"]
        subprocess.run(list(map(str, words)), check=True)
        for name in self._names:
            number = self._number(name)
            host = Host(name, number, self.address(name), self._folder / name, str(library))
            self._hosts[name] = host
            _ip("netns", "add", host.namespace)
            etc = _ETC / host.namespace
            etc.mkdir(parents=True)
            (etc / "hosts").write_text("".join(self._lines_of_hosts()))
        ends = [f"{DEVICE}={host.namespace}:{host.number}" for host in self._hosts.values()]
        ends.append(f"quire{os.getpid()}=:{self._number(US)}")
        self._switch = subprocess.Popen(
            [sys.executable, str(SWITCH), *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == "ready\n"
        for host in self._hosts.values():
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            self._bring_up(["-n", host.namespace], DEVICE, host.address)
        self._bring_up([], f"quire{os.getpid()}", self.address(US))

    def _lines_of_hosts(self) -> Iterator[str]:
        yield "127.0.0.1 localhost\n"
        for name in self.names:
            yield f"{self.address(name)} {name}\n"

    def _bring_up(self, where: list[str], device: str, address: str) -> None:
        _ip(*where, "addr", "add", f"{address}/24", "dev", device)
        _ip(*where, "link", "set", device, "up", "mtu", str(MTU), *QUEUE)


def remove_leftovers() -> None:
    """Remove the hosts of runs that are over, with their processes."""
    for line in _ip("netns", "list").splitlines():
        found = _NAMES.match(line)
        if found is not None and not Path("/proc", found[1]).exists():
            _remove(found[0].split()[0])


def _remove(namespace: str) -> None:
    with suppress(subprocess.CalledProcessError):
        for number in _ip("netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
        _ip("netns", "del", namespace)
    shutil.rmtree(_ETC / namespace, ignore_errors=True)
    with suppress(OSError):
        _ETC.rmdir()


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout


@contextmanager
def paused(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a process as a whole for the length of the block."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)

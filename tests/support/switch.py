"""The network between hosts: one process that passes on every packet, or does not.

    python switch.py DEVICE=NAMESPACE:NUMBER ...

Each host is a network namespace with a TUN device, whose packets come out here. So the network is
a loop over packets, and needs no packet filter and no traffic shaper of the kernel's, which many
kernels lack. NUMBER is the last byte of the host's address.

A line of standard input sets the way from one host to another, for packets from now on, and is
answered by "done":

    FROM TO DELAY_MS LOSS          the part LOSS (0 to 1) of the packets is lost: 1 cuts the way

The end of standard input ends the network.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from run_seed import run_seed

PACKET_SIZE_MAX = 1 << 16
UNDER_WAY_MAX = 20_000
"""Delayed packets; what comes beyond is lost."""
_TUNSETIFF = 0x4004_54CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x4000_0000
_LIBC = ctypes.CDLL(None, use_errno=True)


class Way(NamedTuple):
    """How packets go from one host to another."""

    delay_s: float = 0.0
    loss: float = 0.0


class Switch:
    """Passes packets on between *devices*, by the number of their host."""

    def __init__(self, devices: dict[int, int]) -> None:
        self._devices = devices
        self._ways: dict[tuple[int, int], Way] = {}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._turns = count()
        self._chance = random.Random(run_seed())

    def run(self) -> None:
        """Pass packets on until the end of standard input."""
        selector = selectors.DefaultSelector()
        for number, device in self._devices.items():
            selector.register(device, selectors.EVENT_READ, number)
        selector.register(sys.stdin, selectors.EVENT_READ, -1)
        while True:
            for key, _ in selector.select(self._left_s()):
                if key.data != -1:
                    self._receive(key.data, key.fd)
                elif not self._obey(sys.stdin.readline()):
                    return
            self._deliver()

    def _left_s(self) -> float | None:
        if not self._under_way:
            return None
        return max(0.0, self._under_way[0][0] - time.monotonic())

    def _obey(self, line: str) -> bool:
        if not line:
            return False
        sender, receiver, delay_ms, loss = line.split()
        self._ways[int(sender), int(receiver)] = Way(float(delay_ms) / 1000, float(loss))
        sys.stdout.write("done\n")
        sys.stdout.flush()
        return True

    def _receive(self, sender: int, device: int) -> None:
        for _ in range(64):  # the others have their turn too
            try:
                packet = os.read(device, PACKET_SIZE_MAX)
            except BlockingIOError:
                return
            receiver = packet[19] if len(packet) >= 20 and packet[0] >> 4 == 4 else 0
            if receiver in self._devices:
                self._pass_on(sender, receiver, packet)

    def _pass_on(self, sender: int, receiver: int, packet: bytes) -> None:
        way = self._ways.get((sender, receiver), Way())
        if way.loss and self._chance.random() < way.loss:
            return
        if not way.delay_s:
            self._write(receiver, packet)
        elif len(self._under_way) < UNDER_WAY_MAX:
            due = time.monotonic() + way.delay_s
            heapq.heappush(self._under_way, (due, next(self._turns), receiver, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, receiver, packet = heapq.heappop(self._under_way)
            self._write(receiver, packet)

    def _write(self, receiver: int, packet: bytes) -> None:
        with suppress(OSError):  # its queue is full, or it is down: the packet is lost
            os.write(self._devices[receiver], packet)


def open_device(name: str, namespace: str) -> int:
    """Make the TUN device *name* in the network *namespace*, "" for ours, and open it."""
    ours = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        if namespace:
            enter(Path("/run/netns", namespace))
        flags = (_IFF_TUN | _IFF_NO_PI).to_bytes(2, sys.byteorder)
        request = name.encode().ljust(16, b"\0") + flags + bytes(22)  # struct ifreq
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, request)
        return device
    finally:
        _set_namespace(ours)
        os.close(ours)


def enter(namespace: Path) -> None:
    """Let this thread use another network namespace. Raises OSError."""
    there = os.open(namespace, os.O_RDONLY)
    try:
        _set_namespace(there)
    finally:
        os.close(there)


def _set_namespace(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(*hosts: str) -> None:
    """Make the devices, say so, and pass packets on."""
    devices = {}
    for host in hosts:
        name, _, where = host.partition("=")
        namespace, _, number = where.partition(":")
        devices[int(number)] = open_device(name, namespace)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    Switch(devices).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

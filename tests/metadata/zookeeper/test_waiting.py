"""What kazoo's thread waits with."""

from __future__ import annotations

import fcntl
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from metadata.zookeeper.waiting import wait_for_sockets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_what_can_be_read_and_written_is_told(pair: Pair) -> None:
    here, there = pair
    assert wait_for_sockets([here], [here], [], 0) == ([], [here], [])
    there.send(b"x")
    assert wait_for_sockets([here, there], [there], [], 5) == ([here], [there], [])
    assert wait_for_sockets([here], [], [], None) == ([here], [], [])


def test_without_anything_it_waits_for_as_long_as_it_was_told(pair: Pair) -> None:
    began = time.monotonic()
    assert wait_for_sockets([pair[0]], [], [], 0.0201) == ([], [], [])
    assert time.monotonic() - began >= 0.0201


def test_a_peer_that_is_gone_can_be_read(pair: Pair) -> None:
    here, there = pair
    there.close()
    assert wait_for_sockets([here], [], [], 5) == ([here], [], [])
    assert here.recv(1) == b""


def test_a_socket_that_was_closed_is_an_error(pair: Pair) -> None:
    here, there = pair
    there.close()
    with pytest.raises(ValueError, match="negative"):
        wait_for_sockets([there], [], [], 5)
    gone = Closed(here.fileno())
    here.close()
    with pytest.raises(ValueError, match="was closed"):
        wait_for_sockets([gone], [], [], 5)


class Closed:
    """A descriptor that somebody else closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


def test_descriptors_above_those_of_select_are_taken() -> None:
    here, there = socket.socketpair()
    with here, there:
        high = max(1100, here.fileno() + 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, high + 1), hard))
        try:
            above = socket.socket(fileno=fcntl.fcntl(here.fileno(), fcntl.F_DUPFD, high))
            with above:
                there.send(b"x")
                assert wait_for_sockets([above], [], [], 5) == ([above], [], [])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

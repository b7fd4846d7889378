"""Waits for sockets in kazoo's thread, in place of kazoo's own function.

kazoo's makes an epoll for each wait, which costs five system calls and several objects; a request
takes four waits. poll() has no limit of descriptors either.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Protocol

_READS = select.POLLIN | select.POLLPRI | select.POLLHUP | select.POLLERR
_WRITES = select.POLLOUT | select.POLLHUP | select.POLLERR


class Socket(Protocol):
    """A socket, or anything else with a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor, -1 once it is closed."""


def wait_for_sockets(
    reads: Sequence[Socket],
    writes: Sequence[Socket],
    _errors: Sequence[Socket] = (),
    timeout: float | None = None,
) -> tuple[list[Socket], list[Socket], list[Socket]]:
    """Return which of *reads* can be read and which of *writes* written, after *timeout* seconds.

    As select.select(). One whose peer is gone is ready for both.

    Raises:
        ValueError: one of them is closed.
    """
    wanted: dict[int, int] = {}
    for each in reads:
        wanted[each.fileno()] = select.POLLIN
    for each in writes:
        wanted[each.fileno()] = wanted.get(each.fileno(), 0) | select.POLLOUT
    poller = select.poll()
    for descriptor, events in wanted.items():
        poller.register(descriptor, events)
    found = dict(poller.poll(None if timeout is None else math.ceil(timeout * 1000)))
    if any(events & select.POLLNVAL for events in found.values()):
        raise ValueError("a socket was closed")
    return (
        [each for each in reads if found.get(each.fileno(), 0) & _READS],
        [each for each in writes if found.get(each.fileno(), 0) & _WRITES],
        [],
    )

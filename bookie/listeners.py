"""Listening sockets of a bookie."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

import trio

# A peer whose machine vanished is noticed after about two minutes.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


async def listen(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on *host*; port 0: any free one.

    Raises:
        OSError: the port is taken or the host is not ours; the message names both.
    """
    try:
        return list(await trio.open_tcp_listeners(port, host=host))
    except OSError as cause:
        raise OSError(cause.errno, f"cannot listen on {host}:{port}: {cause.strerror}") from cause


async def serve(
    handler: Callable[[trio.abc.Stream], Awaitable[None]],
    listeners: list[trio.SocketListener],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Run *handler* for each connection until cancelled; it closes its stream.

    Raises:
        OSError: accepting failed. What *handler* raises ends this too.
    """

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(OSError):  # it is gone already: the handler finds out
            for level, option, value in _KEEPALIVE:
                stream.setsockopt(level, option, value)
        await handler(stream)

    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, handle, listeners)
        task_status.started()
    raise AssertionError("serve_listeners never returns")


def address_of(listener: trio.SocketListener) -> str:
    """host:port of a listener, an IPv6 host in brackets."""
    host, port = listener.socket.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_address(stream: trio.abc.Stream) -> str:
    """The address of the peer, of IPv6 its /64, which one host has; "" when it has none."""
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        host = str(stream.socket.getpeername()[0])
        address = ipaddress.ip_address(host.partition("%")[0])
    except (OSError, ValueError, IndexError):
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.ip_network((address, 64), strict=False))

"""Listening sockets of a bookie, and the addresses of its peers."""

from __future__ import annotations

import errno
import ipaddress
import select
import socket

import trio

# Two minutes after a peer's machine vanished, the kernel closes the connection.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


async def listen(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on *host*; port 0 takes any free one. Connections inherit the keep-alive.

    Raises:
        OSError: the port is taken or the host is not local; the message names both.
    """
    try:
        listeners = list(await trio.open_tcp_listeners(port, host=host))
    except OSError as cause:
        reason = cause.strerror
        if cause.errno == errno.EADDRINUSE:
            reason = f"{reason}; stop the program that uses the port, or choose another port"
        raise OSError(cause.errno, f"cannot listen on {host}:{port}: {reason}") from cause
    for listener in listeners:
        for level, option, value in _KEEPALIVE:
            listener.socket.setsockopt(level, option, value)
    return listeners


def address_of(listener: trio.SocketListener) -> str:
    """Return host:port of a listener, with an IPv6 host in brackets."""
    host, port = listener.socket.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_address(stream: trio.abc.Stream) -> str:
    """Return the peer's IPv4 address, or the /64 of its IPv6 address; "" if it has none.

    A host usually owns the whole /64.
    """
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        return network_of(str(stream.socket.getpeername()[0]))
    except (OSError, ValueError, IndexError):
        return ""


def network_of(host: str) -> str:
    """Return an IPv4 address as it is, and the /64 of an IPv6 address. Raises ValueError."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.ip_network((address, 64), strict=False))


def has_unread(stream: trio.abc.Stream) -> bool:
    """Return True if bytes of the peer, or its end, wait in the socket."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream) or stream.socket.fileno() < 0:
        return False
    poll = select.poll()  # select() takes no number above 1023
    poll.register(stream.socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))

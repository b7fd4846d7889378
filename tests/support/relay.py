"""A relay between a client and its bookies, whose connections can be reset.

The bookie lives on and the network works; only the one connection is gone, as when a
firewall forgets it.
"""

from __future__ import annotations

import socket
import sys

import trio

CHUNK_SIZE = 256 * 1024
LINGER_ZERO = b"".join(number.to_bytes(4, sys.byteorder) for number in (1, 0))


class Relay:
    """Its open_stream is what a client opens streams with. Runs in *nursery*."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._accepted: dict[int, list[trio.SocketStream]] = {}

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        """Connect to *host* and *port* by way of this relay. Raises OSError."""
        bookie = await trio.open_tcp_stream(host, port)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            stream = await trio.open_tcp_stream(*listener.socket.getsockname())
            accepted = await listener.accept()
        self._accepted.setdefault(port, []).append(accepted)
        self._nursery.start_soon(_pump, accepted, bookie)
        self._nursery.start_soon(_pump, bookie, accepted)
        return stream

    def reset(self, port: int) -> None:
        """Reset the connections to the bookie at *port*: the client's, and at once."""
        for accepted in self._accepted.pop(port, []):
            accepted.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            accepted.socket.close()


async def _pump(source: trio.SocketStream, target: trio.SocketStream) -> None:
    try:
        while data := await source.receive_some(CHUNK_SIZE):
            await target.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # reset, or the other end is gone
    await trio.aclose_forcefully(source)
    await trio.aclose_forcefully(target)

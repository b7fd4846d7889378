from __future__ import annotations

import socket

import trio

from bookie.listeners import has_unread, listen


async def test_a_connection_inherits_the_keep_alive_of_its_listener() -> None:
    (listener,) = await listen("127.0.0.1", 0)
    async with listener:
        port = listener.socket.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port), await listener.accept() as stream:
            assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4


async def test_bytes_that_arrived_are_seen_before_they_are_received() -> None:
    (listener,) = await listen("127.0.0.1", 0)
    async with listener:
        port = listener.socket.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port) as peer:
            async with await listener.accept() as stream:
                assert not has_unread(stream)
                await peer.send_all(b"x")
                await trio.lowlevel.wait_readable(stream.socket)
                assert has_unread(stream)
                assert await stream.receive_some(1) == b"x"
                assert not has_unread(stream)
            assert not has_unread(stream)

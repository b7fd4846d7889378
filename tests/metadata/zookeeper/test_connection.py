"""The connection to an ensemble whose servers cannot be reached, and one that is lost."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
import trio
from ensemble import Ensemble, new_path

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.zookeeper.attempts import CONNECT_S
from metadata.zookeeper.connection import KazooConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.url import parse_zookeeper_url
from metadata.zookeeper.znodes import Create

SESSION_S = 30.0
CUT = 2
BUSY_S = 10.0
"""More, on a busy machine; far less than a session."""


@contextmanager
def cut_off() -> Iterator[int]:
    """A port that answers no more connections than it has, as one behind a cut."""
    with ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = opened.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()[1]


async def test_servers_that_are_cut_off_do_not_cost_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of them would get as long as the session lives."""
    monkeypatch.setattr(random, "shuffle", lambda _servers: None)  # those that are cut off first
    asked = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            asked.set()

    with ExitStack() as opened:
        ports = [opened.enter_context(cut_off()) for _ in range(CUT)]
        async with trio.open_nursery() as nursery:
            listen = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
            (listener,) = await nursery.start(listen)
            ports.append(listener.socket.getsockname()[1])
            url = parse_zookeeper_url(
                "zk://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/quire"
            )
            connection = KazooConnection(url, session_timeout_s=SESSION_S)
            with trio.fail_after(CUT * CONNECT_S + BUSY_S):
                await asked.wait()
            await connection.aclose()
            nursery.cancel_scope.cancel()


class MuteRelay:
    """Passes on what is sent to a server, and its answers until they are *held*."""

    def __init__(self, port: int) -> None:
        self.held = False
        self.asked = trio.Event()
        self._port = port
        self._streams: list[trio.SocketStream] = []

    async def serve(self, client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", self._port)
        self._streams += [client, server]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on, client, server, True)
            nursery.start_soon(self._pass_on, server, client, False)

    async def lose(self) -> None:
        """End all connections, and hold back no answer of later ones."""
        self.held = False
        self.asked = trio.Event()
        while self._streams:
            await trio.aclose_forcefully(self._streams.pop())

    async def _pass_on(
        self, source: trio.SocketStream, target: trio.SocketStream, are_requests: bool
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some():
                if self.held and are_requests:
                    self.asked.set()
                if not self.held:
                    await target.send_all(data)


@pytest.mark.xdist_group("zookeeper")
async def test_reads_whose_connection_is_lost_are_asked_again(one_zookeeper: Ensemble) -> None:
    """A change is not: it may have been made."""
    relay = MuteRelay(one_zookeeper.client_ports[0])
    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, relay.serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(listen)
        port = listener.socket.getsockname()[1]
        url = parse_zookeeper_url(f"zk://127.0.0.1:{port}{new_path()}")
        connection = KazooConnection(url, session_timeout_s=SESSION_S)
        await connection.make_root()
        await connection.multi([Create("/a", b"1")])

        async def read() -> None:
            ((value, stat),) = filter(None, await connection.get(["/a"], fresh=True))
            assert value == b"1"
            assert await connection.stat(["/a", "/b"]) == [stat, None]

        async def change() -> None:
            with pytest.raises(MetadataUnavailable) as lost:
                await connection.multi([Create("/b", b"")])
            assert lost.value.outcome_unknown

        for use in (read, change):
            relay.held = True
            with trio.fail_after(SESSION_S / 2):
                async with trio.open_nursery() as using:
                    using.start_soon(use)
                    await relay.asked.wait()
                    await relay.lose()
        await connection.aclose()
        nursery.cancel_scope.cancel()


class RestingRelay:
    """Passes on what is sent both ways, but keeps one request until another one comes."""

    def __init__(self, port: int) -> None:
        self.rests = False
        self.connections = 0
        self._port = port

    async def serve(self, client: trio.SocketStream) -> None:
        self.connections += 1
        server = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on, client, server, True)
            nursery.start_soon(self._pass_on, server, client, False)

    async def _pass_on(
        self, source: trio.SocketStream, target: trio.SocketStream, are_requests: bool
    ) -> None:
        kept = b""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some():
                if self.rests and are_requests:
                    kept, self.rests = bytes(data), False
                    continue
                await target.send_all(kept + data)
                kept = b""


@pytest.mark.xdist_group("zookeeper")
async def test_a_zookeeper_that_rests_before_a_request_is_woken(one_zookeeper: Ensemble) -> None:
    """It is not left for another one, which costs seconds: ZOOKEEPER-4537."""
    relay = RestingRelay(one_zookeeper.client_ports[0])
    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, relay.serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(listen)
        port = listener.socket.getsockname()[1]
        url = parse_zookeeper_url(f"zk://127.0.0.1:{port}{new_path()}")
        connection = KazooConnection(url, session_timeout_s=60)
        await connection.make_root()
        for ask in (
            partial(connection.multi, [Create("/a", b"1")]),
            partial(connection.get, ["/a"], fresh=True),
            partial(connection.children, ["/a"]),
        ):
            relay.rests = True
            await ask()
            assert not relay.rests
        assert relay.connections == 1
        await connection.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.xdist_group("zookeeper")
async def test_only_what_the_leader_answers_shows_that_it_knows_the_session(
    one_zookeeper: Ensemble,
) -> None:
    """A server that is cut off from it answers other reads."""
    url = parse_zookeeper_url(f"zk://127.0.0.1:{one_zookeeper.client_ports[0]}{new_path()}")
    connection = KazooConnection(url, session_timeout_s=SESSION_S)
    await connection.make_root()
    await connection.get(["/"], fresh=True)
    heard_at = connection.heard_at
    for ask in (connection.get, connection.stat, connection.children):
        await trio.sleep(0.01)
        await ask(["/"])
        assert connection.heard_at == heard_at
    for led in (
        partial(connection.get, ["/"], fresh=True),
        partial(connection.multi, [Create("/a", b"1")]),
    ):
        asked_at = trio.current_time()
        await led()
        assert connection.heard_at >= asked_at
    await connection.aclose()


@pytest.mark.xdist_group("zookeeper")
async def test_a_path_within_a_cluster_becomes_no_cluster(one_zookeeper: Ensemble) -> None:
    """Wherever below: the folder may be one that the cluster has, or not be there."""
    address, top = f"zk://127.0.0.1:{one_zookeeper.client_ports[0]}", new_path()
    for path in ("", "/cookies", "/some/where"):
        url = parse_zookeeper_url(address + top + path)
        connection = KazooConnection(url, session_timeout_s=SESSION_S)
        if not path:
            await find_cluster(connection, create=True)
        else:
            before = await connection.children(["/"])
            with pytest.raises(MetadataBroken, match=f"is within the cluster at {top},"):
                await find_cluster(connection, create=True)
            assert await connection.children(["/"]) == before
        await connection.aclose()

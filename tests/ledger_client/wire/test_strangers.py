"""Servers of other protocols, where the address of a bookie was expected."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import trio
import trio.testing
import trustme
from fake_bookie import FakeBookie
from memory_store import MemoryStore

from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude
from ledger_client.wire.stores import BookieStore
from ledger_client.wire.strangers import name_strangers
from ledger_client.wire.streams import opener
from metadata.access import Access
from metadata.address import Address
from metadata.errors import BadAddress, MetadataUnavailable
from metadata.outcome import Exit

HOST = Address("host", 1)
Serve = Callable[[trio.abc.Stream], Awaitable[None]]


class Host:
    """Serves each connection in memory with *serve*, and counts them."""

    def __init__(self, nursery: trio.Nursery, serve: Serve) -> None:
        self.nursery, self.serve = nursery, serve
        self.connections = 0

    async def open_tcp(self, _host: str, _port: int) -> trio.abc.Stream:
        self.connections += 1
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self._run, theirs)
        return ours

    async def _run(self, stream: trio.abc.Stream) -> None:
        try:
            async with stream:
                await self.serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def speak_http(stream: trio.abc.Stream) -> None:
    """Like Python's http.server: wait for a line, and refuse it."""
    received = b""
    while b"\n" not in received:
        received += await stream.receive_some() or b"\n"
    if received.startswith(b"GET "):
        await stream.send_all(b"HTTP/1.0 404 Not Found\r\n\r\n")


async def speak_tls(stream: trio.abc.Stream) -> None:
    """Like a server of OpenSSL: reset what does not begin with a handshake."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("host").configure_cert(context)
    encrypted = trio.SSLStream(stream, context, server_side=True)
    await encrypted.do_handshake()


async def say_nothing(stream: trio.abc.Stream) -> None:
    while await stream.receive_some():
        pass


@pytest.mark.parametrize(
    ("serve", "words"),
    [(speak_http, "it speaks HTTP"), (speak_tls, r"it speaks TLS; name it as bookie\+tls://")],
)
async def test_a_server_that_never_answers_a_frame_is_named(
    serve: Serve, words: str, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    host = Host(nursery, serve)
    opening = BookieStore.open(
        [HOST],
        open_stream=host.open_tcp,
        name_strangers=partial(name_strangers, tls=False, open_tcp=host.open_tcp),
    )
    async with opening as store:
        with pytest.raises(BadAddress, match=f"host:1: {words}"):
            await store.get("a")
        asked = host.connections
        with pytest.raises(BadAddress, match=f"host:1: {words}"):
            await store.put("a", b"")
        assert host.connections == asked + 1, "it is asked once"


async def test_one_stranger_among_bookies_that_are_away_is_no_reason_to_give_up(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    bookie = FakeBookie(MemoryStore())
    host = Host(nursery, speak_http)
    away = True

    async def open_tcp(name: str, port: int) -> trio.abc.Stream:
        if name == "host":
            return await host.open_tcp(name, port)
        if away:
            raise ConnectionRefusedError
        return await bookie.dial(nursery)

    opening = BookieStore.open(
        [HOST, Address("bookie", 1)],
        open_stream=open_tcp,
        name_strangers=partial(name_strangers, tls=False, open_tcp=open_tcp),
    )
    async with opening as store:
        with pytest.raises(MetadataUnavailable):
            await store.get("a")
        away = False
        assert await store.get("a") is None


async def test_a_caller_that_gives_up_leaves_the_question_to_the_next(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    host = Host(nursery, speak_http)
    asked = trio.Event()

    async def ask(_addresses: object) -> dict[Address, str]:
        asked.set()
        await trio.sleep(0.5)
        return {HOST: "it speaks HTTP"}

    opening = BookieStore.open([HOST], open_stream=host.open_tcp, name_strangers=ask)
    async with opening as store:
        async with trio.open_nursery() as hasty:
            hasty.start_soon(store.get, "a")
            await asked.wait()
            hasty.cancel_scope.cancel()
        with pytest.raises(BadAddress, match="it speaks HTTP"):
            await store.get("a")


async def test_a_host_that_was_too_busy_to_answer_is_asked_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    host = Host(nursery, speak_http)
    answers = [{}, {}, {HOST: "it speaks HTTP"}]

    async def ask(_addresses: object) -> dict[Address, str]:
        await trio.sleep(1)
        return answers.pop(0)

    opening = BookieStore.open([HOST], open_stream=host.open_tcp, name_strangers=ask)
    async with opening as store:
        with pytest.raises(BadAddress, match="it speaks HTTP"):
            await store.get("a")


async def test_with_tls_a_bookie_without_is_named(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    host = Host(nursery, FakeBookie(MemoryStore()).serve)
    opening = BookieStore.open(
        [HOST],
        open_stream=opener(Access(tls=True), host.open_tcp),
        name_strangers=partial(name_strangers, tls=True, open_tcp=host.open_tcp),
    )
    async with opening as store:
        with pytest.raises(BadAddress, match="it is a bookie without TLS; name it as bookie://"):
            await store.get("a")


async def test_a_server_that_says_nothing_stays_unavailable(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    host = Host(nursery, say_nothing)
    opening = BookieStore.open(
        [HOST],
        open_stream=host.open_tcp,
        name_strangers=partial(name_strangers, tls=False, open_tcp=host.open_tcp),
    )
    async with opening as store:
        with pytest.raises(MetadataUnavailable):
            await store.get("a")


async def test_a_bookie_that_was_heard_is_never_asked_who_it_is(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    bookie = FakeBookie(MemoryStore())
    host = Host(nursery, bookie.serve)

    async def never(_addresses: object) -> dict[Address, str]:
        raise AssertionError("asked")

    opening = BookieStore.open([HOST], open_stream=host.open_tcp, name_strangers=never)
    async with opening as store:
        assert await store.get("a") is None
        bookie.mute = True
        with pytest.raises(MetadataUnavailable):
            await store.get("a")


# --- real servers ---------------------------------------------------------------------------


class QuietServer(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Print no traceback: a handshake that fails is expected."""


class Refusing(BaseHTTPRequestHandler):
    timeout = 5

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving(*, tls: bool) -> Iterator[int]:
    """Run a server of HTTP or HTTPS in a thread; yield its port."""
    with QuietServer(("127.0.0.1", 0), Refusing) as server:
        if tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("tls", "url", "words"),
    [
        (False, "bookie", "it speaks HTTP, as the port of a bookie's metrics does"),
        (True, "bookie", "it speaks TLS; name it as bookie+tls://host:port"),
        (False, "bookie+tls", "it speaks HTTP, as the port of a bookie's metrics does"),
    ],
)
def test_a_command_names_a_real_server(
    tls: bool, url: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tls=tls) as port:
        where = f"{url}://127.0.0.1:{port}"
        assert conclude(quire, ["topic", "list", "--cluster", where]) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"quire: 127.0.0.1:{port}: {words}")

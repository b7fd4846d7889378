"""What listens where no bookie answers: TLS, HTTP, or a bookie without TLS.

A server of another protocol answers a bookie's frames with silence or a reset, which says nothing.
So once connections to an address brought nothing, it is asked over fresh ones in the protocols that
are mistaken for ours most often.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio

from ledger_client.wire.inflight import PROBE
from ledger_client.wire.streams import BROKEN, OpenStream, exchange
from metadata.address import Address
from native import frame
from native.link import HTTP_REMEDY, TLS_REMEDY, protocol_of

ANSWER_S = 1.0
"""Time limit for all questions together."""
ASKED_MAX = 8
"""At most this many addresses are asked."""

NameStrangers = Callable[[Iterable[Address]], Awaitable[dict[Address, str]]]

_GET = b"GET / HTTP/1.0\r\n\r\n"
_HEAD_SIZE = 16
_WITHOUT_TLS = "it is a bookie without TLS; name it as bookie://host:port"
_ORDER = (TLS_REMEDY, _WITHOUT_TLS, HTTP_REMEDY)
"""HTTP comes last: a server of HTTPS answers GET in plain HTTP."""


async def name_strangers(
    addresses: Iterable[Address], *, tls: bool, open_tcp: OpenStream = trio.open_tcp_stream
) -> dict[Address, str]:
    """Describe what listens at *addresses*, leaving out those that stay unknown.

    Takes at most ANSWER_S. *tls* says whether the connections that failed used TLS.
    """
    found: dict[Address, set[str]] = {}

    async def ask(address: Address, question: Callable[[trio.abc.Stream], Awaitable[str]]) -> None:
        try:
            async with await open_tcp(address.host, address.port) as stream:
                remedy = await question(stream)
        except BROKEN:
            return
        if remedy:
            found.setdefault(address, set()).add(remedy)

    with trio.move_on_after(ANSWER_S):
        async with trio.open_nursery() as nursery:
            for address in list(addresses)[:ASKED_MAX]:
                nursery.start_soon(ask, address, _speaks_http)
                other = _speaks_plainly if tls else partial(_speaks_tls, host=address.host)
                nursery.start_soon(ask, address, other)
    return {address: min(named, key=_ORDER.index) for address, named in found.items()}


async def _speaks_http(stream: trio.abc.Stream) -> str:
    await stream.send_all(_GET)
    return HTTP_REMEDY if protocol_of(await _head(stream)) == "HTTP" else ""


async def _speaks_tls(stream: trio.abc.Stream, host: str) -> str:
    await stream.send_all(_client_hello(host))
    return TLS_REMEDY if protocol_of(await _head(stream)) == "TLS" else ""


async def _speaks_plainly(stream: trio.abc.Stream) -> str:
    await exchange(stream, frame.read(*PROBE))
    return _WITHOUT_TLS


async def _head(stream: trio.abc.Stream) -> bytes:
    head = b""
    while len(head) < _HEAD_SIZE and (data := await stream.receive_some(_HEAD_SIZE)):
        head += data
        if protocol_of(head):
            break
    return head


def _client_hello(host: str) -> bytes:
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    try:
        context.wrap_bio(received, sent, server_hostname=host).do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake without an answer")

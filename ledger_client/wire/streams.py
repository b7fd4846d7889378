"""A stream to a bookie, until frames of the caller may be sent over it.

    open TCP ─► TLS, if the URL says so ─► login, if the URL has one ─► check the bookie's id

The last step is for connections to one particular bookie. An address may be taken over by
another bookie while metadata still lists it for one that died. Entries that the other bookie
stores, denies or acknowledges would count for the wrong copy, so nothing is sent before the
bookie returned its id.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable

import trio

from metadata.access import (
    ACCEPTED,
    LOGIN_WANTED,
    NO_PLUGIN,
    PLUGIN,
    Access,
    Login,
    auth_frame,
    parse_auth,
    untrusted,
)
from metadata.calls import BookieInfo, BookieStatus, Failure, decode_reply, encode_request
from metadata.errors import AccessDenied, BadAddress, BadRecord
from native import frame
from native.errors import ProtocolBroken
from native.frame import Code, Opcode
from native.link import Link, Response

_log = logging.getLogger(__name__)
_unchecked: set[str] = set()
"""Users whose login was not checked, which is logged once."""

OpenStream = Callable[[str, int], Awaitable[trio.abc.Stream]]
BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Raised by a stream when the connection is lost."""


class StrangePeer(ConnectionError):
    """Something listens at the address, but did not answer as a bookie does."""


async def exchange(stream: trio.abc.Stream, request: bytes) -> Response:
    """Send one request and return the first response, before the stream has a session.

    Raises:
        ConnectionError: the connection is lost, or the peer is no bookie.
    """
    link = Link()
    try:
        await stream.send_all(request)
        while data := await stream.receive_some():
            for response in link.feed(data):
                return response
    except ProtocolBroken as wrong:
        raise ConnectionError(f"broke the protocol: {wrong}") from wrong
    except BROKEN as wrong:
        raise ConnectionError(f"connection lost: {first_line(wrong)}") from wrong
    finally:
        link.close()
    raise ConnectionError("connection closed by the bookie")


def first_line(error: BaseException) -> str:
    """Return *error*'s message in one line; trio's errors hide the cause behind them."""
    message = str(error) or str(error.__cause__ or "") or type(error).__name__
    return message.splitlines()[0]


# --- TLS and login ------------------------------------------------------------------------


def opener(access: Access, open_tcp: OpenStream = trio.open_tcp_stream) -> OpenStream:
    """Return a function that opens a stream to a host and port, with TLS and login done.

    It raises OSError if the host cannot be reached, and AccessDenied if the login or the
    bookie's certificate is refused. Its caller sets the deadline.

    Raises:
        BadAddress: a file of certificates or keys cannot be used.
    """
    context = _context(access) if access.tls else None
    login = access.login
    if context is None and login is None:
        return open_tcp

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        stream = await open_tcp(host, port)
        try:
            if context is not None:
                stream = await _encrypt(stream, context, host, port)
            if login is not None:
                await _log_in(stream, login, f"{host}:{port}")
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    return open_stream


def _context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.ca or None)
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key or None)
    except (OSError, ssl.SSLError) as wrong:
        files = ", ".join(filter(None, (access.ca, access.certificate, access.key)))
        raise BadAddress(f"{files}: {wrong}") from wrong
    return context


async def _encrypt(
    stream: trio.abc.Stream, context: ssl.SSLContext, host: str, port: int
) -> trio.abc.Stream:
    encrypted = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except trio.BrokenResourceError as broken:
        cause = broken.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise AccessDenied(untrusted(f"{host}:{port}", cause)) from broken
        raise StrangePeer(f"{host}:{port} does not speak TLS: {cause or broken}") from broken
    return encrypted


async def _log_in(stream: trio.abc.Stream, login: Login, where: str) -> None:
    payload = b"\0" + login.user.encode() + b"\0" + login.password.encode()
    try:
        plugin, answer = _auth_in(await exchange(stream, auth_frame(PLUGIN, payload)))
    except (ConnectionError, BadRecord) as wrong:
        raise StrangePeer(f"{where} did not answer the login: {wrong}") from wrong
    if plugin not in {PLUGIN, NO_PLUGIN}:
        raise AccessDenied(f"{where} wants a login by {plugin!r}, which is not {PLUGIN}")
    if answer != ACCEPTED:
        raise AccessDenied(f"{where} refuses user {login.user!r} or the password")
    if plugin == NO_PLUGIN:
        _warn_unchecked(login.user, where)


def _warn_unchecked(user: str, where: str) -> None:
    """Log once in this process that nobody checked the login of *user*."""
    if user in _unchecked:
        return
    _unchecked.add(user)
    _log.warning(
        "%s did not check the login of %s: it has no users, so anybody may call it. "
        "`bookie user add` gives it some",
        where,
        user,
    )


def _auth_in(response: Response) -> tuple[str, bytes]:
    if response.opcode != Opcode.AUTH:
        raise BadRecord(f"a response with opcode {response.opcode}")
    return parse_auth(bytes(response.body))


# --- the bookie's id ------------------------------------------------------------------------

_REQUEST_ID = 0


async def check_bookie(stream: trio.abc.Stream, bookie_id: str) -> None:
    """Return if the peer is the bookie *bookie_id*. Send nothing else on *stream* meanwhile.

    Raises:
        ConnectionError: it is another bookie, or did not return its id.
    """
    request = frame.call(_REQUEST_ID, encode_request(BookieInfo()))
    found = _id_in(await exchange(stream, request))
    if found != bookie_id:
        raise ConnectionError(f"{found} listens there now")


def _id_in(response: Response) -> str:
    if response.code == Code.UNAUTHORIZED:
        raise ConnectionError(LOGIN_WANTED)
    if response.opcode != Opcode.CALL or response.code != Code.OK:
        raise ConnectionError(
            f"no bookie id but opcode {response.opcode} with code {response.code}"
        )
    try:
        reply = decode_reply(response.body)
    except BadRecord as wrong:
        raise ConnectionError(str(wrong)) from wrong
    if isinstance(reply, Failure):
        raise ConnectionError(reply.message)
    if not isinstance(reply, BookieStatus):
        raise ConnectionError(f"answered {type(reply).__name__} instead of its id")
    return reply.bookie_id

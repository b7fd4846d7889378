"""How a bookie is reached: over TCP or TLS, and as whom.

Whoever calls a bookie says who it is before anything else, in an AUTH frame whose plugin is
PLAIN: its payload is a zero byte, the user, a zero byte, the password (RFC 4616). A bookie that
wants no login answers with the plugin AuthDisabledPlugin, which is as good.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import msgspec
import trio

from metadata.errors import AccessDenied, BadAddress, BadRecord
from native.errors import ProtocolBroken
from native.frame import Opcode
from native.link import Link, Response

OpenTcp = Callable[[str, int], Awaitable[trio.abc.Stream]]

PLUGIN = "PLAIN"
NO_PLUGIN = "AuthDisabledPlugin"
ACCEPTED = b""
REFUSED = b"refused"
MESSAGE_SIZE_MAX = 4096
LOGIN_WANTED = "the bookie wants a login: bookie://USER:PASSWORD@HOST:PORT"
_RECEIVE_SIZE = 4096
_AUTH_HEAD = b"\x02\x03\x00\x00"  # version 2, opcode 3, no flags
_PLUGIN_TAG, _PAYLOAD_TAG = 0x0A, 0x12


class Login(msgspec.Struct, frozen=True):
    """Who calls."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.user!r})"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to talk with a cluster's bookies. Files are PEM.

    Attributes:
        tls: encrypt, and check the bookie's certificate and that it names its host.
        ca: file of the authorities to trust; "": those of the system.
        certificate: file of our own certificate, for bookies that want one; "": none.
        key: file of its key.
        login: who calls; None: nobody in particular.
    """

    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    login: Login | None = None

    def opener(self, open_tcp: OpenTcp = trio.open_tcp_stream) -> OpenTcp:
        """Return what opens a stream to a host and port, on which calls may be made.

        It raises OSError when nobody is reached, AccessDenied when the bookie or its certificate
        is refused; its caller sets the deadline.

        Raises:
            BadAddress: a file of certificates or keys cannot be used.
        """
        context = self._context() if self.tls else None
        if context is None and self.login is None:
            return open_tcp

        async def open_stream(host: str, port: int) -> trio.abc.Stream:
            stream = await open_tcp(host, port)
            try:
                if context is not None:
                    stream = await _encrypt(stream, context, host, port)
                if self.login is not None:
                    await _log_in(stream, self.login, f"{host}:{port}")
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            return stream

        return open_stream

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ssl.SSLError) as wrong:
            files = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
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
            raise AccessDenied(
                f"the certificate of {host}:{port} is not trusted: {cause.verify_message}"
            ) from broken
        raise ConnectionError(f"{host}:{port} does not speak TLS: {cause or broken}") from broken
    return encrypted


async def _log_in(stream: trio.abc.Stream, login: Login, where: str) -> None:
    payload = b"\0" + login.user.encode() + b"\0" + login.password.encode()
    try:
        await stream.send_all(auth_frame(PLUGIN, payload))
        plugin, answer = parse_auth(bytes((await _answer(stream, where)).body))
    except (trio.BrokenResourceError, BadRecord, ProtocolBroken) as wrong:
        raise ConnectionError(f"{where} did not answer the login: {wrong}") from wrong
    if plugin not in {PLUGIN, NO_PLUGIN}:
        raise AccessDenied(f"{where} wants a login of the kind {plugin!r}, not {PLUGIN}")
    if answer != ACCEPTED:
        raise AccessDenied(f"{where} refuses user {login.user!r} or the password")


async def _answer(stream: trio.abc.Stream, where: str) -> Response:
    link = Link()
    try:
        while data := await stream.receive_some(_RECEIVE_SIZE):
            for response in link.feed(data):
                if response.opcode != Opcode.AUTH:
                    raise BadRecord(f"an answer with opcode {response.opcode}")
                return response
    finally:
        link.close()
    raise ConnectionError(f"{where} closed the connection during the login")


# --- AuthMessage: protobuf with 1: plugin, 2: payload --------------------------------------


def auth_frame(plugin: str, payload: bytes) -> bytes:
    """Return an AUTH frame, which is the same as request and as response."""
    body = _AUTH_HEAD + _field(_PLUGIN_TAG, plugin.encode()) + _field(_PAYLOAD_TAG, payload)
    return len(body).to_bytes(4, "big") + body


def parse_auth(body: bytes) -> tuple[str, bytes]:
    """Return plugin and payload of an AuthMessage.

    Raises:
        BadRecord: it is none, or has more than 4096 bytes.
    """
    if len(body) > MESSAGE_SIZE_MAX:
        raise BadRecord(f"a login of {len(body)} bytes; {MESSAGE_SIZE_MAX} are allowed")
    fields = {_PLUGIN_TAG: b"", _PAYLOAD_TAG: b""}
    at = 0
    while at < len(body):
        tag = body[at]
        size, start = _take_size(body, at + 1)
        at = start + size
        if tag not in fields or at > len(body):
            raise BadRecord("a login that is no AuthMessage")
        fields[tag] = body[start:at]
    try:
        return fields[_PLUGIN_TAG].decode(), fields[_PAYLOAD_TAG]
    except UnicodeDecodeError as wrong:
        raise BadRecord("a login whose plugin has no name") from wrong


def parse_login(payload: bytes) -> Login | None:
    """Return who a payload of PLAIN names; None when it names nobody."""
    try:
        _, user, password = payload.decode().split("\0")
    except ValueError:
        return None
    return Login(user, password)


def _field(tag: int, value: bytes) -> bytes:
    size, sizes = len(value), bytearray()
    while size > 0x7F:
        sizes.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([tag, *sizes, size]) + value


def _take_size(body: bytes, at: int) -> tuple[int, int]:
    """Return the varint at *at*, and where it ends."""
    size = 0
    for shift in (0, 7, 14):
        if at >= len(body):
            break
        size |= (body[at] & 0x7F) << shift
        at += 1
        if body[at - 1] < 0x80:
            return size, at
    raise BadRecord("a login that is no AuthMessage")

"""Admission: TLS handshake and login, before a connection is served.

Before admission nothing reaches the engine. Without users, a connection is admitted once it has
sent the head of a frame. Any other frame before a login is answered with UNAUTHORIZED: after an
add or a read the peer may still log in; any other one ends the connection, as a refused login
does.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import trio

from bookie.errors import PeerAtFault
from bookie.login_rate import host_of
from bookie.security import Security
from bookie.users import Users
from metadata.access import ACCEPTED, PLUGIN, REFUSED, auth_frame, parse_auth, parse_login
from metadata.errors import BadRecord
from native.errors import Corrupt, ProtocolBroken
from native.frame import Code, Opcode, Request, call_response, find, parse_request, response

_CHUNK_SIZE = 16 << 10
_HEAD_SIZE = 8  # length and header of a frame
_FRAME_SIZE_MAX = 64 << 10
"""Limit of a frame before admission."""
_ATTEMPTS_MAX = 16
_REFUSED_S = 0.5
"""Delay of a refused login."""


_NOTED_MAX = 1000
_log = logging.getLogger(__name__)


class AdmittedPeer(NamedTuple):
    """An admitted stream, and the bytes received after the login."""

    stream: trio.abc.Stream
    first: bytes


async def admit(
    stream: trio.abc.Stream, security: Security, *, patience_s: float, idle_s: float
) -> AdmittedPeer:
    """Admit a peer. The caller closes *stream* if this raises.

    Args:
        stream: the connection to the peer.
        security: TLS and users of the bookie.
        patience_s: time limit for the handshake and the login.
        idle_s: time limit for the first byte, if the bookie has no users.

    Raises:
        PeerAtFault: the peer has no login or a wrong one, or does not speak TLS.
        trio.TooSlowError: the peer exceeded a time limit.
        trio.BrokenResourceError: the connection is lost.
    """
    with trio.fail_after(patience_s):
        if security.context is not None:
            stream = await _decrypt(stream, security)
        if security.users is not None:
            return AdmittedPeer(stream, await _Login(stream, security.users).run())
    return AdmittedPeer(stream, await _begin(stream, patience_s, idle_s))


async def _begin(stream: trio.abc.Stream, patience_s: float, idle_s: float) -> bytes:
    """Wait for the head of a frame; return the bytes received."""
    with trio.fail_after(idle_s):
        received = bytes(await stream.receive_some(_CHUNK_SIZE))
    with trio.fail_after(patience_s):
        while len(received) < _HEAD_SIZE:
            chunk = await stream.receive_some(_CHUNK_SIZE)
            if not chunk:
                raise PeerAtFault("left without a frame")
            received += chunk
    return received


async def _decrypt(stream: trio.abc.Stream, security: Security) -> trio.abc.Stream:
    assert security.context is not None
    encrypted = trio.SSLStream(stream, security.context, server_side=True, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except trio.BrokenResourceError as broken:
        raise PeerAtFault(f"no TLS: {broken.__cause__ or broken}") from broken
    return encrypted


class UncheckedLogins:
    """Logs the first login from each address at a bookie without users: it is not checked.

    After _NOTED_MAX addresses nothing is logged any more.
    """

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def note(self, request: Request, address: str) -> None:
        """Log the login in *request*, an AUTH, unless it names nobody."""
        if address in self._noted or len(self._noted) >= _NOTED_MAX:
            return
        try:
            plugin, payload = parse_auth(request.body)
        except BadRecord:
            return
        login = parse_login(payload) if plugin == PLUGIN else None
        if login is None:
            return
        self._noted.add(address)
        _log.warning(
            "%s logs in as %.64r, which is not checked: this bookie has no users, so anybody may "
            "call it. Add some with `bookie user add`, and start it again",
            address,
            login.user,
        )


class _Login:
    """Frames of one peer until it is admitted."""

    def __init__(self, stream: trio.abc.Stream, users: Users) -> None:
        self._stream = stream
        self._users = users
        self._received = bytearray()

    async def run(self) -> bytes:
        """Return the bytes received after the login."""
        for _ in range(_ATTEMPTS_MAX):
            request = await self._next_request()
            if request.opcode == Opcode.AUTH:
                await self._check(request)
                return bytes(self._received)
            await self._refuse(request)
        raise PeerAtFault("too many requests without a login")

    async def _check(self, request: Request) -> None:
        try:
            plugin, payload = parse_auth(request.body)
        except BadRecord as wrong:
            raise PeerAtFault(str(wrong)) from wrong
        login = parse_login(payload) if plugin == PLUGIN else None
        if login is not None and await self._users.admit(login, host_of(self._stream)):
            await self._stream.send_all(auth_frame(PLUGIN, ACCEPTED))
            return
        await trio.sleep(_REFUSED_S)
        await self._stream.send_all(auth_frame(PLUGIN, REFUSED))
        name = login.user if login is not None else f"with plugin {plugin!r}"
        raise PeerAtFault(f"a login of {name} is wrong")

    async def _refuse(self, request: Request) -> None:
        code = Code.UNAUTHORIZED
        if request.opcode in (Opcode.ADD, Opcode.READ):
            answer = response(request.opcode, code, request.ledger_id, request.entry_id)
            await self._stream.send_all(answer)
            return
        if request.opcode == Opcode.CALL:
            await self._stream.send_all(call_response(code, request.request_id, b""))
        raise PeerAtFault(f"opcode {request.opcode} without a login")

    async def _next_request(self) -> Request:
        try:
            while True:
                size, whole = find(self._received) if self._received else (0, False)
                if size > _FRAME_SIZE_MAX:
                    raise PeerAtFault(f"a frame of {size} bytes without a login")
                if whole:
                    frame = bytes(self._received[:size])
                    del self._received[:size]
                    return parse_request(frame)
                chunk = await self._stream.receive_some(_CHUNK_SIZE)
                if not chunk:
                    raise PeerAtFault("left without a login")
                self._received += chunk
        except (Corrupt, ProtocolBroken) as wrong:
            raise PeerAtFault(f"not a frame: {wrong}") from wrong

"""TLS files and login of a cluster's URL, and the AUTH frame that carries a login.

A login is the first frame of a connection. Its plugin is PLAIN, and its payload a zero byte,
the user, a zero byte and the password (RFC 4616). A bookie without users answers with the plugin
AuthDisabledPlugin, which counts as accepted.
"""

from __future__ import annotations

import ssl

import msgspec

from metadata.errors import BadRecord

PLUGIN = "PLAIN"
NO_PLUGIN = "AuthDisabledPlugin"
ACCEPTED = b""
REFUSED = b"refused"
MESSAGE_SIZE_MAX = 4096
LOGIN_WANTED = "the bookie wants a login: bookie://USER:PASSWORD@HOST:PORT"
_OUT_OF_TIME = frozenset({9, 10})  # OpenSSL's codes
_OTHER_NAME = frozenset({62, 64})
_AUTH_HEAD = b"\x02\x03\x00\x00"  # version 2, opcode 3, no flags
_PLUGIN_TAG, _PAYLOAD_TAG = 0x0A, 0x12


class Login(msgspec.Struct, frozen=True):
    """User and password of a caller."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.user!r})"


def untrusted(where: str, error: ssl.SSLCertVerificationError) -> str:
    """Return in one sentence why the certificate of *where* was refused, and the remedy."""
    if error.verify_code in _OTHER_NAME:
        remedy = "call it by a name that the certificate holds, or give it one for this name"
    elif error.verify_code in _OUT_OF_TIME:
        remedy = "renew it, or set the clock right"
    else:
        remedy = "name the authority that signed it behind the address: ?ca=FILE"
    return f"the certificate of {where} is not trusted: {error.verify_message}; {remedy}"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How a client connects to a cluster's bookies. Files are PEM.

    Attributes:
        tls: encrypt, and check the bookie's certificate and that it names its host.
        ca: file of the authorities to trust; "" for those of the system.
        certificate: file of the client's certificate, for bookies that want one; "" for none.
        key: file of its key.
        login: user and password, or None to connect without a login.
    """

    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    login: Login | None = None


# --- AuthMessage: protobuf with 1: plugin, 2: payload --------------------------------------


def auth_frame(plugin: str, payload: bytes) -> bytes:
    """Return an AUTH frame; request and response have the same form."""
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
    """Return user and password of a PLAIN payload, or None if it has another form."""
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

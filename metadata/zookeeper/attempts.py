"""Attempts of kazoo to connect, and why they fail.

kazoo connects by a function of its handler, and writes the reason of a failure into its log and
nowhere else. So Attempts is both: around that function, for TLS by the URL's own files, and in
place of the log, where it looks at the errors that go there and drops the text.

All of it runs in kazoo's thread.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol, cast

import kazoo.exceptions
import kazoo.protocol.connection

from metadata.access import untrusted
from metadata.address import Address
from metadata.errors import BadAddress
from metadata.zookeeper.url import ZooKeeperUrl

CONNECT_S = 1.0
"""For reaching one server; then the next one is tried."""
PROBE_S = 2.0
_SESSION_BEGUN = "Session created"
_LOGIN_REFUSED = (
    kazoo.exceptions.AuthFailedError,
    kazoo.exceptions.SessionClosedRequireSaslError,
    kazoo.protocol.connection.SASLException,
)


class Peer(Protocol):
    """A connected socket."""

    def settimeout(self, timeout: float) -> None:
        """Limit each call."""

    def shutdown(self, how: int) -> None:
        """End it in both directions, with *how* = 2."""

    def close(self) -> None:
        """Close it."""


class Failure(NamedTuple):
    """Why an attempt failed.

    Attributes:
        where: the ZooKeeper.
        reason: in words.
        is_login: it refuses the login, as all others will.
        is_final: it will refuse each attempt.
        in_login: it closed the connection during a login, or soon after it.
    """

    where: Address
    reason: str
    is_login: bool = False
    is_final: bool = False
    in_login: bool = False


class Attempts:
    """Connects for kazoo, and stands in for its log.

    Args:
        url: of the ensemble.
        connect: kazoo's own function, which connects to an address within *timeout* seconds.
        on_failure: called with each failure.
        on_session: called with the seconds that the ensemble lets a session live, when one begins.
    """

    def __init__(
        self,
        url: ZooKeeperUrl,
        connect: Callable[..., Peer],
        *,
        on_failure: Callable[[Failure], None],
        on_session: Callable[[float], None],
    ) -> None:
        self._url = url
        self._connect = connect
        self._on_failure = on_failure
        self._on_session = on_session
        self._where = url.addresses[0]
        self._address = ("", 0)
        self._silent: tuple[str, int] | None = None
        self._peer: Peer | None = None
        self._has_begun = False
        self._logs_in = False
        """a session has begun over this connection, and the login follows"""

    # --- the connection ----------------------------------------------------------------------

    def connect(
        self, address: tuple[str, int], hostname: str, timeout: float, **_options: object
    ) -> Peer:
        """Connect within CONNECT_S, and begin TLS within a part of *timeout*.

        kazoo itself gives one server the whole life of the session (its issue 517), so that a
        server that is cut off would cost the session, although the others answer.

        The server that fell silent last is passed over once, since its kernel may still accept
        connections.

        Raises:
            OSError: no connection, or no TLS over it.
        """
        self._where, self._address = Address(hostname, address[1]), address
        self._logs_in = False
        if address == self._silent and len(self._url.addresses) > 1:
            self._silent = None
            raise OSError(0, "it was silent before")
        peer = self._connect(address, timeout=min(timeout, CONNECT_S))
        peer.settimeout(timeout / max(2, len(self._url.addresses)))
        self._peer = self._encrypted(peer, tls_context(self._url), hostname)
        return self._peer

    def hang_up(self) -> None:
        """End the connection, so that kazoo makes another one. Any thread may call this.

        It is for a server that is silent.
        """
        peer, self._silent = self._peer, self._address
        with suppress(OSError):
            if isinstance(peer, ssl.SSLSocket):  # only the socket: kazoo's thread uses the TLS
                super(ssl.SSLSocket, peer).shutdown(2)
            elif peer is not None:
                peer.shutdown(2)

    def _encrypted(self, peer: Peer, context: ssl.SSLContext | None, hostname: str = "") -> Peer:
        if context is None:
            return peer
        try:
            plain = cast("ssl.SSLSocket", peer)  # of any kind
            return context.wrap_socket(plain, server_hostname=hostname or None)
        except BaseException:
            peer.close()
            raise

    def _speaks_tls(self) -> bool:
        """Return True if a TLS server answers where no other did. Nothing is sent to it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            self._encrypted(self._connect(self._address, timeout=PROBE_S), context).close()
        except ssl.SSLError as wrong:
            return "ALERT" in (wrong.reason or "")
        except OSError:
            return False
        return True

    # --- the log -----------------------------------------------------------------------------

    def log(self, _level: int, text: str, *values: object) -> None:
        """Note how long sessions live; all else is detail."""
        if text.startswith(_SESSION_BEGUN) and len(values) > 2 and isinstance(values[2], int):
            self._has_begun = True
            self._logs_in = self._url.login is not None
            self._on_session(values[2] / 1000)

    def debug(self, text: str, *values: object) -> None:
        """Drop it."""

    def info(self, text: str, *values: object) -> None:
        """Drop it."""

    def warning(self, _text: str, *values: object) -> None:
        """Report the error among *values*, if there is one."""
        for value in values:
            if isinstance(value, Exception):
                self._on_failure(self._failure(value)._replace(in_login=self._logs_in))

    warn = error = warning

    def exception(self, _text: str, *_values: object) -> None:
        """Report the error that is being handled."""
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            self._on_failure(self._failure(error)._replace(in_login=self._logs_in))

    def _failure(self, error: Exception) -> Failure:
        where = self._where
        chain = list(_causes(error))
        for each in chain:
            if isinstance(each, ssl.SSLCertVerificationError):
                return Failure(where, untrusted(str(where), each), is_final=True)
            if isinstance(each, ssl.SSLError):
                return self._tls_failure(each)
            if isinstance(each, _LOGIN_REFUSED):
                return self._login_failure(each, chain)
            if isinstance(each, OSError):
                return Failure(where, f"{where}: {each.strerror or 'no answer'}")
        if isinstance(error, kazoo.protocol.connection.ConnectionDropped):
            if not (self._has_begun or self._url.tls) and self._speaks_tls():
                reason = f"{where} speaks TLS: write zk+tls://"
                return Failure(where, reason, is_final=True)
            return Failure(where, f"{where} closed the connection{self._majority()}")
        self._silent = self._address
        return Failure(where, f"{where} did not answer")

    def _majority(self) -> str:
        is_begun = self._has_begun or len(self._url.addresses) == 1
        return "" if is_begun else "; it serves only while a majority of its ensemble runs"

    def _tls_failure(self, error: ssl.SSLError) -> Failure:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if "alert" in reason:
            mine = self._url.files.get("cert")
            word = f"refuses the certificate {mine}" if mine else "wants a certificate, ?cert=FILE"
            return Failure(self._where, f"{self._where} {word}: {reason}", is_final=True)
        return Failure(self._where, f"{self._where} does not speak TLS: {reason}")

    def _login_failure(self, error: Exception, chain: list[BaseException]) -> Failure:
        if self._url.login is None:
            reason = f"{self._where} wants a login: zk://USER@HOST:PORT/path"
            return Failure(self._where, reason, is_login=True)
        user = self._url.login.user
        dropped = kazoo.protocol.connection.ConnectionDropped
        if any(isinstance(each, dropped) for each in chain):  # also one that was just stopped
            return Failure(self._where, f"{self._where} closed the connection to user {user!r}")
        return Failure(self._where, f"{self._where} refuses user {user!r}", is_login=True)


def tls_context(url: ZooKeeperUrl) -> ssl.SSLContext | None:
    """Return what encrypts a connection and checks its other end; None without TLS.

    Raises:
        BadAddress: a file of certificates or keys cannot be used.
    """
    if not url.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=url.files.get("ca"))
        if "cert" in url.files:
            context.load_cert_chain(url.files["cert"], url.files.get("key"))
    except (OSError, ssl.SSLError) as wrong:
        raise BadAddress(f"{', '.join(url.files.values())}: {wrong}") from wrong
    return context


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__

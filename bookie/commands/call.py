"""Calls to one running bookie, over one connection.

The client is loaded by the functions that need it: see stores.py.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from metadata.access import Access
from metadata.address import Address, parse_address
from metadata.calls import BookieRequest, Failure, decode_reply, encode_request, expect
from metadata.cluster_url import is_cluster_url, parse_cluster_url
from metadata.failures import error_of
from metadata.outcome import CommandFailed
from native import frame
from native.link import Response

if TYPE_CHECKING:
    from ledger_client.wire.session import Session

FOR_EVER = math.inf
CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 30.0
PLAIN = Access()
T = TypeVar("T")


class RemoteBookie:
    """A connection to one bookie, opened by open_remote()."""

    def __init__(self, address: Address, session: Session, *, tls: bool = False) -> None:
        self.address = address
        self._session = session
        self._tls = tls

    async def ask(
        self, request: BookieRequest, kind: type[T], *, wait_s: float = ANSWER_TIMEOUT_S
    ) -> T:
        """Return the bookie's reply to *request*; wait at most *wait_s* (inf: without limit).

        Raises:
            CommandFailed: a number in *request* exceeds 2**63 - 1, the connection broke, or no
                reply came in time.
            MetadataError: the bookie returned a Failure.
        """
        from ledger_client.errors import BookieUnavailable

        try:
            body = encode_request(request)
        except OverflowError:
            raise CommandFailed("a number is too large: 2**63 - 1 is the largest") from None
        with trio.move_on_after(wait_s):
            call = self._session.call(body, str(self.address))
            try:
                response = await call.wait()
            except BookieUnavailable as cause:
                reason = cause.reason
                if not self._session.heard:
                    reason = await _stranger(self.address, tls=self._tls) or reason
                raise CommandFailed.unreachable(f"{self.address}: {reason}") from cause
            finally:
                self._session.withdraw(call)
            reply = decode_reply(response.body)
            if isinstance(reply, Failure):
                raise error_of(reply)
            return expect(reply, kind)
        raise CommandFailed.unreachable(f"{self.address}: no answer within {wait_s:g} s")


def locate(text: str) -> tuple[Address, Access]:
    """Return the address in "host:port", or the first one in a cluster's URL.

    Raises:
        BadAddress: *text* has neither form.
    """
    if not is_cluster_url(text):
        return parse_address(text), PLAIN
    addresses, access = parse_cluster_url(text)
    return addresses[0], access


@asynccontextmanager
async def open_remote(address: Address, access: Access = PLAIN) -> AsyncIterator[RemoteBookie]:
    """Connect to the bookie at *address*.

    Raises:
        CommandFailed: no bookie answers at *address* within CONNECT_TIMEOUT_S.
        AccessDenied: the bookie refuses the certificate or the login.
    """
    from ledger_client.wire.session import open_session

    async with open_session(await _connect(address, access), str(address)) as session:
        yield RemoteBookie(address, session, tls=access.tls)


async def _connect(address: Address, access: Access) -> trio.abc.Stream:
    from ledger_client.wire.streams import StrangePeer, opener

    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            return await opener(access)(address.host, address.port)
    except (OSError, trio.TooSlowError) as cause:
        reason = "no bookie answers here; is it running?"
        if isinstance(cause, StrangePeer | trio.TooSlowError):
            reason = await _stranger(address, tls=access.tls) or reason
        raise CommandFailed.unreachable(f"{address}: {reason}") from cause


async def _stranger(address: Address, *, tls: bool) -> str:
    """Describe what listens there, which did not answer as a bookie; "" if that is unknown."""
    from ledger_client.wire.strangers import name_strangers

    return (await name_strangers([address], tls=tls)).get(address, "")


async def read_entry(address: str, ledger_id: int, entry_id: int) -> Response:
    """Send a READ to the bookie at *address*, over a new connection, and return the response.

    Raises:
        CommandFailed: no bookie answers there, or no response came in time.
    """
    from ledger_client.wire.streams import exchange

    where, access = locate(address)
    async with await _connect(where, access) as stream:
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                return await exchange(stream, frame.read(ledger_id, entry_id))
        except ConnectionError as cause:
            raise CommandFailed.unreachable(f"{address}: {cause}") from cause
        except trio.TooSlowError as cause:
            raise CommandFailed.unreachable(
                f"{address}: no answer within {ANSWER_TIMEOUT_S:g} s"
            ) from cause

"""Calls to one bookie, by its address."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from ledger_client.errors import BookieUnavailable
from ledger_client.wire.session import Session, open_session
from metadata.address import Address, parse_address
from metadata.calls import BookieRequest, Failure, decode_reply, encode_request

ANSWER_TIMEOUT_S = 10.0
T = TypeVar("T")


class PeerSilent(Exception):
    """A bookie closed the connection, did not answer in time, or answered a failure."""


class Peer:
    """A connection to one bookie."""

    def __init__(self, address: Address, session: Session) -> None:
        self._address = address
        self._session = session

    @classmethod
    @asynccontextmanager
    async def open(cls, host_and_port: str) -> AsyncGenerator[Peer]:
        """Connect to the bookie at *host_and_port*, of a cluster without TLS and login.

        Raises:
            OSError: nobody listens there.
        """
        address = parse_address(host_and_port)
        stream = await trio.open_tcp_stream(address.host, address.port)
        async with open_session(stream, host_and_port) as session:
            yield cls(address, session)

    async def call(self, request: BookieRequest, reply: type[T]) -> T:
        """Return the bookie's reply to *request*, which is a *reply*.

        Raises:
            PeerSilent: no reply within 10 s, or one of another type.
        """
        call = self._session.call(encode_request(request), str(self._address))
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                response = await call.wait()
        except trio.TooSlowError:
            raise PeerSilent(
                f"{self._address} did not answer within {ANSWER_TIMEOUT_S:g} s"
            ) from None
        except BookieUnavailable as lost:
            raise PeerSilent(f"{self._address}: {lost.reason}") from lost
        finally:
            self._session.withdraw(call)
        answer = decode_reply(response.body)
        if isinstance(answer, reply):
            return answer
        found = answer.message if isinstance(answer, Failure) else type(answer).__name__
        raise PeerSilent(f"{self._address} answered: {found}")

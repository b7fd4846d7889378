"""One bookie, asked directly and about itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from ledger_client.commands.errors import PeerSilent
from metadata.address import Address, parse_address
from metadata.calls import BookieRequest, Failure, decode_reply, encode_request
from native import frame
from native.link import Link, Response

ANSWER_TIMEOUT_S = 10.0
RECEIVE_SIZE = 256 * 1024
T = TypeVar("T")


class Peer:
    """A connection with one question on it at a time."""

    def __init__(self, address: Address, stream: trio.SocketStream) -> None:
        self._address = address
        self._stream = stream
        self._link = Link()
        self._request_id = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, host_and_port: str) -> AsyncGenerator[Peer]:
        """Connect to the bookie at *host_and_port*, one of a cluster of our own.

        Raises:
            OSError: nobody listens there.
        """
        address = parse_address(host_and_port)
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            yield cls(address, stream)

    async def call(self, request: BookieRequest, reply: type[T]) -> T:
        """Return the bookie's answer to *request*, which is a *reply*.

        Raises:
            PeerSilent: no answer, or another one.
        """
        self._request_id += 1
        response = await self._ask(frame.call(self._request_id, encode_request(request)))
        answer = decode_reply(response.body)
        if isinstance(answer, reply):
            return answer
        told = answer.message if isinstance(answer, Failure) else type(answer).__name__
        raise PeerSilent(f"{self._address} answered: {told}")

    async def _ask(self, question: bytes) -> Response:
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            await self._stream.send_all(question)
            while data := await self._stream.receive_some(RECEIVE_SIZE):
                responses = self._link.feed(data)
                if responses:
                    return responses[0]
            raise PeerSilent(f"{self._address} closed the connection")
        raise PeerSilent(f"{self._address} did not answer within {ANSWER_TIMEOUT_S:g} s")

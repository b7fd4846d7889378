"""Asking a running bookie: one connection, one question at a time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from bookie.commands.outcome import CommandFailed, Unreachable
from metadata.access import Access
from metadata.address import Address, parse_address
from metadata.calls import BookieRequest, decode_reply, encode_request
from metadata.cluster_url import is_cluster_url, parse_cluster_url
from metadata.connection import Call, CallConnection, ConnectionLost
from metadata.failures import expect
from native import frame
from native.link import Link, Response

FOR_EVER = math.inf
CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 30.0
PLAIN = Access()
T = TypeVar("T")


class Asked:
    """A connection to one bookie. Make it with ``asking``."""

    def __init__(self, address: Address, connection: CallConnection) -> None:
        self.address = address
        self._connection = connection

    async def ask(
        self, request: BookieRequest, kind: type[T], *, wait_s: float = ANSWER_TIMEOUT_S
    ) -> T:
        """Return the bookie's answer to *request*; wait up to *wait_s*, or for ever (inf).

        Raises:
            CommandFailed: a number in *request* is larger than any that there is.
            MetadataError: the bookie says why it did not do it.
            Unreachable: the connection broke, or no answer came in time.
        """
        try:
            body = encode_request(request)
        except OverflowError:
            raise CommandFailed("a number is too large: 2**63 - 1 is the largest") from None
        with trio.move_on_after(wait_s):
            try:
                response = await self._connection.perform(Call(body))
            except ConnectionLost as cause:
                raise Unreachable(f"{self.address}: {cause}") from cause
            return expect(decode_reply(response.body), kind)
        raise Unreachable(f"{self.address}: no answer within {wait_s:g} s")


def locate(text: str) -> tuple[Address, Access]:
    """Return where "host:port" or a cluster's URL leads, of several bookies the first.

    Raises:
        BadAddress: it is neither.
    """
    if not is_cluster_url(text):
        return parse_address(text), PLAIN
    addresses, access = parse_cluster_url(text)
    return addresses[0], access


@asynccontextmanager
async def asking(address: Address, access: Access = PLAIN) -> AsyncIterator[Asked]:
    """Connect to the bookie at *address*.

    Raises:
        Unreachable: nobody listens there.
        AccessDenied: it refuses us.
    """
    connection = None
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            stream = await access.opener()(address.host, address.port)
        connection = CallConnection(stream)
    except (OSError, trio.TooSlowError) as cause:
        raise Unreachable(f"{address}: no bookie answers here; is it running?") from cause
    try:
        yield Asked(address, connection)
    finally:
        with trio.CancelScope(shield=True):
            await connection.aclose()


async def read_entry(address: str, ledger_id: int, entry_id: int) -> Response:
    """Return what the bookie at *address* answers to a READ.

    Raises:
        Unreachable: nobody listens there, or no answer came in time.
    """
    where, access = locate(address)
    link = Link()
    try:
        with trio.fail_after(ANSWER_TIMEOUT_S):
            async with await access.opener()(where.host, where.port) as stream:
                await stream.send_all(frame.read(ledger_id, entry_id))
                async for data in stream:
                    for response in link.feed(data):
                        return response
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as cause:
        raise Unreachable(f"{address}: no bookie answers here; is it running?") from cause
    raise Unreachable(f"{address}: the bookie closed the connection")

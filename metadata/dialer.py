"""Which bookie to call: start anywhere, stay with one that answers, else go round.

The round is of the addresses that were given and of those learnt since, so that a
client that was told of one bookie outlives it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from metadata.address import Address
from metadata.connection import CallConnection

CONNECT_S = 1.0
"""Then the next address is tried; a host that is away answers nothing."""

OpenStream = Callable[[Address], Awaitable[trio.abc.Stream]]


async def open_tcp(address: Address) -> trio.abc.Stream:
    """Connect to *address*. Raises OSError."""
    return await trio.open_tcp_stream(address.host, address.port)


class Dialer:
    """Keeps one connection to one of *addresses*, and of those learnt."""

    def __init__(self, addresses: Sequence[Address], open_stream: OpenStream) -> None:
        self._given = random.sample(addresses, len(addresses))
        self._addresses = [*self._given]
        self._open_stream = open_stream
        self._next = 0
        self._connection: CallConnection | None = None
        self._connecting = trio.Lock()

    @property
    def count(self) -> int:
        """How many addresses a round has."""
        return len(self._addresses)

    def learn(self, addresses: Iterable[Address]) -> None:
        """Try these as well, in place of what was learnt before."""
        learnt = {address for address in addresses if address not in self._given}
        self._addresses = [*self._given, *sorted(learnt)]

    async def connection(self) -> CallConnection:
        """Return the connection in use, or one to the next address.

        Raises:
            OSError: that address cannot be reached; the next call tries another.
        """
        async with self._connecting:
            if self._connection is None or not self._connection.usable:
                self._connection = await self._connect()
            return self._connection

    async def pass_over(self, connection: CallConnection) -> None:
        """Make no new calls over *connection*, and go on with the next address."""
        if connection is self._connection:
            self._connection = None
        await connection.retire()

    async def aclose(self) -> None:
        """Close the connection, if any."""
        if self._connection is not None:
            await self._connection.aclose()

    async def _connect(self) -> CallConnection:
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1  # also when this attempt is cancelled: who was slow is not asked again
        try:
            with trio.fail_after(CONNECT_S):
                return CallConnection(await self._open_stream(address))
        except trio.TooSlowError as error:
            raise TimeoutError(f"{address} cannot be reached in {CONNECT_S} s") from error
        except OSError as error:
            raise ConnectionError(f"{address} cannot be reached: {error}") from error

"""The bookies of the cluster: their addresses, and one connection to each.

Addresses come from the leases that bookies hold in metadata. The last known address is kept when
a lease ends or the store is down, because the bookie may still serve reads; it is looked up
again whenever a connection is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import trio

from ledger_client.errors import BookieUnavailable, LedgerError, MetadataUnavailable
from ledger_client.options import Options
from ledger_client.wire.connection import BookieConnection
from ledger_client.wire.streams import OpenStream
from metadata.address import Address, parse_address
from metadata.errors import BadAddress
from metadata.records import BookieRecord

FRESH_S = 0.5
"""An address is not looked up again within this time."""
LOOK_UP_S = 1.0
"""How long to wait for the store if an older address is known."""
ANSWER_S = 1.0
"""A bookie that replaces another in an ensemble must answer within this time."""


class Connections(dict[str, BookieConnection]):
    """Connections by the bookie's id; one that is missing is added when it is looked up."""

    def __init__(self, connect: Callable[[str], BookieConnection]) -> None:
        super().__init__()
        self._connect = connect

    def __missing__(self, bookie_id: str) -> BookieConnection:
        connection = self[bookie_id] = self._connect(bookie_id)
        return connection


class Bookies:
    """The directory of bookies; owns the connections to them.

    Attributes:
        connections: to each bookie, registered or not; a connection opens when it is used.
    """

    def __init__(
        self,
        list_bookies: Callable[[], Awaitable[list[BookieRecord]]],
        *,
        options: Options,
        nursery: trio.Nursery,
        open_stream: OpenStream,
    ) -> None:
        """*list_bookies* returns the registered bookies, from metadata."""
        self._list = list_bookies
        self._options = options
        self._nursery = nursery
        self._open_stream = open_stream
        self._addresses: dict[str, Address] = {}
        self.connections = Connections(self._connection)
        self._refreshed_at = float("-inf")
        self._live: list[BookieRecord] = []
        self._refreshing = trio.Lock()
        self._tokens = count(1)

    async def live(self) -> list[BookieRecord]:
        """Return the bookies that are registered in metadata now.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        records = await self._list()
        for record in records:
            try:
                self._addresses[record.bookie_id] = parse_address(record.address)
            except BadAddress:
                self._addresses.pop(record.bookie_id, None)
        self._refreshed_at = trio.current_time()
        self._live = records
        return records

    async def lately_live(self) -> list[BookieRecord]:
        """Return the result of live(), or one that is less than FRESH_S old.

        When a bookie dies, all writers of a client call this at once.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        async with self._refreshing:
            if trio.current_time() - self._refreshed_at < FRESH_S:
                return self._live
            return await self.live()

    def _connection(self, bookie_id: str) -> BookieConnection:
        async def locate() -> Address | None:
            return await self._locate(bookie_id)

        return BookieConnection(
            bookie_id,
            locate=locate,
            options=self._options,
            nursery=self._nursery,
            open_stream=self._open_stream,
        )

    def new_token(self) -> int:
        """Return a token for a writer, unique on these connections."""
        return next(self._tokens)

    async def unreachable(self, bookie_ids: list[str]) -> dict[str, BookieUnavailable]:
        """Connect to all of *bookie_ids*; return those that fail, with the reason."""
        failures: dict[str, BookieUnavailable] = {}

        async def reach(bookie_id: str) -> None:
            try:
                await self.connections[bookie_id].ready()
            except BookieUnavailable as failure:
                failures[bookie_id] = failure

        await _for_each(bookie_ids, reach)
        return failures

    async def silent(self, bookie_ids: list[str]) -> list[str]:
        """Send all of *bookie_ids* a request; return those that do not answer within ANSWER_S.

        An open connection proves nothing: the host of a hanging bookie still accepts them.
        """
        answering: set[str] = set()

        async def ask(bookie_id: str) -> None:
            with trio.move_on_after(ANSWER_S):
                try:
                    await self.connections[bookie_id].answer()
                except BookieUnavailable:
                    return
                answering.add(bookie_id)

        await _for_each(bookie_ids, ask)
        return [bookie_id for bookie_id in bookie_ids if bookie_id not in answering]

    async def _locate(self, bookie_id: str) -> Address | None:
        known = self._addresses.get(bookie_id)
        if trio.current_time() - self._refreshed_at < FRESH_S:
            return known
        with trio.move_on_after(LOOK_UP_S if known is not None else float("inf")):
            try:
                await self.live()
            except MetadataUnavailable:
                pass
            except LedgerError as wrong:
                raise OSError(str(wrong)) from wrong
        return self._addresses.get(bookie_id)


async def _for_each(bookie_ids: list[str], work: Callable[[str], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for bookie_id in bookie_ids:
            nursery.start_soon(work, bookie_id)

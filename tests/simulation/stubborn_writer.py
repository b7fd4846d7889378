"""A writer of another kind: it never asks the metadata, and never gives a bookie up.

Our own writer notices at a broken connection that its ledger was recovered, because it
has to change the ensemble then. Other clients of the protocol need not: this one connects
again, sends again what was not acknowledged, and goes on. The bookies alone keep a
recovered ledger safe from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio
from network import Network

from ledger_client.ledgers.entries import digest_of
from metadata.records import LedgerRecord
from native.frame import Code
from native.link import Link, Writer

RECONNECT_S = 0.2


class Fenced(Exception):
    """A bookie said that the ledger is fenced."""


class StubbornWriter:
    """Writes one ledger to the bookies of its first fragment, whatever happens."""

    def __init__(self, record: LedgerRecord, network: Network) -> None:
        self._names = record.fragments[-1].bookies
        self._network = network
        self._digest = digest_of(record)
        self._native = Writer(
            record.ledger_id,
            record.ensemble_size,
            record.write_quorum,
            record.ack_quorum,
            self._digest,
        )
        self._pending: deque[tuple[int, list[bytes]]] = deque()
        self._news = trio.lowlevel.ParkingLot()
        self.next_entry = 0

    async def run(self) -> None:
        """Keep a connection to every bookie; returns when the ledger is fenced."""
        try:
            async with trio.open_nursery() as nursery:
                for index in range(len(self._names)):
                    nursery.start_soon(self._keep, index)
        except* Fenced:
            pass  # nothing more will be acknowledged

    async def append(self, payloads: Sequence[bytes]) -> range:
        """Send entries and wait until they are acknowledged, for ever if need be."""
        first, frames = self._native.add(payloads)
        self.next_entry = first + len(payloads)
        self._pending.append((self.next_entry - 1, [bytes(frame) for frame in frames]))
        self._news.unpark_all()
        while self._native.state().lac < self.next_entry - 1:
            await self._news.park()
        return range(first, self.next_entry)

    async def _keep(self, index: int) -> None:
        while True:
            try:
                stream = await self._network.open_stream(self._names[index], 1)
                async with stream:
                    await self._talk(stream, index)
            except (OSError, trio.BrokenResourceError):
                pass
            await trio.sleep(RECONNECT_S)

    async def _talk(self, stream: trio.abc.Stream, index: int) -> None:
        link = Link()
        link.attach(self._native, index)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, stream, index)
                while data := await stream.receive_some():
                    link.feed(data)
                    self._look()
                nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError):
            pass
        finally:
            link.close()

    async def _send(self, stream: trio.abc.Stream, index: int) -> None:
        sent = -1
        while True:
            for last, frames in list(self._pending):
                if last > sent:
                    sent = last
                    if frames[index]:
                        await stream.send_all(frames[index])
            await self._news.park()

    def _look(self) -> None:
        state = self._native.state()
        while self._pending and self._pending[0][0] <= state.lac:
            self._pending.popleft()
        self._news.unpark_all()
        if state.code == Code.FENCED:
            raise Fenced

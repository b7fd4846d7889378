"""The bookies of the fragment that a writer appends to, and which of them failed.

A bookie that failed is out: it may have missed entries, and sending only the later ones
would leave a hole. It comes back, or another comes in, with a new fragment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ledger_client.connection import BookieConnection
from ledger_client.errors import AckQuorumLost, BookieUnavailable
from ledger_client.outgoing import Buffer
from ledger_client.session import Listener
from ledger_client.statements import LedgerName
from metadata.records import LedgerRecord
from native import frame
from native.link import Writer


class Ensemble:
    """The connections of one writer to the bookies of its ensemble."""

    def __init__(
        self, record: LedgerRecord, bookies: Sequence[BookieConnection], *, token: int
    ) -> None:
        """*token* names the writer among those that share a connection."""
        self._record = record
        self._name = LedgerName(record.ledger_id, record.incarnation)
        self._bookies = [*bookies]
        self._token = token
        self._lost: dict[int, str] = {}
        self._writer: Writer | None = None
        self._listener: Listener | None = None

    @property
    def names(self) -> list[str]:
        """Ids of the bookies, lost ones too, in the order of the ensemble."""
        return [bookie.bookie_id for bookie in self._bookies]

    @property
    def lost(self) -> Collection[int]:
        """Indexes of the bookies that are lost, oldest loss first."""
        return [*self._lost]

    def attach(self, writer: Writer, listener: Listener) -> None:
        """Let every bookie's acknowledgements count; some may be lost already."""
        self._writer, self._listener = writer, listener
        for index in range(len(self._bookies)):
            self._attach(index)

    def detach(self) -> None:
        """Count no acknowledgement any more and drop what is queued."""
        for bookie in self._bookies:
            bookie.detach(self._token)

    def leave(self) -> None:
        """Count no acknowledgement any more; what is queued still goes out."""
        for bookie in self._bookies:
            bookie.leave(self._token)

    def lose(self, index: int, reason: str) -> bool:
        """Give a bookie up; return False if it is lost already."""
        if index in self._lost:
            return False
        self._lost[index] = reason
        self._bookies[index].detach(self._token)
        return True

    def replace(self, index: int, bookie: BookieConnection) -> None:
        """Let *bookie* stand in for the lost one; the listener hears if that fails at once."""
        self._bookies[index] = bookie
        del self._lost[index]
        self._attach(index)

    def _attach(self, index: int) -> None:
        assert self._writer is not None and self._listener is not None
        try:
            self._bookies[index].attach(
                self._token, self._writer, index, self._listener, self._name
            )
        except BookieUnavailable as failure:
            self._listener.bookie_lost(index, failure)

    def has_quorum(self, without: Sequence[int] = ()) -> bool:
        """True if every write set has enough bookies left to acknowledge its entries."""
        size = self._record.ensemble_size
        gone = {*self._lost, *without}
        return all(
            sum((start + i) % size not in gone for i in range(self._record.write_quorum))
            >= self._record.ack_quorum
            for start in range(size)
        )

    def quorum_lost(self) -> AckQuorumLost:
        """Return the error that says which bookies failed."""
        return AckQuorumLost(
            ledger_id=self._record.ledger_id,
            ack_quorum=self._record.ack_quorum,
            lost={self._bookies[i].bookie_id: reason for i, reason in self._lost.items()},
        )

    def send(self, frames: Sequence[Buffer]) -> None:
        """Queue frames[i] for bookie i; one buffer alone is for all of them."""
        for index, bookie in self._live():
            buffer = frames[index] if len(frames) > 1 else frames[0]
            if len(buffer):
                bookie.send(self._token, buffer)

    def send_to(self, index: int, frames: Sequence[Buffer]) -> None:
        """Queue the share of the bookie at *index* of frames, unless it is lost."""
        buffer = frames[index] if len(frames) > 1 else frames[0]
        if index not in self._lost and len(buffer):
            self._bookies[index].send(self._token, buffer)

    def tell_confirmed(self, last_confirmed: int, key: bytes) -> None:
        """Send the explicit last confirmed entry to all that are left."""
        for _, bookie in self._live():
            request_id = bookie.next_request_id()
            bookie.tell(
                frame.write_lac(
                    key, self._record.ledger_id, request_id=request_id, lac=last_confirmed
                ),
                self._name,
            )

    def full(self) -> list[int]:
        """Return the indexes of the bookies that should be given time."""
        return [index for index, bookie in self._live() if bookie.full]

    async def wait_room(self) -> None:
        """Wait until no bookie's queue is full."""
        for index in self.full():
            await self._bookies[index].wait_room()

    def _live(self) -> Iterator[tuple[int, BookieConnection]]:
        for index, bookie in enumerate(self._bookies):
            if index not in self._lost:
                yield index, bookie

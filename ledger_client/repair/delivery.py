"""Stored entries on their way to one bookie, until it made all of them durable.

The bytes are those that another bookie gave: nothing is encoded again. Acknowledgements
are counted in C, by a writer of one bookie whose own frames (empty entries of the
same ids) go nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import trio

from ledger_client.connection import BookieConnection
from ledger_client.entries import EntryBatch
from ledger_client.errors import BookieUnavailable
from ledger_client.statements import LedgerName
from native.digest import Digest
from native.frame import Flag
from native.link import Writer, readd

FLAGS = Flag.RECOVERY | Flag.PRIORITY
"""A fenced bookie takes such adds, and a read-only one from its reserve."""
SPAN_MAX = 16384
"""Ids from the first to the last entry of one delivery, at most."""


async def deliver(
    connection: BookieConnection,
    batches: Sequence[EntryBatch],
    digest: Digest,
    *,
    name: LedgerName,
    mends: bool,
    token: int,
    timeout_s: float,
) -> None:
    """Add the entries of *batches*, which rise, to a bookie; afterwards they are durable there.

    Those that it has otherwise are refused, unless *mends*: then they are known to be wrong.

    Raises:
        BookieUnavailable: it is away, does not answer within *timeout_s*, or refuses. Any
            of the entries may have been stored.
    """
    await connection.ready()
    delivery = _Delivery(connection.bookie_id, batches, digest, token)
    try:
        connection.attach(token, delivery.writer, 0, delivery, name)
        flags = FLAGS | Flag.MEND if mends else FLAGS
        for batch in batches:
            frames, _ = readd(digest.master_key, flags, _sound_part(batch))
            connection.send(token, frames)
        with trio.fail_after(timeout_s):
            await delivery.settled.wait()
    except trio.TooSlowError:
        reason = f"acknowledged nothing within {timeout_s:g} s"
        raise BookieUnavailable(connection.bookie_id, reason) from None
    finally:
        connection.detach(token)
        delivery.writer.close()
    if delivery.failure is not None:
        raise delivery.failure


class _Delivery:
    """Listens to one connection; settled when all is acknowledged or nothing will be."""

    def __init__(
        self, bookie_id: str, batches: Sequence[EntryBatch], digest: Digest, token: int
    ) -> None:
        first, self._last = batches[0].first_entry, batches[-1].last_entry
        self._bookie_id = bookie_id
        self.failure: BookieUnavailable | None = None
        self.settled = trio.Event()
        self.writer = Writer(batches[0].ledger_id, 1, 1, 1, digest, first_entry=first, token=token)
        self.writer.add([b""] * (self._last - first + 1))
        if sum(map(len, batches)) <= self._last - first:
            self._acknowledge_gaps(batches)

    def acknowledged(self) -> None:
        """Look how far the writer is."""
        state = self.writer.state()
        if state.refused:
            reason = f"refused entries with code {state.code}"
            self.failure = BookieUnavailable(self._bookie_id, reason)
        if state.refused or state.lac >= self._last:
            self.settled.set()

    def bookie_lost(self, index: int, failure: BookieUnavailable) -> None:
        """The connection is gone."""
        self.failure = failure
        self.settled.set()

    def _acknowledge_gaps(self, batches: Sequence[EntryBatch]) -> None:
        """Count what lies between the batches, which nobody sends, as done."""
        for before, after in pairwise(batches):
            for entry_id in range(before.last_entry + 1, after.first_entry):
                self.writer.acknowledge(0, entry_id)


def _sound_part(batch: EntryBatch) -> memoryview:
    """Return the stored entries of *batch*, each behind its size; damage may follow them."""
    return memoryview(batch.body)[: batch.offsets[-1] + batch.sizes[-1]]

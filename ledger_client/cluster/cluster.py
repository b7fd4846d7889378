"""The cluster as its operators see it: bookies, copies, disks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ledger_client.cluster.operations import drain
from ledger_client.cluster.operations.overview import Overview, take_overview
from ledger_client.cluster.operations.rebalance import RATE, TOLERANCE, Balance, Move, Rebalancer
from ledger_client.cluster.operations.scrubbing import (
    Scrubbed,
    choose_ledgers,
    mend,
    scrub,
    summary,
)
from ledger_client.cluster.operations.usage import ClusterUsage, take_usage
from ledger_client.cluster.operations.verification import Verification, verify
from ledger_client.errors import MetadataUnavailable
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.context import TopicContext
from metadata.errors import LeaseHeld, LeaseLost, VersionConflict
from metadata.records import BookieRecord


class Cluster:
    """The bookies of one cluster and what they hold. Any task may use it.

    Every call may raise MetadataUnavailable and MetadataBroken; other errors are named where
    they can happen.
    """

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._store = context.store
        self._ledgers = context.ledgers
        self._limit_s = context.options.metadata_timeout_s

    async def status(self) -> Overview:
        """Return the leader, all bookies, and the ledgers that lack copies."""
        with _translated(self._limit_s):
            return await take_overview(self._store)

    async def bookies(self) -> list[BookieRecord]:
        """Return the bookies that are registered now, with their free space and load."""
        return await self._ledgers.list_bookies()

    async def usage(
        self, *, on_ledgers: Callable[[int], None] = lambda _count: None
    ) -> ClusterUsage:
        """Return what the bookies have on disk, by bookie and by ledger.

        Every registered bookie is asked; those that do not answer are listed as silent.

        Args:
            on_ledgers: called with the number of ledgers just seen.
        """
        with _translated():
            return await take_usage(self._ledgers, self._store, on_ledgers=on_ledgers)

    async def verify(
        self, ledger_id: int, *, on_entries: Callable[[int], None] = lambda _count: None
    ) -> Verification:
        """Compare all copies of a closed ledger, entry by entry.

        Args:
            ledger_id: a closed ledger.
            on_entries: called with the number of entries just compared.

        Raises:
            NoSuchLedger: there is none with this id.
            LedgerError: it is not closed, so its entries are not final.
        """
        record, _ = await self._ledgers.catalogue.get(ledger_id)
        return await verify(self._ledgers, record, advance=on_entries)

    async def repair(
        self, ledger_id: int, *, on_entries: Callable[[int], None] = lambda _count: None
    ) -> Verification:
        """Copy what is missing or damaged of a closed ledger, and compare all copies again.

        Copies on bookies that do not answer stay as they are.

        Args:
            ledger_id: a closed ledger.
            on_entries: called with the number of entries just compared.

        Raises:
            NoSuchLedger: there is none with this id.
            LedgerError: it is not closed, so its entries are not final.
            Retryable: another process repairs or moves it and does not finish.
            BookieUnavailable: a bookie took no copies; some may be copied.
        """
        with _translated():
            _, after = await mend(self._ledgers, self._store, ledger_id, advance=on_entries)
        return after

    async def scrub(
        self,
        *,
        topics: Sequence[str] = (),
        ledgers: Sequence[int] = (),
        on_progress: Callable[[float], None] = lambda _part: None,
    ) -> Scrubbed:
        """Compare all copies of closed ledgers, several ledgers at a time.

        Args:
            topics: check ledgers of these topics; without *topics* and *ledgers*, check all.
            ledgers: check these ledgers, too.
            on_progress: called with the fraction that is done, 0 to 1.

        Raises:
            NoSuchLedger: one of *ledgers* does not exist.
            LedgerError: one of *ledgers* is not closed.
        """
        chosen = await choose_ledgers(self._ledgers, topics=topics, ids=ledgers)
        return summary(await scrub(self._ledgers, chosen, on_progress))

    async def rebalance(
        self,
        *,
        rate: float = RATE,
        tolerance: float = TOLERANCE,
        dry_run: bool = False,
        on_move: Callable[[Move], None] = lambda _move: None,
    ) -> Balance:
        """Move copies of closed ledgers until all bookies hold about the same.

        If cancelled, the moves made so far stay. Returns the balance found at the start, with the
        moves to level it.

        Args:
            rate: payload bytes copied a second, so that writers and readers go first.
            tolerance: stop once the fullest and the emptiest bookie differ by at most this fraction
                of the mean.
            dry_run: return the moves without making them.
            on_move: called before each move.

        Raises:
            BookieUnavailable: a bookie that should take a copy is away or refuses.
            EntryLost, ReplicasUnavailable: no bookie could serve an entry.
        """
        rebalancer = Rebalancer(self._ledgers, self._store, rate=rate, tolerance=tolerance)
        with _translated():
            found = await rebalancer.look()
            for move in () if dry_run else found.moves:
                on_move(move)
                await rebalancer.make(move, on_copied=lambda _size: None)
        return found

    async def decommission(
        self,
        bookie_id: str,
        *,
        wait: bool = False,
        on_progress: drain.OnProgress = lambda _progress: None,
    ) -> None:
        """Move everything off a bookie and forget it. After a cancellation it goes on draining.

        Args:
            bookie_id: the bookie, which may be dead.
            wait: if the other bookies are too few for some ledger, wait for more.
            on_progress: called at each check with the work that is left.

        Raises:
            DrainRefused: the bookie is not known, the others are too few, or copies are
                missing elsewhere; the message says which.
        """
        with _translated():
            await drain.drain(
                self._ledgers, self._store, bookie_id, wait=wait, on_progress=on_progress
            )

    async def cancel_decommission(self, bookie_id: str) -> None:
        """Let a draining bookie take new entries again. What has moved stays moved.

        Raises:
            DrainRefused: it is not draining.
        """
        with _translated(self._limit_s):
            await drain.cancel(self._store, bookie_id)


@contextmanager
def _translated(limit_s: float = math.inf) -> Iterator[None]:
    """Raise the store's errors as public ones; a lost race becomes MetadataUnavailable."""
    try:
        with translated(limit_s):
            yield
    except (LeaseHeld, LeaseLost, VersionConflict) as lost:
        raise MetadataUnavailable(f"metadata changed meanwhile: {lost}") from lost

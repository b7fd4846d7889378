"""A producer goes over to more partitions, together with its lanes.

    added lanes open ─► all partitions hold ─► boundary ─► durable in the first lane ─► go on

A producer without a name only routes over more partitions. One with a name must never judge a
number by another count of partitions than the one by which it was sent first (routes.py), also
after a crash at any point, and also when another session of the same name takes its lanes over
meanwhile. So nothing is accepted from when the boundary is chosen until it is durable in the
lane of the first partition. A session of the same name takes that lane first: if it did so
before, making the boundary durable fails, and this session is fenced; if it does so later, it
reads the boundary. The other lanes get to know it with the next batch that they take.

Once a boundary was chosen there is no way back, as the lane may know it whatever the failure
says: until it is durable, senders are refused with that failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger_client.errors import LedgerError
from ledger_client.topics.errors import ProducerClosed
from ledger_client.topics.producing.outbox import Outbox
from ledger_client.topics.producing.routes import Route, Routes, extended, merged


class Widening:
    """How one producer gets more partitions.

    Attributes:
        waiting: outboxes to which nothing is routed until complete() succeeds.
    """

    def __init__(
        self, topic: str, producer_name: str, routes: Routes, make: Callable[[int], Outbox]
    ) -> None:
        """*make* returns the outbox of a partition."""
        self._topic = topic
        self._name = producer_name
        self._routes = routes
        self._make = make
        self.waiting: list[Outbox] = []
        self._chosen: list[Route] = []
        self._held: list[Outbox] = []

    async def at_opening(self, outboxes: list[Outbox]) -> list[Outbox]:
        """Agree with the lanes of *outboxes*, which are all open; return all there are.

        Lanes may know of more partitions than the topic had when it was looked at. Nothing was
        sent yet, and nobody else writes these lanes: so they get to know what is agreed on
        with the next batch that they take.

        Raises:
            LedgerError: a lane of a further partition cannot be opened.
        """
        routes = self._known_to(outboxes)
        while routes and routes[-1][0] > len(outboxes):
            added = [self._make(index) for index in range(len(outboxes), routes[-1][0])]
            outboxes = [*outboxes, *added]
            await open_all(added)
            routes = self._known_to(outboxes)
        self._settle(outboxes, extended(routes, len(outboxes), _following(outboxes)))
        return outboxes

    async def widen(self, outboxes: Sequence[Outbox], added: Sequence[Outbox]) -> list[Outbox]:
        """Go over to the *added* outboxes too, whose lanes are open; return all.

        Raises:
            LedgerError: a lane failed. If *waiting* is not empty then, complete() comes next.
        """
        every = [*outboxes, *added]
        if not self._routes.known:
            self._routes.partitions = len(every)
            return every
        while not all(outbox.ready for outbox in outboxes):
            for outbox in outboxes:
                await outbox.wait_ready()
        for outbox in outboxes:
            outbox.hold()
        self._held, self.waiting = list(outboxes), list(added)
        self._chosen = extended(self._routes.known, len(every), _following(every))
        return await self.complete()

    async def complete(self) -> list[Outbox]:
        """Make durable the boundary that was chosen; return all outboxes.

        Cancelled, the producer accepts nothing any more. Raises as widen().
        """
        try:
            await self._keep(self._held[0])
        except LedgerError as failure:
            self._refuse(failure)
            raise
        except BaseException:
            self._refuse(ProducerClosed(self._topic))
            raise
        every, held = [*self._held, *self.waiting], self._held
        self._settle(every, self._chosen)
        self._held, self.waiting = [], []
        for outbox in held:
            outbox.let_go()
        return every

    def _refuse(self, failure: LedgerError) -> None:
        for outbox in self._held:
            outbox.refuse(failure)

    async def _keep(self, first: Outbox) -> None:
        lane = await first.open()
        try:
            await lane.keep_routes(self._name, self._chosen)
        except LedgerError as failure:
            first.dispatch.lane_failed(lane, failure)
            raise

    @staticmethod
    def _known_to(outboxes: Sequence[Outbox]) -> list[Route]:
        return merged(outbox.admission.found_routes for outbox in outboxes)

    def _settle(self, outboxes: Sequence[Outbox], routes: Sequence[Route]) -> None:
        self._routes.agree(routes)
        for outbox in outboxes:
            if outbox.lane is not None:
                outbox.admission.route(outbox.lane)


async def open_all(outboxes: Sequence[Outbox]) -> None:
    """Open the lanes of all, some at a time; raises why one cannot be opened."""
    for outbox in outboxes:
        outbox.dispatch.keeper.start()
    for outbox in outboxes:
        await outbox.open()


def _following(outboxes: Sequence[Outbox]) -> int:
    """Return a number above all that were accepted, also those that failed.

    Whoever sends these again may do so after others, as they had another partition.
    """
    numberings = (outbox.admission.numbering for outbox in outboxes)
    return 1 + max(numbering.highest for numbering in numberings if numbering is not None)

"""Topics made, altered and taken away for a client, and their events told."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import trio

from ledger_client.errors import LedgerError, NotEnoughBookies
from ledger_client.repair.records import list_cookies, list_draining
from ledger_client.topics.alteration import REPLICATION, Alteration, checked, majority
from ledger_client.topics.catalogue import TopicCatalogue, check_users
from ledger_client.topics.errors import TopicExists
from ledger_client.topics.events import TELLER, EventSender, events_topic, tell_events
from ledger_client.topics.keeping import purge
from ledger_client.topics.keeping.deletion import Deletion
from ledger_client.topics.keeping.holdings import items_under
from ledger_client.topics.keeping.retention import Before
from ledger_client.topics.keeping.truncating import Truncation
from ledger_client.topics.keeping.truncation import Truncated
from ledger_client.topics.lanes.lane_names import rename_lane
from ledger_client.topics.reading.starting import Start
from ledger_client.topics.reading.times import PublishTime
from ledger_client.translation import translated
from metadata.errors import MetadataError
from metadata.records import BookieRecord
from metadata.topics import LANE_LEDGERS, TopicRecord, split_topic, topic_prefix

if TYPE_CHECKING:
    from ledger_client.topics.client import TopicClient

TELL_S = 2.0
"""For telling the event of a change before it returns; afterwards the leader tells it."""
ONE_COPY = (
    "messages have one copy, as the cluster has one bookie; once it has more,"
    " alter the topic to replication 2"
)
EVER_MS = 1 << 62
"""Later than any ledger was closed."""
_log = logging.getLogger(__name__)


class Administration:
    """What TopicClient does with topics as a whole; see there."""

    def __init__(self, client: TopicClient, catalogue: TopicCatalogue) -> None:
        self._client = client
        self._catalogue = catalogue

    async def create(
        self,
        name: str,
        *,
        replication: int | None,
        ack_quorum: int | None,
        settings: Mapping[str, object],
    ) -> TopicRecord:
        """Make a topic. Raises as TopicClient.create_topic."""
        check_users(name)
        made = await self._create(name, replication, ack_quorum, settings)
        if replication is None and made.replication < REPLICATION:
            _log.warning("topic %s: %s", name, ONE_COPY)
        await self._tell(name)
        return made

    async def _create(
        self,
        name: str,
        replication: int | None = None,
        ack_quorum: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> TopicRecord:
        found = await self._catalogue.find(name)
        if found is not None and found[0].state == "active":
            raise TopicExists(name)
        copies = await self._copies(replication)
        fields = dict(settings or {}) | {
            "name": name,
            "uid": 0,
            "replication": copies,
            "ack_quorum": majority(copies) if ack_quorum is None else ack_quorum,
        }
        wanted = checked(name, fields)
        if found is not None:
            await Deletion(self._client, self._catalogue, found[0]).run()
        return await self._catalogue.create(wanted)

    async def alter(self, name: str, alteration: Alteration) -> TopicRecord:
        """Alter a topic. Raises as TopicClient.alter_topic."""
        if alteration.replication is not None:
            await self._copies(alteration.replication)
        altered = await self._catalogue.alter(name, alteration)
        await self._tell(name)
        return altered

    async def delete(self, name: str, on_removed: Callable[[int], None]) -> None:
        """Delete a topic, or end its deletion. Raises as TopicClient.delete_topic."""
        found = await self._catalogue.find(name)
        if found is not None and found[0].state == "deleting":
            topic = found[0]
        else:
            topic = await self._catalogue.mark_deleting(name)
        await Deletion(self._client, self._catalogue, topic, on_removed=on_removed).run()
        await self._tell(name)

    async def count_ledgers(self, name: str) -> int:
        """Return how many ledgers a topic has. Raises as TopicClient.count_ledgers."""
        found = await self._catalogue.find(name)
        if found is None:
            return 0
        with translated(self._catalogue.timeout_s):
            prefix = topic_prefix(LANE_LEDGERS, found[0].uid)
            return len(await items_under(self._catalogue.store, prefix))

    async def purge(
        self,
        name: str,
        before: Before | None,
        *,
        partition: int | None,
        lane: int | None,
        dry_run: bool,
        on_removed: Callable[[int], None],
    ) -> purge.Purged:
        """Remove what is wholly before *before*. Raises as TopicClient.purge_topic."""
        before = before or PublishTime(EVER_MS)
        uid, planned = await purge.plan(
            self._catalogue, name, before, partition=partition, lane=lane
        )
        if dry_run:
            return planned
        removed = await purge.remove(self._catalogue, uid, planned.removed, on_removed=on_removed)
        return purge.Purged(topic=name, removed=removed, kept=planned.kept)

    async def truncate(
        self,
        name: str,
        start: Start,
        stop: Start | None,
        *,
        partition: int | None,
        lane: int | None,
        force: bool,
        dry_run: bool,
        on_removed: Callable[[int], None],
    ) -> Truncated:
        """Delete messages. Raises as TopicClient.truncate_topic."""
        check_users(name)
        topic, _ = await self._catalogue.get(name)
        truncation = Truncation(
            self._client, topic, start, stop, partition=partition, lane=lane, force=force
        )
        return await (truncation.plan() if dry_run else truncation.run(on_removed))

    async def rename_lane(self, name: str, partition: int, lane: int, lane_name: str) -> None:
        """Rename a lane. Raises as TopicClient.rename_lane."""
        check_users(name)
        topic, _ = await self._catalogue.get(name)
        with translated(self._catalogue.timeout_s):
            await rename_lane(self._catalogue.store, topic, partition, lane, lane_name)

    async def delete_lane(self, name: str, partition: int, lane: int, *, force: bool) -> Truncated:
        """Delete a lane. Raises as TopicClient.delete_lane."""
        check_users(name)
        topic, _ = await self._catalogue.get(name)
        truncation = Truncation(
            self._client, topic, "earliest", None, partition=partition, lane=lane, force=force
        )
        await truncation.check_there()
        went = await truncation.run(lambda _count: None)
        await truncation.delete_lanes()
        return went

    async def tell(self, namespace: str) -> int:
        """Tell the events of a namespace; return how many. Raises LedgerError, MetadataError."""
        return await tell_events(self._catalogue.store, namespace, self._open_sender)

    async def _tell(self, name: str) -> None:
        """Tell the event of a change now, if that can be; else the leader does."""
        with trio.move_on_after(TELL_S):
            try:
                await self.tell(split_topic(name)[0])
            except (LedgerError, MetadataError) as failure:
                _log.info("an event of %s is told later: %s", name, failure)

    @asynccontextmanager
    async def _open_sender(self, namespace: str) -> AsyncIterator[EventSender]:
        topic = events_topic(namespace)
        if await self._catalogue.find(topic) is None:
            with suppress(TopicExists):
                await self._create(topic)
        async with self._client.producer(topic, producer_name=TELLER, access="wait") as producer:
            yield producer

    async def _copies(self, wanted: int | None) -> int:
        """Return how many copies a topic gets.

        Where nobody says it, REPLICATION, or as many as the cluster has bookies. Those that are
        away count: a topic made while a bookie is down has no fewer copies for ever.

        Raises:
            NotEnoughBookies: fewer take writes now.
        """
        bookies = await self._client.list_bookies()
        live = sum(not (each.read_only or each.limbo or each.draining) for each in bookies)
        if wanted is None:
            wanted = min(REPLICATION, max(await self._count_bookies(bookies), 1))
        if live < wanted:
            raise NotEnoughBookies(healthy=live, needed=wanted)
        return wanted

    async def _count_bookies(self, registered: Sequence[BookieRecord]) -> int:
        """Return how many bookies there are, also those that are away; none that leaves."""
        with translated(self._catalogue.timeout_s):
            made = await list_cookies(self._catalogue.store)
            leaving = await list_draining(self._catalogue.store)
        return len((made | {each.bookie_id for each in registered}) - leaving)

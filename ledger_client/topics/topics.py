"""Topics created, altered, listed, deleted, and rid of messages; their events published."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Literal, TypedDict

import trio

from ledger_client.errors import LedgerError, NotEnoughBookies, TopicExists
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.catalogue import (
    REPLICATION,
    Alteration,
    Change,
    Compression,
    TopicInfo,
    check_users,
    checked,
    majority,
)
from ledger_client.topics.context import TopicContext
from ledger_client.topics.events import PUBLISHER, EventSender, events_topic, publish_events
from ledger_client.topics.lanes.lane_names import rename_lane
from ledger_client.topics.positions import Position
from ledger_client.topics.producing.producer_lanes import topic_producer
from ledger_client.topics.reading.lane_set import LaneSet
from ledger_client.topics.reading.options import ReadOptions, Start
from ledger_client.topics.reading.remaining import ends_of
from ledger_client.topics.retention.explanation import (
    Explanation,
    LaneExplained,
    explain,
    listed_lanes,
)
from ledger_client.topics.retention.lane_parts import Truncated
from ledger_client.topics.retention.removal import Deletion, Purged, planned_purge, remove_ledgers
from ledger_client.topics.retention.retention import Before
from ledger_client.topics.retention.truncation import SETTLE_S, Truncation
from ledger_client.topics.rolls import ROLL_WAIT_S, Rolled, roll_topic
from ledger_client.topics.times import PublishTime
from metadata.errors import MetadataError
from metadata.listings import list_cookies, list_draining
from metadata.pointers import settle_topic
from metadata.records import BookieRecord
from metadata.store import items_under
from metadata.topics import (
    LANE_LEDGERS,
    Retention,
    RollPolicy,
    Schema,
    TopicRecord,
    split_topic,
    topic_prefix,
)

PUBLISH_S = 2.0
"""Time limit for publishing a change's event at once; after that the leader publishes it."""
ONE_COPY = (
    "messages have one copy, as the cluster has one bookie; once it has more,"
    " alter the topic to replication 2"
)
EVER_MS = 1 << 62
"""Later than any ledger was closed."""
_log = logging.getLogger(__name__)


class TopicSettings(TypedDict, total=False):
    """The settings of Topics.create(), for a topic that is created where it is missing."""

    partitions: int
    replication: int | None
    ack_quorum: int | None
    order: Literal["none", "event-time"]
    timesync: bool
    compression: Compression
    roll: RollPolicy | None
    retention: Retention | None
    schema: Schema | None
    properties: Mapping[str, str] | None


class Topics:
    """The topics of one cluster. Any task may use it.

    Every call may raise MetadataUnavailable, MetadataBroken, and BadTopic for a bad topic name;
    other errors are named where they can happen.
    """

    def __init__(self, context: TopicContext) -> None:
        self._context = context

    async def create(
        self,
        name: str,
        partitions: int = 0,
        *,
        replication: int | None = None,
        ack_quorum: int | None = None,
        order: Literal["none", "event-time"] = "none",
        timesync: bool = False,
        compression: Compression = "none",
        roll: RollPolicy | None = None,
        retention: Retention | None = None,
        schema: Schema | None = None,
        properties: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Create a topic and publish that on the namespace's ``__events``.

        Args:
            name: namespace/name.
            partitions: their number. 0 creates a topic without partitions; its messages have
                partition -1.
            replication: copies of each message, 2 by default. A cluster of one bookie makes one
                copy, with a warning in the log, until the topic is altered. While bookies are
                away the call fails unless it asks for fewer copies.
            ack_quorum: copies that must be on disk before a message is acknowledged. Default:
                more than half.
            order: "event-time" refuses an event time lower than the last of its lane.
            timesync: give each message a timestamp of the cluster's oracle, which is unique and
                later than all before it, in whatever partition. It cannot be changed.
            compression: of batches, unless a producer chooses another one.
            roll: when a lane continues in a new ledger.
            retention: how long closed ledgers are kept.
            schema: describes values to readers.
            properties: of the application, kept with the topic.
            exist_ok: return a topic that exists already as it is, whatever its settings.

        Raises:
            TopicExists: the name is taken.
            BadTopic: a setting is not possible; the message names it.
            BadSchema: the schema's definition is unusable, or needs a package that is missing.
            NotEnoughBookies: fewer than *replication* take writes. Start more, or ask for
                fewer copies.
        """
        settings = {
            "partitions": partitions,
            "order": order,
            "timesync": timesync,
            "compression": compression,
            "roll": roll or RollPolicy(),
            "retention": retention or Retention(),
            "schema": schema or Schema(),
            "properties": dict(properties or {}),
        }
        check_users(name)
        await _check_schema(name, schema)
        try:
            made = await self._create(name, replication, ack_quorum, settings)
        except TopicExists:
            if not exist_ok:
                raise
            return await self.info(name)
        if replication is None and made.replication < REPLICATION:
            _log.warning("topic %s: %s", name, ONE_COPY)
        await self._publish(name)
        return made

    async def info(self, name: str) -> TopicInfo:
        """Return a topic's settings. Raises NoSuchTopic."""
        return (await self._context.catalogue.get(name))[0]

    async def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        ack_quorum: int | None = None,
        compression: Compression | None = None,
        roll: RollPolicy | None = None,
        retention: Retention | None = None,
        schema: Schema | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Alter a topic, publish that on ``__events``, and return the topic's new settings.

        `None` leaves a setting as it is. Partitions can be added; running producers notice within
        seconds. Keys then map to other partitions, and a key's messages stay ordered within its
        old and its new partition. Resending a numbered message is still deduplicated. Roll
        policy, replication and quorum apply to ledgers created afterwards.

        Raises:
            NoSuchTopic: it does not exist.
            BadTopic: the change is not possible; the message says why.
            BadSchema: as create().
            NotEnoughBookies: fewer than the wanted replication take writes.
        """
        alteration = Alteration(
            partitions=partitions,
            replication=replication,
            ack_quorum=ack_quorum,
            compression=compression,
            roll=roll,
            retention=retention,
            schema=schema,
            properties=None if properties is None else dict(properties),
        )
        await _check_schema(name, schema)
        return await self._alter(name, alteration, replication)

    async def delete(
        self,
        name: str,
        *,
        force: bool = False,
        on_removed: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """Delete a topic with all its messages, and publish that on ``__events``.

        The topic is hidden at once. After an interruption the leader finishes the deletion, or
        the next client that creates a topic of that name.

        Args:
            name: namespace/name.
            force: delete it even if consumers in groups name it. They get NoSuchTopic, as does
                one that joins while the topic is being deleted.
            on_removed: called with the number of ledgers just removed.

        Raises:
            NoSuchTopic: it does not exist.
            TopicBusy: a cut keeps it, or groups consume it, which its `groups` names.
        """
        topic = await self._context.catalogue.begin_deletion(name, force=force)
        await Deletion(
            self._context.ledgers, self._context.catalogue, topic, on_removed=on_removed
        ).run()
        await self._publish(name)

    async def purge(
        self,
        name: str,
        *,
        before: Before | None = None,
        partition: int | None = None,
        lane: int | None = None,
        dry_run: bool = False,
        on_removed: Callable[[int], None] = lambda _count: None,
    ) -> Purged:
        """Remove closed ledgers whose messages all lie before *before*; return what was removed.

        Writers and readers continue; a reader whose position was removed gets a Gap. Each lane
        loses its oldest ledgers, up to the first one that has later messages or is in use. So
        some messages before *before* may be left.

        Args:
            name: namespace/name.
            before: an event time, timestamp or publish time. `None` removes all closed ledgers.
            partition: only in this one.
            lane: only in lanes with this number.
            dry_run: only return what would be removed.
            on_removed: called with the number of ledgers just removed.

        Raises:
            NoSuchTopic: it does not exist.
            BadTopic: *before* is something else.
        """
        before = before or PublishTime(EVER_MS)
        if not dry_run:  # rows that are not settled are not removed
            uid = (await self._context.catalogue.get(name))[0].uid
            with translated(SETTLE_S):
                await settle_topic(self._context.store, uid)
        uid, planned, checks = await planned_purge(
            self._context.catalogue, name, before, partition=partition, lane=lane
        )
        if dry_run:
            return planned
        removed = await remove_ledgers(
            self._context.catalogue, uid, planned.removed, checks=checks, on_removed=on_removed
        )
        return Purged(topic=name, removed=removed, kept=planned.kept)

    async def truncate(
        self,
        name: str,
        at: Start,
        *,
        partition: int | None = None,
        lane: int | None = None,
        force: bool = False,
        dry_run: bool = False,
        on_removed: Callable[[int], None] = lambda _count: None,
    ) -> Truncated:
        """Delete everything from *at* on, in every lane; return what was deleted.

        New readers do not see it. Running ones lose sight of it within a second or two, or 30 if
        they are not told; they continue with what is written next, without a Gap. Ids of remaining
        messages stay valid. A lane's last event time, and the numbers of producers with a
        name, are again those of the last remaining message. Versions and ids are not used again.
        Ledgers without other messages are removed; others free their space when they are removed.

        After an interruption each lane is either cut or unchanged: repeat the call.

        Args:
            name: namespace/name.
            at: a time (EventTime if the topic is ordered by it), a MessageId, a position, or
                "earliest" to clear the topic.
            partition: only in this one.
            lane: only in lanes with this number.
            force: fence an active writer; without it the call fails.
            dry_run: only return what would be deleted.
            on_removed: called with the number of ledgers just removed.

        Raises:
            TopicBusy: a lane is being written, a job needs it, or it is compacted. Nothing was
                deleted, or only in lanes before this one.
            Gap: the message *at* was removed.
            NoSuchTopic: it does not exist.
            BadTopic: there is no such place; the message says why.
            LedgerError: a lane's last ledger cannot be recovered or read.
        """
        return await self._truncate(
            name,
            at,
            None,
            partition=partition,
            lane=lane,
            force=force,
            dry_run=dry_run,
            on_removed=on_removed,
        )

    async def delete_messages(
        self,
        name: str,
        start: Start,
        end: Start,
        *,
        partition: int | None = None,
        lane: int | None = None,
        force: bool = False,
        dry_run: bool = False,
        on_removed: Callable[[int], None] = lambda _count: None,
    ) -> Truncated:
        """Delete everything from *start* to *end*, both included, in every lane.

        Readers continue behind it. An active writer is disturbed only if its current ledger is
        affected; then arguments and errors are those of truncate(). Lane state is unchanged,
        unless nothing lies after *end*; then this is a truncation.
        """
        return await self._truncate(
            name,
            start,
            end,
            partition=partition,
            lane=lane,
            force=force,
            dry_run=dry_run,
            on_removed=on_removed,
        )

    async def roll(
        self,
        name: str,
        *,
        partition: int | None = None,
        wait_s: float = ROLL_WAIT_S,
        on_progress: Callable[[float], None] = lambda _part: None,
    ) -> Rolled:
        """Close the open ledgers of a topic, so that its jobs can use what is in them.

        Writers are not disturbed: each goes on in a new ledger, as it does when one is full. It
        keeps its lane and the order of its messages, and no send fails. A ledger that is written
        and has no messages stays. A lane without a writer is closed as its next writer would do.
        Ledgers are closed 16 at a time; calling it again is harmless.

        Args:
            name: namespace/name.
            partition: only in this one.
            wait_s: how long a writer has for its answer. A killed one holds its lane for 10 s.
            on_progress: called with the fraction of the ledgers that is done, 0 to 1.

        Raises:
            NoSuchTopic: it does not exist.
            BadTopic: there is no such partition.
            WritersSilent: writers did not answer: they are paused, or of an older version. All
                other ledgers are closed.
            ReplicasUnavailable, MessagesLost: a ledger without a writer cannot be recovered. Those
                of other lanes are closed.
        """
        return await roll_topic(
            self._context, name, partition=partition, wait_s=wait_s, on_progress=on_progress
        )

    async def lanes(self, name: str) -> list[LaneExplained]:
        """Return the lanes of a topic, with their names and totals.

        A partition without messages has lane 0, without a name. Open ledgers count as in
        explain().

        Raises:
            NoSuchTopic: it does not exist.
        """
        return listed_lanes(await self.explain(name))

    async def ends(self, name: str) -> Position:
        """Return the place behind each lane's last confirmed message, to start or end there.

        Lanes that appear later begin at their first message in a reader that starts there.

        Raises:
            NoSuchTopic: it does not exist.
            ReplicasUnavailable: the bookies of an open ledger do not answer.
        """
        catalogue, opener = self._context.catalogue, self._context.opener
        topic, _ = await catalogue.get(name)
        return await ends_of(
            LaneSet(catalogue=catalogue, opener=opener, topics=[topic], options=ReadOptions())
        )

    async def rename_lane(self, name: str, partition: int, lane: int, lane_name: str) -> None:
        """Name a lane, or remove its name with "". Its writer is not disturbed.

        Raises:
            NoSuchTopic: it does not exist.
            BadTopic: there is no such lane, the name is not possible, or another lane of the
                partition has it.
        """
        check_users(name)
        topic, _ = await self._context.catalogue.get(name)
        with translated(self._context.catalogue.timeout_s):
            await rename_lane(self._context.catalogue.store, topic, partition, lane, lane_name)

    async def delete_lane(
        self, name: str, partition: int, lane: int, *, force: bool = False
    ) -> Truncated:
        """Delete a lane with its messages and its name; return what was deleted.

        Like truncate() from "earliest" on, and the lane is not listed any more. The next producer
        that needs a new lane may reuse its number, with ids and versions that were never used.

        Raises:
            BadTopic: there is no such lane.
            TopicError: as truncate().
        """
        check_users(name)
        topic, _ = await self._context.catalogue.get(name)
        truncation = Truncation(
            self._context, topic, "earliest", None, partition=partition, lane=lane, force=force
        )
        await truncation.check_there()
        went = await truncation.run(lambda _count: None)
        await truncation.delete_lanes()
        return went

    async def count_ledgers(self, name: str) -> int:
        """Return the number of a topic's ledgers, also while it is being deleted."""
        found = await self._context.catalogue.find(name)
        if found is None:
            return 0
        with translated(self._context.catalogue.timeout_s):
            prefix = topic_prefix(LANE_LEDGERS, found[0].uid)
            return len(await items_under(self._context.catalogue.store, prefix))

    async def explain(self, name: str, *, count_open: bool = True) -> Explanation:
        """Return every ledger of a topic, why it is kept, and when it will be removed.

        Totals include what is confirmed in open ledgers. Their bookies are asked, one question
        and two small reads for each ledger. If the batches at the end of a ledger are large, its
        messages are estimated, and `is_estimate` is set. A ledger whose bookies do not answer
        within 12 s is left out: `uncounted` counts these.

        Args:
            name: namespace/name.
            count_open: ask the bookies. Without, open ledgers are all uncounted.

        Raises:
            NoSuchTopic: it does not exist.
        """
        ledgers = self._context.ledgers if count_open else None
        return await explain(self._context.catalogue, name, ledgers)

    async def list(self, namespace: str | None = None, *, own: bool = False) -> list[TopicInfo]:
        """Return all topics, or those of a namespace, sorted by name; *own* adds ``__events``."""
        return await self._context.catalogue.list(namespace, own=own)

    async def _create(
        self,
        name: str,
        replication: int | None = None,
        ack_quorum: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> TopicRecord:
        found = await self._context.catalogue.find(name)
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
            await Deletion(self._context.ledgers, self._context.catalogue, found[0]).run()
        return await self._context.catalogue.create(wanted)

    async def _alter(self, name: str, change: Change, replication: int | None) -> TopicInfo:
        """Alter a topic; the schema was checked, and *replication* is that of the change."""
        if replication is not None:
            await self._copies(replication)
        altered = await self._context.catalogue.alter(name, change)
        await self._publish(name)
        return altered

    async def _truncate(
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
        check_users(name)
        topic, _ = await self._context.catalogue.get(name)
        truncation = Truncation(
            self._context, topic, start, stop, partition=partition, lane=lane, force=force
        )
        return await (truncation.plan() if dry_run else truncation.run(on_removed))

    async def publish_events(self, namespace: str) -> int:
        """Publish the pending events of a namespace; return their number.

        The leader does this by itself; call this to have them at once.

        Raises:
            LedgerError: the events could not be sent; the leader tries again.
        """
        catalogue = self._context.catalogue
        return await catalogue.publishing.share(
            namespace, partial(publish_events, catalogue.store, namespace, self._open_sender), 0
        )

    async def _publish(self, name: str) -> None:
        """Publish the event of a change now if possible; otherwise the leader does it later."""
        with trio.move_on_after(PUBLISH_S):
            try:
                await self.publish_events(split_topic(name)[0])
            except (LedgerError, MetadataError) as failure:
                _log.info("an event of %s is published later: %s", name, failure)

    @asynccontextmanager
    async def _open_sender(self, namespace: str) -> AsyncIterator[EventSender]:
        topic = events_topic(namespace)
        if await self._context.catalogue.find(topic) is None:
            with suppress(TopicExists):
                await self._create(topic)
        async with topic_producer(
            self._context, topic, producer_name=PUBLISHER, access="wait"
        ) as producer:
            yield producer

    async def _copies(self, wanted: int | None) -> int:
        """Return the number of copies of a topic.

        The default is REPLICATION, or the number of bookies if that is lower. Bookies that are
        away count, so that a topic made while one is down does not keep fewer copies for ever.

        Raises:
            NotEnoughBookies: fewer take writes now.
            TypeError: it is no int.
        """
        if wanted is not None and not isinstance(wanted, int):
            raise TypeError(f"replication takes an int, not {wanted!r}")
        bookies = await self._context.ledgers.list_bookies()
        live = sum(not (each.read_only or each.draining) for each in bookies)
        if wanted is None:
            wanted = min(REPLICATION, max(await self._count_bookies(bookies), 1))
        if live < wanted:
            read_only = sum(each.read_only for each in bookies)
            raise NotEnoughBookies(healthy=live, needed=wanted, read_only=read_only)
        return wanted

    async def _count_bookies(self, registered: Sequence[BookieRecord]) -> int:
        """Return the number of bookies, including those that are away, without draining ones."""
        with translated(self._context.catalogue.timeout_s):
            made = await list_cookies(self._context.catalogue.store)
            leaving = await list_draining(self._context.catalogue.store)
        return len((made | {each.bookie_id for each in registered}) - leaving)


async def _check_schema(topic: str, schema: Schema | None) -> None:
    if schema is None or not schema.definition:
        return

    def check() -> None:
        from ledger_client.topics.values.definitions import check_schema  # imports pyarrow

        check_schema(topic, schema)

    await trio.to_thread.run_sync(check, abandon_on_cancel=True)

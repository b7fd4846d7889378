"""The cluster, as a client sees it: its topics, beside its ledgers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from ledger_client.background import Background
from ledger_client.client import Client
from ledger_client.topics.administration import Administration
from ledger_client.topics.alteration import Alteration, Compression
from ledger_client.topics.catalogue import TopicCatalogue, TopicInfo
from ledger_client.topics.keeping.explanation import (
    Explanation,
    LaneExplained,
    explain,
    listed_lanes,
)
from ledger_client.topics.keeping.purge import Purged
from ledger_client.topics.keeping.retention import Before
from ledger_client.topics.keeping.truncation import Truncated
from ledger_client.topics.ledger_description import LedgerDescription, describe_ledger
from ledger_client.topics.producing.growth import Growth
from ledger_client.topics.producing.producer import Producer, open_producer
from ledger_client.topics.producing.producer_lanes import ProducerLanes
from ledger_client.topics.producing.producer_options import ProducerOptions, ProducerSettings
from ledger_client.topics.reading.opening import LedgerOpener
from ledger_client.topics.reading.read_options import Reading, ReadSettings
from ledger_client.topics.reading.reader import TopicReader, open_reader
from ledger_client.topics.reading.starting import Start
from metadata.compaction import CompactedSet
from metadata.topics import Retention, RollPolicy, Schema

if TYPE_CHECKING:
    from ledger_client.compaction.job import Compaction
    from ledger_client.compaction.runner import Runner
    from ledger_client.metrics import ClientMetrics
    from ledger_client.replay.options import ReplaySettings
    from ledger_client.replay.report import Report


class TopicClient(Client):
    """A connected client. Made by connect(); any task may use it.

    What concerns topics may raise MetadataUnavailable, MetadataBroken, and BadTopic for what
    is no topic's name; other errors are named where they can happen.
    """

    # --- topics ------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 0,
        *,
        replication: int | None = None,
        ack_quorum: int | None = None,
        order: Literal["none", "event-time"] = "none",
        compression: Compression = "none",
        roll: RollPolicy | None = None,
        retention: Retention | None = None,
        schema: Schema | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Make a topic and tell it on the namespace's ``__events``.

        Args:
            name: namespace/name.
            partitions: how many; 0: it is not partitioned, and has the partition -1 alone.
            replication: copies of each message, 2 by default. A cluster that has one bookie
                gives one copy, with a warning in the log, until the topic is altered; one
                where bookies are away refuses, unless fewer copies are asked for here.
            ack_quorum: copies that are durable before a message is acknowledged; by default
                more than half of all.
            order: "event-time": an event time lower than the last of its lane is refused.
            compression: of batches, where a producer says nothing else.
            roll: when a lane goes on in its next ledger.
            retention: how long closed ledgers stay.
            schema: what values are, for who reads them.
            properties: what the application wants kept with the topic.

        Raises:
            TopicExists: the name is taken.
            BadTopic: a setting cannot be; the message names it.
            NotEnoughBookies: fewer than *replication* take writes: start more, or ask for
                fewer copies.
        """
        settings = {
            "partitions": partitions,
            "order": order,
            "compression": compression,
            "roll": roll or RollPolicy(),
            "retention": retention or Retention(),
            "schema": schema or Schema(),
            "properties": dict(properties or {}),
        }
        return await self.administration.create(
            name, replication=replication, ack_quorum=ack_quorum, settings=settings
        )

    async def topic(self, name: str) -> TopicInfo:
        """Return what is known of a topic. Raises NoSuchTopic."""
        record, _ = await self.topics.get(name)
        return record

    async def list_topics(
        self, namespace: str | None = None, *, own: bool = False
    ) -> list[TopicInfo]:
        """Return all topics by name, or those of a namespace; *own*: also ``__events``."""
        return await self.topics.list(namespace, own=own)

    async def alter_topic(
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
        """Alter a topic, tell it on ``__events``, and return what it is then.

        None leaves a setting as it is. Partitions can be added: producers that write notice it
        within seconds. Keys go to other partitions then; a key's messages stay ordered within
        its old and its new partition. A message with a number that is sent again after that
        goes where it went before, so it is kept once. Limits, replication and quorum hold for
        ledgers that are begun afterwards.

        Raises:
            NoSuchTopic: there is none.
            BadTopic: it cannot become so; the message says why.
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
        return await self.administration.alter(name, alteration)

    async def delete_topic(
        self, name: str, *, on_removed: Callable[[int], None] = lambda _count: None
    ) -> None:
        """Delete a topic with all that it holds, and tell it on ``__events``.

        From the first step on nobody finds it. When this is cut short, the leader ends it,
        or whoever makes a topic of that name. *on_removed* is told how many ledgers are gone.

        Raises:
            NoSuchTopic: there is none.
        """
        await self.administration.delete(name, on_removed)

    async def purge_topic(
        self,
        name: str,
        *,
        before: Before | None = None,
        partition: int | None = None,
        lane: int | None = None,
        dry_run: bool = False,
        on_removed: Callable[[int], None] = lambda _count: None,
    ) -> Purged:
        """Remove the closed ledgers that are wholly before *before*; return what went.

        Writers and readers go on; a reader whose position is gone gets a Gap. In each lane
        the oldest goes first, and the first ledger that is not wholly before, or that somebody
        needs, ends it: so messages before *before* may be left, in the ledger that has later ones
        too. None: everything that is closed goes.

        Args:
            name: the topic.
            before: the end of what is to go, by event time, timestamp or time of writing.
            partition: only there.
            lane: only in lanes of this number.
            dry_run: only return what would go.
            on_removed: told how many ledgers are gone more.

        Raises:
            NoSuchTopic: there is none.
        """
        return await self.administration.purge(
            name, before, partition=partition, lane=lane, dry_run=dry_run, on_removed=on_removed
        )

    async def truncate_topic(
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
        """Delete everything from *at* on, in every lane; return what went.

        Readers that begin or seek afterwards do not see it again, and those that read it lose
        sight of it within a second; they go on with what is written next, without a Gap. Ids of
        what stays are good. A lane's last event time, and the numbers of producers with names,
        are those of the last message that stays: so writing goes on from there. Versions and
        ids of what was deleted are not used again. Ledgers that hold nothing else are gone;
        the bytes of one in which something stays go with it.

        Cut short, every lane is cut or as it was: do it again.

        Args:
            name: the topic.
            at: a time (EventTime on a topic ordered by it), a MessageId, a position, or
                "earliest" to clear the topic.
            partition: only there.
            lane: only in lanes of this number.
            force: end who writes a lane; otherwise that is refused.
            dry_run: only return what would go.
            on_removed: told how many ledgers are gone more.

        Raises:
            TopicBusy: a lane is written, a job needs it, or it is compacted: nothing was
                deleted, or only in lanes before this one.
            Gap: the message *at* was removed.
            NoSuchTopic: there is none.
            BadTopic: there is no such place; the message says why.
            LedgerError: a lane's last ledger cannot be recovered or read.
        """
        return await self.administration.truncate(
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

        Readers go on with the message behind it. Who writes a lane is not disturbed, unless
        something of the ledger that is written is to go: then as truncate_topic(), whose
        arguments and errors these are. Numbers and times of a lane stay what they were, but
        where nothing is as late as *end*: that is a truncation.
        """
        return await self.administration.truncate(
            name,
            start,
            end,
            partition=partition,
            lane=lane,
            force=force,
            dry_run=dry_run,
            on_removed=on_removed,
        )

    async def lanes(self, name: str) -> list[LaneExplained]:
        """Return the lanes of a topic, with their names and what their closed ledgers hold.

        A partition to which nothing was written yet has lane 0, without a name.

        Raises:
            NoSuchTopic: there is none.
        """
        return listed_lanes(await self.explain_topic(name))

    async def rename_lane(self, name: str, partition: int, lane: int, lane_name: str) -> None:
        """Give a lane a name, in the place of the one it has; "": none.

        Whoever writes it goes on. In each partition a name is one lane's.

        Raises:
            NoSuchTopic: there is none.
            BadTopic: there is no such lane, another one has the name, or it can be none.
        """
        await self.administration.rename_lane(name, partition, lane, lane_name)

    async def delete_lane(
        self, name: str, partition: int, lane: int, *, force: bool = False
    ) -> Truncated:
        """Delete a lane with its messages and its name; return what went.

        As truncate_topic() from the earliest on, and the lane is listed no more. The next
        producer that needs a new lane may get it, with ids and versions that were never used.

        Raises:
            BadTopic: there is no such lane.
            Others: as truncate_topic().
        """
        return await self.administration.delete_lane(name, partition, lane, force=force)

    async def count_ledgers(self, name: str) -> int:
        """Return how many ledgers a topic has, also while it is being deleted; 0 for none."""
        return await self.administration.count_ledgers(name)

    async def explain_topic(self, name: str) -> Explanation:
        """Return every ledger of a topic, why it is there, and when it will go.

        Raises:
            NoSuchTopic: there is none.
        """
        return await explain(self.topics, name)

    async def describe_ledger(self, ledger_id: int) -> LedgerDescription:
        """Return what metadata says of a ledger: its copies, and its place and times in a topic.

        Raises:
            NoSuchLedger: there is none.
        """
        return await describe_ledger(self.topics, await self.ledger_info(ledger_id))

    # --- reading -----------------------------------------------------------------------

    def topic_reader(
        self, names: str | Sequence[str], **settings: Unpack[ReadSettings]
    ) -> AbstractAsyncContextManager[TopicReader]:
        """Read one topic or several, for the length of the block.

        A place is "earliest", "latest", a position that a reader returned, a MessageId, or a
        time: EventTime, Timestamp or PublishTime, which stands for the first message of
        each lane at that time or later. A MessageId is a place in one lane: it asks for a
        partition with one lane, and that alone is read.

        Args:
            names: namespace/name.
            start: where to begin; by default at the earliest, in reverse at the latest.
            inclusive: whether the message or time that *start* names is read.
            end: where to end; by default with what is there by now.
            end_inclusive: whether the message or time that *end* names is read.
            partitions: only these.
            lanes: only lanes of these numbers or names; "" names those without one.
            follow: wait for new messages, and for new lanes, up to *end* if there is one.
            reverse: read from *start* back.
            order: "arrival": each lane in its order, several as they come. "event-time": all
                merged by event time, equal times by topic, lane name, partition and lane; of topics
                ordered by event time.
            on_gap: "skip": what was removed is passed over and noted in *gaps*.
            idle_s: while following in order of event time, the others go on without a lane
                that had nothing for so long, 1 s; what it has after that comes late.
            read_ahead_size: bytes that may be held for all lanes together; 32 MiB.
            on_caught_up: called once, between the last message that was there when reading
                began and the first that was not.
            compacted: of what was compacted (quire compact) read only what that left, the
                latest message of each key with the id it always had, then go on with all that
                came later. What was never compacted is read as it is.

        Raises:
            NoSuchTopic: there is none.
            BadTopic: what is asked for cannot be; the message says why.
            CompactedSetLost: what compaction left is not whole.
            LedgerError: the place could not be looked for; reading raises as
                TopicReader.next_messages().
        """
        reading = Reading(**settings)
        listed = [names] if isinstance(names, str) else list(names)
        return open_reader(
            listed,
            reading,
            catalogue=self.topics,
            opener=self.ledger_opener(),
            figures=self.figures,
        )

    def ledger_opener(self) -> LedgerOpener:
        """Return what opens ledgers of topics as they are, whoever writes them."""
        return LedgerOpener(
            catalogue=self._catalogue,
            bookies=self._bookies,
            nursery=self._nursery,
            options=self.options,
        )

    # --- writing -----------------------------------------------------------------------

    @asynccontextmanager
    async def producer(
        self, name: str, **settings: Unpack[ProducerSettings]
    ) -> AsyncIterator[Producer]:
        """Write a topic; what was accepted is durable, or raised, at the end of the block.

        Left by an error or a cancellation, the block ends at once: what is not acknowledged
        may or may not be kept.

        Args:
            name: namespace/name.
            producer_name: who writes; messages of a producer with a name are numbered, and
                kept once however often they are sent. Numbers are a lane's: one who shared
                the partition and then has it alone goes on from its own; one who had it
                alone and then shares does not, so it sends again what is unknown before.
            access: "exclusive": nobody else writes its partitions. "take-over": whoever
                does is fenced. "wait": once nobody does. "shared": each producer has a lane
                of its own. By default exclusive on a topic ordered by event time, else shared.
            partition: write only this one.
            lane_name: write the lane of this name in each partition, which is made where there
                is none; others write other lanes. Access is "shared" then, and each lane of a
                topic ordered by event time has times of its own.
            router: "key": a key decides the partition, and what has none takes turns by
                batch. "round-robin": all take turns.
            batching: False: each message is an entry, and its batch index is -1.
            batch_bytes: a batch ends with so many bytes, 128 KiB; a larger message goes alone.
            batch_messages: a batch ends with so many messages, 1000.
            linger_ms: a batch that does not fill ends so long after its first message, 1 ms;
                0: with the scheduler's turn.
            buffer_bytes: what may be accepted and not acknowledged, 32 MiB; send() waits above.
            compression: of batches, "none", "zstd" or "lz4"; by default the topic's.

        Raises:
            NoSuchTopic: there is none.
            BadTopic: an option cannot be; the message says which.
            ProducerBusy: with exclusive access, somebody else writes a partition.
            LedgerError: a lane cannot be opened; at the end, as Producer.close().
        """
        options = ProducerOptions(**settings)
        topic = await self.topic(name)
        lanes = ProducerLanes(self, topic, options)
        figures = self.figures.sending(topic.name)
        async with (
            open_producer(topic, options, lanes.open, figures, self.clock.now_ms) as producer,
            Background() as nursery,
        ):
            if topic.partitions and options.partition is None:

                async def grow(record: TopicInfo) -> None:
                    await producer.grow(record)
                    lanes.topic = record

                nursery.start_soon(Growth(self.topics, topic, grow).run)
            yield producer

    # --- compacting --------------------------------------------------------------------

    async def compact_topic(
        self,
        name: str,
        *,
        null_keys: Literal["keep", "drop"] | None = None,
        runner: Runner | None = None,
        dry_run: bool = False,
        on_progress: Callable[[float], None] = lambda _part: None,
    ) -> Compaction:
        """Keep the latest message of each key of closed ledgers, for ``compacted=True`` to read.

        Messages keep ids, timestamps, keys and headers. From the first compaction on, what is
        not compacted yet is kept for the next one, whatever retention says.

        Args:
            name: namespace/name.
            null_keys: what becomes of messages without a key; by default as in the compaction
                before, at first "drop".
            runner: who does the work; by default this process. Spark does with
                ledger_client.spark.compaction.spark_runner().
            dry_run: only tell what would be read.
            on_progress: is told which part of the work is done, 0 to 1.

        Raises:
            NoSuchTopic: there is none.
            CompactionError: see ledger_client/compaction/errors.py.
            JobLost: the metadata store was away for too long; nothing changed.
            LedgerError: as reading and writing; nothing changed.
        """
        from ledger_client.compaction.job import compact_topic  # which imports this
        from ledger_client.compaction.runner import LocalRunner

        return await compact_topic(
            self,
            name,
            runner or LocalRunner(self),
            null_keys=null_keys,
            dry_run=dry_run,
            on_progress=on_progress,
        )

    async def drop_compacted(self, name: str) -> CompactedSet | None:
        """End the compaction of a topic: remove its set, and keep nothing for another one.

        Returns what the set was; None: there was none. Who reads it meanwhile fails.

        Raises:
            NoSuchTopic: there is none.
            CompactionRunning: it is being compacted.
        """
        from ledger_client.compaction.job import drop_compacted  # which imports this

        return await drop_compacted(self, name)

    # --- replaying ---------------------------------------------------------------------

    async def replay(
        self,
        names: str | Sequence[str],
        to: str | Path,
        *,
        to_cluster: str = "",
        with_definition: bool = False,
        replication: int | None = None,
        **settings: Unpack[ReplaySettings],
    ) -> Report:
        """Copy a range of topics into a topic, or a Path: a folder of Parquet files.

        The range is fixed when the replay begins, and so is the order, in which every run of it
        goes: cut short, the same call goes on, and each message is in the target once. Keys,
        values, event times and headers are kept; timestamps, publish times and ids are new.

        Args:
            names: namespace/name, one or several.
            to: namespace/name, or a folder.
            to_cluster: URL of the cluster where the topic *to* is, if it is another one.
            with_definition: make the topic *to* like the one that is replayed.
            replication: copies of what is made so; by default as many as there.
            settings: the range, start to on_gap, as topic_reader() takes it. order: "time" by
                timestamp or publish time of entries, "arrival" entries of lanes in turn,
                "event-time" of topics ordered by it, which is the default there. speed: 1
                as far apart as the messages were, 10 ten times as fast, 0 at full
                speed. name: of the replay, to resume it by; by default one of its own for
                each range and target. restart: begin anew. keep_ids: headers tell a message's
                id and publish time. verify: read the target back. on_progress: is told how
                far it is.

        Raises:
            NoSuchTopic: a source is not there, or the target, which is not to be made.
            BadTopic: what is asked for cannot be; the message says why.
            Gap, RangeNotKept: messages of the range were removed.
            ReplayError: see ledger_client/replay/errors.py.
            LedgerError: as reading and sending.
            OSError: files cannot be written.
        """
        from ledger_client.connecting import connect  # which imports this
        from ledger_client.replay.into_parquet import replay_into_parquet
        from ledger_client.replay.into_topic import replay_into_topic
        from ledger_client.replay.options import ReplayOptions

        listed = [names] if isinstance(names, str) else list(names)
        options = ReplayOptions(**settings)
        if isinstance(to, Path):
            return await replay_into_parquet(self, listed, to, options)
        into = partial(
            replay_into_topic,
            self,
            listed,
            to,
            options,
            with_definition=with_definition,
            replication=replication,
        )
        if not to_cluster:
            return await into()
        async with connect(to_cluster, options=self.options) as target:
            return await into(target=target, cluster=to_cluster)

    @cached_property
    def metrics(self) -> ClientMetrics:
        """What this client did, for a registry of prometheus-client to collect."""
        from ledger_client.metrics import ClientMetrics  # with its library, by who asks

        return ClientMetrics(self.figures)

    @cached_property
    def topics(self) -> TopicCatalogue:
        """What metadata knows of topics, for who needs records and versions."""
        return TopicCatalogue(
            self.store, timeout_s=self.options.metadata_timeout_s, clock=self.clock
        )

    @cached_property
    def administration(self) -> Administration:
        """Topics made and taken away, and their events told."""
        return Administration(self, self.topics)

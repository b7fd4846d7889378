"""A connected client: topics, ledgers and the cluster, producers and readers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import trio

from ledger_client.cluster.cluster import Cluster
from ledger_client.jobs.compaction.job import Compaction, Runner, compact_topic, drop_compacted
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.jobs.replay.log import ReplayReport
from ledger_client.jobs.replay.options import ReplayOptions, ReplaySettings
from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.ledgers.writer import LedgerWriter
from ledger_client.options import DEFAULT_OPTIONS, Options
from ledger_client.topics.context import TopicContext, open_context
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.producer_lanes import topic_producer
from ledger_client.topics.producing.producer_options import ProducerSettings
from ledger_client.topics.reading.options import ReadSettings
from ledger_client.topics.reading.reader import TopicReader, open_reader
from ledger_client.topics.retention.explanation import LedgerDescription, describe_ledger
from ledger_client.topics.topics import Topics
from ledger_client.wire.streams import OpenStream
from metadata.compaction import CompactedSet

if TYPE_CHECKING:
    from ledger_client.metrics import ClientMetrics


@asynccontextmanager
async def connect(
    url: str,
    *,
    options: Options = DEFAULT_OPTIONS,
    open_stream: OpenStream = trio.open_tcp_stream,
) -> AsyncIterator[Client]:
    """Connect to a cluster.

    Nothing is sent before it is needed, so an unreachable cluster is noticed by
    the first call.

    Args:
        url: "bookie://host:port,host:port" (any live bookies; others are found through them);
            with a login, "bookie://user:password@host:port"; over TLS,
            "bookie+tls://host:port?ca=FILE"; or "sqlite:///path" of the metadata on this host.
        options: deadlines and bounds.
        open_stream: opens a connection to a host and port, below TLS and login; for tests.

    Raises:
        BadAddress: *url* cannot be understood.
        MetadataUnavailable: the SQLite file cannot be opened.
        RuntimeError: this is not a trio program.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "ledger_client runs on trio; use ledger_client.aio with asyncio, and "
            "ledger_client.blocking without an event loop"
        )
    async with open_context(url, options=options, open_stream=open_stream) as context:
        yield Client(context)


class ClientTopics(Topics):
    """The topics of one cluster, and their compaction."""

    async def compact(
        self,
        name: str,
        *,
        null_keys: Literal["keep", "drop"] | None = None,
        runner: Runner | None = None,
        dry_run: bool = False,
        on_progress: Callable[[float], None] = lambda _part: None,
    ) -> Compaction:
        """Keep only the latest message of each key in closed ledgers, for ``compacted=True``.

        Messages keep ids, timestamps, keys and headers. From the first compaction on, messages
        that are not compacted yet are kept for the next one, whatever the retention.

        Args:
            name: namespace/name.
            null_keys: whether to keep messages without a key. Default: as in the previous
                compaction, at first "drop".
            runner: does the work. Default: this process; Spark does it with
                ledger_client.spark.compaction.spark_runner().
            dry_run: only report what would be read.
            on_progress: called with the fraction that is done, 0 to 1.

        Raises:
            NoSuchTopic: it does not exist.
            TopicBusy: the topic is being compacted, or its compacted set changed meanwhile.
            TopicError: the compacted set would list too many lanes or ledgers.
            MessagesLost: a ledger of the previous compaction is gone.
            JobLost: the metadata store was away for too long; nothing changed.
            LedgerError: as reading and writing; nothing changed.
        """
        return await compact_topic(
            self._context,
            name,
            runner or LocalRunner(self._context),
            null_keys=null_keys,
            dry_run=dry_run,
            on_progress=on_progress,
        )

    async def drop_compacted(self, name: str) -> CompactedSet | None:
        """Delete the compacted messages of a topic and stop keeping messages for compaction.

        Readers of the compacted messages fail. Returns the deleted set, `None` if there was none.

        Raises:
            NoSuchTopic: it does not exist.
            TopicBusy: the topic is being compacted.
        """
        return await drop_compacted(self._context, name)


class ClientLedgers:
    """The ledgers of one cluster. Any task may use it."""

    def __init__(self, context: TopicContext) -> None:
        self._catalogue = context.catalogue
        self._ledgers = context.ledgers

    def create(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: str = "crc32c",
        custom: Mapping[str, str] | None = None,
        ledger_id: int | None = None,
    ) -> AbstractAsyncContextManager[LedgerWriter]:
        """Create a ledger and write it. It is sealed at the end of the block.

        Args:
            ensemble_size: how many bookies its entries are spread over, at most 64.
            write_quorum: how many of them get each entry.
            ack_quorum: how many must have an entry on disk before it is acknowledged.
            password: needed again to open the ledger.
            digest: protects entries from end to end: "crc32c", "crc32", "hmac" (keyed with the
                password) or "dummy" (no protection).
            custom: properties of the application, kept with the ledger.
            ledger_id: an id of your choice. Default: a new one.

        Raises:
            LedgerError: not 1 <= ack_quorum <= write_quorum <= ensemble_size.
            NotEnoughBookies: fewer than ensemble_size bookies take writes.
            LedgerExists: *ledger_id* is taken.
            MetadataUnavailable: the store did not answer in time.
            LedgerError: at the end of the block, as LedgerWriter.close(). An error of the
                block itself takes precedence.
        """
        return self._ledgers.create(
            ensemble_size,
            write_quorum,
            ack_quorum,
            password=password,
            digest=digest,
            custom=custom,
            ledger_id=ledger_id,
        )

    def open(
        self, ledger_id: int, password: bytes = b"", *, recover: bool = True
    ) -> AbstractAsyncContextManager[LedgerReader]:
        """Open a ledger for reading; by default, close an open one first.

        Args:
            ledger_id: its id.
            password: the one it was created with.
            recover: if it is not closed, fence its writer and close it first. Without, it stays
                open, and is read and followed up to its last confirmed entry.

        Raises:
            NoSuchLedger: there is none with this id.
            WrongPassword: it was created with another password.
            ReplicasUnavailable: it is not closed, and none of its bookies answered, or too few
                to recover it.
            MetadataUnavailable: the store did not answer in time.
        """
        return self._ledgers.open(ledger_id, password, recover=recover)

    async def recover(self, ledger_id: int, password: bytes = b"") -> LedgerInfo:
        """Close a ledger in place of its writer, and return its metadata.

        It keeps every acknowledged entry, and its writer gets no further acknowledgement. A
        closed ledger is not changed. Any number of clients may do this at once, with the same
        result.

        Raises:
            NoSuchLedger: there is none with this id, or it was deleted.
            WrongPassword: it was created with another password.
            ReplicasUnavailable: some of its bookies did not report what they hold, or too few
                took copies. It stays in recovery: call again later.
            MetadataUnavailable: the store did not answer in time; call again.
        """
        return await self._ledgers.recover(ledger_id, password)

    async def info(self, ledger_id: int) -> LedgerInfo:
        """Return a ledger's metadata. Raises NoSuchLedger."""
        return await self._ledgers.info(ledger_id)

    async def describe(self, ledger_id: int) -> LedgerDescription:
        """Return a ledger's metadata with its place and times in a topic, if it is in one.

        Raises:
            NoSuchLedger: there is none with this id.
        """
        return await describe_ledger(self._catalogue, await self._ledgers.info(ledger_id))

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger from metadata; bookies free its space in their time.

        A writer that still has it open cannot close it any more. Raises NoSuchLedger.
        """
        await self._ledgers.delete(ledger_id)

    def list(self) -> AsyncIterator[LedgerInfo]:
        """Iterate over all ledgers by rising id. One page of them is in memory at a time."""
        return self._ledgers.list()


class Client:
    """A connected client. Made by connect(); any task may use it.

    Attributes:
        topics: creates, alters, lists and deletes topics, and deletes messages.
        ledgers: creates, opens, lists and deletes ledgers.
        cluster: the bookies, the copies on them, and their disks.
    """

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self.topics = ClientTopics(context)
        self.ledgers = ClientLedgers(context)
        self.cluster = Cluster(context)

    def reader(
        self, topics: str | Sequence[str], **settings: Unpack[ReadSettings]
    ) -> AbstractAsyncContextManager[TopicReader]:
        """Read one topic or several, for the length of the block.

        A place to start or end at is "earliest", "latest", a position that a reader returned,
        a MessageId, or a time. EventTime, Timestamp and PublishTime stand for the first message
        of each lane at that time or later. A MessageId is a place in one lane: it needs a
        partition with a single lane, and only that lane is read.

        Args:
            topics: namespace/name, one or several.
            settings: the fields of ReadOptions.

        Raises:
            NoSuchTopic: one of them does not exist.
            BadTopic: a setting is not possible; the message says why.
            MessagesLost: the compacted messages are not complete.
            LedgerError: the starting place could not be found. Reading raises as
                TopicReader.next_messages().
        """
        return open_reader(self._context, topics, **settings)

    def producer(
        self, topic: str, **settings: Unpack[ProducerSettings]
    ) -> AbstractAsyncContextManager[Producer]:
        """Write a topic. At the end of the block, accepted messages are durable, or it raises.

        An error or a cancellation ends the block at once: messages that are not acknowledged
        by then may or may not be kept.

        With access "exclusive" no other producer writes the partitions; "take-over" fences one
        that does, "wait" waits until it has left, and with "shared" each producer has lanes of
        its own. Messages of a producer with a name are numbered, and kept once however often
        they are sent. Numbering survives going from shared to exclusive access, but not the
        reverse. A lane name implies shared access.

        Args:
            topic: namespace/name.
            settings: the fields of ProducerOptions.

        Raises:
            NoSuchTopic: it does not exist.
            BadTopic: a setting is not possible; the message says which.
            ProducerBusy: with exclusive access, another producer writes a partition.
            LedgerError: a lane cannot be opened. At the end of the block, as Producer.close().
        """
        return topic_producer(self._context, topic, **settings)

    async def replay(
        self,
        topics: str | Sequence[str],
        to: str | Path,
        *,
        to_cluster: str = "",
        with_definition: bool = False,
        replication: int | None = None,
        **settings: Unpack[ReplaySettings],
    ) -> ReplayReport:
        """Copy a range of topics into a topic, or into a Path: a folder of Parquet files.

        Range and order are fixed when the replay begins. After an interruption the same call
        continues it, and each message is in the target once. Keys, values, event times and
        headers are kept; timestamps, publish times and ids are new.

        Args:
            topics: namespace/name, one or several.
            to: namespace/name, or a folder.
            to_cluster: URL of the cluster with the topic *to*, if it is another one.
            with_definition: create the topic *to* with the settings of the first source.
            replication: copies per message of a topic created so. Default: as its source.
            settings: the fields of ReplayOptions.

        Raises:
            NoSuchTopic: a source does not exist, or the target without *with_definition*.
            BadTopic: a setting is not possible; the message says why.
            Gap: messages of the range were removed.
            TopicBusy, JobLost: another process runs the replay.
            ReplayConflict: the name or the target has other contents, or messages of the range
                may have been removed.
            LedgerError: as reading and sending.
            OSError: files cannot be written.
        """
        listed = [topics] if isinstance(topics, str) else list(topics)
        # Loads PyArrow: 40 MiB and a fifth of a second that only a replay needs.
        from ledger_client.jobs.replay.replay import replay_into_parquet, replay_into_topic

        options = ReplayOptions(**settings)
        if isinstance(to, Path):
            return await replay_into_parquet(self._context, listed, to, options)
        into = partial(
            replay_into_topic,
            self._context,
            listed,
            to,
            options,
            replication=replication,
        )
        if not to_cluster:
            return await into(create=self.topics.create if with_definition else None)
        async with open_context(to_cluster, options=self._context.options) as target:
            create = Topics(target).create if with_definition else None
            return await into(target=target, cluster=to_cluster, create=create)

    @cached_property
    def metrics(self) -> ClientMetrics:
        """This client's metrics, for a registry of prometheus-client to collect."""
        from ledger_client.metrics import ClientMetrics  # imports prometheus-client: only on demand

        return ClientMetrics(self._context.figures)

"""A connected client: topics, ledgers and the cluster, producers and readers."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack

import trio

from ledger_client.client_ledgers import ClientLedgers
from ledger_client.cluster.cluster import Cluster
from ledger_client.errors import BadAddress, ClientClosed
from ledger_client.groups.consumer import GroupConsumer, open_consumer
from ledger_client.groups.dead_letters import DeadLetters
from ledger_client.groups.feed_ticks import FeedTicks
from ledger_client.groups.groups import Groups
from ledger_client.groups.heartbeats import SharedHeartbeats
from ledger_client.groups.options import ConsumerSettings
from ledger_client.groups.standing import Standings
from ledger_client.jobs.compaction.job import Compaction, Runner, compact_topic, drop_compacted
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.jobs.replay.log import ReplayReport
from ledger_client.jobs.replay.options import ReplayOptions, ReplaySettings
from ledger_client.message_id import MessageId
from ledger_client.opening import Openable, Opened, Opening, SystemTasks, check_trio
from ledger_client.options import DEFAULT_OPTIONS, Options, check_timeout, wrong_type
from ledger_client.topics.context import TopicContext, open_context
from ledger_client.topics.cuts import Cuts
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.producer_lanes import topic_producer
from ledger_client.topics.producing.producer_options import ProducerSettings
from ledger_client.topics.reading.options import STALENESS_S, AsOf, Consistency, ReadSettings
from ledger_client.topics.reading.reader import TopicReader, open_reader
from ledger_client.topics.reading.state import STATE_SIZE_MAX, TopicState, topic_state
from ledger_client.topics.times import Time
from ledger_client.topics.timestamps import Timestamps
from ledger_client.topics.topics import Topics, TopicSettings
from ledger_client.topics.tracing.key_search import MESSAGES_MAX, search_key
from ledger_client.topics.tracing.trace import trace
from ledger_client.topics.tracing.whereabouts import KeyWhereabouts, Whereabouts
from ledger_client.wire.streams import OpenStream
from metadata.compaction import CompactedSet
from metadata.profiles import BadProfile, cluster_of

if TYPE_CHECKING:
    from ledger_client.metrics import ClientMetrics

T = TypeVar("T")
_log = logging.getLogger(__name__)
TRACED_MAX = 5
"""Messages of a key that why_key() follows, of as many lanes."""


def connect(
    url: str | None = None,
    *,
    profile: str | None = None,
    timeout_s: float | None = None,
    options: Options = DEFAULT_OPTIONS,
    open_stream: OpenStream = trio.open_tcp_stream,
) -> Opening[Client]:
    """Connect to a cluster, for a block or until Client.close().

        async with ledger_client.connect(url) as client: ...

        client = await ledger_client.connect(url)  # for hooks that start and stop a service
        ...
        await client.close()

    Without *timeout_s* nothing is sent before it is needed, so a cluster that cannot be reached is
    noticed by the first call. That fails within a second if nothing listens at any address.

    Args:
        url: "bookie://host:port,host:port" (any live bookies; others are found through them);
            with a login, "bookie://user:password@host:port"; over TLS,
            "bookie+tls://host:port?ca=FILE"; or "sqlite:///path" of the metadata on this host.
            Default: the environment variable QUIRE_CLUSTER, else the profile QUIRE_PROFILE.
        profile: instead of *url*, a table of ~/.config/quire/profiles.toml, as for the option
            --profile of commands; its password stands in a file.
        timeout_s: wait so long for a first answer of the cluster, even if it is not up yet.
        options: deadlines and bounds.
        open_stream: opens a connection to a host and port, below TLS and login; for tests.

    Raises:
        BadAddress: *url* cannot be understood, or the profile cannot be used; or there is neither.
        MetadataUnavailable: the SQLite file cannot be opened, or nothing answered in *timeout_s*.
        TypeError: an option is of another type.
        RuntimeError: this is not a trio program.
    """
    if (reason := wrong_type(options)) is not None:
        raise TypeError(f"options: {reason}")
    opening = _connect(url, profile, timeout_s, options, open_stream)
    return Opening(opening, SystemTasks("client"), what="client", call="connect(...)")


@asynccontextmanager
async def _connect(
    url: str | None,
    profile: str | None,
    timeout_s: float | None,
    options: Options,
    open_stream: OpenStream,
) -> AsyncIterator[Client]:
    check_trio()
    cluster = _cluster_url(url, profile)
    async with (
        open_context(cluster, options=options, open_stream=open_stream) as context,
        Opened(context.nursery) as opened,
    ):
        if timeout_s is not None:
            check_timeout(timeout_s)
            await context.wait_answered(timeout_s)
        yield Client(context, opened)  # no name: it may become garbage


def _cluster_url(url: str | None, profile: str | None) -> str:
    """Return the URL that is given, by itself, by a profile, or by the environment."""
    if url and profile:
        raise BadAddress("a URL and a profile are given: each of them names a cluster")
    if not profile:
        url = url or os.environ.get("QUIRE_CLUSTER")
        profile = os.environ.get("QUIRE_PROFILE")
    if url:
        return url
    if not profile:
        raise BadAddress(
            'no cluster is named: pass its address, as in connect("bookie://HOST:3181"), or set '
            "the environment variable QUIRE_CLUSTER"
        )
    try:
        return cluster_of(profile, warn=_log.warning)
    except BadProfile as wrong:
        raise BadAddress(str(wrong)) from wrong


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
        that are not compacted yet are kept for the next one, whatever the retention. Those in
        open ledgers are left out, and counted in `uncompacted`; roll() closes these ledgers.

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

    async def state(
        self,
        name: str,
        *,
        keys: Iterable[bytes] | None = None,
        partitions: Sequence[int] | None = None,
        consistency: Consistency = "strong",
        staleness_s: float = STALENESS_S,
        as_of: AsOf | None = None,
        on_gap: Literal["raise", "skip"] = "raise",
        size_max: int = STATE_SIZE_MAX,
    ) -> TopicState:
        """Return the latest message of each key of a topic with timesync, as of a moment.

        Sending a key inserts or replaces it, and an empty value deletes it. Every message up to
        the moment counts, whoever sent it, and none that is later. All of the topic is read.

        Args:
            name: namespace/name.
            keys: only these; they take memory, and others do not.
            partitions: only these.
            consistency: what the moment is at least. "strong": now. "bounded": now less
                *staleness_s*. "session": the last message that was acknowledged to this client's
                producers. "eventual": the newest tick, without a wait.
            staleness_s: for "bounded".
            as_of: let the moment be no later than this; a time needs a time zone.
            on_gap: "skip": use what is left if retention removed messages.
            size_max: bytes of keys and values that the state may have.

        Raises:
            NoSuchTopic: it does not exist.
            BadTopic: it is without timesync, an argument is not possible, or the state is larger.
            MetadataUnavailable: in time no tick was as late; the message says what holds it back.
            ReplicasUnavailable: bookies are away that alone have some of the messages.
            Gap: retention removed messages that may belong to the state, or it did after a
                compaction that is later than the moment.
            TopicBusy: the topic was compacted again and again meanwhile.
            LedgerError: as reading.
        """
        return await topic_state(
            self._context,
            name,
            keys=keys,
            partitions=partitions,
            consistency=consistency,
            staleness_s=staleness_s,
            as_of=as_of,
            on_gap=on_gap,
            size_max=size_max,
        )

    async def why(self, name: str, message_id: MessageId) -> Whereabouts:
        """Return where a message is, and why readers get it or not.

        It reads the rows of one partition, and asks each bookie of the message's entry. Nothing is
        fenced, recovered or changed. A bookie that cannot be reached costs a few seconds, and
        makes the answer "unknown" where it matters.

        Raises:
            NoSuchTopic: it does not exist, and no event says that it was deleted.
            BadTopic: the id is that of a duplicate whose original is in an unknown place.
        """
        traced = await trace(self._context, name, message_id)
        if traced.place is not None:
            traced.report.groups = await Standings(self._context, traced).look()
        return traced.report

    async def why_key(
        self,
        name: str,
        key: bytes,
        *,
        partitions: Sequence[int] | None = None,
        since: Time | None = None,
        messages_max: int = MESSAGES_MAX,
        on_progress: Callable[[int], None] = lambda _messages: None,
    ) -> KeyWhereabouts:
        """Return where the newest messages of a key are, as why() does for each of them.

        It reads the lanes of the key's partition backward, down to the first message of the key.

        Args:
            name: namespace/name.
            key: the key.
            partitions: where to search. By default in the partition to which producers send the
                key now; it may have been another one before partitions were added.
            since: leave out messages before this time.
            messages_max: read at most so many messages.
            on_progress: called with the number of messages just read.

        Raises:
            NoSuchTopic: it does not exist.
            BadTopic: there is no such partition.
        """
        topic, _ = await self._context.catalogue.get(name)
        search = await search_key(
            self._context,
            topic,
            key,
            partitions=partitions,
            since=since,
            messages_max=messages_max,
            on_progress=on_progress,
        )
        messages = [await self.why(name, found) for found in search.newest[:TRACED_MAX]]
        return KeyWhereabouts(search=search, messages=messages)


class Client(Openable):
    """A connected client. Made by connect(); any task may use it.

    Its calls raise ClientClosed once it is closed.
    """

    def __init__(self, context: TopicContext, opened: Opened | None = None) -> None:
        self._context = context
        self._opened = opened or Opened(context.nursery)
        self._opened.owner = weakref.ref(self)
        self._topics = ClientTopics(context)
        self._ledgers = ClientLedgers(context, self._opened)
        self._cluster = Cluster(context)
        self._groups = Groups(context)
        self._cuts = Cuts(context)
        self._heartbeats = SharedHeartbeats(context)

    @property
    def topics(self) -> ClientTopics:
        """Creates, alters, lists and deletes topics, and deletes messages."""
        return self._if_open(self._topics)

    @property
    def ledgers(self) -> ClientLedgers:
        """Creates, opens, lists and deletes ledgers."""
        return self._if_open(self._ledgers)

    @property
    def cluster(self) -> Cluster:
        """The bookies, the copies on them, and their disks."""
        return self._if_open(self._cluster)

    @property
    def groups(self) -> Groups:
        """Lists, describes and deletes groups of consumers."""
        return self._if_open(self._groups)

    @property
    def cuts(self) -> Cuts:
        """Records topics as they are at one moment, and keeps that."""
        return self._if_open(self._cuts)

    @property
    def timestamps(self) -> Timestamps:
        """Hands out timestamps of one order for the whole cluster."""
        return self._if_open(self._context.timestamps)

    async def close(self) -> None:
        """Close what was opened without a block, the latest first, and then the connections.

        In the block of ``async with`` the connections stay until its end. A client that is
        closed already stays so. Cancelled, it is quick: unacknowledged messages are given up.

        Raises:
            LedgerError: as the first close() that fails, once all is closed.
        """
        await (self._opened.close() if self._held is None else self._held.leave())

    def _if_open(self, noun: T) -> T:
        if self._opened.is_closed:
            raise ClientClosed from (None if self._held is None else self._held.failure)
        return noun

    def _opening(self, manager: AbstractAsyncContextManager[T], what: str) -> Opening[T]:
        opened = self._if_open(self._opened)
        return Opening(manager, opened, what=what, call=f"client.{what}(...)")

    def consumer(
        self, topics: str | Sequence[str] = (), **settings: Unpack[ConsumerSettings]
    ) -> Opening[GroupConsumer]:
        """Consume topics as a member of a group, for the length of the block, or until close().

        The members of a group share its topics: each partition is read by one of them, and each
        message is consumed at least once, whatever happens to members. A message is committed
        once the consumer has asked for the next one, every *auto_commit_s* seconds and at the end
        of the block; or when commit() is called. The end of the block counts the last message,
        too; GroupConsumer.close() and Client.close() do not. A member that is gone is replaced
        after its session, and its messages that were not committed come again.

        Bookies know no groups. A consumer that was cut off, and replaced meanwhile, may still
        get messages of partitions that it lost; it cannot commit them.

        Args:
            topics: namespace/name, one or several; "*" stands for any characters, so "shop/*" is
                a whole namespace, with the topics that are created later, as namespace="shop" is.
            settings: the fields of ConsumerOptions; *group* is required.

        Raises:
            NoSuchTopic: a topic does not exist, or no topic matches, and *missing* is "fail".
            BadGroup: an option is not possible, or does not suit the group.
            TypeError: value_decoder is no function.
            MetadataUnavailable: no bookie leads.
        """
        opening = open_consumer(
            self._context, self._heartbeats, DeadLetters, FeedTicks, topics, **settings
        )
        return self._opening(opening, "consumer")

    def reader(
        self, topics: str | Sequence[str], **settings: Unpack[ReadSettings]
    ) -> Opening[TopicReader]:
        """Read one topic or several, for the length of the block, or until close().

        A place to start or end at is "earliest", "latest", a position that a reader returned,
        a MessageId, or a time. EventTime, Timestamp and PublishTime stand for the first message
        of each lane at that time or later. You can start at a MessageId only if its partition has
        one lane; otherwise name the lane. Then only that lane is read.

        Args:
            topics: namespace/name, one or several.
            settings: the fields of ReadOptions.

        Raises:
            NoSuchTopic: one of them does not exist.
            BadTopic: a setting is not possible; the message says why.
            TypeError: value_decoder is no function.
            BadCut: there is no such cut, or a topic is not in it.
            MessagesLost: the compacted messages are not complete.
            LedgerError: the starting place could not be found. Reading raises as
                TopicReader.next_messages().
        """
        return self._opening(open_reader(self._context, topics, **settings), "reader")

    def producer(
        self,
        topic: str,
        *,
        create: bool | TopicSettings = False,
        **settings: Unpack[ProducerSettings],
    ) -> Opening[Producer]:
        """Write a topic. At the end of the block, accepted messages are durable, or it raises.

        Without a block, close() does what the end of the block does.

        An error or a cancellation ends the block at once: messages that are not acknowledged
        by then may or may not be kept.

        With access "exclusive" no other producer writes the partitions; "take-over" fences one
        that does, "wait" waits until it has left, and with "shared" each producer has lanes of
        its own. Messages of a producer with a name are numbered, and kept once however often
        they are sent. Numbering survives going from shared to exclusive access, but not the
        reverse. A lane name implies shared access.

        Args:
            topic: namespace/name.
            create: create the topic if it does not exist: True, or its settings by the names
                that topics.create() has for them. A topic that exists stays as it is.
            settings: the fields of ProducerOptions.

        Raises:
            NoSuchTopic: it does not exist.
            NotEnoughBookies, BadSchema: it cannot be created; see topics.create().
            BadTopic: a setting is not possible; the message says which.
            TypeError: value_encoder is no function.
            ProducerBusy: with exclusive access, another producer writes a partition.
            LedgerError: a lane cannot be opened. At the end of the block, as Producer.close().
        """
        return self._opening(self._producer(topic, create, settings), "producer")

    @asynccontextmanager
    async def _producer(
        self, topic: str, create: bool | TopicSettings, settings: ProducerSettings
    ) -> AsyncIterator[Producer]:
        if create is not False:
            wanted = TopicSettings() if create is True else create
            await self.topics.create(topic, exist_ok=True, **wanted)
        async with topic_producer(self._context, topic, **settings) as producer:
            yield producer

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
            BadCut: a cut does not exist, or a topic is not in it.
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

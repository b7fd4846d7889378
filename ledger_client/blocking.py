"""The same calls for code without trio: scripts, threads, notebooks, Spark executors.

    with blocking.connect("bookie://127.0.0.1:3181") as client:
        with client.create_ledger() as ledger:
            ledger.append(b"one")
        with client.open_ledger(ledger.id) as reader:
            for entry in reader.read(0, reader.last_confirmed):
                ...

A client runs trio in one thread and may be used from any number of others. Each
call costs two thread switches, about 0.1 ms: so prefer append_many. Errors are
those of ledger_client. Ctrl-C ends a call at once, as cancelling it would.

A client does not survive a fork (os.fork, multiprocessing's "fork", gunicorn's preload): in the
child its calls raise ClientForked. Connect in each process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack

from ledger_client import connecting
from ledger_client.appends import Payload
from ledger_client.client import DEFAULT_OPTIONS
from ledger_client.entries import Entries, Entry, EntryBatch
from ledger_client.listing import LedgerInfo
from ledger_client.options import Options
from ledger_client.portal import ClientForked, Portal
from ledger_client.reader import LedgerReader
from ledger_client.replay.options import ReplaySettings
from ledger_client.replay.report import Report
from ledger_client.topics.alteration import TopicChanges, TopicSettings
from ledger_client.topics.catalogue import TopicInfo
from ledger_client.topics.client import TopicClient
from ledger_client.topics.keeping.explanation import Explanation, LaneExplained
from ledger_client.topics.keeping.purge import Purged
from ledger_client.topics.keeping.truncation import Truncated
from ledger_client.topics.ledger_description import LedgerDescription
from ledger_client.topics.producing.blocking_producer import BlockingProducer
from ledger_client.topics.producing.producer_options import ProducerSettings
from ledger_client.topics.reading.blocking_reader import BlockingTopicReader
from ledger_client.topics.reading.read_options import ReadSettings
from ledger_client.topics.reading.starting import Start
from ledger_client.topics.reading.times import Time
from ledger_client.writer import LedgerWriter
from metadata.compaction import CompactedSet
from metadata.records import BookieRecord, LedgerRecord

if TYPE_CHECKING:
    from ledger_client.compaction.job import Compaction
    from ledger_client.metrics import ClientMetrics

__all__ = [
    "BlockingClient",
    "BlockingReader",
    "BlockingWriter",
    "ClientForked",
    "connect",
]

T = TypeVar("T")


@contextmanager
def connect(url: str, *, options: Options = DEFAULT_OPTIONS) -> Iterator[BlockingClient]:
    """Connect to a cluster, as ledger_client.connect does."""
    portal = Portal(partial(connecting.connect, url, options=options))
    try:
        yield BlockingClient(portal)
    finally:
        portal.close()


class BlockingClient:
    """A connected client; see ledger_client.Client for what its calls do and raise."""

    def __init__(self, portal: Portal[TopicClient]) -> None:
        self._portal = portal
        self._client = portal.value

    @property
    def metrics(self) -> ClientMetrics:
        """What this client did, for a registry of prometheus-client to collect."""
        return self._client.metrics

    @contextmanager
    def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: str = "crc32c",
        custom: Mapping[str, str] | None = None,
        ledger_id: int | None = None,
    ) -> Iterator[BlockingWriter]:
        """Make a ledger and write it; it is closed at the end of the block."""
        created = self._client.create_ledger(
            ensemble_size,
            write_quorum,
            ack_quorum,
            password=password,
            digest=digest,
            custom=custom,
            ledger_id=ledger_id,
        )
        with _entered(self._portal, created) as writer:
            yield BlockingWriter(self._portal, writer)

    @contextmanager
    def open_ledger(
        self, ledger_id: int, password: bytes = b"", *, recover: bool = True
    ) -> Iterator[BlockingReader]:
        """Open a ledger for reading; one that is not closed is recovered first, or followed."""
        opened = self._client.open_ledger(ledger_id, password, recover=recover)
        with _entered(self._portal, opened) as reader:
            yield BlockingReader(self._portal, reader)

    def recover_ledger(self, ledger_id: int, password: bytes = b"") -> LedgerInfo:
        """Close a ledger in its writer's place; return what it is then."""
        return self._portal.call(partial(self._client.recover_ledger, ledger_id, password))

    def ledger_info(self, ledger_id: int) -> LedgerInfo:
        """Return what metadata says of a ledger."""
        return self._portal.call(partial(self._client.ledger_info, ledger_id))

    def list_ledgers(self) -> Iterator[LedgerInfo]:
        """Yield every ledger, by rising id."""
        yield from _iterate(self._portal, self._client.list_ledgers())

    def delete_ledger(self, ledger_id: int) -> None:
        """Remove a ledger; bookies free its space in their time."""
        self._portal.call(partial(self._client.delete_ledger, ledger_id))

    def list_bookies(self) -> list[BookieRecord]:
        """Return the bookies that are registered now."""
        return self._portal.call(self._client.list_bookies)

    # --- topics ------------------------------------------------------------------------

    def create_topic(self, name: str, **settings: Unpack[TopicSettings]) -> TopicInfo:
        """Make a topic; see TopicClient.create_topic for its settings."""
        return self._portal.call(partial(self._client.create_topic, name, **settings))

    def topic(self, name: str) -> TopicInfo:
        """Return what is known of a topic."""
        return self._portal.call(partial(self._client.topic, name))

    def list_topics(self, namespace: str | None = None, *, own: bool = False) -> list[TopicInfo]:
        """Return all topics by name, or those of a namespace; *own*: also ``__events``."""
        return self._portal.call(partial(self._client.list_topics, namespace, own=own))

    def alter_topic(self, name: str, **changes: Unpack[TopicChanges]) -> TopicInfo:
        """Alter a topic; see TopicClient.alter_topic for what can be."""
        return self._portal.call(partial(self._client.alter_topic, name, **changes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all that it holds."""
        self._portal.call(partial(self._client.delete_topic, name))

    def purge_topic(
        self,
        name: str,
        *,
        before: Time | None = None,
        partition: int | None = None,
        lane: int | None = None,
        dry_run: bool = False,
    ) -> Purged:
        """Remove closed ledgers that are wholly before a time; None: all that are closed."""
        purge = partial(self._client.purge_topic, name, before=before, partition=partition)
        return self._portal.call(partial(purge, lane=lane, dry_run=dry_run))

    def truncate_topic(
        self,
        name: str,
        at: Start,
        *,
        partition: int | None = None,
        lane: int | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Truncated:
        """Delete everything from *at* on; see TopicClient.truncate_topic."""
        truncate = partial(self._client.truncate_topic, name, at, partition=partition, lane=lane)
        return self._portal.call(partial(truncate, force=force, dry_run=dry_run))

    def delete_messages(
        self,
        name: str,
        start: Start,
        end: Start,
        *,
        partition: int | None = None,
        lane: int | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Truncated:
        """Delete everything from *start* to *end*; see TopicClient.delete_messages."""
        delete = partial(self._client.delete_messages, name, start, end, partition=partition)
        return self._portal.call(partial(delete, lane=lane, force=force, dry_run=dry_run))

    def compact_topic(
        self, name: str, *, null_keys: Literal["keep", "drop"] | None = None, dry_run: bool = False
    ) -> Compaction:
        """Keep the latest message of each key; see TopicClient.compact_topic."""
        compact = partial(self._client.compact_topic, name, null_keys=null_keys, dry_run=dry_run)
        return self._portal.call(compact)

    def drop_compacted(self, name: str) -> CompactedSet | None:
        """End the compaction of a topic; see TopicClient.drop_compacted."""
        return self._portal.call(partial(self._client.drop_compacted, name))

    def lanes(self, name: str) -> list[LaneExplained]:
        """Return the lanes of a topic, with their names and what they hold."""
        return self._portal.call(partial(self._client.lanes, name))

    def rename_lane(self, name: str, partition: int, lane: int, lane_name: str) -> None:
        """Give a lane a name; see TopicClient.rename_lane."""
        self._portal.call(partial(self._client.rename_lane, name, partition, lane, lane_name))

    def delete_lane(
        self, name: str, partition: int, lane: int, *, force: bool = False
    ) -> Truncated:
        """Delete a lane with its messages; see TopicClient.delete_lane."""
        delete = partial(self._client.delete_lane, name, partition, lane, force=force)
        return self._portal.call(delete)

    def explain_topic(self, name: str) -> Explanation:
        """Return every ledger of a topic, why it is there, and when it will go."""
        return self._portal.call(partial(self._client.explain_topic, name))

    def describe_ledger(self, ledger_id: int) -> LedgerDescription:
        """Return a ledger's copies, and its place and times in a topic."""
        return self._portal.call(partial(self._client.describe_ledger, ledger_id))

    @contextmanager
    def topic_reader(
        self, names: str | Sequence[str], **settings: Unpack[ReadSettings]
    ) -> Iterator[BlockingTopicReader]:
        """Read topics for the length of the block; see TopicClient.topic_reader."""
        opened = self._client.topic_reader(names, **settings)
        with self._portal.hold(opened) as reader:
            yield BlockingTopicReader(self._portal, reader)

    @contextmanager
    def producer(
        self, name: str, **settings: Unpack[ProducerSettings]
    ) -> Iterator[BlockingProducer]:
        """Write a topic for the length of the block; see TopicClient.producer."""
        with self._portal.hold(self._client.producer(name, **settings)) as producer:
            yield BlockingProducer(self._portal, producer)

    def replay(
        self,
        names: str | Sequence[str],
        to: str | Path,
        *,
        to_cluster: str = "",
        with_definition: bool = False,
        replication: int | None = None,
        **settings: Unpack[ReplaySettings],
    ) -> Report:
        """Copy a range of topics into a topic or a folder; see TopicClient.replay."""
        return self._portal.call(
            partial(
                self._client.replay,
                names,
                to,
                to_cluster=to_cluster,
                with_definition=with_definition,
                replication=replication,
                **settings,
            )
        )


class BlockingWriter:
    """A ledger being written; see ledger_client.LedgerWriter."""

    def __init__(self, portal: Portal[TopicClient], writer: LedgerWriter) -> None:
        self._portal = portal
        self._writer = writer

    @property
    def id(self) -> int:
        """Id of the ledger."""
        return self._writer.id

    @property
    def metadata(self) -> LedgerRecord:
        """The ledger's record as the writer knows it."""
        return self._writer.metadata

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that is acknowledged; -1 for none."""
        return self._writer.last_confirmed

    def append(self, payload: Payload) -> int:
        """Add one entry and return its id once it is durable."""
        return self._portal.call(partial(self._writer.append, payload))

    def append_many(self, payloads: Iterable[Payload]) -> range:
        """Add entries and return their ids once all are durable."""
        listed = list(payloads)  # a generator's code belongs to the caller's thread
        return self._portal.call(partial(self._writer.append_many, listed))

    def close(self) -> None:
        """Seal the ledger. Done at the end of the block in any case."""
        self._portal.call(self._writer.close)


class BlockingReader:
    """A ledger opened for reading; see ledger_client.LedgerReader."""

    def __init__(self, portal: Portal[TopicClient], reader: LedgerReader) -> None:
        self._portal = portal
        self._reader = reader

    @property
    def id(self) -> int:
        """Id of the ledger."""
        return self._reader.id

    @property
    def metadata(self) -> LedgerRecord:
        """The ledger's record as it was read last."""
        return self._reader.metadata

    @property
    def closed(self) -> bool:
        """True when the ledger is known to be closed."""
        return self._reader.closed

    @property
    def last_confirmed(self) -> int:
        """The greatest entry that may be read; -1 for none."""
        return self._reader.last_confirmed

    def refresh(self) -> int:
        """Ask metadata and bookies again; return the last confirmed entry."""
        return self._portal.call(self._reader.refresh)

    def read(self, first: int, last: int) -> Entries:
        """Return entries *first* to *last*, both included, all at once."""
        return self._portal.call(partial(self._reader.read, first, last))

    def read_batches(self, first: int, last: int) -> Iterator[EntryBatch]:
        """Yield entries *first* to *last* batch by batch."""
        yield from _iterate(self._portal, self._reader.read_batches(first, last))

    def follow(self, start: int = 0) -> Iterator[Entry]:
        """Yield entries from *start* on, waiting for new ones, to the ledger's end."""
        follower = self._reader.follow(start)
        while (batch := self._portal.call(follower.next_batch)) is not None:
            yield from batch


@contextmanager
def _entered(portal: Portal[TopicClient], manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
    value = portal.call(manager.__aenter__)
    try:
        yield value
    except BaseException as error:
        trace = error.__traceback__
        if not portal.is_forked:
            portal.call(partial(manager.__aexit__, type(error), error, trace))
        raise
    if not portal.is_forked:
        portal.call(partial(manager.__aexit__, None, None, None))


def _iterate(portal: Portal[TopicClient], items: AsyncIterator[T]) -> Iterator[T]:
    while (item := portal.call(partial(_next, items))) is not None:
        yield item


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)

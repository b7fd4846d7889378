"""The cluster, as a client sees it: its topics, beside its ledgers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Literal

from ledger_client.client import Client
from ledger_client.topics.administration import Administration
from ledger_client.topics.alteration import Alteration, Compression
from ledger_client.topics.catalogue import TopicCatalogue, TopicInfo
from ledger_client.topics.explanation import Explanation, explain
from ledger_client.topics.purge import Purged
from ledger_client.topics.retention import Before
from metadata.topics import Retention, RollPolicy, Schema


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
            replication: copies of each message; by default 2, but at most the live bookies.
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
            NotEnoughBookies: fewer than *replication* take writes.
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

    async def list_topics(self, namespace: str | None = None) -> list[TopicInfo]:
        """Return all topics by name, or those of a namespace."""
        return await self.topics.list(namespace)

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

        None leaves a setting as it is. Partitions can be added; keys go to other partitions
        afterwards. Limits, replication and quorum hold for ledgers that are begun afterwards.

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

    async def count_ledgers(self, name: str) -> int:
        """Return how many ledgers a topic has, also while it is being deleted; 0 for none."""
        return await self.administration.count_ledgers(name)

    async def explain_topic(self, name: str) -> Explanation:
        """Return every ledger of a topic, why it is there, and when it will go.

        Raises:
            NoSuchTopic: there is none.
        """
        return await explain(self.topics, name)

    @cached_property
    def topics(self) -> TopicCatalogue:
        """What metadata knows of topics, for who needs records and versions."""
        return TopicCatalogue(self.store, timeout_s=self.options.metadata_timeout_s)

    @cached_property
    def administration(self) -> Administration:
        """Topics made and taken away, and their events told."""
        return Administration(self, self.topics)

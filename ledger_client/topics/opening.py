"""Producers of topics, opened on a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from ledger_client.topics.context import TopicContext
from ledger_client.topics.producing.partition_watch import PartitionWatch
from ledger_client.topics.producing.producer import Producer, open_producer
from ledger_client.topics.producing.producer_lanes import ProducerLanes
from ledger_client.topics.producing.producer_options import ProducerOptions, ProducerSettings


@asynccontextmanager
async def topic_producer(
    context: TopicContext, topic: str, **settings: Unpack[ProducerSettings]
) -> AsyncIterator[Producer]:
    """Write a topic for the length of the block; see Client.producer()."""
    options = ProducerOptions(**settings)
    record, _ = await context.catalogue.get(topic)
    watch = PartitionWatch(context.catalogue, record)
    async with open_producer(
        record,
        options,
        ProducerLanes(context.ledgers, watch, options).open,
        context.figures.sending(record.name),
        context.clock.now_ms,
        watch.run if record.partitions and options.partition is None else None,
    ) as producer:
        yield producer

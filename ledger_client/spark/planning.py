"""What the driver asks the cluster before tasks run: topics, and what of them is to be read.

Spark runs this in a process of its own, for each plan anew. Nobody waits there for ever: a
cluster that does not answer is told within *metadata_timeout_s*.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from ledger_client import connecting
from ledger_client.errors import LedgerError
from ledger_client.spark.options import SourceOptions
from ledger_client.topics.client import TopicClient
from ledger_client.topics.reading.span_plan import plan_spans
from ledger_client.topics.reading.spans import SpanPlan
from ledger_client.topics.reading.starting import Start
from metadata.topics import TopicRecord

T = TypeVar("T")


def topics_of(options: SourceOptions) -> list[TopicRecord]:
    """Return the topics' records. Raises NoSuchTopic, BadTopic, MetadataUnavailable."""

    async def look(client: TopicClient) -> list[TopicRecord]:
        return [(await client.topics.get(name))[0] for name in options.topics]

    return ask(options.cluster, look)


def plan(options: SourceOptions) -> SpanPlan:
    """Return what is to be read once. Raises as plan_spans()."""

    async def look(client: TopicClient) -> SpanPlan:
        return await plan_of(
            client,
            options,
            options.start,
            inclusive=options.inclusive,
            end=options.end,
            end_inclusive=options.end_inclusive,
        )

    return ask(options.cluster, look)


async def plan_of(
    client: TopicClient,
    options: SourceOptions,
    start: Start | None,
    *,
    inclusive: bool = True,
    end: Start | None = None,
    end_inclusive: bool = True,
) -> SpanPlan:
    """Return what is to be read between two places. Raises as plan_spans()."""
    return await plan_spans(
        client,
        options.topics,
        start=start,
        inclusive=inclusive,
        end=end,
        end_inclusive=end_inclusive,
        partitions=options.partitions,
        lanes=options.lanes,
        on_gap=options.on_gap,
        compacted=options.compacted,
    )


def ask(url: str, question: Callable[[TopicClient], Awaitable[T]]) -> T:
    """Return what *question* returns of a connected client; errors leave as they are."""
    return trio.run(partial(_ask, url, question))


async def _ask(url: str, question: Callable[[TopicClient], Awaitable[T]]) -> T:
    failure: LedgerError
    try:
        async with connecting.connect(url) as client:
            return await question(client)
    except* LedgerError as group:
        failure = _first(group)
    raise failure


def _first(error: BaseException) -> LedgerError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LedgerError)
    return error

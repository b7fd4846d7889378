"""Consistency levels: how new the moment is that a read "as of now" shows.

A level names a timestamp that the read must reach, its guarantee. The read waits until the topic's
tick is as late, and then sees all messages up to the tick:

    level       guarantee
    --------    -----------------------------------------------------------------
    strong      a fresh timestamp: all that was acknowledged to anybody before
    bounded     a fresh timestamp less some seconds
    session     the greatest timestamp that was acknowledged to this client's producers
    eventual    none: the newest tick that the leader has

The names and the rule are those of Milvus. With a moment *as of* which is read, nothing later is
waited for, or seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger_client.topics.context import TopicContext
from ledger_client.topics.reading.options import AsOf, Consistency, timestamp_of
from ledger_client.topics.tick_follower import TickFollower, was_opened
from metadata.time.timestamps import LOGICAL_BITS
from metadata.topics import TopicRecord


async def visible(
    context: TopicContext,
    topics: Sequence[TopicRecord],
    level: Consistency,
    *,
    as_of: AsOf | None = None,
    staleness_s: float,
) -> int:
    """Return the timestamp up to which a read that begins now sees all messages of some topics.

    Waits until ticks reach the guarantee of the level, *append_timeout_s* at most.

    Raises:
        MetadataUnavailable: a tick was not as late in time; the message says what holds it back.
        NoSuchTopic: one of them was deleted.
    """
    wanted = timestamp_of(as_of)
    fresh = (await context.timestamps.allocate()).first
    guarantee = min(_guarantee(context, topics, level, fresh, staleness_s), wanted)
    reached = wanted
    for topic in topics:
        if await was_opened(context, topic):
            tick = await TickFollower(context, topic).newest(after=guarantee - 1)
            reached = min(reached, tick.timestamp)
        else:
            reached = min(reached, fresh)  # a lane that opens from now on has greater timestamps
    return reached


def _guarantee(
    context: TopicContext,
    topics: Sequence[TopicRecord],
    level: Consistency,
    fresh: int,
    staleness_s: float,
) -> int:
    if level == "strong":
        return fresh
    if level == "bounded":
        return max(fresh - (int(staleness_s * 1000) << LOGICAL_BITS), 0)
    if level == "session":
        return max(context.figures.sending(topic.name).timestamp for topic in topics)
    return 0

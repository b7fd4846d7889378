"""What a consumer subscribes to: names, patterns and namespaces, and the events of their topics."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import NamedTuple

from ledger_client.errors import BadGroup, NoSuchTopic
from ledger_client.groups.options import ConsumerOptions
from ledger_client.topics.context import TopicContext
from ledger_client.topics.events import events_topic
from ledger_client.topics.times import Timestamp
from metadata.groups.rows import Wanted
from metadata.topics import split_topic


class Subscribed(NamedTuple):
    """The names and patterns of topics, sorted and without repetition."""

    wanted: Wanted
    uids: dict[int, str]
    """with missing="fail", the names of those that are named, by uid"""


async def wanted_topics(
    context: TopicContext, topics: Sequence[str], options: ConsumerOptions
) -> Subscribed:
    """Return the topics that a consumer subscribes to.

    Raises:
        BadGroup: a name is not valid, or there is none; or a topic has no timestamps to order by.
        NoSuchTopic: with missing="fail", a name without a topic or a pattern that matches none.
    """
    asked = {*topics, *([f"{options.namespace}/*"] if options.namespace else [])}
    if not asked:
        raise BadGroup("a consumer of no topic")
    namespaces = {namespace_of(each) for each in asked}
    names = {each for each in asked if "*" not in each}
    patterns = asked - names
    uids: dict[int, str] = {}
    if options.missing == "fail":
        for name in sorted(names):
            topic, _ = await context.catalogue.get(name)
            uids[topic.uid] = name
            is_timed = options.order == "timestamp" or isinstance(options.start, Timestamp)
            if is_timed and not topic.timesync:
                raise BadGroup(f"{name} is without timesync: its messages have no timestamps")
        await _check_patterns(context, patterns)
    if options.with_meta:
        if vague := sorted(each for each in namespaces if "*" in each):
            raise BadGroup(f'with_meta needs namespaces without "*", not {vague[0]}')
        names |= {events_topic(each) for each in namespaces}
    return Subscribed(Wanted(topics=sorted(names), patterns=sorted(patterns)), uids)


def namespace_of(topic: str) -> str:
    """Return the namespace of a name or a pattern. Raises BadGroup."""
    plain = topic.replace("*", "x")
    try:
        split_topic(plain)
    except ValueError as wrong:
        raise BadGroup(str(wrong).replace(repr(plain), repr(topic))) from wrong
    return topic.partition("/")[0]


async def _check_patterns(context: TopicContext, patterns: set[str]) -> None:
    """Raise NoSuchTopic for a pattern that matches no topic."""
    if not patterns:
        return
    names = [topic.name for topic in await context.catalogue.list(own=False)]
    for pattern in sorted(patterns):
        if not fnmatch.filter(names, pattern):
            raise NoSuchTopic(pattern)

"""A replay from topics into a topic."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from ledger_client.replay.definition import check_target, find_target
from ledger_client.replay.options import ReplayOptions
from ledger_client.replay.replay import Aim, run_replay
from ledger_client.replay.report import Report
from ledger_client.replay.rounds import Rounds, Workers, check_partitions, end_mark
from ledger_client.replay.target import Target
from ledger_client.replay.topic_target import open_topic_target, read_back
from ledger_client.topics.client import TopicClient
from ledger_client.topics.errors import BadTopic
from metadata.cluster_url import shown
from metadata.replays import ReplayRecord
from metadata.topics import TopicRecord


async def replay_into_topic(
    client: TopicClient,
    names: Sequence[str],
    to: str,
    options: ReplayOptions,
    *,
    target: TopicClient | None = None,
    cluster: str = "",
    with_definition: bool = False,
    replication: int | None = None,
    workers: Workers | None = None,
    part_size: int = 0,
) -> Report:
    """Replay *names* into the topic *to*; see TopicClient.replay.

    *target* is the client of its cluster, if that is another one, and *cluster* the URL of that:
    without its password it is a part of what the replay is known by, and is kept. *workers* do
    it in parts of about *part_size* bytes, at full speed; by default this process sends it.
    """
    topics = [(await client.topics.get(name))[0] for name in names]
    options.check(topics)
    there = target or client
    topic = await find_target(
        there, to, topics, with_definition=with_definition, replication=replication
    )
    order = options.order_of(topics)
    check_target(topic, topics, order, is_same_cluster=target is None)

    def open_it(record: ReplayRecord, resumed: bool) -> AbstractAsyncContextManager[Target]:
        return open_topic_target(there, topic, record, resumed=resumed, keep_ids=options.keep_ids)

    aim = Aim(
        f"topic {to}{f' of {shown(cluster)}' if cluster else ''}",
        open_it,
        uid=topic.uid,
        partitions=topic.partitions,
        one_to_one=_alike(topic, topics),
        read_back=partial(read_back, there, topic),
        name_of="partition {}".format,
        forget=partial(end_mark, there, topic),
    )
    if workers is not None:
        if options.speed:
            told = "workers do it at full speed; --speed needs --no-spark"
            raise BadTopic(told, topic=topic.name)
        check_partitions(topic)
        rounds = Rounds(client, topics, there, topic, aim, options, workers, part_size=part_size)
        aim = aim._replace(engine="workers", work=rounds.run)
    return await run_replay(client, topics, aim, options)


def _alike(target: TopicRecord, topics: Sequence[TopicRecord]) -> bool:
    return all(topic.partitions == target.partitions for topic in topics)

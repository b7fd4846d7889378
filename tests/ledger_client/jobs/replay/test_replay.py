"""What of a replay is kept in metadata."""

from __future__ import annotations

from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.jobs.replay.options import ReplayOptions
from ledger_client.jobs.replay.replay import replay_into_topic

URL = "bookie://alice:{}@a:1,b"


async def test_the_password_of_another_cluster_is_not_kept(autojump_clock: MockClock) -> None:
    """And with another password it is the same replay."""
    async with memory_cluster(3) as cluster, cluster.client() as client, cluster.client() as there:
        await client.topics.create("shop/from")
        await client.topics.create("shop/to")
        async with client.producer("shop/from") as producer:
            await producer.send(b"1")
        for password in ("secret", "another"):
            report = await replay_into_topic(
                client._context,
                ["shop/from"],
                "shop/to",
                ReplayOptions(),
                target=there._context,
                cluster=URL.format(password),
            )
            assert report.finished_before is (password == "another")
        kept = [key.encode() + found.value for key, found in cluster.store.values.items()]
        assert not any(b"secret" in each or b"another" in each for each in kept)
        assert any(b"alice" in each for each in kept)

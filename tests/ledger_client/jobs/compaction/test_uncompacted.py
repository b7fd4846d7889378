"""What a compaction leaves out, and how it is said."""

from __future__ import annotations

import trio
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.commands.compact import _left_out
from ledger_client.jobs.compaction.job import Compaction
from ledger_client.jobs.compaction.runner import LocalRunner
from ledger_client.jobs.compaction.uncompacted import Uncompacted

TOPIC = "shop/prices"


async def test_messages_in_open_ledgers_are_left_out_until_these_are_rolled(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as ours, cluster.client() as theirs:
        await ours.topics.create(TOPIC, 2)
        async with ours.producer(TOPIC) as producer:
            for number in range(20):
                await producer.send(b"%d" % number, key=b"k%d" % (number % 4))
            await trio.sleep(1)
            for dry_run in (True, False):
                done = await theirs.topics.compact(TOPIC, dry_run=dry_run)
                assert not done.published
                assert done.uncompacted == Uncompacted(open_ledgers=2, open_messages=20)
            await theirs.topics.roll(TOPIC)
            await producer.send(b"20", key=b"k0")
            await trio.sleep(1)
            done = await theirs.topics.compact(TOPIC)
            assert done.report is not None
            assert (done.report.messages_in, done.report.keys) == (20, 4)
            assert done.uncompacted == Uncompacted(open_ledgers=2, open_messages=1)


async def test_what_is_closed_while_a_compaction_runs_is_left_to_the_next(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.topics.create(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0", key=b"k")
        runner = LocalRunner(client._context)
        separately = runner.separately

        async def meanwhile(*args: object) -> object:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"1", b"2"], keys=[b"k", b"k"])
            return await separately(*args)  # type: ignore[arg-type]  # as it was called

        runner.separately = meanwhile  # type: ignore[method-assign, assignment]
        done = await client.topics.compact(TOPIC, runner=runner)
        assert done.uncompacted == Uncompacted(newer_ledgers=1, newer_messages=2)
        done = await client.topics.compact(TOPIC)
        assert done.uncompacted == Uncompacted()
        assert _left_out(done) == []


def left_out(**fields: object) -> list[str]:
    left = Uncompacted(**fields)  # type: ignore[arg-type]  # checked by the tests
    return _left_out(Compaction(topic=TOPIC, published=True, uncompacted=left))


def test_the_command_says_how_many_and_why_and_what_to_do() -> None:
    after = "`quire topic roll shop/prices` closes them, then compact again"
    assert left_out(open_ledgers=6, open_messages=3500) == [
        f"not compacted: 3,500 messages in 6 open ledgers; {after}"
    ]
    assert left_out(open_ledgers=1, open_messages=2, is_estimate=True) == [
        "not compacted: about 2 messages in 1 open ledger;"
        " `quire topic roll shop/prices` closes it, then compact again"
    ]
    assert left_out(open_ledgers=2, open_messages=0, uncounted=1) == [
        f"not compacted: an unknown number in 2 open ledgers; {after}"
    ]
    assert left_out(newer_ledgers=1, newer_messages=2) == [
        "not compacted: 2 messages in 1 ledger closed after this began; compact again"
    ]
    assert left_out(open_ledgers=1) == []
    assert _left_out(Compaction(topic=TOPIC, published=True)) == []

"""What ``quire consume`` prints of topics that it finds on its way."""

from __future__ import annotations

import json
import math
import shlex

import pytest
import trio
from click.testing import CliRunner
from group_rig import ORDERS, rest, send, shop
from trio.testing import MockClock

from ledger_client.__main__ import quire
from ledger_client.commands import consume
from ledger_client.commands.consume import ConsumeRequest, Printing, Settling
from ledger_client.commands.forms import MessageFields
from ledger_client.commands.outcome import conclude
from ledger_client.errors import BadSchema
from metadata.outcome import Exit
from metadata.topics import TopicRecord


async def test_a_schema_that_cannot_be_opened_is_told_once_and_ends_nothing(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a topic that a pattern finds; of a named one it ends the command at once."""
    printed: list[bytes] = []

    async def keep(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        printed.extend(data.splitlines())

    def add(_fields: MessageFields, topic: TopicRecord) -> None:
        if topic.name == ORDERS:
            raise BadSchema("needs fastavro", topic=topic.name)

    monkeypatch.setattr(consume, "put", keep)
    monkeypatch.setattr(MessageFields, "add", add)
    async with shop(1) as (_, client):
        await client.topics.create("shop/other")
        order = ConsumeRequest("", ("shop/*",), math.inf, 4, None, True, 0)
        async with client.consumer("shop/*", group="billing", start="earliest") as consumer:
            await send(client, 0, 2)
            await send(client, 2, 3, "shop/other")
            await trio.sleep(5)
            await send(client, 3, 4)
            await Printing(client, consumer, Settling(consumer, is_shared=False), order).run()
        assert sorted(json.loads(line)["value"] for line in printed) == list("0123")
        assert capsys.readouterr().err.count("needs fastavro") == 1
        named = order._replace(topics=(ORDERS,))
        async with client.consumer(ORDERS, group="billing") as consumer:
            printing = Printing(client, consumer, Settling(consumer, is_shared=False), named)
            with pytest.raises(BadSchema):
                await printing.run()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("consume a/b --group a/b", "'a/b' is not a name"),
        ("consume b --group g", "'b' is not namespace/name"),
        ("consume a/b --group g --shared --deliveries-max=-1", "deliveries_max -1 is negative"),
        ("consume a/b --group g --ack-timeout 3", "--ack-timeout needs --shared"),
        ("consume a/b --group g --shared --order timestamp", "needs mode exclusive"),
        ("group lag a/b", "'a/b' is not a name"),
        ("group members ''", "'' is not a name"),
        ("group import /dev/null --group a/b", "'a/b' is not a name"),
        ("group export g /nowhere/file", "/nowhere is no folder"),
    ],
)
def test_wrong_names_and_values_are_refused_before_a_cluster_is_asked(
    capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    assert conclude(quire, [*shlex.split(words), "--cluster", "bookie://127.0.0.1:1"]) == Exit.USAGE
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("batches", [0, 1])
async def test_whoever_stops_it_in_a_batch_gets_that_batch_again_and_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """Whatever reads its output may have a part of it. The group has begun at its start."""
    printed: list[bytes] = []

    async def block(data: bytes) -> None:
        if len(printed) == batches:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        printed.append(data)

    monkeypatch.setattr(consume, "put", block)
    monkeypatch.setattr(consume, "POLL_MAX", 3)
    order = ConsumeRequest("", (ORDERS,), 1000.0, None, None, False, 0)
    async with shop(1) as (_, client):
        await send(client, 0, 8)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            with trio.move_on_after(20) as scope:
                await Printing(client, consumer, Settling(consumer, is_shared=False), order).run()
            assert scope.cancelled_caught
        taken = b"".join(printed).count(b"\n")
        assert taken == 3 * batches
        async with client.consumer(ORDERS, group="billing", start="latest") as consumer:
            assert await rest(consumer) == list(range(taken, 8))


async def test_each_commits_what_was_printed_before_more_is_read(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is killed, no more than one turn comes again."""
    steps: list[str] = []

    async def keep(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        steps.append(f"print {data.count(10)}")

    class Noted(Settling):
        async def commit(self) -> None:
            await super().commit()
            steps.append("commit")

    monkeypatch.setattr(consume, "put", keep)
    monkeypatch.setattr(consume, "POLL_MAX", 3)
    order = ConsumeRequest("", (ORDERS,), 0.0, 8, None, False, 0)
    async with shop(1) as (_, client):
        await send(client, 0, 8)
        async with client.consumer(
            ORDERS, group="billing", start="earliest", auto_commit_s=None
        ) as consumer:
            await Printing(client, consumer, Noted(consumer, is_shared=False), order).run()
    done = [step for step, before in zip(steps, ["", *steps], strict=False) if step != before]
    assert done == ["print 3", "commit", "print 3", "commit", "print 2", "commit"]


async def test_a_last_commit_without_an_answer_is_told_as_one_whose_messages_may_come_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unanswered(Settling):
        async def commit(self) -> None:
            await trio.sleep_forever()

    async def keep(_data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(consume, "put", keep)
    order = ConsumeRequest("", (ORDERS,), 1000.0, 2, None, False, 0)
    async with shop(1) as (_, client):
        await send(client, 0, 2)
        async with client.consumer(ORDERS, group="billing", start="earliest") as consumer:
            await Printing(client, consumer, Unanswered(consumer, is_shared=False), order).run()
    assert "is committed; it may be printed again" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--shared", "--key-shared"), ("--key-shared", "--shared")])
def test_two_ways_to_share_are_one_too_many(flags: tuple[str, str]) -> None:
    """Nobody can see which of them counted."""
    command = [ORDERS, "--group", "billing", "--cluster", "bookie://nowhere:1", *flags]
    done = CliRunner().invoke(consume.consume, command)
    assert done.exit_code == 2
    assert "--shared and --key-shared exclude each other: take --key-shared to" in done.output

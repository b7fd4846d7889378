from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from trio.testing import MockClock

from ledger_client import Message, MessageId
from ledger_client.__main__ import quire
from ledger_client.commands.demo.report import Comparison, Sum
from ledger_client.commands.demo.story import PROGRESS_S, Story, still
from ledger_client.commands.demo.writing import Deal, InputFile, key_of
from ledger_client.commands.feeds import LineFeed
from ledger_client.commands.outcome import conclude
from ledger_client.commands.sandbox import Bookie, Sandbox
from metadata.outcome import CommandFailed, Exit

IDS = [MessageId(7, 1, number % 2, number // 2) for number in range(4)]
OTHERS = [MessageId(8, 1, 0, 0)]
NOBODY = 1 << 30
"""the id of no process"""


def message(number: int, producer: str = "one") -> Message:
    """The message *number* that *producer* sent, as it is read."""
    ids = IDS if producer == "one" else OTHERS
    return Message(
        id=ids[number],
        key=b"k",
        value=b"%d\n" % number,
        event_time=None,
        timestamp=0,
        publish_time=0,
        headers={},
        producer=producer,
        sequence=number // 2,
        version=1,
        topic="demo/lines",
        lane=0,
    )


async def test_a_step_by_spark_says_that_it_goes_on(autojump_clock: MockClock) -> None:
    said: list[tuple[str, str]] = []
    async with still(lambda what, text: said.append((what, text)), "compacting"):
        await trio.sleep(PROGRESS_S * 2.5)
    await trio.sleep(PROGRESS_S * 2)
    assert [what for what, _ in said] == ["Spark", "", ""]
    assert said[0][1].startswith("compacting; ")
    assert said[1:] == [("", "still compacting, 5 s so far"), ("", "still compacting, 10 s so far")]


def compared(messages: list[Message]) -> Comparison:
    """*messages* beside those that two producers sent, one of them to two partitions."""
    comparison = Comparison({"one": IDS, "two": OTHERS})
    comparison.take(messages[:2])
    comparison.take(messages[2:])
    return comparison


ALL = [message(0), message(0, "two"), message(2), message(1), message(3)]
"""Lanes are merged in any way; in each of them the order is that of sending."""


def test_what_is_read_as_it_was_sent_is_so() -> None:
    assert compared(ALL).ends_as_sent()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda all_of: all_of[:-1],
        lambda all_of: [*all_of, all_of[-1]],
        lambda all_of: [all_of[0], all_of[0], *all_of[2:]],
        lambda all_of: [all_of[2], all_of[1], all_of[0], *all_of[3:]],
        lambda all_of: [*all_of[:4], all_of[4]._replace(id=MessageId(8, 1, 1, 3))],
        lambda all_of: [*all_of[:4], all_of[4]._replace(sequence=4)],
        lambda all_of: [*all_of[:4], all_of[4]._replace(producer="three")],
    ],
    ids=["lost", "twice at the end", "twice", "swapped", "another id", "another number", "foreign"],
)
def test_a_mistake_does_not_pass(mistake: Callable[[list[Message]], list[Message]]) -> None:
    assert not compared(mistake(ALL)).ends_as_sent()


def test_a_sum_does_not_count_the_order_but_every_byte() -> None:
    there, back, other = Sum(), Sum(), Sum()
    there.add([b"a", b"b"], [b"1", b"22"])
    back.add([b"b"], [b"22"])
    back.add_batch(pa.record_batch({"key": [b"a"], "value": [b"1"]}))
    other.add([b"a", b"b"], [b"1", b"23"])
    assert there.row("x", back).agrees
    assert (there.messages, there.bytes) == (2, 3)
    assert not there.row("x", other).agrees
    assert not there.row("x", Sum()).agrees


@pytest.mark.parametrize(
    ("line", "key"),
    [(b"a b c\n", b"c"), (b"  one  \r\n", b"one"), (b"\n", b"-"), (b"x" * 1000, b"x" * 256)],
)
def test_the_key_of_a_line_is_its_last_word(line: bytes, key: bytes) -> None:
    assert key_of(line) == key


async def test_every_line_goes_to_the_producer_of_its_key_in_order(tmp_path: Path) -> None:
    lines = [b"line %d key-%d\n" % (number, number % 7) for number in range(1000)] + [b"no end"]
    file = tmp_path / "file"
    file.write_bytes(b"".join(lines))
    source = InputFile(file, 3, line_size_max=1000)
    dealt: list[list[Deal]] = [deals async for deals in source.deals()]
    for producer in range(3):
        values = [value for deals in dealt for value in deals[producer].values]
        keys = {key for deals in dealt for key in deals[producer].keys}
        assert values == [line.rstrip(b"\n") for line in lines if key_of(line) in keys]
    assert source.sum.messages == sum(len(deal.values) for deals in dealt for deal in deals) == 1001
    assert source.latest[b"key-3"] == b"line 997 key-3"
    assert source.latest[b"end"] == b"no end"


async def test_a_line_is_sent_as_quire_produce_sends_it(tmp_path: Path) -> None:
    """So `quire read` prints the same lines, whichever of them sent the file."""
    text = b"a\n\nb\r\n\r\nc \nd\re"
    file = tmp_path / "file"
    file.write_bytes(text)
    source = InputFile(file, 1, line_size_max=1000)
    values = [value async for [deal] in source.deals() for value in deal.values]
    feed = LineFeed(1000)
    assert values == [*feed.feed(text).values, *feed.finish().values]
    assert (source.consumed, source.sum.bytes) == (len(text), 7)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_folder_to_keep_is_named_before_anything_can_fail(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:
    async def start(sandbox: Sandbox) -> None:
        sandbox.bookies = [Bookie(f"b{number}", "h:1", NOBODY, 1) for number in range(4)]

    async def play(_story: Story) -> None:
        raise CommandFailed("a step failed")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Sandbox, "start", start)
    monkeypatch.setattr(Story, "play", play)
    words = ["demo", "--keep", "--no-spark", *(["--json"] if as_json else [])]
    assert conclude(quire, words) == Exit.FAILED
    (kept,) = tmp_path.iterdir()
    out, err = capsys.readouterr()
    assert f"keeps  all data, in {kept}\n" in out or as_json
    assert (err == f"quire: keeps all data, in {kept}\nquire: a step failed\n") == as_json


def test_of_a_cluster_that_did_not_start_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_sandbox: Sandbox) -> None:
        raise CommandFailed("the bookies did not start")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Sandbox, "start", start)
    assert conclude(quire, ["demo", "--keep", "--no-spark"]) == Exit.FAILED
    assert list(tmp_path.iterdir()) == []

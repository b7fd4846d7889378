from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from ledger_client import Message, MessageId
from ledger_client.commands.demo.comparison import Comparison

IDS = [MessageId(7, 1, -1, index) for index in range(4)]


def message(number: int) -> Message:
    """The message *number* as it is read."""
    return Message(
        id=IDS[number],
        key=None,
        value=b"%d\n" % number,
        event_time=None,
        timestamp=0,
        publish_ms=0,
        headers={},
        producer="demo",
        sequence=number,
        version=1,
        topic="demo/lines",
        lane=0,
    )


def compared(messages: list[Message]) -> Comparison:
    """*messages* beside four that were sent in two calls, read in two as well."""
    comparison = Comparison([IDS[:3], IDS[3:]])
    comparison.take(messages[:2])
    comparison.take(messages[2:])
    return comparison


def test_what_is_read_as_it_was_sent_is_so() -> None:
    comparison = compared([message(number) for number in range(4)])
    assert comparison.ends_as_sent()
    assert comparison.count == 4
    assert comparison.sha256 == hashlib.sha256(b"0\n1\n2\n3\n").hexdigest()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda all_of: all_of[:-1],
        lambda all_of: [*all_of, all_of[-1]],
        lambda all_of: [all_of[0], all_of[0], *all_of[2:]],
        lambda all_of: [all_of[1], all_of[0], *all_of[2:]],
        lambda all_of: [*all_of[:3], all_of[3]._replace(id=MessageId(8, 1, -1, 3))],
        lambda all_of: [*all_of[:3], all_of[3]._replace(sequence=4)],
    ],
    ids=["lost", "twice at the end", "twice", "swapped", "another id", "another number"],
)
def test_a_mistake_does_not_pass(mistake: Callable[[list[Message]], list[Message]]) -> None:
    assert not compared(mistake([message(number) for number in range(4)])).ends_as_sent()

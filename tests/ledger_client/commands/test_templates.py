"""Messages as a template shows them."""

from __future__ import annotations

from typing import Any

import pytest

from ledger_client import Message, MessageId
from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude
from ledger_client.commands.templates import Template, unescaped
from metadata.outcome import Exit


def message(key: bytes | None, value: bytes | None, **others: Any) -> Message:  # noqa: ANN401
    return Message(
        id=MessageId(7, 1, 3, 2),
        key=key,
        value=value,
        event_time=None,
        timestamp=0,
        publish_time=1714564800123,
        headers={},
        producer="one",
        sequence=4,
        version=1,
        topic="shop/orders",
        lane=5,
    )._replace(**others)


def shown(template: str, *messages: Message) -> bytes:
    return Template(template).text_of(messages)


def test_fields_are_replaced_and_the_rest_stays() -> None:
    one = message(b"k", b"v\xff", headers={"a": b"1", "b": b"="}, event_time=9)
    assert shown(r"%k %v %t %i\n", one, one) == b"k v\xff shop/orders 7:1:3:2\n" * 2
    assert shown("%p/%l %T %e %h 100%%é", one) == "3/5 1714564800123 9 a=1,b== 100%é".encode()
    assert shown("%s", one) == b"v\xff"


def test_null_and_empty_differ() -> None:
    null, empty = message(None, None), message(b"", b"")
    assert shown("%k=%v;", null, empty) == b"NULL=NULL;=;"
    assert shown("%K %S;", null, empty, message(b"NULL", b"xy")) == b"-1 -1;0 0;4 2;"
    assert shown("%e", null) == b"NULL"


def test_escapes_stand_for_bytes() -> None:
    assert shown(r"\t\r\n\\\x00\xff", message(None, None)) == b"\t\r\n\\\x00\xff"
    assert unescaped(r"\t") == b"\t"
    assert unescaped("%%: ") == b"%%: "
    assert unescaped("") == b""


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("%q", "%q is no field"),
        ("%", "% is no field"),
        (r"%v\q", r"\q is no escape"),
        ("%v\\", "\\ is no escape"),
        (r"%v\x1", r"\x is no escape"),
        ("xml", "is not text, json, arrow"),
    ],
)
def test_what_is_no_template_is_a_wrong_command_line(
    template: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conclude(quire, ["read", "s/t", "--format", template]) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line

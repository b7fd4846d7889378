"""Messages as objects."""

from __future__ import annotations

import gc

import msgspec
import pytest

from ledger_client.errors import BadValue
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import (
    NO_HEADERS,
    CollectionPaused,
    Message,
    converted,
    decoding,
)


class Order(msgspec.Struct):
    item: str
    count: int


def message(value: bytes | None) -> Message:
    at = MessageId(7, 1, -1, 0)
    return Message(at, b"k", value, None, 0, 0, NO_HEADERS, "", -1, 1, "shop/orders", 0)


def test_a_value_can_be_read_as_text() -> None:
    assert message("zwölf".encode()).text == "zwölf"
    assert message(b"").text == ""
    assert message(None).text is None
    with pytest.raises(BadValue, match=r"the value of message 7:1.* is not text"):
        _ = message(b"\xff").text


def test_a_value_can_be_read_as_json() -> None:
    value = b'{"item": "pen", "count": 2}'
    assert message(value).json() == {"item": "pen", "count": 2}
    assert message(value).json(Order) == Order("pen", 2)
    assert message(None).json(Order) is None
    for bad in (b"", b"{", b"\xff", b'"\xff"', b'{"item": "pen", "count": "two"}'):
        with pytest.raises(BadValue, match="is not the JSON wanted") as refused:
            message(bad).json(Order)
        assert refused.value.message_id == MessageId(7, 1, -1, 0)


def test_json_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(BadValue, match=r"is not the JSON wanted: .*recursion"):
        message(b"[" * 100_000 + b"]" * 100_000).json()


def test_a_value_is_decoded_once_and_only_when_that_is_read() -> None:
    calls: list[bytes] = []

    def decode(value: bytes) -> list[int]:
        calls.append(value)
        return [len(value)]

    plain = [message(b"ab"), message(None), message(b"c")]
    found = converted(plain, decoding(decode))
    assert found == plain
    assert calls == []
    assert found[0].decoded is found[0].decoded
    assert (found[0].decoded, found[1].decoded) == ([2], None)
    assert calls == [b"ab"]
    assert found[2]._replace(value=b"def").decoded == [3]


def test_without_a_decoder_messages_are_the_very_same() -> None:
    plain = [message(b"a")]
    assert converted(plain, decoding(None)) is plain


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collection_is_afterwards_what_it_was_before(was_enabled: bool) -> None:
    """Also after an error, and in a block within a block."""
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), CollectionPaused():
            with CollectionPaused():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()

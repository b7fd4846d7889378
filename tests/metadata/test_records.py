from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, strategies as st

from metadata.errors import BadRecord
from metadata.records import (
    BookieRecord,
    CookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    bookie_lease,
    cookie_key,
    decode_bookie,
    decode_cookie,
    decode_ledger,
    encode_password,
    encode_record,
    ledger_key,
    parse_ledger_key,
)

LEDGER = LedgerRecord(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    state=LedgerState.OPEN,
    fragments=[Fragment(0, ["a", "b", "c"]), Fragment(10, ["a", "b", "d"])],
    password=encode_password(b"\x00secret"),
    custom={"made-by": "a test"},
)


def spoilt(**changes: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(LEDGER) | changes)


def test_records_come_back_as_they_were() -> None:
    assert decode_ledger("k", encode_record(LEDGER)) == LEDGER
    bookie = BookieRecord("b1", "127.0.0.1:3181", capacity=10, free=5)
    assert decode_bookie("bookies/b1", encode_record(bookie)) == bookie
    cookie = CookieRecord("b1", "instance", "/j", "/l", "cookie")
    assert decode_cookie("k", encode_record(cookie)) == cookie


def test_a_ledger_is_json_that_people_can_read() -> None:
    text = encode_record(LEDGER).decode()
    assert '"state":"open"' in text
    assert '"bookies":["a","b","c"]' in text
    assert LEDGER.password_bytes == b"\x00secret"


def test_fields_of_a_newer_version_are_let_pass() -> None:
    assert decode_ledger("k", spoilt(colour="green")) == LEDGER


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_quorum": 4},
        {"write_quorum": 1},
        {"ensemble_size": 0},
        {"ensemble_size": 65},
        {"ensemble_size": 2},
        {"fragments": []},
        {"fragments": [{"first_entry": 1, "bookies": ["a", "b", "c"]}]},
        {"fragments": [{"first_entry": 0, "bookies": ["a", "b", "b"]}]},
        {"fragments": [{"first_entry": 0, "bookies": ["a", "b", "c"]}] * 2},
        {"state": "asleep"},
        {"last_entry": -2},
        {"last_entry": 1 << 63},
        {"length": -1},
        {"digest": "md5"},
        {"password": "not base64!"},
        {"password": "é"},
        {"replication": "gossip"},
        {"custom": {"a": 1}},
        {"ledger_id": "7"},
    ],
)
def test_a_ledger_that_breaks_a_rule_is_refused_by_its_key(changes: dict[str, object]) -> None:
    with pytest.raises(BadRecord, match="ledgers/7 is not a LedgerRecord"):
        decode_ledger("ledgers/7", spoilt(**changes))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_bad_record(value: bytes) -> None:
    for decode in (decode_ledger, decode_bookie, decode_cookie):
        with pytest.raises(BadRecord):
            decode("k", value)


@given(st.data())
def test_a_record_with_a_byte_changed_is_a_record_or_refused(data: st.DataObject) -> None:
    value = bytearray(encode_record(LEDGER))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadRecord):
        decode_ledger("k", bytes(value))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(BadRecord):
        decode_ledger("k", b'{"x":' * 100_000)


def test_keys_order_as_ids_do() -> None:
    assert ledger_key(7) == "ledgers/00000000000000000007"
    ids = [0, 9, 10, 99, (1 << 63) - 1]
    assert sorted(map(ledger_key, ids)) == [ledger_key(ledger_id) for ledger_id in ids]
    assert [parse_ledger_key(ledger_key(ledger_id)) for ledger_id in ids] == ids
    assert (cookie_key("b"), bookie_lease("b")) == ("cookies/b", "bookies/b")


@pytest.mark.parametrize("key", ["ledgers/7", "ledgers/" + "x" * 20, "x" + "0" * 27, ""])
def test_another_key_is_not_that_of_a_ledger(key: str) -> None:
    with pytest.raises(BadRecord):
        parse_ledger_key(key)


def test_a_registration_of_an_older_bookie_has_no_rack() -> None:
    known = BookieRecord("b1", "h:1", capacity=10, free=5)
    fields = msgspec.to_builtins(known)
    del fields["rack"]
    assert decode_bookie("bookies/b1", msgspec.json.encode(fields)) == known

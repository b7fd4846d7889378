"""Cookies and addresses of bookies in BookKeeper's formats, on bytes of BookKeeper 4.18."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from metadata.errors import BadRecord
from metadata.records import BookieRecord, CookieRecord
from metadata.zookeeper.bookies import decode_cookie, encode_cookie, encode_service

COOKIE = CookieRecord("bookie-1", "9a41", '/j ö"x', "/l", "3f0c")
# Cookie.toString() of BookKeeper 4.18.
JAVA_COOKIE = rb"""5
bookieHost: "bookie-1"
journalDir: "/j \303\266\"x"
ledgerDirs: "1\t/l"
instanceId: "9a41"
"""
# serializeBookieServiceInfo() of ZKRegistrationManager.
JAVA_SERVICE = bytes.fromhex(
    "32220a06626f6f6b696510ed181a093132372e302e302e31220a626f6f6b69652d727063"
)


def test_a_cookie_is_bookkeepers_with_a_comment() -> None:
    written = encode_cookie(COOKIE)
    assert written.replace(rb"\011", rb"\t") == JAVA_COOKIE + b"# quire cookie 3f0c\n"
    assert decode_cookie(written) == COOKIE


def test_a_cookie_of_another_program_has_no_id() -> None:
    assert decode_cookie(JAVA_COOKIE) == msgspec.structs.replace(COOKIE, cookie_id="")


folders = st.text(min_size=1)


@given(folders, folders)
def test_every_cookie_comes_back(journal: str, ledgers: str) -> None:
    cookie = CookieRecord("b", "i", journal, ledgers, "c")
    assert decode_cookie(encode_cookie(cookie)) == cookie


def test_every_truncation_and_every_flipped_bit_gives_a_cookie_or_bad_record() -> None:
    data = encode_cookie(COOKIE)
    damaged = [data[:end] for end in range(len(data))]
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for each in damaged:
        try:
            decode_cookie(each)
        except BadRecord as wrong:
            assert "\n" not in str(wrong)


def test_a_bookies_address_is_what_bookkeeper_writes() -> None:
    record = BookieRecord("bookie-1", "127.0.0.1:3181", capacity=1, free=1)
    assert encode_service(record) == JAVA_SERVICE


def test_an_address_that_cannot_be_parsed_is_not_registered() -> None:
    with pytest.raises(BadRecord, match="address"):
        encode_service(BookieRecord("bookie-1", "nowhere:x", capacity=1, free=1))

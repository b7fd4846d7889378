"""Batches: the documented bytes, what comes back, every cut, every flipped bit."""

from __future__ import annotations

from native.batch import Columns, decode, encode

DOCUMENTED = bytes.fromhex(
    "51420100 00001f00 01000000 02000000 3a000000 03000000 e803000000000000 0000000000000000"
    "0000000000000080 0000000000000080 0700000000000000 7000000000000000"
    "0100000000000000 000000000200000002000000 00000000"
    "0100000000000000 000000000100000001000000 00000000 6b00000000000000 6869"
)


def test_the_documented_batch_is_what_encode_returns() -> None:
    columns = Columns.of([b"hi", None], keys=[b"k", None])
    payload = encode(columns, 0, 2, producer=b"p", sequence=7, epoch=3, created_ms=1000)
    assert payload == DOCUMENTED
    assert decode(payload).columns.values.to_list() == [b"hi", None]

"""Checksums and digests: published values, agreement with other implementations, damage."""

from __future__ import annotations

import hashlib
import hmac
import zlib

import pytest
import wire
from hypothesis import given, strategies as st

from native._core import ffi, lib  # noqa: TID251 - parts without a binding of their own
from native.digest import Digest, DigestKind, crc32c
from native.errors import Corrupt

HELLO_HEADER = bytes.fromhex("00000000000000010000000000000000ffffffffffffffff0000000000000005")
HELLO_DIGESTS = {
    DigestKind.CRC32: "0000000030a56872",
    DigestKind.HMAC: "2c5f3dbb8c95c515351daad95c129012c5d7a5f9",
    DigestKind.CRC32C: "e3a5f74d",
    DigestKind.DUMMY: "",
}
KINDS = list(DigestKind)


def hello(kind: DigestKind) -> bytes:
    return HELLO_HEADER + bytes.fromhex(HELLO_DIGESTS[kind]) + b"hello"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (b"Some String", 0x2445290F),
        (bytes(32), 0x8A9136AA),  # this and the next three: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_has_its_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert lib.bk_crc32c_table(0, data, len(data)) == expected


@given(st.binary(max_size=5000), st.integers(0, 0xFFFFFFFF))
def test_hardware_and_table_agree(data: bytes, seed: int) -> None:
    assert crc32c(data, seed) == lib.bk_crc32c_table(seed, data, len(data))


@pytest.mark.parametrize("around", [336, 672, 1008, 2016, 1 << 16])
def test_hardware_and_table_agree_where_strips_begin_and_end(around: int) -> None:
    data = hashlib.shake_128(b"strips").digest(around + 17)
    for size in range(around - 9, around + 10):
        for start in range(8):
            piece = data[start:size]
            assert crc32c(piece) == lib.bk_crc32c_table(0, piece, len(piece))


@given(st.binary(max_size=100))
def test_the_table_agrees_with_long_division(data: bytes) -> None:
    assert lib.bk_crc32c_table(0, data, len(data)) == wire.crc32c(data)


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_a_crc_goes_on_where_it_ended(data: bytes, cut: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


@given(st.binary(max_size=3000), st.integers(0, 0xFFFFFFFF))
def test_crc32_agrees_with_zlib(data: bytes, seed: int) -> None:
    assert lib.bk_crc32(seed, data, len(data)) == zlib.crc32(data, seed)


@pytest.mark.parametrize("size", [*range(130), 1000])
def test_sha1_and_hmac_agree_with_python(size: int) -> None:
    data = hashlib.shake_128(b"sha1").digest(size)
    out = ffi.new("uint8_t[20]")
    lib.bk_sha1(data, size, out)
    assert bytes(out) == hashlib.sha1(data, usedforsecurity=False).digest()
    for key in (b"", data, b"k" * 64, b"k" * 65):
        lib.bk_hmac_sha1(key, len(key), data, size, out)
        assert bytes(out) == hmac.digest(key, data, "sha1")


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"passwd", "9596625852f7fafc2c9cf0f9f7f3e5995206452b"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_master_key_depends_on_the_password_alone(
    kind: DigestKind, password: bytes, key: str
) -> None:
    assert Digest(kind, password).master_key.hex() == key


@pytest.mark.parametrize("kind", KINDS)
def test_hello_has_the_documented_digest(kind: DigestKind) -> None:
    digest = Digest(kind, b"passwd")
    assert digest.compute(HELLO_HEADER, b"hello").hex() == HELLO_DIGESTS[kind]
    assert digest.size == len(HELLO_DIGESTS[kind]) // 2
    digest.check(hello(kind), 1, 0)
    digest.check(hello(kind), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_refused_under_another_id(kind: DigestKind) -> None:
    digest = Digest(kind, b"passwd")
    for ledger_id, entry_id in ((2, 0), (1, 1), (-1, 0), (1, 1 << 62)):
        with pytest.raises(Corrupt):
            digest.check(hello(kind), ledger_id, entry_id)


@pytest.mark.parametrize("kind", [k for k in KINDS if k is not DigestKind.DUMMY])
def test_every_cut_and_every_flipped_bit_of_an_entry_is_noticed(kind: DigestKind) -> None:
    digest, entry = Digest(kind, b"passwd"), hello(kind)
    for size in range(len(entry)):
        with pytest.raises(Corrupt):
            digest.check(entry[:size], 1, 0)
    for bit in range(len(entry) * 8):
        damaged = bytearray(entry)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            digest.check(damaged, 1, 0)


def test_without_a_digest_only_the_ids_are_checked() -> None:
    digest = Digest(DigestKind.DUMMY)
    digest.check(HELLO_HEADER + b"jello", 1, 0)
    for size in range(len(HELLO_HEADER)):
        with pytest.raises(Corrupt):
            digest.check(HELLO_HEADER[:size], 1, 0)


def test_a_wrong_password_shows_with_hmac_only() -> None:
    with pytest.raises(Corrupt):
        Digest(DigestKind.HMAC, b"other").check(hello(DigestKind.HMAC), 1, 0)
    Digest(DigestKind.CRC32C, b"other").check(hello(DigestKind.CRC32C), 1, 0)


@pytest.mark.parametrize("kind", [-1, 0, 5, 99])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    digest = ffi.new("bk_digest *")
    assert lib.bk_digest_init(digest, kind, b"", 0) == lib.BK_CORRUPT
    assert lib.bk_digest_size(kind) < 0


def test_a_header_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Digest().compute(b"short", b"")

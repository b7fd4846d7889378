"""Checksums and digests of entries, as digest.h defines them."""

from __future__ import annotations

import enum

from native._core import ffi, lib
from native.errors import check


def crc32c(data: bytes | bytearray | memoryview, seed: int = 0) -> int:
    """Return the CRC-32C of *data*; *seed* is the CRC of the bytes before it, or 0."""
    with ffi.from_buffer(data) as pointer:
        return int(lib.bk_crc32c(seed, pointer, len(pointer)))


class DigestKind(enum.IntEnum):
    """How the entries of a ledger are protected from end to end."""

    CRC32 = lib.BK_DIGEST_CRC32
    HMAC = lib.BK_DIGEST_HMAC
    CRC32C = lib.BK_DIGEST_CRC32C
    DUMMY = lib.BK_DIGEST_DUMMY


class Digest:
    """The digest of one ledger: its kind, and the keys derived from its password.

    Attributes:
        kind: which checksum.
        size: bytes of the digest field between an entry's header and payload.
        master_key: the 20 bytes that bookies require to write or fence the ledger.
        payload_size_max: bytes of the largest payload that bookies accept (frame.h).
        pointer: for the other modules of this package.
    """

    def __init__(self, kind: DigestKind = DigestKind.CRC32C, password: bytes = b"") -> None:
        self.pointer = ffi.new("bk_digest *")
        check(lib.bk_digest_init(self.pointer, kind, password, len(password)), "a digest's kind")
        self.kind = DigestKind(kind)
        self.size = int(lib.bk_digest_size(kind))
        self.master_key = bytes(self.pointer.master_key)
        self.payload_size_max = int(lib.BK_ENTRY_SIZE_MAX) - lib.BK_ENTRY_HEADER_SIZE - self.size

    def compute(self, header: bytes, payload: bytes) -> bytes:
        """Return the digest field of an entry with this 32-byte header."""
        if len(header) != lib.BK_ENTRY_HEADER_SIZE:
            raise ValueError(f"an entry's header has 32 bytes, not {len(header)}")
        out = ffi.new("uint8_t[]", lib.BK_DIGEST_SIZE_MAX)
        lib.bk_digest_compute(self.pointer, header, payload, len(payload), out)
        return bytes(ffi.buffer(out, self.size))

    def check(
        self, entry: bytes | bytearray | memoryview, ledger_id: int, entry_id: int = -1
    ) -> None:
        """Check that the stored *entry* is sound and has these ids.

        A negative *entry_id* accepts any.

        Raises:
            Corrupt: the entry is cut short, damaged, or has other ids.
        """
        with ffi.from_buffer(entry) as pointer:
            result = lib.bk_digest_check(self.pointer, pointer, len(pointer), ledger_id, entry_id)
        check(result, f"ledger {ledger_id}, entry {entry_id}")

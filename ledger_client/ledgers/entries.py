"""Entries: how a bookie is asked for them, checked as received, and converted to objects on access.

A batch is the body of one response, checked in C, with the offsets of its payloads.
A million entries are a few hundred batches; an Entry object is built when it is accessed.

A question can be sent to any replica. A bad answer raises Unsound with a reason and a
verdict: the entry is not there (ABSENT), it is damaged there (DAMAGED), or the answer
proves nothing about the entry (UNAVAILABLE).
"""

from __future__ import annotations

import bisect
import enum
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, repeat
from typing import NamedTuple, overload

import msgspec

from ledger_client.errors import NoSuchLedger
from ledger_client.wire.inflight import Key, LedgerName
from metadata.records import LedgerRecord
from native import frame
from native.digest import Digest, DigestKind
from native.errors import Corrupt
from native.frame import Code
from native.link import Response, check_entries

ENTRY_HEADER_SIZE = 32
LENGTH_SIZE = 8
"""The last field of the header: payload bytes of the ledger up to this entry."""
BATCH_SIZE_MAX = 4 << 20
"""The most bytes that a batch read asks for; a frame has 5 MiB."""
DIGESTS_KEPT = 64
"""Digests that are kept: the ledgers of topics all have the same one."""


class Entry(NamedTuple):
    """One entry of a ledger; *payload* is a copy without header and digest."""

    ledger_id: int
    entry_id: int
    payload: bytes


# Builds an Entry from a tuple of its fields without running Python code.
_entry_of = partial(tuple.__new__, Entry)


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Consecutive sound entries in one buffer: entry first_entry + i lies at offsets[i]."""

    ledger_id: int
    first_entry: int
    body: bytes | memoryview
    offsets: Sequence[int]
    sizes: Sequence[int]
    bookie_id: str
    """the bookie that served it"""

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def last_entry(self) -> int:
        """Id of the last entry in the batch."""
        return self.first_entry + len(self.sizes) - 1

    @property
    def size(self) -> int:
        """Payload bytes of all entries, added up at each access."""
        return sum(self.sizes)

    def payload(self, index: int) -> memoryview:
        """Return the payload of entry first_entry + *index*, not copied."""
        offset = self.offsets[index]
        return memoryview(self.body)[offset : offset + self.sizes[index]]

    def payloads(self) -> Iterator[bytes]:
        """Yield every payload, in order, as bytes of its own."""
        view = memoryview(self.body)
        for offset, size in zip(self.offsets, self.sizes, strict=True):
            yield view[offset : offset + size].tobytes()

    def entry(self, index: int) -> Entry:
        """Return entry first_entry + *index*, with a copy of its payload."""
        return Entry(self.ledger_id, self.first_entry + index, bytes(self.payload(index)))

    def __iter__(self) -> Iterator[Entry]:
        fields = zip(repeat(self.ledger_id), count(self.first_entry), self.payloads(), strict=False)
        return map(_entry_of, fields)


def length_before(batch: EntryBatch, digest: Digest) -> int:
    """Return the payload bytes of all entries before *batch*, as its first entry states them."""
    end = batch.offsets[0] - digest.size
    length = int.from_bytes(batch.body[end - LENGTH_SIZE : end], "big")
    return length - batch.sizes[0]


class Entries(Sequence[Entry]):
    """The entries of consecutive batches, each built when it is accessed."""

    def __init__(self, batches: Sequence[EntryBatch]) -> None:
        self._batches = batches
        self._ends: list[int] = []
        count = 0
        for batch in batches:
            count += len(batch)
            self._ends.append(count)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"entry {index} of {len(self)}")
        at = bisect.bisect_right(self._ends, position)
        batch = self._batches[at]
        return batch.entry(position - (self._ends[at] - len(batch)))

    def __iter__(self) -> Iterator[Entry]:
        for batch in self._batches:
            yield from batch

    def __repr__(self) -> str:
        return f"<Entries: {len(self)} in {len(self._batches)} batches>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))


# --- digests --------------------------------------------------------------------------

DIGESTS: dict[str, DigestKind] = {
    "crc32": DigestKind.CRC32,
    "hmac": DigestKind.HMAC,
    "crc32c": DigestKind.CRC32C,
    "dummy": DigestKind.DUMMY,
}


def digest_of(record: LedgerRecord) -> Digest:
    """Return the digest that protects the entries of *record*."""
    return _digest(record.digest, record.password)


@lru_cache(maxsize=DIGESTS_KEPT)
def _digest(kind: str, password: str) -> Digest:
    return Digest(DIGESTS[kind], b64decode(password))


# --- questions and their answers --------------------------------------------------------


class Verdict(enum.Enum):
    """The conclusion from a bad answer about the entry."""

    ABSENT = enum.auto()
    DAMAGED = enum.auto()
    UNAVAILABLE = enum.auto()


class Unsound(Exception):
    """The answer does not contain the requested entries."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


_VERDICTS: dict[int, tuple[Verdict, str]] = {
    Code.NO_LEDGER: (Verdict.ABSENT, "no such ledger"),
    Code.NO_ENTRY: (Verdict.ABSENT, "no such entry"),
    Code.IO_ERROR: (Verdict.DAMAGED, "I/O error"),
}


class EntryQuestion(msgspec.Struct, frozen=True):
    """A READ of one entry, for striped ledgers."""

    ledger: LedgerName
    entry_id: int
    digest: Digest

    def request(self, _request_id: int) -> tuple[bytes, Key]:
        """Return a READ; its response is matched by ledger and entry."""
        key = (self.ledger.ledger_id, self.entry_id)
        return frame.read(*key), key

    def judge(self, response: Response, bookie_id: str) -> EntryBatch:
        """Return the entry, its digest checked."""
        check_code(response)
        body = response.body
        try:
            self.digest.check(body, self.ledger.ledger_id, self.entry_id)
        except Corrupt:
            raise Unsound(Verdict.DAMAGED, "wrong digest") from None
        offset = ENTRY_HEADER_SIZE + self.digest.size
        return EntryBatch(
            self.ledger.ledger_id, self.entry_id, body, [offset], [len(body) - offset], bookie_id
        )


class BatchQuestion(msgspec.Struct, frozen=True):
    """Up to *count* entries from *entry_id* on, by BATCH_READ.

    *from_log*: only from the bookie's entry logs, not from its memtable.
    """

    ledger: LedgerName
    entry_id: int
    count: int
    digest: Digest
    from_log: bool = False

    def request(self, request_id: int) -> tuple[bytes, Key]:
        """Return a BATCH_READ of at most BATCH_SIZE_MAX bytes."""
        request = frame.batch_read(
            self.ledger.ledger_id,
            self.entry_id,
            request_id=request_id,
            count_max=self.count,
            size_max=BATCH_SIZE_MAX,
            flags=frame.Flag.FROM_LOG if self.from_log else 0,
        )
        return request, request_id

    def judge(self, response: Response, bookie_id: str) -> EntryBatch:
        """Return at least one entry; damage after it is left to the next question."""
        check_code(response)
        batch = sound_entries(response, self.digest, self.entry_id, self.count, bookie_id)
        if not len(batch):
            raise Unsound(Verdict.DAMAGED, "wrong digest")
        return batch


def check_code(response: Response) -> None:
    """Raise Unsound unless the response is a success.

    Raises:
        NoSuchLedger: the ledger was deleted, and another one has its id now.
    """
    if response.code == Code.OTHER_LEDGER:
        raise NoSuchLedger(response.ledger_id)
    if response.code != Code.OK:
        other = (Verdict.UNAVAILABLE, f"answered with code {response.code}")
        verdict, reason = _VERDICTS.get(response.code, other)
        raise Unsound(verdict, reason)


def sound_entries(
    response: Response, digest: Digest, start: int, count: int, bookie_id: str
) -> EntryBatch:
    """Return the entries of *response* from *start* on, up to the first damaged one."""
    found = check_entries(digest, response.body, response.ledger_id, start, count)
    return EntryBatch(
        response.ledger_id, start, response.body, found.offsets, found.sizes, bookie_id
    )

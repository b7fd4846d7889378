"""The report of the demonstration: counts and checksums."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

import msgspec
import trio

from ledger_client.cluster.operations.verification import Verification
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import Message
from metadata.outcome import CommandFailed
from native.batch import Binary, Columns
from native.checksum import Checksum

if TYPE_CHECKING:
    import pyarrow as pa


class CountedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the final table: messages seen at one place, and their checksum."""

    what: str
    messages: int
    bytes: int
    """total size of the values: of lines without their endings"""
    checksum: str
    """checksum of keys and values, independent of their order"""
    agrees: bool
    seconds: float | None = None
    """duration of this step"""


class DemoReport(msgspec.Struct, kw_only=True):
    """The whole report. Sizes are bytes; *intact* is the verdict."""

    file: str
    generated: bool
    cluster: str
    processes: dict[str, int]
    topic: str
    lines: int = 0
    """lines of the file"""
    bytes: int = 0
    """of the file"""
    producers: int = 0
    killed: str = ""
    killed_process: int = 0
    killed_after_bytes: int = 0
    unacknowledged: int = 0
    """lines not yet acknowledged when the bookie was killed"""
    replaced_process: int = 0
    """process of the bookie that restarted with empty folders"""
    ledgers: list[int] = []
    entries: int = 0
    """entries of all ledgers: batches of lines, and state for a lane's next writer"""
    each_once_in_order: bool = False
    """True if each line was read once, in order, under the id reported when it was sent"""
    healed_s: float = 0.0
    copies: dict[str, int] = {}
    """sound entries on each bookie at the end"""
    keys: int = 0
    """number of keys in the file"""
    spark: bool = False
    """compaction ran in Spark, and Spark read the topic"""
    table: list[CountedRow] = []
    intact: bool = False
    kept_folder: str | None = None


# --- Counts and checksums ---------------------------------------------------------------


class Sum:
    """A count of messages, their bytes, and the checksum of keys and values."""

    def __init__(self) -> None:
        self.checksum = Checksum()
        self.bytes = 0

    @property
    def messages(self) -> int:
        """Number of messages added so far."""
        return self.checksum.count

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add messages given as lists of equal length."""
        columns = Columns(count=len(values), values=Binary.of(values), keys=Binary.of(keys))
        self._add(columns, sum(map(len, values)))

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add the messages of a RecordBatch with columns key and value."""
        import pyarrow.compute as pc  # slow to import

        from ledger_client.topics.arrow import columns_of

        values = batch.column("value")
        columns = columns_of(values, keys=batch.column("key"))
        self._add(columns, pc.sum(pc.binary_length(values)).as_py() or 0)

    def row(self, what: str, like: Sum, seconds: float | None = None) -> CountedRow:
        """Return this sum as a row of the table, compared with *like*."""
        return CountedRow(
            what=what,
            messages=self.messages,
            bytes=self.bytes,
            checksum=self.checksum.total_text,
            agrees=(self.messages, self.bytes, self.checksum.total)
            == (like.messages, like.bytes, like.checksum.total),
            seconds=seconds,
        )

    def _add(self, columns: Columns, size: int) -> None:
        self.checksum = self.checksum.add(columns)
        self.bytes += size


# --- Waiting for whole copies -----------------------------------------------------------


Verify = Callable[[int], Awaitable[Verification]]
"""client.cluster.verify"""
HEAL_TIMEOUT_S = 60.0
HEAL_POLL_S = 0.1


async def whole_copies(verify: Verify, ledger_ids: Iterable[int]) -> dict[str, int]:
    """Wait until all copies of these ledgers are whole; return the sound entries per bookie.

    Raises:
        CommandFailed: they are not after a minute.
    """
    sound: Counter[str] = Counter()
    with trio.move_on_after(HEAL_TIMEOUT_S):
        for ledger_id in ledger_ids:
            found = await _once_whole(verify, ledger_id)
            sound.update({name: copy.sound for name, copy in found.copies.items()})
        return dict(sound)
    raise CommandFailed(f"some copies are still not whole after {HEAL_TIMEOUT_S:g} s")


async def _once_whole(verify: Verify, ledger_id: int) -> Verification:
    while True:
        found = await verify(ledger_id)
        if found.whole:
            return found
        await trio.sleep(HEAL_POLL_S)


# --- Messages read beside messages sent --------------------------------------------------


Lane = tuple[str, int]
"""A producer's lane: its name, and the partition."""


class Comparison:
    """Compares messages read with those sent: once each, in order, with the same ids.

    *sent* has the ids that each producer got, in the order of sending.
    """

    def __init__(self, sent: Mapping[str, Iterable[MessageId]]) -> None:
        self._sent: dict[Lane, Iterator[tuple[int, MessageId]]] = {}
        for producer, ids in sent.items():
            lanes: dict[int, list[MessageId]] = defaultdict(list)
            for message_id in ids:
                lanes[message_id.partition].append(message_id)
            for partition, found in lanes.items():
                self._sent[producer, partition] = zip(count(), found, strict=False)
        self._is_as_sent = True

    def take(self, messages: Sequence[Message]) -> None:
        """Compare the sequence numbers and ids of the next messages."""
        for message in messages:
            lane = self._sent.get((message.producer, message.id.partition))
            expected = next(lane, None) if lane is not None else None
            self._is_as_sent &= expected == (message.sequence, message.id)

    def ends_as_sent(self) -> bool:
        """Return True if every message was read exactly as sent. Call it once, at the end."""
        return self._is_as_sent and all(next(lane, None) is None for lane in self._sent.values())

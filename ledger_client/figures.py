"""Counters of one client: a few additions for each batch, none for a message.

The client's own thread adds; any other may read meanwhile, as metrics.py does. A client that
writes and reads many topics counts the first of them one by one, and the others together,
so that neither memory nor a scrape grows with them.
"""

from __future__ import annotations

from collections import Counter

from native.batch import BatchHeader

TOPICS_MAX = 50
OTHERS = "other"
"""Stands for all topics beyond TOPICS_MAX; no topic can have this name."""
MICROSECONDS = 1_000_000


class Spread:
    """Integers counted by powers of two, from 2***low* to 2***high*.

    Attributes:
        counts: how many values are up to 2**low, then up to twice that and so on; the last
            counts those above 2**high.
        total: the sum of all values.
    """

    __slots__ = ("_low", "_places", "counts", "total")

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._places = high - low + 1
        self.counts = [0] * (self._places + 1)
        self.total = 0

    def add(self, value: int) -> None:
        """Count one value, in the unit of the bounds."""
        place = (value - 1).bit_length() - self._low if value > 0 else 0
        self.counts[min(max(place, 0), self._places)] += 1
        self.total += value

    def add_s(self, seconds: float) -> None:
        """Count a length of time, in microseconds."""
        self.add(int(seconds * MICROSECONDS))

    @property
    def bounds(self) -> list[int]:
        """The greatest value that each count stands for; there is none for the last."""
        return [1 << (self._low + place) for place in range(self._places)]


def batch_sizes() -> Spread:
    """Count batches by bytes, from 256 to 8 MiB."""
    return Spread(8, 23)


def times() -> Spread:
    """Count lengths of time by microseconds, from 128 µs to 34 s."""
    return Spread(7, 25)


class SendFigures:
    """Writes to one topic. Bytes are those of entries, one copy of each.

    Attributes:
        messages: acknowledged.
        size: bytes acknowledged.
        batch_sizes: of acknowledged batches.
        send_times: of batches, from their first message to the acknowledgement.
        failed: messages of batches that failed, by the name of the error.
        under_way: bytes sent and not acknowledged.
        roll_times: from the end of a ledger until its lane goes on in the next.
        recoveries: how many of these rolls followed a failed ledger.
        takeovers: lanes taken that their previous writer had left open.
        timestamp: the greatest that was acknowledged, 0 for none.
    """

    __slots__ = (
        "batch_sizes",
        "failed",
        "messages",
        "recoveries",
        "roll_times",
        "send_times",
        "size",
        "takeovers",
        "timestamp",
        "under_way",
    )

    def __init__(self) -> None:
        self.messages = self.size = self.under_way = 0
        self.recoveries = self.takeovers = self.timestamp = 0
        self.batch_sizes = batch_sizes()
        self.send_times = times()
        self.roll_times = times()
        # There before they happen: nobody would see what is 1 at first grow.
        self.failed: Counter[str] = Counter(SendUnknown=0, ProducerFenced=0, NotEnoughBookies=0)

    def acknowledge(self, messages: int, size: int, seconds: float, timestamp: int = 0) -> None:
        """Count a batch that is durable, *seconds* after its first message came.

        *timestamp* is that of its last message.
        """
        self.timestamp = max(self.timestamp, timestamp)
        self.messages += messages
        self.size += size
        self.batch_sizes.add(size)
        self.send_times.add_s(seconds)


class ReadFigures:
    """Reads of one topic. Bytes are those of uncompressed batches.

    Attributes:
        messages: handed out; a message that is given back and handed out again counts once.
        size: bytes of them.
        runs: parts of batches that were handed out at once; mostly whole batches.
        gaps: places at which messages had been removed.
        outages: times that a followed lane's bookies or metadata were away, and it waited.
        readers: open now.
        lag_s: age of the last batch when it was read, by the cluster's clock.
        given_back: messages that will be handed out again.
    """

    __slots__ = ("gaps", "given_back", "lag_s", "messages", "outages", "readers", "runs", "size")

    def __init__(self) -> None:
        self.messages = self.size = self.runs = self.gaps = self.outages = self.readers = 0
        self.lag_s = 0.0
        self.given_back = 0

    def hand_out(self, messages: int, header: BatchHeader, *, now: float) -> None:
        """Count messages of one batch; *now* is Unix time in seconds. Nothing ever falls."""
        known = min(messages, self.given_back)
        self.given_back -= known
        self.messages += messages - known
        self.size += header.body_size * (messages - known) // header.count
        self.runs += messages > known
        self.lag_s = now - header.created_ms / 1000


class ConsumeFigures:
    """What consumers of one group met in one topic, beside what readers count.

    Attributes:
        redeliveries: messages handed out again, because nobody acknowledged them in time.
        dead_letters: messages given up, and sent to the group's dead-letter topic.
    """

    __slots__ = ("dead_letters", "redeliveries")

    def __init__(self) -> None:
        self.redeliveries = self.dead_letters = 0


class Figures:
    """The counters of one client, by topic: at most TOPICS_MAX topics each, and OTHERS."""

    def __init__(self) -> None:
        self.sent: dict[str, SendFigures] = {}
        self.read: dict[str, ReadFigures] = {}
        self.consumed: dict[tuple[str, str], ConsumeFigures] = {}
        """by group and topic"""
        self.late_timestamps = 0
        """answers of the oracle that came too late, and were dropped"""

    def consuming(self, group: str, topic: str) -> ConsumeFigures:
        """Return the counters of a group in a topic; beyond TOPICS_MAX, those of OTHERS."""
        name = (group, topic)
        if name not in self.consumed and len(self.consumed) >= TOPICS_MAX:
            name = (OTHERS, OTHERS)
        return self.consumed.setdefault(name, ConsumeFigures())

    def sending(self, topic: str) -> SendFigures:
        """Return the counters for writes to *topic*, those of OTHERS beyond TOPICS_MAX topics."""
        name = topic if topic in self.sent or len(self.sent) < TOPICS_MAX else OTHERS
        return self.sent.setdefault(name, SendFigures())

    def reading(self, topic: str) -> ReadFigures:
        """Return the counters for reads of *topic*, those of OTHERS beyond TOPICS_MAX topics."""
        name = topic if topic in self.read or len(self.read) < TOPICS_MAX else OTHERS
        return self.read.setdefault(name, ReadFigures())

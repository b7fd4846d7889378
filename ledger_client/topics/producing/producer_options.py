"""The options of a producer, with units and limits; each has a default."""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec

from ledger_client.errors import BadTopic
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from ledger_client.topics.lanes.lane_names import check_lane_name
from metadata.topics import TopicRecord
from native.batch import Compression

Access = Literal["exclusive", "take-over", "wait", "shared"]
ACCESSES: tuple[Access, ...] = ("exclusive", "take-over", "wait", "shared")
ROUTERS = ("key", "round-robin")
BATCH_BYTES_MAX = 4 * 1024 * 1024
BATCH_MESSAGES_MAX = 100_000
NAME_BYTES_MAX = 255
OVERHEAD_MAX = 256
"""Bytes of a batch of one message besides its value, key, headers and the producer's name."""


class ProducerSettings(TypedDict, total=False):
    """Keyword arguments of Client.producer(); ProducerOptions explains them."""

    producer_name: str
    access: Access | None
    partition: int | None
    lane_name: str
    router: Literal["key", "round-robin"]
    batching: bool
    batch_bytes: int
    batch_messages: int
    linger_ms: float
    buffer_bytes: int
    compression: Compression | None


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer routes, batches and sends messages."""

    producer_name: str = ""
    """The producer's name; a named one can resend messages without duplicates."""
    access: Access | None = None
    """Which other producers may write. Default: shared; exclusive if ordered by event time."""
    partition: int | None = None
    """Write to this partition alone."""
    lane_name: str = ""
    """Write the lane with this name."""
    router: Literal["key", "round-robin"] = "key"
    """How messages without a partition choose one; key: by hash, keyless ones in turn."""
    batching: bool = True
    """Gather messages into batches; without it, each message is an entry of its own."""
    batch_bytes: int = 128 * 1024
    """Send a batch once it holds this many bytes."""
    batch_messages: int = 1000
    """Send a batch once it holds this many messages."""
    linger_ms: float = 1.0
    """Send a batch at the latest after this many milliseconds."""
    buffer_bytes: int = 32 * 1024 * 1024
    """Block send() while this many bytes wait for their acknowledgement."""
    compression: Compression | None = None
    """Compression of batches. Default: the topic's."""

    def check(self, topic: TopicRecord) -> None:
        """Raise BadTopic for options that are invalid or do not suit this topic."""
        name_size = len(self.producer_name.encode())
        wrong = {
            f"access {self.access!r} is none of {', '.join(ACCESSES)}": (
                self.access is not None and self.access not in ACCESSES
            ),
            f"router {self.router!r} is none of {', '.join(ROUTERS)}": self.router not in ROUTERS,
            f"compression {self.compression!r} is none of none, zstd, lz4": (
                self.compression not in {None, "none", "zstd", "lz4"}
            ),
            f"batch_bytes {self.batch_bytes} is not between 1 and {BATCH_BYTES_MAX}": (
                not 1 <= self.batch_bytes <= BATCH_BYTES_MAX
            ),
            f"batch_messages {self.batch_messages} is not between 1 and {BATCH_MESSAGES_MAX}": (
                not 1 <= self.batch_messages <= BATCH_MESSAGES_MAX
            ),
            f"linger_ms {self.linger_ms} is not between 0 and 60000": (
                not 0 <= self.linger_ms <= 60_000
            ),
            f"buffer_bytes {self.buffer_bytes} is not 1 or more": self.buffer_bytes < 1,
            f"a producer's name has at most {NAME_BYTES_MAX} bytes": name_size > NAME_BYTES_MAX,
            f"a producer's name {self.producer_name!a} cannot be printed": (
                not self.producer_name.isprintable()
            ),
            "a named lane needs shared access": (
                bool(self.lane_name) and self.access not in {None, "shared"}
            ),
            f"there is no partition {self.partition}": (
                self.partition is not None and self.partition not in topic.partition_indexes
            ),
        }
        check_lane_name(topic.name, self.lane_name)
        for message, holds in wrong.items():
            if holds:
                raise BadTopic(message, topic=topic.name)

    def access_to(self, topic: TopicRecord) -> Access:
        """Return the access, or its default for this topic.

        On a topic ordered by event time a partition has one writer by default. With named lanes,
        each lane has one.
        """
        if self.access is not None:
            return self.access
        if self.lane_name:
            return "shared"
        return "exclusive" if topic.order == "event-time" else "shared"

    @property
    def message_size_max(self) -> int:
        """Bytes of value, key and headers of the largest message: a frame takes no more."""
        return PAYLOAD_SIZE_MAX - OVERHEAD_MAX - len(self.producer_name.encode())

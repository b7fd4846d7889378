"""What a producer can be told, with units and edge values."""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec

from ledger_client.topics.errors import BadTopic
from ledger_client.topics.lanes.lane_names import check_lane_name
from ledger_client.writer import PAYLOAD_SIZE_MAX
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
    """What TopicClient.producer can be told."""

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
    """How a producer routes, gathers and sends; see TopicClient.producer."""

    producer_name: str = ""
    access: Access | None = None
    partition: int | None = None
    lane_name: str = ""
    router: Literal["key", "round-robin"] = "key"
    batching: bool = True
    batch_bytes: int = 128 * 1024
    batch_messages: int = 1000
    linger_ms: float = 1.0
    buffer_bytes: int = 32 * 1024 * 1024
    compression: Compression | None = None

    def check(self, topic: TopicRecord) -> None:
        """Raise BadTopic for what cannot be, at all or with this topic."""
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
            "who names a lane shares the partition with others": (
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
        """Return how its lanes are taken: what orders by time has one writer a partition.

        Unless lanes are named: then each has one.
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

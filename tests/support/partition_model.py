"""What a driver and a lane hold of one partition of a producer, and what the application sends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ledger_client.errors import LedgerError, SendUnknown
from ledger_client.topics.producing.batch import Batch
from ledger_client.topics.producing.partition_machine import PartitionMachine, Rules

TOPIC = "shop/orders"
KEYS = [b"k%d" % number for number in range(7)]

EVENTS = [
    *["lose_lane", "send_many", "use_partitions", "write_boundary"] * 2,
    "refuse_timestamps",
    "refuse_lane",
    "want_lane",
    "give_up_waiting",
    "take_back",
    "take_back_last",
    "add_partitions",
    "flush",
    "close",
]
"""Methods of the test that let something happen."""


class Once:
    """A signal that is given at most once."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        assert not self.is_set, "the tickets of a batch were resolved twice"
        self.is_set = True

    async def wait(self) -> None:
        raise AssertionError("the machine waits for nothing")


@dataclass
class Message:
    """What the application sends, as often as needed."""

    number: int
    size: int
    pinned: int | None
    """its partition, if a call of send_many chose that"""

    @property
    def key(self) -> bytes:
        return KEYS[self.number * 3 % len(KEYS)]


@dataclass
class Sent:
    """A batch, and the messages in it by the order in which they were accepted."""

    batch: Batch
    messages: list[Message] = field(default_factory=list)
    serials: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """of the messages that were sent one by one"""


@dataclass
class Call:
    """An append that is under way: its batches, and its outcome once the lane knows that."""

    batches: list[Batch]
    opening: int
    places: list[tuple[int, int]] | None = None
    failure: LedgerError | None = None

    @property
    def is_decided(self) -> bool:
        return self.places is not None or self.failure is not None


class Partition:
    """The machine, and what a driver and a lane would hold."""

    def __init__(self, index: int, rules: Rules) -> None:
        self.machine = PartitionMachine(index, rules)
        self.kept: list[Batch] = []
        self.calls: deque[Call] = deque()
        self.idle_tasks = 0
        self.is_opening = self.is_leaving = False
        self.failure: LedgerError | None = None  # a lane that failed takes nothing any more
        self.lingering: list[Batch] = []
        self.stamp_tasks = 0
        self.question: int | None = None  # how many timestamps are wanted
        self.answer = 0
        self.opened_at = 0  # the last timestamp of anybody when the lane was opened


def numbers_of(batch: Batch) -> range:
    return range(batch.sequence, batch.sequence + batch.count)


def unknown() -> SendUnknown:
    return SendUnknown(TOPIC, partition=-1, lane=0, count=1, reason="the bookies are away")

"""What hands messages of partitions to a member, as those see it who take from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ledger_client.errors import CommitRefused, Gap
from ledger_client.groups.options import TopicPartition
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import MergedBatch, Message, MessageRange
from ledger_client.topics.positions import Place, Places
from metadata.groups.assignment import Part
from metadata.topics import RemovedLedgers, TopicRecord


class Kept(NamedTuple):
    """What is left of the messages between two places of a lane."""

    ranges: list[MessageRange]
    gap: Gap | None
    """the first one, if some were removed"""
    removals: Sequence[RemovedLedgers] = ()
    """what was deleted on purpose, if there is a gap"""


class TopicSource(Protocol):
    """The partitions of one topic that are read; TopicFeed has the details."""

    topic: TopicRecord

    def take(self) -> MergedBatch | None:
        """Return the next messages if they have arrived. Raises LedgerError."""

    async def add(self, added: Mapping[int, Places]) -> None:
        """Read these partitions, too. Raises LedgerError."""

    def drop(self, partitions: Collection[int]) -> None:
        """Read these partitions no longer; none of them is paused any more."""

    def stop(self, partitions: Collection[int]) -> None:
        """Read these partitions no longer, until they are added again."""

    async def read(self, partition: int, lane: int, begin: Place, end: Place) -> Kept:
        """Return the messages that are there between two places. Raises LedgerError."""


class PartSource(Protocol):
    """The parts of a group that a member has; Partitions has the details."""

    parts: set[Part]
    active: set[Part]
    """those that it reads"""
    begun: set[Part]
    """those of them of which the application was told"""

    @property
    def feeds(self) -> Mapping[int, TopicSource]:
        """What reads each topic, by its uid."""

    def known(self, parts: Iterable[Part]) -> list[Part]:
        """Return the parts whose topic is or was read; those just assigned may not be yet."""

    def partition(self, part: Part) -> int:
        """Return the partition of a part that is or was read."""

    def chosen(self, parts: Iterable[TopicPartition] | None) -> set[Part]:
        """Return the parts of these partitions that are read; `None` for all."""

    async def feed(self, uid: int) -> TopicSource:
        """Return what reads a topic. Raises LedgerError."""

    def refusal(self, parts: Iterable[Part], reason: str) -> CommitRefused:
        """Return the error for *parts*, which names topics that are or were read."""

    def refusal_of(self, messages: Iterable[Message], reason: str) -> CommitRefused:
        """Return the error for messages that this member does not have."""

    def end(self, topic: TopicRecord) -> None:
        """Read a topic no longer that was deleted."""

    def raise_deleted(self) -> None:
        """Raise NoSuchTopic once for each topic that the consumer names and that was deleted."""

    def pause(self, parts: Iterable[TopicPartition] | None) -> None:
        """Take nothing of these partitions any more; `None` for all."""

    def resume(self, parts: Iterable[TopicPartition] | None) -> None:
        """Take these partitions again; `None` for all."""


class DeadSender(Protocol):
    """Sends dead letters; DeadLetters has the details."""

    async def send(self, message: Message, *, deliveries: int, reason: str) -> None:
        """Send a dead letter, and return when it is durable. Raises LedgerError."""

    async def close(self) -> None:
        """Close what it opened."""


OpenDead = Callable[[TopicContext, str, str, str], DeadSender]
"""By the client's context, the group, the member, and the topic of dead letters."""

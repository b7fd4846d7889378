"""Where a member begins in partitions of which its group has no progress yet, or goes on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from ledger_client.errors import BadGroup, CommitRefused, LedgerError
from ledger_client.groups.options import ConsumerOptions
from ledger_client.groups.progress import Progress
from ledger_client.groups.slots import Units
from ledger_client.topics.positions import Places
from ledger_client.topics.reading.options import Start
from ledger_client.topics.times import Timestamp
from metadata.groups.assignment import Part
from metadata.topics import TopicRecord


class OpenTopic(Protocol):
    """A topic of which partitions are to begin; TopicFeed has the details."""

    topic: TopicRecord

    async def begin(self, partitions: Collection[int], start: Start) -> dict[int, Places]:
        """Return the places that *start* stands for. Raises LedgerError."""


class Beginnings:
    """See the head of this module.

    Args:
        options: the consumer's.
        units: what the parts of its group are: partitions, or slots of them.
        progress: of this member.
    """

    def __init__(self, options: ConsumerOptions, units: Units, progress: Progress) -> None:
        self._options = options
        self._units = units
        self._progress = progress

    async def starts(self, feed: OpenTopic, parts: set[Part], up_ms: int) -> dict[Part, Places]:
        """Return the places at which to begin in these parts of a topic, or in some of them.

        Those that do not follow from progress are stored by then. *up_ms* is when this member
        began, by the store's clock.

        Raises:
            BadGroup: it cannot begin so.
            CommitRefused: one of them is not this member's any more.
            LedgerError: none of them could be looked up, or stored.
        """
        stored = await self._progress.read(parts)
        starts: dict[Part, Places] = {part: at for part, at in stored.items() if at is not None}
        if not (first := parts - starts.keys()):
            return starts
        try:
            return starts | await self._first(feed, sorted(first), up_ms)
        except (BadGroup, CommitRefused):
            raise
        except LedgerError:
            if not starts:
                raise
            return starts  # no partition waits for another one

    async def _first(
        self, feed: OpenTopic, parts: Sequence[Part], up_ms: int
    ) -> dict[Part, Places]:
        """Return the places at which to begin in parts of which the group has no progress."""
        topic, start = feed.topic, self._options.start
        if start == "earliest":
            return {part: {} for part in parts}
        if start == "none":
            raise self._nothing_committed(topic, parts[0])
        if isinstance(start, Timestamp) and not topic.timesync:
            raise BadGroup(
                f"{topic.name} is without timesync: its messages have no timestamps to begin "
                "at; begin at a publish time"
            )
        later = await self._later(topic, parts, up_ms) if start == "latest" else set()
        places = await feed.begin({self._partition(topic, part) for part in parts}, start)
        begun = {
            part: {} if part in later else places[self._partition(topic, part)] for part in parts
        }
        # Durable at once: what is written from now on is not missed by the next member.
        return await self._progress.begin(begun)

    def _nothing_committed(self, topic: TopicRecord, part: Part) -> BadGroup:
        partition, where = self._partition(topic, part), topic.name
        if partition >= 0:
            where = f"partition {partition} of {where}"
        return BadGroup(
            f"group {self._options.group} has committed nothing in {where}, and start is "
            '"none"; begin at "earliest" or "latest"'
        )

    def _partition(self, topic: TopicRecord, part: Part) -> int:
        return self._units.partition(topic, part)

    async def _later(self, topic: TopicRecord, parts: Iterable[Part], up_ms: int) -> set[Part]:
        """Return the parts that came after the group: it has seen nothing of them before."""
        since_ms = await self._progress.since_ms(topic.name)
        if since_ms is None:
            since_ms = up_ms
        return {part for part in parts if self._begun_ms(topic, part) >= since_ms}

    def _begun_ms(self, topic: TopicRecord, part: Part) -> float:
        """Return when a partition came into being; infinity if it did since *topic* was read."""
        partition = self._partition(topic, part)
        return topic.begun_ms(partition) if partition in topic.partition_indexes else math.inf

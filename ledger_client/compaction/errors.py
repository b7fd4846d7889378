"""What can go wrong with a compaction, and what to do next.

CompactionError             is a TopicError
├── CompactionRunning       another one compacts the topic: wait for it
├── CompactionOutdated      the set was changed meanwhile: run it again
├── TooManyLanes            more lanes, or ledgers, than a set lists
└── CompactedLost           a ledger of the set is gone: drop the set, and compact anew
"""

from __future__ import annotations

from ledger_client.topics.errors import TopicError


class CompactionError(TopicError):
    """Root of what compaction raises."""


class CompactionRunning(CompactionError):
    """Another job compacts the topic."""

    def __init__(self, topic: str, *, owner: str) -> None:
        super().__init__(f"is being compacted by {owner}; wait for it", topic=topic)
        self.owner = owner


class CompactionOutdated(CompactionError):
    """The set is another than the one the compaction began with; nothing was published."""

    def __init__(self, topic: str) -> None:
        super().__init__("its compacted set was changed meanwhile; compact it again", topic=topic)


class TooManyLanes(CompactionError):
    """A set lists no more."""


class CompactedLost(CompactionError):
    """A ledger of the set is gone, and what it held with it."""

    def __init__(self, topic: str, *, ledger_id: int) -> None:
        message = (
            f"ledger {ledger_id} of its compacted set is gone; what is retained can be compacted"
            f" anew: quire compact {topic} --drop, then quire compact {topic}"
        )
        super().__init__(message, topic=topic)
        self.ledger_id = ledger_id

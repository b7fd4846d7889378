"""What can go wrong with a replay, and what the caller should do next.

ReplayError             is a TopicError; its topic is the first that is replayed
├── ReplayBusy          it runs already, somewhere else
├── ReplayDiffers       its name is that of another one: restart it, or name this one
├── ReplayLost          somebody else runs it by now; this one has stopped
├── RangeNotKept        the range begins with what was removed
├── TargetForeign       the folder or topic holds what this replay did not put there
└── ChecksumDiffers     the target does not hold what was sent
"""

from __future__ import annotations

from ledger_client.topics.errors import TopicError
from native.checksum import Checksum


class ReplayError(TopicError):
    """Root of what replays raise, beside what reading and writing raise."""


class ReplayBusy(ReplayError):
    """Somebody else runs the replay."""

    def __init__(self, topic: str, *, name: str, owner: str) -> None:
        super().__init__(f"replay {name} is run by {owner}", topic=topic)
        self.name = name
        self.owner = owner


class ReplayDiffers(ReplayError):
    """A replay of this name was begun with another range, order or target."""

    def __init__(self, topic: str, *, name: str, reason: str) -> None:
        super().__init__(
            f"replay {name} was begun with {reason}; begin it anew with --restart, or name "
            "this one with --name",
            topic=topic,
        )
        self.name = name


class ReplayLost(ReplayError):
    """Its lease ran out and somebody else took it, or it was begun anew. Nothing more is sent."""

    def __init__(self, topic: str, *, name: str) -> None:
        super().__init__(f"replay {name} was taken over", topic=topic)
        self.name = name


class RangeNotKept(ReplayError):
    """Messages at the beginning of the range may have been removed."""

    def __init__(self, topic: str, *, partition: int, lane: int, first: str) -> None:
        super().__init__(
            f"lane {lane} of partition {partition}: the range begins before {first}, and what "
            "was there was removed; --skip-gaps takes what is left",
            topic=topic,
        )
        self.partition = partition
        self.lane = lane


class TargetForeign(ReplayError):
    """The target holds what this replay did not put there, or lacks what it did."""


class ChecksumDiffers(ReplayError):
    """The target was read back, and its messages are not those that were sent."""

    def __init__(
        self, topic: str, *, part: str, sent: Checksum, found: Checksum, ordered: bool = True
    ) -> None:
        were, are = (each.text if ordered else each.total_text for each in (sent, found))
        super().__init__(
            f"{part}: {found.count} messages {are} were read back, and {sent.count} "
            f"messages {were} were sent",
            topic=topic,
        )
        self.sent = sent
        self.found = found

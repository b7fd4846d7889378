"""Where a replay goes: what each kind of target does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ledger_client.replay.source import Chunk
from metadata.replays import LaneMark, Sent
from native.checksum import Checksum

Reached = Callable[[], list[LaneMark]]
WHOLE = -2
"""The part of a target that all messages are of, in the order of the replay."""


class Target(Protocol):
    """Takes messages in the order of the replay.

    Attributes:
        sent: the checksum of what it took since the beginning, by part.
        bytes: of values and keys of that.

        repeated: how many messages it had already when they came.
    """

    sent: dict[int, Checksum]
    bytes: int
    repeated: int

    def reached(self) -> list[LaneMark] | None:
        """Return how far the replay is, where the target knows that itself; when it is opened."""

    def batch_of(self, chunk: Chunk) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return a chunk as the RecordBatch that put() takes, or parts of it."""

    async def put(self, batch: Any, reached: Reached | None) -> bool:  # noqa: ANN401
        """Take messages; return whether everything so far is durable.

        *reached* returns the marks behind it, None where there are none: within an entry.
        Raises LedgerError; OSError of files.
        """

    async def finish(self, reached: Reached) -> None:
        """All was put: return when it is durable. Raises as put()."""


def sums_of(sent: list[Sent]) -> dict[int, Checksum]:
    """Return checksums as they were kept."""
    return {each.part: Checksum(each.count, each.total, each.chain) for each in sent}


def sent_of(sums: Mapping[int, Checksum]) -> list[Sent]:
    """Return checksums as they are kept."""
    return [Sent(part, *_fields(each)) for part, each in sorted(sums.items())]


def _fields(each: Checksum) -> tuple[int, int, int]:
    return each.count, each.total, each.chain

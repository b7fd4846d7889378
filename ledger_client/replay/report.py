"""What a replay did, and how far it is."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True):
    """What went to a part of the target: a partition, or a file by its number."""

    part: int
    messages: int
    checksum: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A replay that is done.

    *messages* and *bytes* (of values and keys) count from the beginning of the replay,
    *resumed* those of former runs among them, *repeated* those that this run sent again and
    the target had. *checksum*: sum and chain (native/checksum.h) of all, in the order of the
    replay; by Spark, which writes in no one order, the sum alone.
    """

    name: str
    target: str
    messages: int
    bytes: int
    checksum: str
    parts: list[Part] = []
    resumed: int = 0
    repeated: int = 0
    seconds: float = 0.0
    verified: bool = False
    finished_before: bool = False
    """It was done already, and nothing was sent."""


class Progress(msgspec.Struct, frozen=True):
    """How far a replay is; entries are those of the source, counted nearly.

    *kept*: so many messages the next run does not send again, if this one is cut short.
    """

    messages: int
    bytes: int
    entries: int
    entries_total: int
    kept: int = 0

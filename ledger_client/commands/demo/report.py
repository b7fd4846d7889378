"""What the demonstration reports."""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the closing table: how many messages somebody saw, and their checksum."""

    what: str
    messages: int
    bytes: int
    """of the values"""
    checksum: str
    """of keys and values, whatever their order"""
    agrees: bool
    seconds: float | None = None
    """how long it took"""


class Report(msgspec.Struct, kw_only=True):
    """What happened. Sizes in bytes; *intact* is the verdict."""

    file: str
    generated: bool
    cluster: str
    processes: dict[str, int]
    topic: str
    lines: int = 0
    """of the file"""
    bytes: int = 0
    producers: int = 0
    killed: str = ""
    killed_process: int = 0
    killed_after_bytes: int = 0
    unacknowledged: int = 0
    """lines that were under way when the bookie was killed"""
    replaced_process: int = 0
    """of the bookie that went on in empty folders"""
    ledgers: list[int] = []
    entries: int = 0
    """of all ledgers: a batch of lines each, or what a lane's next writer must know"""
    each_once_in_order: bool = False
    """each line has the number and the id that it had when it was sent"""
    healed_s: float = 0.0
    copies: dict[str, int] = {}
    """sound entries on each bookie, in the end"""
    keys: int = 0
    """that the file has"""
    spark: bool = False
    """compaction ran in Spark, and Spark read the topic"""
    table: list[Row] = []
    intact: bool = False
    kept_folder: str | None = None

"""What the demonstration reports."""

from __future__ import annotations

import msgspec


class Report(msgspec.Struct, kw_only=True):
    """What happened. Sizes in bytes; *intact* is the verdict."""

    file: str
    generated: bool
    cluster: str
    processes: dict[str, int]
    topic: str
    lines: int = 0
    """acknowledged"""
    bytes: int = 0
    write_s: float = 0.0
    killed: str = ""
    killed_process: int = 0
    killed_after_bytes: int = 0
    unacknowledged: int = 0
    """lines that were under way when the bookie was killed"""
    restarted_process: int = 0
    restart_s: float = 0.0
    ledgers: list[int] = []
    """of the topic's only lane, in order"""
    entries: int = 0
    """of all ledgers: a batch of lines each, or what the lane's next writer must know"""
    kept: int = 0
    """entries that the killed bookie had when it was back"""
    lines_read: int = 0
    read_s: float = 0.0
    sha256_written: str = ""
    sha256_read: str = ""
    each_once_in_order: bool = False
    """each line has the number and the id that it had when it was sent"""
    healed_s: float = 0.0
    copies: dict[str, int] = {}
    """sound entries on each bookie, in the end"""
    intact: bool = False
    kept_folder: str | None = None

    @property
    def same_bytes(self) -> bool:
        """Whether what was read is what was written."""
        return self.sha256_read == self.sha256_written

"""How far a lane is acknowledged, as its writer reports it: see topics/lane_reports.py."""

from __future__ import annotations

from ledger_client.topics.producing.partition_machine import PartitionMachine


class Progress:
    """What the writer of a partition knows of its lane's acknowledgements, without I/O.

    Attributes:
        version: everything acknowledged lies before it, and everything before it is durable.
        asked_from: while a question for timestamps is under way, the greatest timestamp that the
            client had before: the answer is greater. Otherwise None.
    """

    def __init__(self) -> None:
        self.version = 0
        self.asked_from: int | None = None
        self._opening = 0
        self._is_doubtful = False

    def begin(self, opening: int, version: int) -> None:
        """The lane is open; it ends at *version*."""
        self.version, self._opening, self._is_doubtful = version, opening, False

    def doubt(self, opening: int) -> None:
        """The outcome of a batch of this opening is unknown: say nothing more of it."""
        self._is_doubtful |= opening == self._opening

    def complete(self, machine: PartitionMachine, fresh: int) -> int | None:
        """Return the timestamp up to which everything of the open lane is acknowledged.

        *fresh* was taken before this call. None: nothing can be said.
        """
        bounds = [fresh]
        first = next(iter(machine.handed), None) or next(iter(machine.waiting), None)
        if first is not None and first.first_timestamp:
            bounds.append(first.first_timestamp - 1)
        if self.asked_from is not None:
            bounds.append(self.asked_from)
        return None if self._is_doubtful else min(bounds)
